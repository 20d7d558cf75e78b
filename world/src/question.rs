//! What the gates ask about a pending workload, from the world.
//!
//! Nothing is stored for them: the annotations, the verdicts and the time decide, so a restart changes nothing.

use confrev_core::{
    gate_settings::{Place, Texts, closed},
    gates::{Asked, Why},
    resolve::{Membership, Present, Record, RecordedFailure, Use, Wait},
    snapshot::ObjectName,
};
use jiff::{SignedDuration, Timestamp};

use crate::{name::Name, objects::WorkloadKey, records::SourceRecord, world::World};

/// Whose content the gates are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentOf {
    /// The source has it.
    Source,
    /// A user writes it just now. The sources of a set are written one after the other, so their versions say nothing yet.
    Writer,
    /// The same, of a client that may not learn anything about what is stored.
    Stranger,
}

/// A workload, and a source to whose content it would move.
pub(super) struct Question<'q, W> {
    pub(super) world: &'q World,
    pub(super) key: &'q WorkloadKey,
    pub(super) record: &'q Record,
    pub(super) source: &'q Name,
    pub(super) used: &'q Use,
    pub(super) known: &'q SourceRecord,
    pub(super) of: ContentOf,
    /// Why others hold the workload.
    pub(super) wait: W,
    /// Since when the workload is pending.
    pub(super) since: Timestamp,
    pub(super) now: Timestamp,
}

impl<W: FnMut() -> Option<Wait<WorkloadKey>>> Asked for Question<'_, W> {
    type Key = WorkloadKey;

    fn record(&self) -> &Record {
        self.record
    }

    fn used(&self) -> &Use {
        self.used
    }

    fn present(&self) -> &Present {
        &self.known.present
    }

    fn is_paused(&self) -> bool {
        !self.record.track && self.world.joining(self.key).is_none()
    }

    fn settings(&self) -> Vec<(Place, &Texts)> {
        let of_source =
            self.known.gates.as_ref().map(|gates| &gates.settings).filter(|texts| !texts.is_empty());
        let of_source = of_source.map(|texts| (Place::Source(self.used.source.clone()), texts));
        self.world.settings_of(self.key, self.record).chain(of_source).collect()
    }

    fn sets(&self) -> Option<Vec<(&ObjectName, Membership<'_>)>> {
        fn set(known: &SourceRecord) -> Option<&str> {
            known.gates.as_ref()?.set.as_deref()
        }
        if set(self.known).is_none() || self.of != ContentOf::Source {
            return Some(Vec::new());
        }
        if self.world.awaits_source(self.key) {
            return None;
        }
        let used = self.world.sources_of(self.key, self.record);
        let moving = used.filter(|(_, used, known)| known.present.mode_for(used).rolls());
        let stated =
            moving.filter_map(|(_, used, known)| Some((&used.source, Membership::Stated(set(known)?))));
        let missing = self.world.missing_of(self.key, self.record).filter_map(|used| {
            let tie = self.record.ties.get(&used.source)?;
            Some((&used.source, Membership::Missing(tie.set.as_deref()?)))
        });
        Some(stated.chain(missing).collect())
    }

    fn refusal(&self) -> Option<(String, &RecordedFailure)> {
        if self.of == ContentOf::Stranger {
            return None;
        }
        let (snapshot, failure) = self.world.refused_of(self.source, self.known)?;
        Some((snapshot.object.name.to_string(), failure))
    }

    fn listed_as_refused(&self) -> Option<String> {
        self.world.listed_as_refused(self.source, self.known)
    }

    fn schema_failure(&self) -> Option<&str> {
        self.known.schema_failure()
    }

    fn wait(&mut self) -> Option<Wait<WorkloadKey>> {
        (self.wait)()
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn has_content(&self) -> bool {
        let is_open = self.of != ContentOf::Stranger;
        is_open && self.record.has_seen(&self.used.source, &self.known.present.digests)
    }

    fn interval_left(&self) -> Option<SignedDuration> {
        interval_left(self.record, self.since, self.now)
    }
}

/// The time that remains of the workload's `min-interval`. The last roll may have a time too far ahead, from a wrong clock: no workload
/// waits longer than its interval.
fn interval_left(record: &Record, since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let interval = SignedDuration::try_from(record.min_interval).unwrap_or(SignedDuration::ZERO);
    let rested = record.last_roll?.checked_add(interval).ok()?;
    let left = rested.min(since.checked_add(interval).ok()?).duration_since(now);
    left.is_positive().then_some(left)
}

impl World {
    /// Why a workload may not roll now, whatever moves: by its own settings and those of its namespace, and by its interval if no source
    /// moves it, but its namespace.
    pub fn closed_alone(
        &self,
        (key, record): (&WorkloadKey, &Record),
        moves_sources: bool,
        (since, now): (Timestamp, Timestamp),
    ) -> Option<Why<WorkloadKey>> {
        let closed = closed(self.settings_of(key, record), now).map(Why::Closed);
        let interval = || interval_left(record, since, now).filter(|_| !moves_sources).map(Why::Interval);
        closed.or_else(interval)
    }

    /// The settings of a workload and its namespace that are gates.
    fn settings_of<'i>(
        &'i self,
        key: &WorkloadKey,
        record: &'i Record,
    ) -> impl Iterator<Item = (Place, &'i Texts)> {
        let of_namespace = self.gates_of(&key.namespace).map(|texts| (Place::Namespace, texts));
        [(Place::Workload, &record.gates)]
            .into_iter()
            .chain(of_namespace)
            .filter(|(_, texts)| !texts.is_empty())
    }
}
