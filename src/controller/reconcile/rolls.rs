//! The rolls of workloads: since when each workload is pending, which are in progress, and the global rate.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::{
    controller::{
        action::Moves,
        queue::{Queue, Task},
    },
    resolve::Record,
    snapshot::{Digest, ObjectName},
    world::WorkloadKey,
};

/// How long a roll whose outcome is unknown may take effect, after it failed. By then it was tried again several times, and
/// each try that the API server answers settles the outcome: it requires the same version of the workload. A workload whose
/// rolls always fail pauses for longer between them, and others roll meanwhile.
const UNKNOWN_OUTCOME: SignedDuration = SignedDuration::from_secs(30);

/// How many settle times a stream of changes delays a roll at most.
const LONGEST_STREAM: i32 = 5;

/// A workload that has not rolled to a change.
#[derive(Debug)]
struct Pending {
    /// Since when.
    since: Timestamp,
    /// When the contents that it waits for changed last.
    changed: Timestamp,
    /// A hash of these contents.
    contents: u64,
}

/// A workload that is being rolled.
#[derive(Debug)]
pub(crate) struct Rolling {
    /// Since when it was pending.
    pub since: Timestamp,
    /// Its record before the roll. A watch may report the roll before its response.
    pub before: Record,
    /// The sources that move, each to this content. Admission keeps it from all others.
    pub moves: Moves,
}

/// A roll whose outcome is unknown.
#[derive(Debug)]
struct Unknown {
    /// The last roll before it.
    last_roll: Option<Timestamp>,
    /// As of [`Rolling`].
    moves: Moves,
    /// Until when it may take effect.
    until: Timestamp,
}

/// A roll that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// As of [`Rolling`].
    pub moves: Moves,
    /// It was admitted, and moved nothing. A source may have changed between the decision and the admission.
    pub in_vain: bool,
}

/// The rolls of all workloads.
#[derive(Debug, Default)]
pub(crate) struct Rolls {
    /// The workloads that are pending.
    pending: HashMap<WorkloadKey, Pending>,
    rolling: HashMap<WorkloadKey, Rolling>,
    /// The last roll of each workload, if its outcome is unknown.
    unknown: HashMap<WorkloadKey, Unknown>,
    /// The last roll of each workload, if it failed.
    failed: HashMap<WorkloadKey, Failed>,
    /// When the next roll at the global rate is due; `None` before the first.
    next: Option<Timestamp>,
    /// How often a roll waited for the global rate, since this was last reported.
    rate_waits: u64,
}

impl Rolls {
    /// Records that a workload is pending. `contents`: a hash of the contents that it waits for.
    pub(crate) fn set_pending(&mut self, key: &WorkloadKey, contents: u64, now: Timestamp) {
        let pending =
            self.pending.entry(key.clone()).or_insert(Pending { since: now, changed: now, contents });
        if pending.contents != contents {
            (pending.changed, pending.contents) = (now, contents);
        }
    }

    /// Records that a workload is not pending, or that its next change counts from then.
    pub(crate) fn clear_pending(&mut self, key: &WorkloadKey) {
        self.pending.remove(key);
        self.failed.remove(key);
    }

    /// Lets every workload that is pending count as pending from now on.
    pub(crate) fn clear_all_pending(&mut self) {
        self.pending.clear();
        self.failed.clear();
    }

    /// Since when a workload is pending.
    pub(crate) fn pending_since(&self, key: &WorkloadKey) -> Option<Timestamp> {
        Some(self.pending.get(key)?.since)
    }

    /// When a pending workload has settled: its contents have not changed for that long. A stream of changes delays it up to five times as
    /// long.
    pub(crate) fn settled(&self, key: &WorkloadKey, settle: SignedDuration) -> Option<Timestamp> {
        let Pending { since, changed, .. } = self.pending.get(key)?;
        Some((*changed + settle).min(*since + settle * LONGEST_STREAM))
    }

    /// When the global rate allows the next roll. The rolls of one second may run at once.
    pub(crate) fn from(&self) -> Timestamp {
        let second = SignedDuration::from_secs(1);
        self.next.and_then(|next| next.saturating_sub(second).ok()).unwrap_or(Timestamp::MIN)
    }

