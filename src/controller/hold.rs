//! `max-in-flight`: how far a change of a source may spread before the first workloads prove it sound.
//!
//! Nothing is stored for it. `seen` shows which workloads rolled to the content, their status shows their health, and the
//! annotation `unhealthy` shows which were unhealthy before. So a restart in the middle changes nothing.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Name,
    agenda::Task,
    records::{Found, Source},
    state::State,
};
use crate::{
    cluster::{Event, WorkloadKey},
    resolve::{Health, Record, has_deadline},
    snapshot::Digest,
    telemetry::metrics::Reason,
};

/// How long a held workload waits before its turn is checked again.
const TURN: SignedDuration = SignedDuration::from_secs(1);
/// How long the verdict on one workload holds for others without another check. A check reads all workloads that use the
/// source, and as many may be held.
const FRESH: SignedDuration = SignedDuration::from_millis(500);

/// Why a workload may not roll to a source's content yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// As many workloads as allowed are rolling.
    Full,
    /// A workload that rolled to the content failed, or was put back.
    Failed(WorkloadKey),
}

/// A hold that was found a moment ago.
#[derive(Debug)]
pub(super) struct Verdict {
    hold: Hold,
    /// The content and the limit that it applies to.
    of: (Digest, usize),
    at: Timestamp,
}

impl Verdict {
    /// Whether the verdict still holds. A verdict from the future comes from a clock that stepped back.
    fn is_fresh(&self, now: Timestamp) -> bool {
        self.at <= now && now < self.at + FRESH
    }
}

impl State {
    /// When to check the turn of a pending workload again; `None` if the workload is not held.
    pub(super) fn held_until(&mut self, key: &WorkloadKey, now: Timestamp) -> Option<Timestamp> {
        let record = self.workloads.get(key)?;
        let unwell = self.health(key, record) == Health::Failed;
        let limited = record.uses.iter().filter_map(|used| {
            let name = Name::new(Arc::clone(&key.namespace), used.source.clone());
            let Some(Source::Found(found)) = self.sources.get(&name) else { return None };
            let untaken = !record.has_seen(&used.source, &found.present.digests);
            let limit = found.max_in_flight.filter(|_| untaken)?;
            let of = (found.present.digests.current(), limit);
            let fresh = |verdict: &&Verdict| verdict.of == of && verdict.is_fresh(now);
            if let Some(verdict) = self.verdicts.get(&(name.clone(), unwell)).filter(fresh) {
                return Some((verdict.hold.clone(), name, None));
            }
            Some((self.hold(&name, found, limit, (key, unwell))?, name, Some(of)))
        });
        let holds: Vec<_> = limited.collect();
        if holds.is_empty() {
            self.held.remove(key);
            return None;
        }
        self.held.insert(key.clone());
        self.verdicts.retain(|_, verdict| verdict.is_fresh(now));
        for (hold, source, new) in holds {
            if let Hold::Failed(failed) = &hold {
                self.tell_of_hold(&source, failed.clone(), now);
            }
            if let Some(of) = new {
                self.verdicts.insert((source, unwell), Verdict { hold, of, at: now });
            }
        }
        Some(now + TURN)
    }

    /// How many workloads are held by `max-in-flight`.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Why a waiting workload is held. An unhealthy workload is not held by another that failed: the content may be its
    /// cure, and the other may have been unhealthy before.
    fn hold(
        &self,
        source: &Name,
        found: &Found,
        limit: usize,
        (waiting, unwell): (&WorkloadKey, bool),
    ) -> Option<Hold> {
        let mut in_flight = 0;
        for (key, record) in self.workloads_using(source).filter(|(key, _)| *key != waiting) {
            let taken = record.has_seen(&source.object, &found.present.digests);
            let health = if taken { self.health(key, record) } else { Health::Settled };
            let was_unhealthy = taken && record.taken_unhealthy.contains(&source.object);
            let failed = health == Health::Failed && !was_unhealthy;
            if taken && !unwell && (failed || self.was_taken_back(record, source, found)) {
                return Some(Hold::Failed(key.clone()));
            }
            let is_under_way = !matches!(health, Health::Settled | Health::Failed);
            // A workload without a deadline may stay as unhealthy as it was.
            let may_last = was_unhealthy && !unwell && !self.has_deadline(key);
            if (is_under_way && !may_last) || self.agenda.is_working(&Task::Roll(key.clone())) {
                in_flight += 1;
            }
        }
        (in_flight >= limit).then_some(Hold::Full)
    }

    /// Whether the workload's own controller gives up after a deadline.
    fn has_deadline(&self, key: &WorkloadKey) -> bool {
        self.kinds.iter().nth(key.kind).is_some_and(|kind| has_deadline(&kind.kind))
    }

    /// Whether a workload that rolled to the content was put back to other content, which is a verdict on it.
    fn was_taken_back(&self, record: &Record, source: &Name, found: &Found) -> bool {
        let other = |used: &crate::resolve::Use| self.holds_another(used, source, found);
        // A workload that does not track keeps its snapshot whatever the content.
        record.track
            && record.uses.iter().any(|used| used.source == source.object && used.whole && other(used))
    }

    /// Queues an Event on the source, once for each content and failed workload.
    fn tell_of_hold(&mut self, source: &Name, failed: WorkloadKey, now: Timestamp) {
        let Some(Source::Found(found)) = self.sources.get(source) else { return };
        let digest = found.present.digests.current();
        let told = self.told.insert(source.clone(), (digest, failed.clone()));
        if told != Some((digest, failed)) {
            self.tell_later_of_hold(source.clone(), now + TURN);
        }
    }

    /// The Event on a source whose change is held; `None` if the content is no longer the present one.
    pub(super) fn hold_event(&self, source: &Name, now: Timestamp) -> Option<Event> {
        let Some(Source::Found(found)) = self.sources.get(source) else { return None };
        let current = found.present.digests.current();
        let (digest, failed) = self.told.get(source).filter(|(digest, _)| *digest == current)?;
        let held = self.workloads_using(source).filter(|(key, _)| self.held.contains(*key)).count();
        let note = format!(
            "{held} workloads are held, because {} failed with {digest:?} or was rolled back: correct the content, \
             or remove max-in-flight to continue",
            self.display_short(failed)
        );
        let event = self.event_on_source(source, Reason::RollHeld, note, now)?;
        Some(Event { same: format!("{digest:?} {}", self.display_short(failed)), ..event })
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::{
        super::{Action, Config, Outcome},
        *,
    };
    use crate::{
        compact::CompactSet,
        kinds::Kinds,
        resolve::{Observed, Use},
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
        assert!(state.sources.is_empty() && state.users.is_empty() && state.pending_since.is_empty());
        assert_eq!((state.told.len(), state.held.len(), state.lost.len()), (0, 0, 0));
    }
}
