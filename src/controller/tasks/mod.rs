//! The tasks: what each decides when it is due, does, and learns from the answer.
//!
//! A task only names an object. Its action is decided from what is known at that moment: the world, the queue and the time. Each task
//! has a file: its decision is a method of [`State`], its few API calls are a function that [`execute`] calls, and its end is again a
//! method.

mod analyse;
mod analysis_run;
pub(super) mod check;
pub(super) mod decided;
mod end;
mod ensure;
mod judge;
mod object;
mod opt_in;
mod owners;
mod publish;
mod read;
mod report;
mod restore;
mod roll;
mod sweep;
mod write_event;

pub use ensure::ensure;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use self::{analysis_run::WantedRun, decided::Decided, end::End};
use crate::{
    cluster::{Api, ApiError},
    controller::{
        action::{Action, Outcome, VerdictSet},
        queue::{ObjectStep, Task},
        reconcile::{rolls::Failed, state::State},
    },
    resolve::{Plan, roll_time},
};

/// How long a task waits while the watches have not listed their objects.
const KNOWLEDGE_DELAY: SignedDuration = SignedDuration::from_millis(500);
/// The most tasks that are decided under one lock.
const MAX_AT_ONCE: usize = 64;

/// What the controller's loop does next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and is never kept")]
pub enum Next {
    /// Run this action for this task.
    Act(Task, Action),
    /// Further tasks are due, and may wait for a moment.
    More,
    /// Nothing is due.
    Rest,
}

impl State {
    /// The next action that is due. The caller must give its outcome to [`State::finish`], with the same task.
    pub fn next_action(&mut self, now: Timestamp) -> Option<(Task, Action)> {
        loop {
            match self.next_step(now) {
                Next::Act(task, action) => return Some((task, action)),
                Next::More => {}
                Next::Rest => return None,
            }
        }
    }

    /// Like [`State::next_action`], but stops after a few tasks without an action: holding the state's lock delays admission.
    pub fn next_step(&mut self, now: Timestamp) -> Next {
        for _ in 0..MAX_AT_ONCE {
            let Some(task) = self.queue.pop(now, self.rolls.from()) else { return Next::Rest };
            match self.decide(&task, now) {
                Decided::Act(action) => return Next::Act(task, action),
                Decided::Later(at) => self.queue.postpone(task, at),
                Decided::Done => {
                    self.queue.done(&task);
                    if let Task::Ensure(name) = &task {
                        self.enqueue_users(name, now);
                    }
                }
            }
        }
        Next::More
    }

    /// What to do for a task at this moment.
    fn decide(&mut self, task: &Task, now: Timestamp) -> Decided {
        if !self.world.is_synced() && !matches!(task, Task::Read(_)) {
            return Decided::Later(now + KNOWLEDGE_DELAY);
        }
        match task {
            Task::Read(name) => read::read(&self.world, name).into(),
            Task::Check(name) => self.check_schema(name),
            Task::Roll(key) => self.decide_roll(key, now),
            Task::Judge(key) => self.judge(key, now),
            Task::Analyse(name) => self.analyse(name, now),
            Task::Publish(name) => self.publish(name, now),
            Task::Ensure(name) => self.decide_ensure(name).into(),
            Task::Object(name, step) => self.decide_object(*step, name, now),
            Task::Report(key) => {
                self.report_missing_sources(key, now);
                Decided::Done
            }
            Task::WriteEvent => self.next_event(now),
            Task::OptIn(namespace) => self.opt_in(namespace),
        }
    }

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
                self.unlabelled_were_found(namespace, found, now);
            }
            (Task::Read(name), Outcome::Read(observed)) => self.finish_read(name, observed, now),
            (Task::Check(name), Outcome::Read(observed)) => self.finish_check(name, observed.as_deref(), now),
            (Task::Object(name, ObjectStep::Bind | ObjectStep::Unbind), outcome) => {
                self.owners_finished(name, outcome, now);
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

    /// Applies an error: most tasks are tried again.
    fn failed(&mut self, task: &Task, error: &ApiError, now: Timestamp) {
        match task {
            Task::Check(source) if !error.may_pass() => {
                self.queue.done(task);
                return self.was_not_checked(source, error, now);
            }
            Task::Roll(key) => self.roll_was_refused(key, error, now),
            _ => {}
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
                    self.drop_joining(now, |_, joining| joining == key);
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

/// Runs an action. Every write in it is conditional or idempotent, so running it twice, or only in part, loses nothing.
pub async fn execute<A: Api>(api: &A, action: Action, now: Timestamp) -> Result<Outcome, ApiError> {
    match action {
        // A check needs more than the API server. Here it has no result.
        Action::Read(source) | Action::Check(source) => read::run(api, &source, &[]).await,
        Action::Compare { source, snapshots } => read::run(api, &source, &snapshots).await,
        Action::Poke { workload, condition, last_plan, moves, names_contents } => {
            let time = roll_time(now, last_plan);
            let plan =
                if names_contents { Plan::automatic(time, &moves) } else { Plan::to_newest(time, &moves) };
            roll::run(api, &workload, &condition, &plan).await
        }
        Action::SetOwners { snapshot, version, owners, hazard, verify, own } => {
            owners::run(api, &snapshot, version, owners, owners::Care { hazard, verify, own }).await
        }
        Action::Verify { snapshot, owners } => owners::read_owners(api, &snapshot, owners).await,
        Action::Free(name) => owners::free(api, &name).await,
        Action::SetVerdict { snapshot, version: before, digest, verdict, had_failed, decision } => {
            let set = VerdictSet { snapshot, before, after: String::new(), verdict, had_failed, decision };
            judge::run(api, set, &digest).await
        }
        Action::Publish { source, version, change } => publish::run(api, &source, version, change).await,
        Action::Ensure { source, content } => ensure::run(api, &source, content).await,
        Action::Restore { snapshot, source, copies, content, owners, users } => {
            restore::restore(api, &snapshot, &source, &copies, content.as_deref(), &owners, &users).await
        }
        Action::Sweep { snapshot, version, digest } => sweep::sweep(api, &snapshot, &version, &digest).await,
        Action::Release { object, version } => sweep::release(api, &object, &version).await,
        Action::WriteEvent(event) => {
            api.create_event(&event).await?;
            Ok(Outcome::Done)
        }
        Action::Analyse { source, uid, digest, analysis, wave, run } => {
            let (source, uid, digest, analysis, run) = (&source, &*uid, &digest, &analysis, &*run);
            analysis_run::analyse(api, &WantedRun { source, uid, digest, analysis, wave, run }).await
        }
        Action::EndAnalysis { source, uid, run } => analysis_run::terminate(api, &source, &uid, &run).await,
        Action::OptIn(namespace, opt_in) => {
            Ok(Outcome::Unlabelled(api.unlabelled(&namespace, opt_in).await?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, moved_one, state},
        resolve::{AnalysisRun, Health, Observed, RunState},
        snapshot::SourceKind,
        world::fixture::{snapshot, snapshot_record, source},
    };

    fn content() -> Box<Observed> {
        let json = r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"9"},"data":{}}"#;
        Box::new(Observed::read(SourceKind::ConfigMap, json.as_bytes()).unwrap())
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