    /// Starts a roll. `waited`: the roll was due before the global rate allowed it.
    pub(crate) fn start(
        &mut self,
        key: &WorkloadKey,
        rolling: Rolling,
        (now, pause): (Timestamp, SignedDuration),
        waited: bool,
    ) {
        self.rate_waits += u64::from(waited);
        self.next = Some(self.next.map_or(now, |next| next.max(now)) + pause);
        self.failed.remove(key);
        self.rolling.insert(key.clone(), rolling);
    }

    /// A workload that is being rolled.
    pub(crate) fn rolling(&self, key: &WorkloadKey) -> Option<&Rolling> {
        self.rolling.get(key)
    }

    /// Ends a roll. `is_known`: it took effect, or never will.
    pub(crate) fn end(&mut self, key: &WorkloadKey, is_known: bool, now: Timestamp) -> Option<Rolling> {
        let rolling = self.rolling.remove(key);
        let earlier = self.unknown.remove(key);
        if let Some(Rolling { before, moves, .. }) = rolling.as_ref().filter(|_| !is_known) {
            let until = now + UNKNOWN_OUTCOME;
            let (last_roll, mut moves) = (before.last_roll, moves.clone());
            // An earlier roll may still take effect, too.
            moves.extend(earlier.filter(|earlier| earlier.until > now).into_iter().flat_map(|of| of.moves));
            self.unknown.retain(|_, unknown| unknown.until > now);
            self.unknown.insert(key.clone(), Unknown { last_roll, moves, until });
        }
        rolling
    }

    /// Records that a roll failed.
    pub(crate) fn set_failed(&mut self, key: &WorkloadKey, failed: Failed) {
        self.failed.insert(key.clone(), failed);
    }

    /// The last roll of a workload, if it failed.
    pub(crate) fn failed(&self, key: &WorkloadKey) -> Option<&Failed> {
        self.failed.get(key)
    }

    /// Whether the last roll of a workload may take effect, or has taken effect and the record does not show it.
    pub(crate) fn may_take_effect(&self, key: &WorkloadKey, record: &Record, now: Timestamp) -> bool {
        let unknown = self.unknown.get(key).filter(|unknown| unknown.until > now);
        unknown.is_some_and(|unknown| record.last_roll <= unknown.last_roll)
    }

    /// Whether the roll of a workload that is in progress, or whose outcome is unknown, may take this content of a source.
    pub(crate) fn may_take(&self, key: &WorkloadKey, source: &ObjectName, content: &Digest) -> bool {
        let rolling = self.rolling.get(key).map(|rolling| &rolling.moves);
        let unknown = self.unknown.get(key).map(|unknown| &unknown.moves);
        let mut known = rolling.into_iter().chain(unknown).peekable();
        known.peek().is_none() || known.flatten().any(|(of, to)| of == source && to == content)
    }

    /// How often a roll waited for the global rate since the last call.
    pub(crate) fn take_rate_waits(&mut self) -> u64 {
        std::mem::take(&mut self.rate_waits)
    }

