//! Reconciles one object: a snapshot, a source in bind mode, or a name that is referenced and missing.

use jiff::Timestamp;

use super::{decided::Decided, owners::UNBIND_DELAY};
use crate::{
    controller::{action::Action, queue::ObjectStep, reconcile::state::State},
    world::Name,
};

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
    /// What to do for one object. What the object is now decides, and the step that is due.
    pub(super) fn decide_object(&mut self, step: ObjectStep, name: &Name, now: Timestamp) -> Decided {
        match (step, self.kind(name)) {
            (ObjectStep::Bind, Kind::Snapshot | Kind::BoundSnapshot) => self.bind(name, now).into(),
            (ObjectStep::Bind, Kind::Bound) => self.bind_bound(name, false, now).into(),
            // The controller of an owner may still create a revision that refers to the object.
            (ObjectStep::Unbind, _) if self.world.has_unobserved_owner(name) => {
                Decided::Later(now + UNBIND_DELAY)
            }
            (ObjectStep::Unbind, Kind::Snapshot | Kind::BoundSnapshot) => self.unbind(name).into(),
            (ObjectStep::Unbind, Kind::Bound) => self.bind_bound(name, true, now).into(),
            (ObjectStep::Sweep, Kind::Snapshot) => self.sweep(name, now),
            (ObjectStep::Sweep, Kind::BoundSnapshot | Kind::Bound) => self.release(name, now),
            (ObjectStep::Restore, Kind::Other) => self.restore(name).into(),
            // The action reads live whether the object is in bind mode again.
            (ObjectStep::Free, _) => Decided::Act(Action::Free(name.clone())),
            (ObjectStep::Bind | ObjectStep::Sweep | ObjectStep::Unbind, Kind::Other)
            | (ObjectStep::Restore, _) => Decided::Done,
        }
    }

    fn kind(&self, name: &Name) -> Kind {
        match (self.world.snapshot(name), self.world.bound(name)) {
            (Some(_), None) => Kind::Snapshot,
            (Some(_), Some(_)) => Kind::BoundSnapshot,
            (None, Some(_)) => Kind::Bound,
            (None, None) => Kind::Other,
        }
    }
}
