//! The promise of waves: no more workloads have moved than the wave allows. It is checked after each change of an object.

use std::{collections::BTreeMap, sync::Arc};

use confrev::{annotations, resolve::auto_roll_time, snapshot::SourceKind};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::play::Play;
use crate::{
    manifest::stated_of,
    store::{Key, Kind, StoreChange, annotation, label},
};

/// All objects after a change.
#[derive(Default)]
struct Cluster(BTreeMap<Key, Arc<Value>>);

/// A workload that refers to a snapshot of the source.
struct Member<'c> {
    workload: &'c Value,
    snapshot: String,
}

impl Play<'_> {
    /// No workload moves before its wave begins, and none moves to content that is refused.
    pub(super) fn check_spread(&self) {
        let log = self.model.store().log.clone();
        let mut cluster = Cluster::default();
        for change in log {
            for broken in cluster.violations(&change) {
                self.model.broken("rolls", broken);
            }
            match change.new {
                Some(new) => drop(cluster.0.insert(change.key, new)),
                None => drop(cluster.0.remove(&change.key)),
            }
        }
    }
}

impl Cluster {
    /// Why a change exceeds what the waves of a source allow.
    fn violations(&self, change: &StoreChange) -> Vec<String> {
        let StoreChange { key, old: Some(old), new: Some(new) } = change else { return Vec::new() };
        if !key.kind.is_workload() || image(key, old) != image(key, new) {
            return Vec::new();
        }
        let before: BTreeMap<_, _> =
            stated_of(SourceKind::ConfigMap, key.kind.template(old)).into_iter().collect();
        let after = stated_of(SourceKind::ConfigMap, key.kind.template(new));
        let moves =
            after.into_iter().filter(|(source, to)| before.get(source).is_some_and(|from| from != to));
        moves.filter_map(|(source, to)| self.violation(key, new, &source, &to)).collect()
    }

    /// The same for one source, to whose snapshot `to` the workload moves.
    fn violation(&self, key: &Key, new: &Value, source: &str, to: &str) -> Option<String> {
        let of = self.0.get(&Key::configmap(&key.namespace, source))?;
        let waves = annotation(of, annotations::WAVES)?;
        let snapshot = self.0.get(&Key::configmap(&key.namespace, to))?;
        // A workload that goes back may do so at any time.
        if snapshot["data"] != of["data"] {
            return None;
        }
        if annotation(snapshot, annotations::REFUSED).is_some()
            && annotation(of, annotations::RETRIED).is_none()
        {
            return Some(format!("{key} moved to {to}, which is refused"));
        }
        let members = self.members(&key.namespace, source, &of["data"]);
        let moved: Vec<_> = members.iter().filter(|member| member.snapshot == to).collect();
        let wave = 1 + ends(waves, members.len()).position(|end| end == moved.len())?;
        if of["data"].get("bad").is_some() {
            return Some(format!("{key} moved to {to} after {} failed", moved.len()));
        }
        let bake = annotation(of, annotations::BAKE).map_or(SignedDuration::ZERO, seconds);
        let last = moved.iter().filter_map(|member| rolled(member.workload)).max();
        if let Some((last, now)) = last.zip(rolled(new))
            && last + bake > now
        {
            return Some(format!("{key} moved to {to} at {now}, but wave {wave} bakes since {last}"));
        }
        if annotation(of, annotations::ANALYSIS).is_some() && !self.is_approved(wave, snapshot) {
            return Some(format!("{key} moved to {to} without a successful analysis of wave {wave}"));
        }
        None
    }

    /// The workloads that use a source with this content, in all namespaces of the group.
    fn members(&self, namespace: &str, source: &str, content: &Value) -> Vec<Member<'_>> {
        let group = self.group(namespace);
        let is_in = |other: &str| other == namespace || (group.is_some() && self.group(other) == group);
        let has_content =
            |other: &str| self.0.get(&Key::configmap(other, source)).is_some_and(|of| of["data"] == *content);
        let users = self.0.iter().filter(|(key, object)| {
            key.kind.is_workload()
                && label(object, annotations::ENABLED) == Some("true")
                && is_in(&key.namespace)
                && has_content(&key.namespace)
        });
        let member = |(key, workload): (&Key, &'_ Arc<Value>)| {
            let stated = stated_of(SourceKind::ConfigMap, key.kind.template(workload));
            stated.into_iter().find(|(of, _)| of == source).map(|(_, snapshot)| (key.clone(), snapshot))
        };
        users.filter_map(member).map(|(key, snapshot)| Member { workload: &self.0[&key], snapshot }).collect()
    }

    fn group(&self, namespace: &str) -> Option<&str> {
        label(self.0.get(&Key::new(Kind::Namespace, "", namespace))?, annotations::GROUP)
    }

    /// Whether an AnalysisRun of this wave of the content was successful.
    fn is_approved(&self, wave: usize, snapshot: &Value) -> bool {
        let digest = annotation(snapshot, annotations::DIGEST);
        let suffix = format!("-{wave}-");
        self.0.iter().any(|(key, run)| {
            key.kind == Kind::AnalysisRun
                && key.name.contains(&suffix)
                && annotation(run, annotations::DIGEST) == digest
                && run["status"]["phase"] == "Successful"
                && run["spec"]["terminate"] != true
        })
    }
}

/// How many workloads may have moved at the end of each wave but the last.
fn ends(waves: &str, total: usize) -> impl Iterator<Item = usize> {
    let end = move |wave: &str| match wave.trim().strip_suffix('%') {
        Some(share) => (total * share.parse::<usize>().unwrap() / 100).max(1),
        None => wave.trim().parse().unwrap(),
    };
    waves.split(',').map(end).collect::<Vec<_>>().into_iter()
}

fn seconds(text: &str) -> SignedDuration {
    SignedDuration::from_secs(text.strip_suffix('s').unwrap().parse().unwrap())
}

/// When the controller last rolled a workload.
fn rolled(workload: &Value) -> Option<Timestamp> {
    auto_roll_time(annotation(workload, annotations::ROLL)?)
}

fn image(key: &Key, workload: &Value) -> Value {
    key.kind.template(workload)["spec"]["containers"][0]["image"].clone()
}
