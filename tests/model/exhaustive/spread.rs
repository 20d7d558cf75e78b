//! The promise of waves: no more workloads have moved than the wave allows. It is checked for each change of an object, from
//! the objects and their history alone: confrev's own records of a move are not read.

use std::{collections::BTreeMap, sync::Arc};

use confrev::{
    annotations,
    resolve::{ALL_WAVES, Verdict, auto_roll_time},
    snapshot::SourceKind,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::play::Play;
use crate::{
    manifest::stated_of,
    store::{Key, Kind, StoreChange, annotation, label, setting},
};

/// The objects after the changes so far, and who moved which workload.
#[derive(Default)]
pub(crate) struct Spread {
    /// The number of changes so far.
    read: usize,
    objects: BTreeMap<Key, Arc<Value>>,
    moves: Vec<Move>,
}

/// A workload began to refer to a snapshot.
struct Move {
    workload: Key,
    snapshot: String,
    /// When confrev's controller moved it; `None` if a write of a user did.
    in_turn: Option<Timestamp>,
}

/// A workload that refers to a source or its snapshot.
struct Member<'s> {
    key: &'s Key,
    workload: &'s Value,
    snapshot: String,
}

impl Play<'_> {
    /// No workload moves before its wave begins, and none moves to content that is refused.
    pub(crate) fn check_spread(&self) {
        let mut spread = self.spread.borrow_mut();
        let log = self.model.store().log[spread.read..].to_vec();
        for change in log {
            if let Err(broken) = spread.apply(change) {
                self.model.broken("rolls", broken);
            }
        }
    }

    /// The workloads in all namespaces that a source's controller moved to its present content, and that still refer to it.
    pub(crate) fn moved_in_turn(&self, source: &Key) -> Vec<Key> {
        self.check_spread();
        let spread = self.spread.borrow();
        let content = &spread.objects[source]["data"];
        let sources = spread.sources(&source.namespace, &source.name, content);
        let members = spread.members(&sources, &source.name);
        let in_turn = members.iter().filter(|member| {
            let of = spread.objects.get(&Key::configmap(&member.key.namespace, &member.snapshot));
            of.is_some_and(|of| of["data"] == *content)
                && spread.last_move(member.key, &member.snapshot).is_some_and(|last| last.in_turn.is_some())
        });
        in_turn.map(|member| member.key.clone()).collect()
    }
}

impl Spread {
    /// Applies a change. Returns why it exceeds what the waves of a source allow.
    fn apply(&mut self, change: StoreChange) -> Result<(), String> {
        self.read += 1;
        let StoreChange { key, old, new } = change;
        let Some(new) = new else {
            self.objects.remove(&key);
            self.moves.retain(|of| of.workload != key);
            return Ok(());
        };
        let mut outcome = Ok(());
        if key.kind.is_workload() {
            let stated = |of: &Value| -> BTreeMap<_, _> {
                stated_of(SourceKind::ConfigMap, key.kind.template(of)).into_iter().collect()
            };
            let before = old.as_deref().map(stated).unwrap_or_default();
            let in_turn =
                old.as_deref().and_then(|old| rolled(&new).filter(|time| Some(*time) != rolled(old)));
            for (source, to) in stated(&new) {
                if before.get(&source) == Some(&to) {
                    continue;
                }
                if let Some(now) = in_turn.filter(|_| before.contains_key(&source)) {
                    outcome = outcome.and(self.allows(&key, &source, &to, now));
                }
                self.moves.push(Move { workload: key.clone(), snapshot: to, in_turn });
            }
        }
        self.objects.insert(key, new);
        outcome
    }

