//! The roll of a workload: when a pending one is rolled, what its plan names, and what its answer says.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{Api, ApiError, LiveWorkload},
    controller::{
        action::{Action, Moves, Outcome},
        queue::Task,
        reconcile::{
            event_texts::{self},
            held::{GateCheck, Held},
            rolls::{Failed, Rolling, is_rolling},
            state::State,
        },
        tasks::{decided::Decided, end::End},
    },
    resolve::{Plan, Record},
    snapshot::{Digest, ObjectName},
    world::{Name, Precondition, WorkloadKey, World},
};

/// The longest that a roll waits for the snapshot of a source that it uses. It starts as soon as the snapshot is made.
const SNAPSHOT_PATIENCE: SignedDuration = SignedDuration::from_millis(300);
/// How long a roll waits for a check of a schema before it is asked for again. The end of the check queues the roll.
const CHECK_PATIENCE: SignedDuration = SignedDuration::from_secs(5);
/// The pause of a workload that had changed before its roll. Others may write it all the time, so the next write should
/// follow the live read quickly.
const CONFLICT_DELAY: SignedDuration = SignedDuration::from_millis(50);

impl State {
    /// Queues a roll of a workload that is pending, or cancels the roll if it is not.
    pub(in crate::controller) fn enqueue_roll(&mut self, key: &WorkloadKey, now: Timestamp) {
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
            let name = key.beside(source.clone());
            self.world.existing_source(&name).is_some_and(|known| !known.present.digests.contains(content))
        };
        self.rolls.failed(key).is_some_and(|failed| failed.moves.iter().any(is_other))
    }

    /// Queues the workloads whose roll waited for the snapshot of a source.
    pub(super) fn enqueue_users(&mut self, source: &Name, now: Timestamp) {
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

    /// Rolls a workload, if no gate holds it.
    pub(super) fn decide_roll(&mut self, key: &WorkloadKey, now: Timestamp) -> Decided {
        let Some(record) = self.world.workload(key).filter(|_| self.world.is_pending(key)) else {
            // The namespace may have opted in again. The next change counts from its own time.
            self.enqueue_roll(key, now);
            return Decided::Done;
        };
        let record = record.clone();
        if self.reads_source(key, &record) {
            return Decided::Later(now + SNAPSHOT_PATIENCE);
        }
        if self.enqueue_first_checks((key, &record), now) {
            return Decided::Later(now + CHECK_PATIENCE);
        }
        let due = self.roll_due(key, now);
        let was_held = self.held_workloads.is_held(key);
        // Admission decides on the last write first, and takes the mark off. Nothing moves, so no gate is asked.
        let is_late = record.is_marked && self.world.joining(key).is_none();
        let answer = if is_late { Ok(Vec::new()) } else { self.ask_gates(key, now) };
        let mut free = due.max(answer.as_ref().err().copied().unwrap_or(now));
        let waiting = answer.unwrap_or_default();
        let moves = if is_late { Moves::new() } else { moves(&self.world, key, &record, &waiting) };
        let checked = self.checked_moves(key, &record, &moves);
        if free <= now && !is_late && self.awaits_snapshot(key, &record) {
            free = due + SNAPSHOT_PATIENCE;
        }
        if free > now {
            return Decided::Later(free);
        }
        if self.enqueue_old_checks(&checked, now) {
            return Decided::Later(now + CHECK_PATIENCE);
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
        Decided::Act(Action::Poke { workload, condition, last_plan, moves, names_contents })
    }

    /// Whether the next plan may name the sources alone: the last one moved nothing, so a source may change too quickly to name its
    /// content, and no other workload or check depends on it.
    fn may_take_newest(&self, key: &WorkloadKey, moves: &Moves) -> bool {
        let is_free = |(source, _): &(ObjectName, Digest)| {
            let name = key.beside(source.clone());
            let known = self.world.existing_source(&name);
            known.is_some_and(|known| !known.spread.is_limited()) && !self.world.is_grouped(&name)
        };
        self.rolls.failed(key).is_some_and(|failed| failed.in_vain) && moves.iter().all(is_free)
    }

    /// The sources to whose contents a pending workload may not roll yet. An error: when to ask the gates again, since it is held.
    fn ask_gates(&mut self, key: &WorkloadKey, now: Timestamp) -> Result<Vec<Name>, Timestamp> {
        let is_rolling = is_rolling(&self.queue, &self.rolls, now);
        let since = self.rolls.pending_since(key).unwrap_or(now);
        let GateCheck { held, waiting, events } =
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
            let read = Task::Read(key.beside(used.source.clone()));
            self.queue.has(&read) && self.queue.failures(&read) == 0
        })
    }

    /// Whether the snapshot of a source that a workload uses is about to be created. A later roll finds it.
    fn awaits_snapshot(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.uses.iter().any(|used| {
            let ensure = Task::Ensure(key.beside(used.source.clone()));
            self.queue.has(&ensure) && self.queue.failures(&ensure) == 0
        })
    }

    pub(super) fn roll_finished(
        &mut self,
        key: &WorkloadKey,
        rolling: Option<Rolling>,
        outcome: Outcome,
        now: Timestamp,
    ) -> End {
        match outcome {
            Outcome::Poked(record) => {
                let known = rolling.filter(|_| self.world.workload(key).is_some());
                known.map_or(End::Done, |Rolling { before, moves, .. }| {
                    let end = self.rolled(key, &before, &record, now);
                    if matches!(end, End::InVain) {
                        self.roll_failed(key, Failed { moves, in_vain: true });
                    }
                    end
                })
            }
            Outcome::Changed(live) => {
                let is_unchanged = self.still_holds(key, rolling.as_ref(), &live);
                self.changed_before_roll(key, rolling.as_ref(), live, now);
                if is_unchanged {
                    return End::Conflicted;
                }
                // The live state of a pending workload has queued it at once.
                self.queue.cancel(&Task::Roll(key.clone()));
                End::Again(now + CONFLICT_DELAY)
            }
            _ => End::Done,
        }
    }

    /// Whether the precondition of a roll still holds after a conflict. Then something else answered 409, such as a webhook or
    /// a quota, and will do so again.
    fn still_holds(&self, key: &WorkloadKey, rolling: Option<&Rolling>, live: &LiveWorkload) -> bool {
        match live {
            LiveWorkload::Enabled(record) => {
                rolling.is_some_and(|rolling| rolling.before.resource_version == record.resource_version)
            }
            LiveWorkload::Unlabelled(candidate) => self.world.joining(key) == Some(&candidate.condition),
            LiveWorkload::Apart => false,
        }
    }

    /// Reports the answer that refuses a roll.
    pub(super) fn roll_was_refused(&mut self, key: &WorkloadKey, error: &ApiError, now: Timestamp) {
        if let (ApiError::Refused { code, message, .. }, false) = (error, error.may_pass()) {
            let events = event_texts::refusal(&self.world, key, *code, message, now);
            self.report(events, now);
        }
    }

    /// Records that a roll failed: the pause after it does not count for other contents.
    pub(super) fn roll_failed(&mut self, key: &WorkloadKey, failed: Failed) {
        if self.world.workload(key).is_some() {
            self.rolls.set_failed(key, failed);
        }
    }

    fn rolled(&mut self, key: &WorkloadKey, before: &Record, record: &Record, now: Timestamp) -> End {
        let joins = self.world.joining(key).is_some();
        let in_vain = if joins {
            !record.by_namespace
        } else {
            let seen = |record: &Record| -> Vec<_> {
                record.ties.iter().map(|(source, tie)| (source.clone(), tie.seen)).collect()
            };
            (seen(before), &before.uses, before.is_marked) == (seen(record), &record.uses, record.is_marked)
        };
        if joins && in_vain {
            // The API server learns of a namespace's new label with a delay, and may not have asked the webhook yet.
            tracing::warn!(
                workload = self.display(key),
                "the webhook was not called for the workload, which is not opted in"
            );
            return End::InVain;
        }
        // What a watch has reported since is newer than the answer: the roll required the version before it.
        let is_reported =
            self.world.workload(key).is_some_and(|known| known.resource_version != before.resource_version);
        if !is_reported {
            self.rolls.clear_pending(key);
            self.apply_workload(key, Some(record.clone()), now);
        }
        let events = event_texts::roll(&self.world, key, before, record, now);
        self.report(events, now);
        for (source, to) in event_texts::changes(&self.world, key, before, record) {
            // A source that is read again is counted with the next workload.
            if let Some(known) = self.world.existing_source(&source) {
                let policy = self.world.change(&source, known).policy();
                self.counted_changes.moved(source, to, policy.strategy.as_deref());
            }
        }
        // If the roll took effect, a source that changed again at that moment requires another roll.
        if in_vain && self.world.is_pending(key) {
            // Admission did not resolve the references: no webhook is in force for them. Each try is a write, so pause longer.
            tracing::warn!(
                workload = self.display(key),
                "a roll had no effect: is the webhook configuration in place?"
            );
            return End::InVain;
        }
        End::Done
    }

    /// Decides on the live state of a workload that had changed before the roll, unless a watch has reported a later one.
    fn changed_before_roll(
        &mut self,
        key: &WorkloadKey,
        rolling: Option<&Rolling>,
        live: LiveWorkload,
        now: Timestamp,
    ) {
        tracing::debug!(workload = self.display(key), "changed before it was rolled");
        let known = self.world.workload(key).map(|known| &known.resource_version);
        if known == rolling.map(|rolling| &rolling.before.resource_version) {
            match live {
                LiveWorkload::Enabled(record) => self.apply_workload(key, Some(*record), now),
                LiveWorkload::Unlabelled(candidate) => {
                    if self.world.joining(key).is_none() {
                        self.apply_workload(key, None, now);
                    }
                    self.join([(key.clone(), *candidate)], now);
                }
                LiveWorkload::Apart => self.apply_workload(key, None, now),
            }
        }
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

/// Writes the plan of a roll. If the workload has changed, reads its live state instead.
pub(in crate::controller) async fn run<A: Api>(
    api: &A,
    workload: &WorkloadKey,
    condition: &Precondition,
    plan: &Plan,
) -> Result<Outcome, ApiError> {
    match api.poke(workload, condition, &plan.to_value()).await {
        // A watch may report the change late, or never.
        Err(error) if error.is_conflict() => Ok(Outcome::Changed(api.read_workload(workload).await?)),
        record => Ok(Outcome::Poked(Box::new(record?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, limited, on, set_source, state},
        gates::Gate,
        resolve::{Health, NamespaceOptIn, Use},
        world::fixture::{digest, having_seen, held, key, object, record, source, used},
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
        brief(&state.decide_roll(&key("web"), at(second)))
    }

    #[test]
    fn roll_is_later_than_any_plan() {
        let record = Record { last_plan: Some(at(3600)), ..on(1, Health::Settled) };
        let mut state = state(&[("web", &record)]);
        state.enqueue_roll(&key("web"), at(0));
        match state.decide_roll(&key("web"), at(9)) {
            Decided::Act(Action::Poke { last_plan, .. }) => assert_eq!(last_plan, Some(at(3600))),
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

    fn late() -> ApiError {
        ApiError::Late { what: "patch".to_owned(), seconds: 10 }
    }

    fn missing() -> ApiError {
        ApiError::NotFound { what: "patch".to_owned() }
    }

    fn refused() -> ApiError {
        ApiError::Refused { what: "patch".to_owned(), code: 403, message: "no".to_owned() }
    }

    fn unlabelled() -> Precondition {
        Precondition::Unlabelled { has_labels: true, has_annotations: true }
    }

    /// A pending workload, whose roll begins at the tenth second.
    fn rolling() -> State {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        state.enqueue_users(&source("a"), at(0));
        let (task, action) = state.next_action(at(10)).unwrap();
        assert!(task == Task::Roll(key("web")) && matches!(action, Action::Poke { .. }), "{action:?}");
        state
    }

    fn finish_roll(state: &mut State, outcome: Result<Outcome, ApiError>) -> Option<Timestamp> {
        state.finish(&Task::Roll(key("web")), outcome, at(11));
        state.queue.due(&Task::Roll(key("web")))
    }

    #[test]
    fn roll_without_answer_may_take_effect() {
        let before = on(1, Health::Settled);
        for (outcome, may) in [
            (Err(late()), true),
            (Err(refused()), false),
            (Err(missing()), false),
            (Ok(Outcome::Poked(Box::new(on(2, Health::Progressing)))), false),
        ] {
            let (mut state, case) = (rolling(), format!("{outcome:?}"));
            finish_roll(&mut state, outcome);
            assert_eq!(state.rolls.may_take_effect(&key("web"), &before, at(12)), may, "{case}");
            assert!(state.rolls.rolling(&key("web")).is_none(), "{case}");
        }
    }

    #[test]
    fn finished_roll_counts_what_admission_decided() {
        let version = |record: Record| Box::new(Record { resource_version: "8".into(), ..record });
        let known = |state: &State| state.world.workload(&key("web")).map(|web| web.resource_version.clone());
        let mut state = rolling();
        let moved = Outcome::Poked(version(on(2, Health::Progressing)));
        assert_eq!(finish_roll(&mut state, Ok(moved)), None);
        assert_eq!(known(&state).as_deref(), Some("8"));
        assert!(state.rolls.is_empty());

        // The webhook was not called: each try is a write.
        let mut state = rolling();
        let same = Outcome::Poked(version(on(1, Health::Settled)));
        assert_eq!(finish_roll(&mut state, Ok(same)), Some(at(11) + SignedDuration::from_millis(500)));

        // The source returned to the former content meanwhile.
        let mut state = rolling();
        let known_source = crate::world::fixture::source_record("a", 1);
        state.world.set_read(&source("a"), Some(known_source), &mut Vec::new());
        let same = Outcome::Poked(version(on(1, Health::Settled)));
        assert_eq!(finish_roll(&mut state, Ok(same)), None);
        assert_eq!(known(&state).as_deref(), Some("8"));
    }

    #[test]
    fn workload_joins_once_it_has_its_label() {
        for by_namespace in [true, false] {
            let mut state = state(&[]);
            state.world.apply_namespace(&"ns".into(), NamespaceOptIn::Now, &mut Vec::new());
            let web = record("web", &[used("a", None)]);
            state.world.apply_joining(&key("web"), web.clone(), unlabelled(), &mut Vec::new());
            state.enqueue_users(&source("a"), at(0));
            assert!(state.next_action(at(10)).is_some());
            let after = Record { by_namespace, resource_version: "8".into(), ..on(2, Health::Settled) };
            let due = finish_roll(&mut state, Ok(Outcome::Poked(Box::new(after))));
            assert_eq!(due.is_some(), !by_namespace, "a write without the webhook is repeated");
            assert_eq!(state.world.joining(&key("web")).is_some(), !by_namespace);
        }
    }

    #[test]
    fn changed_workload_is_decided_again_soon() {
        let live = Record { resource_version: "8".into(), ..on(1, Health::Settled) };
        let mut state = rolling();
        let outcome = Outcome::Changed(LiveWorkload::Enabled(Box::new(live)));
        assert_eq!(finish_roll(&mut state, Ok(outcome)), Some(at(11) + CONFLICT_DELAY));
    }

    /// A joining workload that is deleted says nothing about the others of its namespace.
    #[test]
    fn deleted_workload_is_not_rolled_again() {
        let mut state = rolling();
        for name in ["web", "other"] {
            state.world.apply_joining(&key(name), on(1, Health::Settled), unlabelled(), &mut Vec::new());
        }
        assert_eq!(finish_roll(&mut state, Err(missing())), None);
        let knows = |name: &str| state.world.workload(&key(name)).is_some();
        assert_eq!(["web", "other"].map(knows), [false, true]);
    }

    /// Each try is a write.
    #[test]
    fn ineffective_writes_pause_for_an_hour() {
        let pause = |error: fn() -> ApiError| {
            let mut state = rolling();
            for _ in 0..20 {
                finish_roll(&mut state, Err(error()));
            }
            state.queue.due(&Task::Roll(key("web"))).map(|due| due.duration_since(at(11)).as_secs())
        };
        assert_eq!(pause(|| ApiError::InVain { what: "patch".to_owned() }), Some(3600));
        assert_eq!(pause(refused), Some(60));
        assert_eq!(pause(|| ApiError::Conflict { what: "patch".to_owned() }), Some(10));
    }
}
