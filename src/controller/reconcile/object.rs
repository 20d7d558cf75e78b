//! Reconciles one object: a snapshot, a source in bind mode, or a name that is referenced and missing.

use jiff::Timestamp;

use super::{decision::Decision, snapshot::UNBIND_DELAY, state::State};
use crate::controller::{action::Action, name::Name, queue::Task};

/// What an object is for the controller now.
#[derive(Clone, Copy)]
enum Kind {
    /// A snapshot.
    Snapshot,
    /// A snapshot that also has the label of bind mode.
    BoundSnapshot,
    /// A source in bind mode.
    Bound,
    /// Neither: it is missing, or a user's own object.
    Other,
}

impl State {
    /// What to do for one object. What the object is now decides. The task only says which delay has passed: an owner to add,
    /// a stale owner, a missing object and an unused object differ in their delays, priorities and pauses after a failure.
    pub(super) fn reconcile_object(&mut self, task: &Task, name: &Name, now: Timestamp) -> Decision {
        match (task, self.kind(name)) {
            (Task::Bind(_), Kind::Snapshot | Kind::BoundSnapshot) => self.bind(name, now).into(),
            (Task::Bind(_), Kind::Bound) => self.bind_bound(name, false, now).into(),
            // The controller of an owner may still create a revision that refers to the object.
            (Task::Unbind(_), _) if self.index.has_unobserved_owner(name) => {
                Decision::Later(now + UNBIND_DELAY)
            }
            (Task::Unbind(_), Kind::Snapshot | Kind::BoundSnapshot) => self.unbind(name).into(),
            (Task::Unbind(_), Kind::Bound) => self.bind_bound(name, true, now).into(),
            (Task::Sweep(_), Kind::Snapshot) => self.sweep(name, now),
            (Task::Sweep(_), Kind::BoundSnapshot | Kind::Bound) => self.release(name, now),
            (Task::Restore(_), Kind::Other) => self.restore(name).into(),
            // The action reads live whether the object is in bind mode again.
            (Task::Free(_), _) => Decision::Act(Action::Free(name.clone())),
            _ => Decision::Done,
        }
    }

    fn kind(&self, name: &Name) -> Kind {
        match (self.index.snapshot(name), self.index.bound(name)) {
            (Some(_), None) => Kind::Snapshot,
            (Some(_), Some(_)) => Kind::BoundSnapshot,
            (None, Some(_)) => Kind::Bound,
            (None, None) => Kind::Other,
        }
    }
}