    /// Whether the controller may move a workload to this snapshot of a source now.
    fn allows(&self, key: &Key, source: &str, to: &str, now: Timestamp) -> Result<(), String> {
        let source_key = Key::configmap(&key.namespace, source);
        let Some(of) = self.objects.get(&source_key) else { return Ok(()) };
        let Some(snapshot) = self.objects.get(&Key::configmap(&key.namespace, to)) else { return Ok(()) };
        // A workload that goes back may do so at any time.
        if snapshot["data"] != of["data"] {
            return Ok(());
        }
        if setting(of, annotations::ON_FAILURE) == Some("revert") && verdict(snapshot).failed.is_some() {
            return Err(format!("{key} moved to {to}, which is refused"));
        }
        let sources = self.sources(&key.namespace, source, &of["data"]);
        let noted = |note| sources.iter().filter_map(move |of| setting(of, note));
        if noted(annotations::WAVES).next().is_none() {
            return Ok(());
        }
        let verdicts: Vec<_> = sources.iter().filter_map(|of| self.verdict_of(of, source)).collect();
        if verdicts.iter().any(|verdict| verdict.aborted) {
            return Err(format!("{key} moved to {to}, which is aborted"));
        }
        let members = self.members(&sources, source);
        let moved: Vec<_> = members.iter().filter(|member| member.snapshot == to).collect();
        let mut moves: Vec<_> = moved.iter().filter_map(|member| self.position(member.key, to)).collect();
        moves.sort_unstable();
        let is_in_turn = |at: &usize| self.moves[*at].in_turn.is_some();
        let by_controller = moves.iter().filter(|at| is_in_turn(at)).count();
        // Workloads that users moved since the controller last moved one do not begin the next wave.
        let last = moves.iter().rposition(is_in_turn).unwrap_or_default();
        let ends = ends(noted(annotations::WAVES), members.len());
        let wave = ends.iter().position(|end| *end > last).unwrap_or(ends.len());
        let limit = |wave: usize| ends.get(wave).copied().unwrap_or(members.len());
        // A promotion ends when a workload moves to other content.
        let other = members.iter().filter(|member| member.snapshot != to);
        let other = other.filter_map(|member| self.last_move(member.key, &member.snapshot)?.in_turn).max();
        let promoted = verdicts.iter().map(|verdict| promoted(verdict, other)).min().unwrap_or_default();
        if by_controller < limit(wave).max(promoted.checked_sub(1).map_or(0, limit)) {
            return Ok(());
        }
        let counted =
            format!("{by_controller} of {} have moved, wave {} ends at {ends:?}", members.len(), wave + 1);
        let is_unhealthy = |member: &&&Member<'_>| {
            !is_settled(member.key, member.workload) && !self.is_rolled_since(member.key, to)
        };
        if let Some(member) = moved.iter().find(is_unhealthy) {
            return Err(format!("{key} moved to {to}, but {} is not healthy ({counted})", member.key));
        }
        let bake = noted(annotations::BAKE).map(seconds).max().unwrap_or_default();
        let last = moves.iter().filter_map(|at| self.moves[*at].in_turn).max();
        if let Some(last) = last.filter(|last| *last + bake > now) {
            return Err(format!("{key} moved to {to} at {now}, but a wave bakes since {last} ({counted})"));
        }
        // Workloads that users moved may have ended other waves.
        let next = ends.iter().position(|end| *end > by_controller).unwrap_or(ends.len());
        let ended = moves.iter().all(is_in_turn).then_some(next);
        if noted(annotations::ANALYSIS).next().is_some() && !self.is_approved(snapshot, ended) {
            return Err(format!("{key} moved to {to} without a successful analysis ({counted})"));
        }
        Ok(())
    }

    /// The sources of this name and content in all namespaces of the group.
    fn sources(&self, namespace: &str, name: &str, content: &Value) -> Vec<&Value> {
        let group = self.group(namespace);
        let is_in = |other: &str| other == namespace || (group.is_some() && self.group(other) == group);
        let all = self.objects.iter().filter(|(key, of)| {
            key.kind == Kind::ConfigMap && key.name == name && of["data"] == *content && is_in(&key.namespace)
        });
        all.map(|(_, of)| &**of).collect()
    }

    /// The verdict on the present content of a source of this name; `None` without a snapshot of the content.
    fn verdict_of(&self, of: &Value, source: &str) -> Option<Verdict> {
        let is_its = |(key, snapshot): &(&Key, &Arc<Value>)| {
            key.kind == Kind::ConfigMap
                && of["metadata"]["namespace"] == *key.namespace
                && snapshot["data"] == of["data"]
                && annotation(snapshot, annotations::SOURCE_NAME) == Some(source)
        };
        let found = self.objects.iter().filter(is_its).map(|(_, snapshot)| verdict(snapshot));
        found.max_by_key(|verdict| *verdict != Verdict::default())
    }

    /// The workloads that use these sources, which have one name.
    fn members(&self, sources: &[&Value], name: &str) -> Vec<Member<'_>> {
        let namespaces: Vec<_> = sources.iter().map(|of| &of["metadata"]["namespace"]).collect();
        let users = self.objects.iter().filter(|(key, object)| {
            key.kind.is_workload()
                && label(object, annotations::ENABLED) == Some("true")
                && namespaces.iter().any(|namespace| **namespace == *key.namespace)
        });
        users
            .filter_map(|(key, workload)| {
                let stated = stated_of(SourceKind::ConfigMap, key.kind.template(workload));
                let (_, snapshot) = stated.into_iter().find(|(of, _)| of == name)?;
                Some(Member { key, workload, snapshot })
            })
            .collect()
    }

    fn group(&self, namespace: &str) -> Option<&str> {
        label(self.objects.get(&Key::new(Kind::Namespace, "", namespace))?, annotations::GROUP)
    }

    /// The place of a workload's last move to a snapshot among all moves.
    fn position(&self, workload: &Key, snapshot: &str) -> Option<usize> {
        self.moves.iter().rposition(|of| of.workload == *workload && of.snapshot == snapshot)
    }

    fn last_move(&self, workload: &Key, snapshot: &str) -> Option<&Move> {
        self.position(workload, snapshot).map(|at| &self.moves[at])
    }

    /// Whether the controller moved a workload to the content of another source after this one. A wave that began before continues,
    /// even if the roll that began it failed.
    fn is_rolled_since(&self, workload: &Key, snapshot: &str) -> bool {
        let later = self.position(workload, snapshot).map_or(&[][..], |at| &self.moves[at..]);
        later.iter().any(|of| of.workload == *workload && of.snapshot != snapshot && of.in_turn.is_some())
    }

    /// Whether an AnalysisRun of the content was successful, at the end of this wave if it is known.
    fn is_approved(&self, snapshot: &Value, wave: Option<usize>) -> bool {
        let digest = annotation(snapshot, annotations::DIGEST);
        let wave = wave.map_or_else(|| "-".to_owned(), |wave| format!("-{wave}-"));
        self.objects.iter().any(|(key, run)| {
            key.kind == Kind::AnalysisRun
                && key.name.contains(&wave)
                && annotation(run, annotations::DIGEST) == digest
                && run["status"]["phase"] == "Successful"
                && run["spec"]["terminate"] != true
        })
    }
}

