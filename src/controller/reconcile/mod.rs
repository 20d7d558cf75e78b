//! Decides what to do for one object, when its task is due: from the world, the queue and the time.
//!
//! A task only names an object. Its action is decided from what is known at that moment.

pub(crate) mod analyses;
pub(crate) mod bound;
pub(crate) mod checked_schemas;
pub(crate) mod counted_changes;
pub(crate) mod enqueue;
pub(crate) mod event_texts;
pub(crate) mod events;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod gate_names;
pub(crate) mod gates;
pub(crate) mod gauges;
pub(crate) mod held;
pub(crate) mod missing_snapshots;
pub(crate) mod object;
pub(crate) mod partly_known;
pub(crate) mod publish;
pub(crate) mod reconciled;
pub(crate) mod refusals;
pub(crate) mod relists;
pub(crate) mod report;
pub(crate) mod rested;
pub(crate) mod rolls;
pub(crate) mod schema_checks;
pub(crate) mod snapshot;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod state_checks;
pub(crate) mod workload;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use self::{reconciled::Reconciled, state::State};
use super::{action::Action, queue::Task};

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
            match self.reconcile(&task, now) {
                Reconciled::Act(action) => return Next::Act(task, action),
                Reconciled::Later(at) => self.queue.postpone(task, at),
                Reconciled::Done => {
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
    fn reconcile(&mut self, task: &Task, now: Timestamp) -> Reconciled {
        if !self.world.is_synced() && !matches!(task, Task::Read(_)) {
            return Reconciled::Later(now + KNOWLEDGE_DELAY);
        }
        match task {
            Task::Read(name) => source::read(&self.world, name).into(),
            Task::Check(name) => self.check_schema(name),
            Task::Roll(key) => self.reconcile_roll(key, now),
            Task::Judge(key) => self.judge(key, now),
            Task::Analyse(name) => self.analyse(name, now),
            Task::Publish(name) => self.publish(name, now),
            Task::Ensure(name) => self.reconcile_source(name).into(),
            Task::Object(name, step) => self.reconcile_object(*step, name, now),
            Task::Report(key) => {
                self.report_missing_sources(key, now);
                Reconciled::Done
            }
            Task::WriteEvent => self.next_event(now),
            Task::OptIn(namespace) => {
                let opt_in = self.world.opt_in_of(namespace);
                opt_in.is_in().then(|| Action::OptIn(Arc::clone(namespace), opt_in)).into()
            }
        }
    }
}
