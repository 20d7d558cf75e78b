//! Applies the outcome of an action to the world and the queue.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{ApiError, Candidate, LiveWorkload},
    controller::{
        action::Outcome,
        queue::{ObjectStep, Task},
        reconcile::{
            event_texts::{self, Loss},
            rolls::{Failed, Rolling},
            state::State,
        },
    },
    resolve::Record,
    world::{Name, WorkloadKey},
};

/// The pause of a workload that had changed before its roll. Others may write it all the time, so the next write should
/// follow the live read quickly.
const CONFLICT_DELAY: SignedDuration = SignedDuration::from_millis(50);

/// When further workloads of a namespace that opts in are found, if there are more than are found at once.
const NEXT_WORKLOADS: SignedDuration = SignedDuration::from_mins(1);

/// How the work on a task ends.
enum End {
    /// It is done.
    Done,
    /// It is tried again at that time.
    Again(Timestamp),
    /// It failed, and is tried again after a pause that grows.
    Failed,
    /// It conflicted although its object had not changed, and is tried again after a pause that grows to some seconds.
    Conflicted,
    /// It had no effect, and is tried again after a pause that grows to an hour.
    InVain,
}

impl State {
    /// Applies the outcome of an action.
    pub fn finish(&mut self, task: &Task, outcome: Result<Outcome, ApiError>, now: Timestamp) {
        if *task == Task::WriteEvent {
            return self.event_written(outcome.as_ref().map(|_| ()), now);
        }
        let rolling = if let Task::Roll(key) = task {
            let is_known = outcome.as_ref().err().is_none_or(|error| !error.may_have_effect());
            self.rolls.end(key, is_known, now)
        } else {
            None
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                if let (Task::Roll(key), Some(rolling), false) = (task, rolling, error.may_pass()) {
                    self.roll_failed(key, Failed { moves: rolling.moves, in_vain: false });
                }
                return self.failed(task, &error, now);
            }
        };
        let end = match task {
            Task::Roll(key) => self.roll_finished(key, rolling, outcome, now),
            Task::Object(name, ObjectStep::Restore) => self.restore_finished(name, &outcome, now),
            Task::Ensure(name) => {
                if let Outcome::VerdictSet(set) = outcome {
                    self.verdict_was_set(set, now);
                }
                self.queue.done(task);
                return self.enqueue_users(name, now);
            }
            // The findings may require other owners at once.
            Task::Object(name, step @ (ObjectStep::Bind | ObjectStep::Unbind | ObjectStep::Sweep))
                if matches!(outcome, Outcome::Verified(_)) =>
            {
                self.queue.done(task);
                let Outcome::Verified(verified) = outcome else { return };
                return self.owners_were_verified(*step, name, verified, now);
            }
            _ => {
                self.succeeded(task, outcome, now);
                End::Done
            }
        };
        match end {
            End::Done => self.queue.done(task),
            End::Again(at) => self.queue.postpone(task.clone(), at),
            End::Failed => {
                self.queue.failed(task.clone(), now);
            }
            End::Conflicted => {
                self.queue.conflicted(task.clone(), now);
            }
            End::InVain => {
                self.queue.failed_in_vain(task.clone(), now);
            }
        }
    }

    /// Applies an outcome that ends its task.
    fn succeeded(&mut self, task: &Task, outcome: Outcome, now: Timestamp) {
        match (task, outcome) {
            (Task::OptIn(namespace), Outcome::Unlabelled(found)) => {
                if Candidate::are_many(&found) {
                    self.queue.schedule(Task::OptIn(Arc::clone(namespace)), now + NEXT_WORKLOADS);
                }
                self.join(found, now);
            }
            (Task::Read(name), Outcome::Read(observed)) => self.finish_read(name, observed, now),
            (Task::Check(name), Outcome::Read(observed)) => self.finish_check(name, observed.as_deref(), now),
            // Another version may exist by now.
            (Task::Object(name, ObjectStep::Bind | ObjectStep::Unbind), Outcome::Impostor(version))
                if self.world.snapshot(name).is_some_and(|record| record.version() == version) =>
            {
                self.apply_snapshot(name, None, now);
            }
            (Task::Object(name, ObjectStep::Bind | ObjectStep::Unbind), Outcome::OwnersSet(observed)) => {
                self.memory.remember_endangered(name.clone(), Arc::new(*observed), now);
            }
            (Task::Judge(_) | Task::Analyse(_), Outcome::VerdictSet(set)) => self.verdict_was_set(set, now),
            (Task::Publish(name), Outcome::Published(published)) => self.published(name, published, now),
            (Task::Analyse(name), Outcome::Analysed(found)) => self.analysed(name, found, now),
            (Task::Analyse(name), Outcome::AnalysisEnded(run)) => self.analysis_ended(name, run, now),
            (Task::Object(name, ObjectStep::Sweep), Outcome::Released(observed)) => {
                self.memory.remember_deleted(name.clone(), Arc::new(*observed), now);
            }
            _ => {}
        }
    }

    fn restore_finished(&mut self, name: &Name, outcome: &Outcome, now: Timestamp) -> End {
        if let Outcome::Lost | Outcome::Taken = outcome {
            let is_taken = matches!(outcome, Outcome::Taken);
            return match self.lose(name, is_taken, now) {
                Some(at) => End::Again(at),
                // No watch reports the deletion of the object that has the name.
                None if is_taken => End::Failed,
                None => End::Done,
            };
        }
        self.missing.changed(name);
        if matches!(outcome, Outcome::Restored) {
            self.report_loss(name, Loss::Restored, now);
        }
        End::Done
    }

    fn roll_finished(
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

    /// Records that a roll failed: the pause after it does not count for other contents.
    fn roll_failed(&mut self, key: &WorkloadKey, failed: Failed) {
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

    /// Handles the result of writing an Event. It is retried only a few times, because it is not essential, and its
    /// namespace alone pauses meanwhile.
    fn event_written(&mut self, outcome: Result<(), &ApiError>, now: Timestamp) {
        let has_ended = self.events.end(outcome.is_err_and(ApiError::may_pass), now);
        if let Err(error) = outcome
            && has_ended
        {
            tracing::warn!(%error, "an Event was not written");
        }
        self.queue.done(&Task::WriteEvent);
        self.schedule_events();
    }

    fn failed(&mut self, task: &Task, error: &ApiError, now: Timestamp) {
        if let (Task::Check(source), false) = (task, error.may_pass()) {
            // Nothing says that the content matches its schema. It is checked again.
            self.queue.done(task);
            return self.set_check(source, &Err(format!("it was not checked: {error}").into()), now);
        }
        if let (Task::Roll(key), ApiError::Refused { code, message, .. }, false) =
            (task, error, error.may_pass())
        {
            let events = event_texts::refusal(&self.world, key, *code, message, now);
            self.report(events, now);
        }
        match error {
            // Each try lists objects, and the cause may last: as long as a watch is silent, or a revision exists.
            ApiError::Conflict { .. }
                if matches!(task, Task::Object(_, ObjectStep::Restore | ObjectStep::Sweep)) =>
            {
                self.queue.failed(task.clone(), now);
            }
            // The watches report the present object; the next try decides by that.
            ApiError::Conflict { .. } => {
                tracing::debug!(?task, %error, "changed in the meantime");
                self.queue.conflicted(task.clone(), now);
            }
            ApiError::NotFound { .. } | ApiError::Terminating { .. } => {
                self.queue.done(task);
                if let Task::Roll(key) = task {
                    self.drop_joining(now, |joining| joining == key);
                }
            }
            // Each try is a write, and webhooks may exclude the namespace, or not be in force yet.
            ApiError::InVain { .. } => {
                let pause = self.queue.failed_in_vain(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "task had no effect and will be retried");
            }
            _ => {
                let pause = self.queue.failed(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "task failed and will be retried");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{
            action::Action,
            reconcile::fixture::{at, moved_one, on, state},
        },
        resolve::{AnalysisRun, Health, NamespaceOptIn, Observed, RunState},
        snapshot::SourceKind,
        world::{
            Precondition,
            fixture::{key, record, snapshot, snapshot_record, source, used},
        },
    };

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

    fn content() -> Box<Observed> {
        let json = r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"9"},"data":{}}"#;
        Box::new(Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap())
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

    #[test]
    fn endangered_and_deleted_contents_are_remembered() {
        use ObjectStep::{Bind, Sweep, Unbind};
        let name = source("a").sibling(snapshot("a", 1));
        for (step, outcome) in [
            (Bind, Outcome::OwnersSet(content())),
            (Unbind, Outcome::OwnersSet(content())),
            (Sweep, Outcome::Released(content())),
        ] {
            let mut state = state(&[]);
            state.finish(&Task::Object(name.clone(), step), Ok(outcome), at(1));
            assert!(state.memory.recall(&name).is_some(), "{step:?}");
        }
    }

    #[test]
    fn object_that_only_has_labels_is_no_snapshot() {
        let name = source("a").sibling(snapshot("a", 1));
        let version = snapshot_record("a", 1).version();
        let newer = crate::world::Version { resource_version: "2".to_owned(), ..version.clone() };
        for (found, is_known) in [(version, false), (newer, true)] {
            let mut state = state(&[]);
            state.finish(&Task::Object(name.clone(), ObjectStep::Bind), Ok(Outcome::Impostor(found)), at(1));
            assert_eq!(state.world.snapshot(&name).is_some(), is_known);
        }
    }

    #[test]
    fn terminated_analysis_judges_nothing() {
        let mut state = moved_one(Health::Settled, &[("waves", "1"), ("analysis", "sound")]);
        let run = AnalysisRun { name: "run".into(), state: RunState::Running };
        state.world.analyses_mut().set(&source("a"), run, at(1));
        state.finish(&Task::Analyse(source("a")), Ok(Outcome::AnalysisEnded("run".into())), at(2));
        let known = state.world.analyses().get(&source("a")).unwrap();
        assert_eq!(known.run.state, RunState::Undecided("was terminated".into()));
    }
}
