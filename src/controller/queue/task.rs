//! Tasks: the objects to reconcile.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use crate::{cluster::WorkloadKey, controller::name::Name, telemetry::metrics::Work};

/// Tasks by the time at which they are due.
pub(crate) type Tasks = BTreeSet<(Timestamp, Task)>;

/// An object to check, and what for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// A source whose content is unknown, or changed.
    Read(Name),
    /// A workload that is pending.
    Roll(WorkloadKey),
    /// A workload that may have failed because of a content.
    Judge(WorkloadKey),
    /// A source whose present content may have no snapshot, or a mark that a person wants to be removed.
    Ensure(Name),
    /// A snapshot that may lack an owner.
    Bind(Name),
    /// A snapshot that may have stale owners.
    Unbind(Name),
    /// A user's object that may have owners of confrev's, and is not in bind mode.
    Free(Name),
    /// A snapshot that is referenced and may be missing.
    Restore(Name),
    /// A snapshot that may be unused.
    Sweep(Name),
    /// A workload that may refer to a missing source.
    Report(WorkloadKey),
    /// Events to write, one after the other.
    WriteEvent,
    /// A namespace that opts in, and may have workloads without the label.
    OptIn(Arc<str>),
}

impl Task {
    /// Whether the task may wait for urgent ones. Owners, clean-up and Events can wait for a moment, and must not delay a
    /// change in progress.
    pub(crate) fn may_wait(&self) -> bool {
        matches!(self, Self::Bind(_) | Self::Unbind(_) | Self::Free(_) | Self::Report(_) | Self::WriteEvent)
    }

    /// Whether the task may list a whole namespace.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self, Self::Restore(_) | Self::Sweep(_) | Self::OptIn(_))
    }

    /// The namespace of the object; `None` for Events.
    pub(crate) fn namespace(&self) -> Option<&Arc<str>> {
        match self {
            Self::Read(name)
            | Self::Ensure(name)
            | Self::Bind(name)
            | Self::Unbind(name)
            | Self::Free(name)
            | Self::Restore(name)
            | Self::Sweep(name) => Some(&name.namespace),
            Self::Roll(key) | Self::Judge(key) | Self::Report(key) => Some(&key.namespace),
            Self::OptIn(namespace) => Some(namespace),
            Self::WriteEvent => None,
        }
    }

    /// The kind of work in metrics.
    pub fn work(&self) -> Work {
        match self {
            Self::Read(_) => Work::Read,
            Self::Roll(_) => Work::Roll,
            Self::Ensure(_) => Work::Ensure,
            Self::Judge(_) => Work::Judge,
            Self::Bind(_) => Work::Bind,
            Self::Unbind(_) | Self::Free(_) => Work::Unbind,
            Self::Restore(_) => Work::Restore,
            Self::Sweep(_) => Work::Sweep,
            Self::Report(_) | Self::WriteEvent => Work::Tell,
            Self::OptIn(_) => Work::OptIn,
        }
    }
}
