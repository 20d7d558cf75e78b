//! Applies the outcome of an action to the index and the queue.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{ApiError, LiveWorkload, WorkloadKey},
    controller::{
        action::Outcome,
        name::Name,
        queue::{ObjectStep, Task},
        reconcile::state::State,
        reconcile::{
            event_texts::{self, Loss},
            rolls::Rolling,
        },
    },
    resolve::Record,
};

/// The pause of a workload that had changed before its roll. Others may write it all the time, so the next write should
/// follow the live read quickly.
const CONFLICT_DELAY: SignedDuration = SignedDuration::from_millis(50);

/// How often writing an Event is tried.
const TRIES: u32 = 3;

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
            Err(error) => return self.failed(task, &error, now),
        };
        let end = match task {
            Task::Roll(key) => self.roll_finished(key, rolling, outcome, now),
            Task::Object(name, ObjectStep::Restore) => self.restore_finished(name, &outcome, now),
            Task::Ensure(name) => {
                if let Outcome::RefusedSet(set) = outcome {
                    self.refusal_was_set(set, now);
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
            (Task::OptIn(_), Outcome::Unlabelled(found)) => self.join(found, now),
            (Task::Read(name), Outcome::Read(observed)) => self.finish_read(name, observed, now),
            // Another version may exist by now.
            (Task::Object(name, ObjectStep::Bind | ObjectStep::Unbind), Outcome::Impostor(version))
                if self.index.snapshot(name).is_some_and(|record| record.version() == version) =>
            {
                self.apply_snapshot(name, None, now);
            }
            (Task::Object(name, ObjectStep::Bind | ObjectStep::Unbind), Outcome::OwnersSet(observed)) => {
                self.memory.remember_endangered(name.clone(), Arc::new(*observed), now);
            }
            (Task::Judge(_) | Task::Analyse(_), Outcome::RefusedSet(set)) => self.refusal_was_set(set, now),
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
                let known = rolling.filter(|_| self.index.workload(key).is_some());
                known.map_or(End::Done, |Rolling { before, .. }| self.rolled(key, &before, &record, now))
            }
            Outcome::Changed(live) => {
                let is_unchanged = self.still_holds(key, rolling.as_ref(), &live);
                self.changed_before_roll(key, rolling.as_ref(), live, now);
                if is_unchanged { End::Conflicted } else { End::Again(now + CONFLICT_DELAY) }
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
            LiveWorkload::Unlabelled(candidate) => self.index.joining(key) == Some(&candidate.condition),
            LiveWorkload::Apart => false,
        }
    }

    fn rolled(&mut self, key: &WorkloadKey, before: &Record, record: &Record, now: Timestamp) -> End {
        let joins = self.index.joining(key).is_some();
        let in_vain = if joins {
            !record.by_namespace
        } else {
            (&before.seen, &before.uses) == (&record.seen, &record.uses)
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
            self.index.workload(key).is_some_and(|known| known.resource_version != before.resource_version);
        if !is_reported {
            self.rolls.clear_pending(key);
            self.apply_workload(key, Some(record.clone()), now);
        }
        let events = event_texts::roll(&self.index, key, before, record, now);
        self.report(events, now);
        // If the roll took effect, a source that changed again at that moment requires another roll.
        if in_vain && self.index.is_pending(key) {
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
        let known = self.index.workload(key).map(|known| &known.resource_version);
        if known == rolling.map(|rolling| &rolling.before.resource_version) {
            match live {
                LiveWorkload::Enabled(record) => self.apply_workload(key, Some(*record), now),
                LiveWorkload::Unlabelled(candidate) => {
                    if self.index.joining(key).is_none() {
                        self.apply_workload(key, None, now);
                    }
                    self.join([(key.clone(), *candidate)], now);
                }
                LiveWorkload::Apart => self.apply_workload(key, None, now),
            }
        }
    }

    /// Handles the result of writing an Event. It is retried only a few times, because it is not essential.
    fn event_written(&mut self, outcome: Result<(), &ApiError>, now: Timestamp) {
        let event = self.events.end();
        let again =
            outcome.is_err_and(ApiError::may_pass) && self.queue.failures(&Task::WriteEvent) + 1 < TRIES;
        if let (Some(event), true) = (&event, again) {
            self.events.retry(event.clone(), now);
            self.queue.failed(Task::WriteEvent, now);
        } else {
            if let Err(error) = outcome {
                tracing::warn!(%error, "an Event was not written");
            }
            if let Some(event) = event {
                self.notices.add(&event);
            }
            self.queue.done(&Task::WriteEvent);
        }
        self.schedule_events();
    }

    fn failed(&mut self, task: &Task, error: &ApiError, now: Timestamp) {
        if let (Task::Roll(key), ApiError::Refused { code, message, .. }, false) =
            (task, error, error.may_pass())
        {
            let events = event_texts::refusal(&self.index, key, *code, message, now);
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
