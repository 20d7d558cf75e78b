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
    snapshot::{DIGITS, Digest, snapshot_name},
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
    /// A workload that rolled to the content proved it bad.
    Bad(Proof),
}

/// A workload that proved a content bad.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proof {
    /// The workload.
    workload: WorkloadKey,
    /// It was rolled back from the content. Otherwise it failed with the content.
    rolled_back: bool,
}

/// A reported hold of a source.
#[derive(Debug)]
struct Report {
    /// The content that is held.
    digest: Digest,
    /// Why.
    proof: Proof,
    /// When the hold was found.
    since: Timestamp,
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
    /// The last reported hold of each source, until it ends.
    reported: HashMap<Name, Report>,
}

/// The turn of a pending workload.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// `None` if the workload is not held.
    pub held: Option<Held>,
    /// The Events about holds that ended.
    pub released: Vec<Event>,
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
    /// Checks the turn of a pending workload.
    pub(crate) fn check(
        &mut self,
        index: &Index,
        key: &WorkloadKey,
        is_rolling: impl Fn(&WorkloadKey, &Record) -> bool,
        now: Timestamp,
    ) -> Turn {
        let Some(record) = index.workload(key) else { return Turn::default() };
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
        let is_bad =
            |source: &Name| holds.iter().any(|(hold, of, _)| of == source && matches!(hold, Hold::Bad(_)));
        // An unhealthy workload is not held by others, which says nothing about the rest.
        let changed = record.uses.iter().filter(|_| !unwell).filter_map(|used| {
            let name = Name::new(Arc::clone(&key.namespace), used.source.clone());
            let known = index.existing_source(&name)?;
            (!record.has_seen(&used.source, &known.present.digests) && !is_bad(&name)).then_some(name)
        });
        let changed: Vec<_> = changed.collect();
        let released = changed.iter().filter_map(|source| self.end_report(index, source, now)).collect();
        if holds.is_empty() {
            self.held.remove(key);
            return Turn { held: None, released };
        }
        self.held.insert(key.clone());
        self.recent.retain(|_, recent| recent.is_fresh(now));
        let mut new = Vec::new();
        for (hold, source, of) in holds {
            if let Hold::Bad(proof) = &hold
                && self.set_reported(index, &source, proof, now)
            {
                new.push(source.clone());
            }
            if let Some(of) = of {
                self.recent.insert((source, unwell), RecentHold { hold, of, at: now });
            }
        }
        Turn { held: Some(Held { until: now + TURN, new }), released }
    }

    /// Records that a hold is reported. Returns whether it is new.
    fn set_reported(&mut self, index: &Index, source: &Name, proof: &Proof, now: Timestamp) -> bool {
        let Some(known) = index.existing_source(source) else { return false };
        let digest = known.present.digests.current();
        let is_known = |report: &Report| (report.digest, &report.proof) == (digest, proof);
        if self.reported.get(source).is_some_and(is_known) {
            return false;
        }
        self.reported.insert(source.clone(), Report { digest, proof: proof.clone(), since: now });
        true
    }

    /// Ends the reported hold of a source, if there is one: an Event on the source.
    fn end_report(&mut self, index: &Index, source: &Name, now: Timestamp) -> Option<Event> {
        let Report { digest, proof, since } = self.reported.remove(source)?;
        let is_present = index.existing_source(source)?.present.digests.contains(&digest);
        let then = if is_present { "the next workloads roll" } else { "the source changed" };
        let (by, of) = (index.display_short(&proof.workload), named(source, &digest));
        let note = format!("{by} no longer holds the roll to {of}: {then}");
        let event = event_on_source(index, source, Reason::RollReleased, note, now)?;
        Some(Event { same: since.to_string(), ..event })
    }

    /// Ends the reported hold of a source that has other content now.
    pub(crate) fn release_replaced(&mut self, index: &Index, source: &Name, now: Timestamp) -> Option<Event> {
        let held = self.reported.get(source)?.digest;
        let is_present = index.existing_source(source)?.present.digests.contains(&held);
        if is_present { None } else { self.end_report(index, source, now) }
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
        let report = self.reported.get(source).filter(|report| report.digest == current)?;
        let held = index.workloads_using(source).filter(|(key, _)| self.held.contains(*key)).count();
        let held = if held == 1 { "1 workload is".to_owned() } else { format!("{held} workloads are") };
        let why = report.proof.display(index, source, &report.digest);
        let note = format!("{held} held: {why}. Correct the content, or remove max-in-flight to continue");
        let event = event_on_source(index, source, Reason::RollHeld, note, now)?;
        Some(Event { same: report.since.to_string(), ..event })
    }
}

impl Proof {
    fn display(&self, index: &Index, source: &Name, digest: &Digest) -> String {
        let workload = index.display_short(&self.workload);
        let how = if self.rolled_back { "was rolled back from" } else { "failed with" };
        format!("{workload} {how} {}", named(source, digest))
    }
}

/// The name of the snapshot of a source's content.
fn named(source: &Name, digest: &Digest) -> String {
    snapshot_name(&source.object.name, digest, DIGITS[0])
}

/// Why workloads would not roll to content that a source is about to get; `None` if nothing is known against it.
pub(crate) fn objection(index: &Index, source: &Name, content: &SourceRecord) -> Option<String> {
    let limit = content.max_in_flight?;
    let waits = |(_, record): &(&WorkloadKey, &Record)| {
        record.track && !record.has_seen(&source.object, &content.present.digests)
    };
    let (waiting, _) = index.workloads_using(source).find(waits)?;
    match hold(index, source, (content, limit), (waiting, false), |_, _| false)? {
        Hold::Full => None,
        Hold::Bad(proof) => Some(proof.display(index, source, &content.present.digests.current())),
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
        if moved && !unwell {
            let rolled_back = was_rolled_back(index, record, source, known);
            if failed || rolled_back {
                return Some(Hold::Bad(Proof { workload: key.clone(), rolled_back }));
            }
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
    let rejects = |used: &Use| index.rejects(record, used, source, known);
    // A workload that does not track keeps its snapshot whatever the content.
    record.track && record.uses.iter().any(|used| used.source == source.object && rejects(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compact::{CompactMap, CompactSet},
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
            reads: CompactMap::default(),
            denies_missing: false,
            pinned: CompactMap::default(),
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
