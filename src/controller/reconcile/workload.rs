//! Workloads: when a pending workload is rolled, and which workloads of a namespace are opted in.
//!
//! Workloads that their namespace opts in get the label in the queue of all rolls, within the rate, `max-in-flight`, waves and
//! windows. A refusal of one does not affect the others.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts,
    held::{Held, Turn},
    reconciled::Reconciled,
    rolls::{Rolling, Rolls},
};
use crate::{
    cluster::Candidate,
    controller::{
        action::{Action, Moves},
        queue::{Queue, Task},
        reconcile::state::State,
    },
    resolve::{NamespaceOptIn, Record},
    snapshot::{Digest, ObjectName},
    world::{Name, Precondition, WorkloadKey, World},
};

/// The longest that a roll waits for the snapshot of a source that it uses. It starts as soon as the snapshot is made.
const SNAPSHOT_PATIENCE: SignedDuration = SignedDuration::from_millis(300);
/// How long a roll waits for a check of a schema before it is asked for again. The end of the check queues the roll.
const CHECK_PATIENCE: SignedDuration = SignedDuration::from_secs(5);

impl State {
    /// Applies a workload as it is now; `None` if it is deleted, or no longer opted in.
    pub fn apply_workload(&mut self, key: &WorkloadKey, record: Option<Record>, now: Timestamp) {
        let mut changes = std::mem::take(&mut self.changes);
        let old = self.world.apply_workload(key, record, &mut changes);
        self.workload_changed(key, old.as_ref(), now);
        self.enqueue_all(changes, now);
    }

    /// Reports pins and holds that begin or end, and counts the next pending change from its own time, if the workload rolled.
    fn workload_changed(&mut self, key: &WorkloadKey, old: Option<&Record>, now: Timestamp) {
        self.enqueue_states(key, old, now);
        let idle = event_texts::idle_holds(&self.world, key, old, now);
        self.report(idle, now);
        let (Some(old), Some(record)) = (old, self.world.workload(key)) else { return };
        if old.uid != record.uid {
            return;
        }
        let mut pins = event_texts::unpins(&self.world, key, old, record, now);
        pins.extend(event_texts::pins(&self.world, key, old, record, now));
        pins.extend(event_texts::holds(&self.world, key, old, record, now));
        // A roll whose answer was lost shows only in its time. Any pending change is newer than that roll.
        if record.last_roll > old.last_roll {
            self.rolls.clear_pending(key);
        }
        self.report(pins, now);
    }

    /// Queues the workloads of a namespace that opts in.
    pub(in crate::controller) fn join(
        &mut self,
        found: impl IntoIterator<Item = (WorkloadKey, Candidate)>,
        now: Timestamp,
    ) {
        for (key, Candidate { mut record, condition }) in found {
            let is_joining = self.world.joining(&key).is_some();
            let joins = match self.world.opt_in_of(&key.namespace) {
                NamespaceOptIn::Now => true,
                NamespaceOptIn::Next => record.is_marked,
                NamespaceOptIn::Out => false,
            };
            // A watch may have reported since the read that the workload is opted in.
            if !joins || (self.world.workload(&key).is_some() && !is_joining) {
                continue;
            }
            // Anyone may have written what the template states about snapshots.
            for used in &mut record.uses {
                (used.snapshot, used.on_hold) = (None, false);
            }
            let mut changes = std::mem::take(&mut self.changes);
            let old = self.world.apply_joining(&key, record, condition, &mut changes);
            self.workload_changed(&key, old.as_ref(), now);
            self.enqueue_all(changes, now);
        }
    }

    /// Forgets workloads that are not opted in yet.
    pub(in crate::controller) fn drop_joining(&mut self, now: Timestamp, of: impl Fn(&WorkloadKey) -> bool) {
        if self.world.all_joining().len() == 0 {
            return;
        }
        let keys: Vec<_> = self.world.all_joining().filter(|key| of(key)).cloned().collect();
        for key in keys {
            self.queue.cancel(&Task::Roll(key.clone()));
            self.apply_workload(&key, None, now);
        }
    }

    /// Queues a roll of a workload that is pending, or cancels the roll if it is not.
    pub(super) fn enqueue_roll(&mut self, key: &WorkloadKey, now: Timestamp) {
        if self.world.is_pending(key) {
            if self.tries_other_content(key) {
                // It has waited long enough for a source that changes all the time.
                if !self.rolls.failed(key).is_some_and(|failed| failed.in_vain) {
                    self.rolls.clear_pending(key);
                }
                self.queue.forgive(&Task::Roll(key.clone()));
            }
            self.rolls.set_pending(key, self.pending_contents(key), now);
            let due = self.roll_due(key, now);
            self.queue.schedule(Task::Roll(key.clone()), due);
        } else if !self.world.awaits_source(key) {
            self.rolls.clear_pending(key);
            self.held_workloads.release(key);
            self.queue.cancel(&Task::Roll(key.clone()));
        }
    }