/// The verdict on a snapshot.
pub(crate) fn verdict(snapshot: &Value) -> Verdict {
    Verdict::read(|key| annotation(snapshot, key)).unwrap_or_default()
}

/// The last wave that a person let begin since a workload moved to other content, counted from 1; 0 if there is none.
fn promoted(verdict: &Verdict, other: Option<Timestamp>) -> usize {
    let is_over = verdict.last_decision().is_none_or(|at| other.is_some_and(|other| other > at));
    match verdict.promoted.as_deref() {
        None => 0,
        _ if is_over => 0,
        Some(ALL_WAVES) => usize::MAX,
        Some(wave) => wave.parse().unwrap(),
    }
}

/// How many workloads may have moved at the end of each wave but the last. Each end of one source is an end of all.
fn ends<'a>(waves: impl Iterator<Item = &'a str>, total: usize) -> Vec<usize> {
    let end = |wave: &str| match wave.trim().strip_suffix('%') {
        Some(share) => (total * share.parse::<usize>().unwrap() / 100).max(1),
        None => wave.trim().parse().unwrap(),
    };
    let mut all: Vec<&str> = waves.collect();
    all.sort_unstable();
    all.dedup();
    let mut ends: Vec<_> =
        all.iter().flat_map(|waves| waves.split(',')).map(|wave| end(wave).min(total)).collect();
    if all.len() > 1 {
        ends.sort_unstable();
        ends.dedup();
    }
    ends
}

fn seconds(text: &str) -> SignedDuration {
    SignedDuration::from_secs(text.strip_suffix('s').unwrap().parse().unwrap())
}

/// When the controller last rolled a workload.
fn rolled(workload: &Value) -> Option<Timestamp> {
    auto_roll_time(annotation(workload, annotations::ROLL)?)
}

/// Whether a Deployment has completed its rollout.
fn is_settled(key: &Key, workload: &Value) -> bool {
    let status = &workload["status"];
    key.kind != Kind::Deployment
        || (status["observedGeneration"] == workload["metadata"]["generation"]
            && status["conditions"][0]["reason"] == "NewReplicaSetAvailable")
}
