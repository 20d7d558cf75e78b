//! `max-in-flight`: how far a change of a source may spread before the first workloads prove it sound.
//!
//! Nothing is stored for it. `seen` shows which workloads rolled to the content, their status shows their health, and the
//! annotation `unhealthy` shows which were unhealthy before. So a restart in the middle changes nothing. A workload also
//! counts as rolling while the outcome of its last roll is unknown.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::messages::event_on_source;
use crate::{
    cluster::{Event, WorkloadKey},
    controller::{
        index::{Index, records::SourceRecord},
        name::Name,
    },
    resolve::{Health, Record, Use, has_deadline},
    snapshot::Digest,
    telemetry::metrics::Reason,
};

/// How long a held workload waits before its turn is checked again.
pub(crate) const TURN: SignedDuration = SignedDuration::from_secs(1);
/// How long a finding about one workload holds for others without another check. A check reads all workloads that use the
/// source, and as many may be held.
const FRESH: SignedDuration = SignedDuration::from_millis(500);

/// Why a workload may not roll to a source's content yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hold {
    /// As many workloads as allowed are rolling.
    Full,
    /// A workload that rolled to the content failed, or was put back.
    Failed(WorkloadKey),
}

/// A hold that was found a moment ago.
#[derive(Debug)]
struct RecentHold {
    hold: Hold,
    /// The content and the limit that it applies to.
    of: (Digest, usize),
    at: Timestamp,
}

impl RecentHold {
    /// Whether the hold still counts. A hold from the future comes from a clock that stepped back.
    fn is_fresh(&self, now: Timestamp) -> bool {
        self.at <= now && now < self.at + FRESH
    }
}

/// The holds of all workloads.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Workloads that are held until others prove a content sound.
    held: HashSet<WorkloadKey>,
    /// What recently held workloads: by source, and by whether the workload itself is unhealthy.
    recent: HashMap<(Name, bool), RecentHold>,
    /// The last reported hold of each source: its content, and the workload that failed.
    reported: HashMap<Name, (Digest, WorkloadKey)>,
}

/// A pending workload that is held.
#[derive(Debug)]
pub(crate) struct Held {
    /// When to check its turn again.
    pub until: Timestamp,
    /// The sources whose hold is to be reported: once for each content and failed workload.
    pub new: Vec<Name>,
}

impl Holds {
    /// Checks the turn of a pending workload. `None` if the workload is not held.
    pub(crate) fn check(
        &mut self,
        index: &Index,
        key: &WorkloadKey,
        is_rolling: impl Fn(&WorkloadKey, &Record) -> bool,
        now: Timestamp,
    ) -> Option<Held> {
        let record = index.workload(key)?;
        let unwell = index.health(key, record) == Health::Failed;
        let limited = record.uses.iter().filter_map(|used| {
            let name = Name::new(Arc::clone(&key.namespace), used.source.clone());
            let known = index.existing_source(&name)?;
            let has_change = !record.has_seen(&used.source, &known.present.digests);
            let limit = known.max_in_flight.filter(|_| has_change)?;
            let of = (known.present.digests.current(), limit);
            let fresh = |recent: &&RecentHold| recent.of == of && recent.is_fresh(now);
            if let Some(recent) = self.recent.get(&(name.clone(), unwell)).filter(fresh) {
                return Some((recent.hold.clone(), name, None));
            }
            Some((hold(index, &name, (known, limit), (key, unwell), &is_rolling)?, name, Some(of)))
        });
        let holds: Vec<_> = limited.collect();
        if holds.is_empty() {
            self.held.remove(key);
            return None;
        }
        self.held.insert(key.clone());
        self.recent.retain(|_, recent| recent.is_fresh(now));
        let mut new = Vec::new();
        for (hold, source, of) in holds {
            if let Hold::Failed(failed) = &hold
                && self.set_reported(index, &source, failed)
            {
                new.push(source.clone());
            }
            if let Some(of) = of {
                self.recent.insert((source, unwell), RecentHold { hold, of, at: now });
            }
        }
        Some(Held { until: now + TURN, new })
    }

    /// Records that a hold is reported. Returns whether it is new.
    fn set_reported(&mut self, index: &Index, source: &Name, failed: &WorkloadKey) -> bool {
        let Some(known) = index.existing_source(source) else { return false };
        let hold = (known.present.digests.current(), failed.clone());
        self.reported.insert(source.clone(), hold.clone()) != Some(hold)
    }

    /// How many workloads are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether a workload was held when its turn was last checked.
    pub(crate) fn is_held(&self, key: &WorkloadKey) -> bool {
        self.held.contains(key)
    }

    /// Records that a workload is not held.
    pub(crate) fn release(&mut self, key: &WorkloadKey) {
        self.held.remove(key);
    }

    /// Records that no workload is held.
    pub(crate) fn release_all(&mut self) {
        self.held.clear();
    }

    /// Forgets a source on which nothing depends.
    pub(crate) fn forget_source(&mut self, source: &Name) {
        self.reported.remove(source);
        self.recent.retain(|(of, _), _| of != source);
    }