    /// A hash of the contents that a workload waits for. One apply may change several of its sources, one after the other: they make one
    /// revision.
    fn pending_contents(&self, key: &WorkloadKey) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Some(record) = self.world.workload(key) {
            let sources = self.world.sources_of(key, record);
            for (_, used, known) in
                sources.filter(|(_, used, known)| record.is_pending_for(used, &known.present))
            {
                (&used.source, known.present.digests.current()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Whether the last roll of a workload failed, and a source has other content than it was to move to: the pause after failures is
    /// about contents.
    fn tries_other_content(&self, key: &WorkloadKey) -> bool {
        let is_other = |(source, content): &(ObjectName, Digest)| {
            let name = Name::new(Arc::clone(&key.namespace), source.clone());
            self.world.existing_source(&name).is_some_and(|known| !known.present.digests.contains(content))
        };
        self.rolls.failed(key).is_some_and(|failed| failed.moves.iter().any(is_other))
    }

    /// Queues the workloads whose roll waited for the snapshot of a source.
    pub(in crate::controller) fn enqueue_users(&mut self, source: &Name, now: Timestamp) {
        let users: Vec<_> = self.world.workloads_using(source).map(|(key, _)| key.clone()).collect();
        for key in users {
            self.enqueue_roll(&key, now);
        }
    }

    /// When a pending workload has settled.
    fn roll_due(&self, key: &WorkloadKey, now: Timestamp) -> Timestamp {
        let Some(record) = self.world.workload(key) else { return now };
        // No later apply is expected, and each second with the content that failed counts.
        if self.world.is_returning(key, record) {
            return self.rolls.pending_since(key).unwrap_or(now);
        }
        self.rolls.settled(key, self.config.settle).unwrap_or(now + self.config.settle)
    }

    /// Rolls a workload, if it is its turn.
    pub(super) fn reconcile_roll(&mut self, key: &WorkloadKey, now: Timestamp) -> Reconciled {
        let Some(record) = self.world.workload(key).filter(|_| self.world.is_pending(key)) else {
            // The namespace may have opted in again. The next change counts from its own time.
            self.enqueue_roll(key, now);
            return Reconciled::Done;
        };
        let record = record.clone();
        if self.reads_source(key, &record) {
            return Reconciled::Later(now + SNAPSHOT_PATIENCE);
        }
        if self.enqueue_first_checks((key, &record), now) {
            return Reconciled::Later(now + CHECK_PATIENCE);
        }
        let due = self.roll_due(key, now);
        let was_held = self.held_workloads.is_held(key);
        // Admission decides on the last write first, and takes the mark off. Nothing moves, so no gate is asked.
        let is_late = record.is_marked && self.world.joining(key).is_none();
        let turn = if is_late { Ok(Vec::new()) } else { self.turn(key, now) };
        let mut free = due.max(turn.as_ref().err().copied().unwrap_or(now));
        let waiting = turn.unwrap_or_default();
        let moves = if is_late { Moves::new() } else { moves(&self.world, key, &record, &waiting) };
        let checked = self.checked_moves(key, &record, &moves);
        if free <= now && !is_late && self.awaits_snapshot(key, &record) {
            free = due + SNAPSHOT_PATIENCE;
        }
        if free > now {
            return Reconciled::Later(free);
        }
        if self.enqueue_old_checks(&checked, now) {
            return Reconciled::Later(now + CHECK_PATIENCE);
        }
        let waited = !was_held && due < self.rolls.from();
        let since = self.rolls.pending_since(key).unwrap_or(now);
        let version = || Precondition::Version(record.resource_version.to_string());
        let condition = self.world.joining(key).cloned().unwrap_or_else(version);
        let last_plan = record.last_plan;
        let names_contents = !self.may_take_newest(key, &moves) || !checked.is_empty();
        let rolling = Rolling { since, before: record, moves: moves.clone() };
        self.rolls.start(key, rolling, (now, self.config.roll_pause()), waited);
        let workload = key.clone();
        Reconciled::Act(Action::Poke { workload, condition, last_plan, moves, names_contents })
    }

    /// Whether the next plan may name the sources alone: the last one moved nothing, so a source may change too quickly to name its
    /// content, and no other workload or check depends on it.
    fn may_take_newest(&self, key: &WorkloadKey, moves: &Moves) -> bool {
        let is_free = |(source, _): &(ObjectName, Digest)| {
            let name = Name::new(Arc::clone(&key.namespace), source.clone());
            let known = self.world.existing_source(&name);
            known.is_some_and(|known| !known.spread.is_limited()) && !self.world.is_grouped(&name)
        };
        self.rolls.failed(key).is_some_and(|failed| failed.in_vain) && moves.iter().all(is_free)
    }

    /// The sources to whose contents a pending workload may not roll yet. An error: when to check its turn again, since it is held.
    fn turn(&mut self, key: &WorkloadKey, now: Timestamp) -> Result<Vec<Name>, Timestamp> {
        let is_rolling = is_rolling(&self.queue, &self.rolls, now);
        let since = self.rolls.pending_since(key).unwrap_or(now);
        let Turn { held, waiting, events } =
            self.held_workloads.check(&self.world, key, is_rolling, (since, now));
        self.report(events, now);
        let Some(Held { until, new }) = held else { return Ok(waiting) };
        for source in new {
            self.report_hold(source, until);
        }
        Err(until)
    }

    /// Whether a source that the workload uses is being read: its settings may postpone the roll.
    fn reads_source(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.uses.iter().any(|used| {
            let read = Task::Read(Name::new(Arc::clone(&key.namespace), used.source.clone()));
            self.queue.has(&read) && self.queue.failures(&read) == 0
        })
    }

    /// Whether the snapshot of a source that a workload uses is about to be created. A later roll finds it.
    fn awaits_snapshot(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.uses.iter().any(|used| {
            let ensure = Task::Ensure(Name::new(Arc::clone(&key.namespace), used.source.clone()));
            self.queue.has(&ensure) && self.queue.failures(&ensure) == 0
        })
    }
}

/// Whether a roll of a workload is in progress, or may still take effect; with a content, one that may take it.
pub(super) fn is_rolling(
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

/// What a roll moves: the sources of which the workload is behind, each to its present content, which may change again before the write is
/// admitted. A source whose content is refused is named if the workload goes back from it. `waiting`: the sources that do not move.
fn moves(world: &World, key: &WorkloadKey, record: &Record, waiting: &[Name]) -> Moves {
    let mut moves: Moves = world
        .sources_of(key, record)
        .filter(|(name, used, known)| {
            let is_behind = record.is_pending_for(used, &known.present);
            !waiting.contains(name) && (is_behind || world.returns(key, record, used))
        })
        .map(|(name, _, known)| (name.object, known.present.digests.current()))
        .collect();
    moves.dedup();
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, limited, on, set_source, state},
        gates::Gate,
        resolve::{Health, Use},
        world::fixture::{digest, having_seen, held, key, object, source, used},
    };

    fn gate(name: &str) -> Gate {
        Gate::named(name).unwrap()
    }

    /// A workload that is pending since the start, and settles in two seconds.
    fn pending() -> State {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        state.enqueue_roll(&key("web"), at(0));
        state
    }

    fn roll(state: &mut State, second: i64) -> String {
        brief(&state.reconcile_roll(&key("web"), at(second)))
    }

    #[test]
    fn roll_is_later_than_any_plan() {
        let record = Record { last_plan: Some(at(3600)), ..on(1, Health::Settled) };
        let mut state = state(&[("web", &record)]);
        state.enqueue_roll(&key("web"), at(0));
        match state.reconcile_roll(&key("web"), at(9)) {
            Reconciled::Act(Action::Poke { last_plan, .. }) => assert_eq!(last_plan, Some(at(3600))),
            other => panic!("it does not roll: {}", brief(&other)),
        }
    }

    #[test]
    fn roll_names_what_moves() {
        let uses = |a: Use| Record { uses: vec![a, used("b", Some(1))], ..on(1, Health::Settled) };
        let both = || uses(used("a", Some(1)));
        let waves = [("waves", "1")];
        for (what, record, a, b, waiting, expected) in [
            (
                "both changed",
                both(),
                limited("a", 2, &[]),
                Some(limited("b", 3, &waves)),
                None,
                vec![("a", 2), ("b", 3)],
            ),
            (
                "a waits",
                both(),
                limited("a", 2, &waves),
                Some(limited("b", 2, &[])),
                Some("a"),
                vec![("b", 2)],
            ),
            ("b is not known", both(), limited("a", 2, &[]), None, None, vec![("a", 2)]),
            (
                "a has not changed",
                both(),
                limited("a", 1, &[]),
                Some(limited("b", 3, &[])),
                None,
                vec![("b", 3)],
            ),
            ("a is not resolved", uses(used("a", None)), limited("a", 2, &[]), None, None, vec![("a", 2)]),
            ("a is on hold", uses(held("a", 1)), limited("a", 2, &[]), None, None, vec![]),
        ] {
            let record = having_seen(record, &[("a", 1)]);
            let mut state = state(&[("web", &record)]);
            set_source(&mut state, "a", a);
            match b {
                Some(b) => set_source(&mut state, "b", b),
                None => state.world.set_source_unknown(&source("b")),
            }
            let waiting: Vec<_> = waiting.into_iter().map(source).collect();
            let expected: Moves = expected.iter().map(|(name, of)| (object(name), digest(*of))).collect();
            assert_eq!(moves(&state.world, &key("web"), &record, &waiting), expected, "{what}");
        }
    }

    #[test]
    fn roll_waits_briefly_for_reads_and_snapshots() {
        for (task, expected) in [
            (Task::Read(source("a")), "later 2300"),
            (Task::Ensure(source("a")), "later 2300"),
            (Task::Read(source("b")), "Poke"),
            (Task::Ensure(source("b")), "Poke"),
        ] {
            let mut queued = pending();
            queued.queue.schedule(task.clone(), at(9));
            assert_eq!(roll(&mut queued, 2), expected, "{task:?} is queued");
            let mut working = pending();
            working.queue.schedule(task.clone(), at(0));
            assert_eq!(working.queue.pop(at(1), at(0)), Some(task.clone()));
            assert_eq!(roll(&mut working, 2), expected, "{task:?} is under way");
            working.queue.failed(task.clone(), at(1));
            assert_eq!(roll(&mut working, 2), "Poke", "{task:?} failed, and may fail for long");
        }
        let mut state = pending();
        state.queue.schedule(Task::Ensure(source("a")), at(9));
        assert_eq!(roll(&mut state, 3), "Poke", "the snapshot took too long");
    }

    #[test]
    fn only_due_rolls_wait_for_the_rate() {
        for (what, allowed_at, is_held, waits) in [
            ("the rate allows it later", 3, false, 1),
            ("the rate allows it when it is due", 2, false, 0),
            ("the rate allowed it before", 1, false, 0),
            ("it was held until now", 3, true, 0),
        ] {
            let mut state = pending();
            let other = Rolling { since: at(0), before: on(1, Health::Settled), moves: Vec::new() };
            // The rolls of one second may run at once.
            let pause = SignedDuration::from_secs(allowed_at + 1);
            state.rolls.start(&key("other"), other, (at(0), pause), false);
            if is_held {
                state.held_workloads.hold(&key("web"), gate("wave"), true);
            }
            assert_eq!(roll(&mut state, 5), "Poke", "{what}");
            assert_eq!(state.rolls.take_rate_waits(), waits, "{what}");
        }
    }

    /// A watch may report the workload while its namespace is listed, and that the namespace opts out.
    #[test]
    fn only_unlabelled_workloads_of_the_namespace_join() {
        let condition = || Precondition::Unlabelled { has_labels: true, has_annotations: true };
        for (what, opts_in, is_marked, known, expected) in [
            ("it is new", NamespaceOptIn::Now, false, None, Some("9")),
            ("it was found before", NamespaceOptIn::Now, false, Some(true), Some("9")),
            ("a watch reported it", NamespaceOptIn::Now, false, Some(false), Some("7")),
            ("the namespace no longer opts in", NamespaceOptIn::Out, true, None, None),
            ("its next deployment opts it in", NamespaceOptIn::Next, false, None, None),
            ("it was deployed in an outage", NamespaceOptIn::Next, true, None, Some("9")),
        ] {
            let mut state = state(&[]);
            state.apply_namespace(&"ns".into(), opts_in, at(0));
            let record = Record { is_marked, ..on(1, Health::Settled) };
            match known {
                Some(true) => {
                    state.world.apply_joining(&key("web"), record.clone(), condition(), &mut Vec::new());
                }
                Some(false) => {
                    state.world.apply_workload(&key("web"), Some(record.clone()), &mut Vec::new());
                }
                None => {}
            }
            let record = Record { resource_version: "9".into(), ..record };
            state.join([(key("web"), Candidate { record, condition: condition() })], at(1));
            let found = state.world.workload(&key("web"));
            assert_eq!(found.map(|record| &*record.resource_version), expected, "{what}");
            let states_snapshot = found.is_some_and(|record| record.uses[0].snapshot.is_some());
            assert_eq!(states_snapshot, known == Some(false), "{what}: its template is not trusted yet");
        }
    }
}
