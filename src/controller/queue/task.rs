//! Tasks: the objects to reconcile.

use std::sync::Arc;

use crate::{
    telemetry::metrics::Work,
    world::{Name, WorkloadKey},
};

/// An object to check, and what for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// A source whose content is unknown, or changed.
    Read(Name),
    /// A source whose content is to be checked against its schema.
    Check(Name),
    /// A workload that is pending.
    Roll(WorkloadKey),
    /// A workload that may have failed because of a content.
    Judge(WorkloadKey),
    /// A source of which a wave may have ended, or whose analysis of a wave may have.
    Analyse(Name),
    /// A source whose present content may have no snapshot, or a mark that a person wants to be removed.
    Ensure(Name),
    /// A snapshot, a source in bind mode, or a name that is referenced and may be missing; and the step to reconcile it by.
    Object(Name, ObjectStep),
    /// A source whose annotation `change` may be outdated.
    Publish(Name),
    /// A workload that may refer to a missing source.
    Report(WorkloadKey),
    /// Events to write, one after the other.
    WriteEvent,
    /// A namespace that opts in, and may have workloads without the label.
    OptIn(Arc<str>),
}

/// A step of the reconcile of one object. Each step is due at its own time, has its own priority, and pauses on its own after
/// failures. The steps of one object never run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectStep {
    /// Add the owners that the object lacks.
    Bind,
    /// Remove its stale owners.
    Unbind,
    /// Remove all owners of confrev's: a user's object may have some, and not be in bind mode.
    Free,
    /// Create it again: it is referenced and may be missing.
    Restore,
    /// Delete it: it may be unused.
    Sweep,
}

impl ObjectStep {
    const ALL: [Self; 5] = [Self::Bind, Self::Unbind, Self::Free, Self::Restore, Self::Sweep];
}

impl Task {
    /// The other steps of the same object. While one step is worked on, the others wait.
    pub(crate) fn other_steps(&self) -> impl Iterator<Item = Self> + use<> {
        let object = match self {
            Self::Object(name, step) => Some((name.clone(), *step)),
            _ => None,
        };
        object.into_iter().flat_map(|(name, step)| {
            let others = ObjectStep::ALL.into_iter().filter(move |other| *other != step);
            others.map(move |other| Self::Object(name.clone(), other))
        })
    }

    /// Whether the task may wait for urgent ones. Owners, clean-up and Events can wait for a moment, and must not delay a
    /// change in progress.
    pub(crate) fn may_wait(&self) -> bool {
        use ObjectStep::{Bind, Free, Sweep, Unbind};
        matches!(
            self,
            Self::Object(_, Bind | Unbind | Free | Sweep)
                | Self::Publish(_)
                | Self::Report(_)
                | Self::WriteEvent
        )
    }

    /// Whether the task may take seconds: it lists a whole namespace, or waits for a check in a child process.
    pub(crate) fn is_slow(&self) -> bool {
        use ObjectStep::{Restore, Sweep, Unbind};
        matches!(self, Self::Object(_, Restore | Sweep | Unbind) | Self::OptIn(_) | Self::Check(_))
    }

    /// The namespace of the object; `None` for Events.
    pub(crate) fn namespace(&self) -> Option<&Arc<str>> {
        match self {
            Self::Read(name)
            | Self::Check(name)
            | Self::Ensure(name)
            | Self::Analyse(name)
            | Self::Publish(name)
            | Self::Object(name, _) => Some(&name.namespace),
            Self::Roll(key) | Self::Judge(key) | Self::Report(key) => Some(&key.namespace),
            Self::OptIn(namespace) => Some(namespace),
            Self::WriteEvent => None,
        }
    }

    /// The kind of work in metrics.
    pub fn work(&self) -> Work {
        match self {
            Self::Read(_) => Work::Read,
            Self::Check(_) => Work::Check,
            Self::Roll(_) => Work::Roll,
            Self::Ensure(_) => Work::Ensure,
            Self::Judge(_) => Work::Judge,
            Self::Analyse(_) => Work::Analyse,
            Self::Publish(_) => Work::Publish,
            Self::Object(_, step) => match step {
                ObjectStep::Bind => Work::Bind,
                ObjectStep::Unbind | ObjectStep::Free => Work::Unbind,
                ObjectStep::Restore => Work::Restore,
                ObjectStep::Sweep => Work::Sweep,
            },
            Self::Report(_) | Self::WriteEvent => Work::Tell,
            Self::OptIn(_) => Work::OptIn,
        }
    }
}
