//! Snapshots that were read just now, and owned by their source: while that lives, they are there.
//!
//! When many workloads take up one content at once, each would read its snapshot again, and one that thousands use is large.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    controller::Name,
    resolve::{Facts, Vouched},
};

/// How long a reading counts. The collector leaves what has a living owner, and the controller takes a source off its
/// snapshot no sooner than 3 s after the source's content changed: one that holds the present content, and was owned by
/// its source so shortly before, cannot be gone.
const RECENT: Duration = Duration::from_secs(2);
/// For how many readings there is room.
const MOST: usize = 1000;

/// The readings, by snapshot.
#[derive(Debug, Default)]
pub struct Recent(Mutex<HashMap<Name, (Instant, Vouched)>>);

impl Recent {
    /// Notes what was read for a decision that began to read then.
    pub(super) fn note(&self, namespace: &str, facts: &Facts, began: Instant) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (snapshot, vouched) in facts.owned_by_their_sources() {
            if readings.len() >= MOST {
                readings.retain(|_, (at, _)| at.elapsed() < RECENT);
            }
            if readings.len() < MOST {
                readings.insert(Name::new(namespace, snapshot), (began, vouched));
            }
        }
    }

    /// What a recent reading of a snapshot found.
    pub(super) fn reading(&self, snapshot: &Name) -> Option<Vouched> {
        let readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, vouched) = readings.get(snapshot)?;
        (at.elapsed() < RECENT).then(|| vouched.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        resolve::Observed,
        snapshot::{ObjectName, SourceKind},
    };

    /// A source and its snapshot, owned by the object of that uid.
    fn facts(number: usize, owner: &str) -> (Facts, ObjectName) {
        let source =
            serde_json::json!({"metadata": {"name": "demo", "uid": "u"}, "data": {"n": number.to_string()}});
        let read = |json: &serde_json::Value| {
            Observed::read(SourceKind::ConfigMap, json.to_string().into_bytes()).unwrap()
        };
        let digest = read(&source).digest();
        let name = crate::snapshot::snapshot_name("demo", &digest, 10);
        let mut snapshot = source.clone();
        snapshot["immutable"] = true.into();
        snapshot["metadata"] = serde_json::json!({
            "name": name,
            "uid": "s",
            "labels": {crate::names::MANAGED_BY: crate::names::MANAGER, crate::names::SOURCE: "demo"},
            "annotations": {crate::names::SOURCE_NAME: "demo", crate::names::DIGEST: digest.to_string()},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": owner}],
        });
        let mut facts = Facts::default();
        let object = |name: &str| ObjectName::new(SourceKind::ConfigMap, name);
        facts.set_object(object("demo"), Some(read(&source)));
        facts.set_object(object(&name), Some(read(&snapshot)));
        (facts, object(&name))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_counts_for_its_time_where_the_source_owned_the_snapshot() {
        let recent = Recent::default();
        let (owned, name) = facts(1, "u");
        let (others, other) = facts(2, "somebody");
        recent.note("ns", &owned, Instant::now());
        recent.note("ns", &others, Instant::now());
        let reading = |name: &ObjectName| recent.reading(&Name::new("ns", name.clone())).is_some();
        assert!(reading(&name) && !reading(&other));
        assert!(recent.reading(&Name::new("elsewhere", name.clone())).is_none());
        tokio::time::advance(RECENT).await;
        assert!(!reading(&name));
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_room_for_so_many_and_what_is_old_makes_room() {
        let recent = Recent::default();
        for number in 0..=MOST {
            recent.note("ns", &facts(number, "u").0, Instant::now());
        }
        let (newest, name) = facts(MOST, "u");
        let name = Name::new("ns", name);
        assert!(recent.reading(&name).is_none());
        tokio::time::advance(RECENT).await;
        recent.note("ns", &newest, Instant::now());
        assert!(recent.reading(&name).is_some());
    }
}