    /// The Event on a source whose change is held; `None` if the content is no longer the present one.
    pub(crate) fn event(&self, index: &Index, source: &Name, now: Timestamp) -> Option<Event> {
        let current = index.existing_source(source)?.present.digests.current();
        let (digest, failed) = self.reported.get(source).filter(|(digest, _)| *digest == current)?;
        let held = index.workloads_using(source).filter(|(key, _)| self.held.contains(*key)).count();
        let failed = index.display_short(failed);
        let note = format!(
            "{held} workloads are held, because {failed} failed with {digest:?} or was rolled back: correct the content, \
             or remove max-in-flight to continue"
        );
        let event = event_on_source(index, source, Reason::RollHeld, note, now)?;
        Some(Event { same: format!("{digest:?} {failed}"), ..event })
    }
}

/// Why a waiting workload is held. An unhealthy workload is not held by another that failed: the content may be its
/// cure, and the other may have been unhealthy before.
fn hold(
    index: &Index,
    source: &Name,
    (known, limit): (&SourceRecord, usize),
    (waiting, unwell): (&WorkloadKey, bool),
    is_rolling: impl Fn(&WorkloadKey, &Record) -> bool,
) -> Option<Hold> {
    let mut in_flight = 0;
    for (key, record) in index.workloads_using(source).filter(|(key, _)| *key != waiting) {
        let moved = record.has_seen(&source.object, &known.present.digests);
        let health = if moved { index.health(key, record) } else { Health::Settled };
        let was_unhealthy = moved && record.taken_unhealthy.contains(&source.object);
        let failed = health == Health::Failed && !was_unhealthy;
        if moved && !unwell && (failed || was_rolled_back(index, record, source, known)) {
            return Some(Hold::Failed(key.clone()));
        }
        let is_under_way = !matches!(health, Health::Settled | Health::Failed);
        // A workload without a deadline may stay as unhealthy as it was.
        let gives_up = index.kind(key).is_some_and(|kind| has_deadline(&kind.kind));
        let may_last = was_unhealthy && !unwell && !gives_up;
        if (is_under_way && !may_last) || is_rolling(key, record) {
            in_flight += 1;
        }
    }
    (in_flight >= limit).then_some(Hold::Full)
}

/// Whether a workload that rolled to the content was put back to other content, which shows that the content failed.
fn was_rolled_back(index: &Index, record: &Record, source: &Name, known: &SourceRecord) -> bool {
    let other = |used: &Use| index.holds_other(used, source, known);
    // A workload that does not track keeps its snapshot whatever the content.
    record.track && record.uses.iter().any(|used| used.source == source.object && used.whole && other(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compact::CompactSet,
        controller::{Action, Config, Outcome, State},
        kinds::Kinds,
        resolve::Observed,
        snapshot::{ObjectName, SourceKind},
    };

    #[test]
    fn state_forgets_holds_of_deleted_workloads() {
        let config = Config {
            settle: SignedDuration::ZERO,
            orphan_grace: SignedDuration::from_mins(10),
            rolls_per_second: 1000,
            max_snapshots: 2000,
            secrets: false,
        };
        let mut state = State::new(Arc::new(Kinds::default()), config);
        state.set_synced();
        let mut now = Timestamp::from_second(1_000_000).unwrap();
        let source = ObjectName::new(SourceKind::ConfigMap, "demo");
        let json = r#"{"metadata":{"name":"demo","uid":"u","resourceVersion":"1",
            "annotations":{"confrev.dev/max-in-flight":"1"}},"data":{"k":"v"}}"#;
        let read = Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap();
        let record = |health, seen: bool| Record {
            uid: "u".into(),
            resource_version: "1".to_owned(),
            uses: vec![Use {
                source: source.clone(),
                snapshot: Some("demo-0123456789".into()),
                live: false,
                whole: true,
                excluded: false,
                optional: false,
            }],
            seen: seen.then(|| (source.clone(), read.digest())).into_iter().collect(),
            taken_unhealthy: CompactSet::default(),
            generation: None,
            track: true,
            min_interval: std::time::Duration::ZERO,
            last_roll: None,
            health,
            by_namespace: false,
        };
        for number in 0..50 {
            let namespace: Arc<str> = format!("ns-{number}").into();
            let key =
                |name: &str| WorkloadKey { kind: 1, namespace: Arc::clone(&namespace), name: name.into() };
            state.apply_workload(&key("a"), Some(record(Health::Failed, true)), now);
            state.apply_workload(&key("b"), Some(record(Health::Settled, false)), now);
            for _ in 0..3 {
                now += SignedDuration::from_secs(1);
                while let Some((task, action)) = state.next_action(now) {
                    let outcome = match action {
                        Action::Read(_) => Outcome::Read(Some(Box::new(read.clone()))),
                        _ => Outcome::Done,
                    };
                    state.finish(&task, Ok(outcome), now);
                }
            }
            state.apply_workload(&key("a"), None, now);
            state.apply_workload(&key("b"), None, now);
        }
        assert_eq!((state.index.sources().len(), state.index.users().names().count()), (0, 0));
        assert!(state.rolls.is_empty());
        assert_eq!((state.holds.reported.len(), state.held(), state.missing.lost().count()), (0, 0, 0));
    }
}