    /// Whether no workload is pending.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Whether a roll of a workload is in progress, or may still take effect; with a content, one that may take it.
pub(in crate::controller) fn is_rolling(
    queue: &Queue,
    rolls: &Rolls,
    now: Timestamp,
) -> impl Fn(&WorkloadKey, &Record, Option<(&ObjectName, &Digest)>) -> bool {
    move |key, record, content| {
        let is_rolling =
            queue.is_working(&Task::Roll(key.clone())) || rolls.may_take_effect(key, record, now);
        is_rolling && content.is_none_or(|(source, content)| rolls.may_take(key, source, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::fixture;

    /// One apply changes several sources, one after the other.
    #[test]
    fn stream_of_changes_settles_within_a_bound() {
        let (key, settle) = (fixture::key("web"), SignedDuration::from_secs(1));
        let at = |millis: i64| Timestamp::from_millisecond(1_000_000_000 + millis).unwrap();
        let mut rolls = Rolls::default();
        assert_eq!(rolls.settled(&key, settle), None);
        for (contents, millis, expected) in
            [(1, 0, 1000), (1, 500, 1000), (2, 900, 1900), (3, 1800, 2800), (3, 2700, 2800)]
        {
            rolls.set_pending(&key, contents, at(millis));
            assert_eq!(rolls.settled(&key, settle), Some(at(expected)), "{contents} at {millis}");
        }
        for (contents, millis) in (4..30).zip((3600..).step_by(900)) {
            rolls.set_pending(&key, contents, at(millis));
        }
        assert_eq!(rolls.settled(&key, settle), Some(at(5000)));
        assert_eq!(rolls.pending_since(&key), Some(at(0)));
    }

    #[test]
    fn unknown_outcome_counts_until_it_shows_or_passes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let after = |seconds| now + SignedDuration::from_secs(seconds);
        let before = fixture::record("web", &[]);
        let (web, other) = (fixture::key("web"), fixture::key("other"));
        let mut rolls = Rolls::default();
        let end = |rolls: &mut Rolls, key: &WorkloadKey, is_known, at| {
            let moves = vec![(fixture::object("a"), fixture::digest(1))];
            let rolling = Rolling { since: now, before: before.clone(), moves };
            rolls.start(key, rolling, (now, SignedDuration::ZERO), false);
            assert_eq!(rolls.rolling(key).map(|rolling| rolling.since), Some(now));
            assert!(rolls.end(key, is_known, at).is_some(), "it was in progress");
            assert!(rolls.rolling(key).is_none(), "it has ended");
        };
        end(&mut rolls, &web, false, now);
        end(&mut rolls, &other, false, after(20));
        for (key, second, may) in
            [(&web, 0, true), (&web, 29, true), (&web, 30, false), (&other, 49, true), (&other, 50, false)]
        {
            assert_eq!(rolls.may_take_effect(key, &before, after(second)), may, "{key:?} after {second} s");
        }
        let may_take = |rolls: &Rolls, key| {
            [1, 2, 3].map(|of| rolls.may_take(key, &fixture::object("a"), &fixture::digest(of)))
        };
        assert_eq!(may_take(&rolls, &web), [true, false, false]);
        assert!(!rolls.may_take(&web, &fixture::object("b"), &fixture::digest(1)), "another source");
        let moves = vec![(fixture::object("a"), fixture::digest(2))];
        let next = Rolling { since: now, before: before.clone(), moves };
        let mut both = Rolls::default();
        end(&mut both, &web, false, now);
        both.start(&web, next, (now, SignedDuration::ZERO), false);
        assert_eq!(may_take(&both, &web), [true, true, false], "the first may still take effect");
        both.end(&web, false, after(1));
        assert_eq!(may_take(&both, &web), [true, true, false], "both may take effect");
        let rolled = Record { last_roll: Some(after(1)), ..before.clone() };
        assert!(!rolls.may_take_effect(&web, &rolled, after(2)), "the record shows it");
        end(&mut rolls, &other, true, after(21));
        assert!(!rolls.may_take_effect(&other, &before, after(22)), "the outcome is known");
        end(&mut rolls, &other, false, after(31));
        assert_eq!(rolls.unknown.keys().collect::<Vec<_>>(), [&other], "that of web has passed");
    }

    #[test]
    fn counts_rolls_that_waited_for_the_rate() {
        let record = fixture::record("web", &[]);
        let now = Timestamp::from_second(1_000_000).unwrap();
        let key = fixture::key("web");
        let mut rolls = Rolls::default();
        for waited in [true, false, true] {
            let rolling = Rolling { since: now, before: record.clone(), moves: Vec::new() };
            rolls.start(&key, rolling, (now, SignedDuration::from_millis(100)), waited);
        }
        assert!(!rolls.may_take(&key, &fixture::object("a"), &fixture::digest(1)), "it names nothing");
        assert_eq!(rolls.take_rate_waits(), 2);
        assert_eq!(rolls.take_rate_waits(), 0, "each is reported once");
    }
}
