//! What a change of the world may require of the controller.

use std::sync::Arc;

use crate::{name::Name, objects::WorkloadKey};

/// A change of the world, by the object that it affects. Changes are reported in the order in which they happened.
#[derive(Debug)]
pub enum WorldChange {
    /// A workload may be pending now, or no longer.
    Workload(WorkloadKey),
    /// A workload may refer to a source that is missing.
    Unresolved(WorkloadKey),
    /// The owners that a snapshot or bound object should have may differ.
    Owners(Name),
    /// What a live read found about the owners of a snapshot or bound object no longer holds.
    Unproven(Name),
    /// A workload or revision refers to this object.
    Used(Name),
    /// A workload or revision refers to this snapshot or bound object, which is not known.
    Absent(Name),
    /// A workload or snapshot needs the state of this source.
    SourceNeeded(Name),
    /// Nothing depends on this source any more.
    SourceUnused(Name),
    /// A watch reports another version of this source than the last read.
    SourceOutdated(Name),
    /// This source was read, and differs from what was known.
    SourceRead(Name),
    /// A watch reports that this source is deleted.
    SourceDeleted(Name),
    /// The namespace of this source joined or left a group.
    SourceRegrouped(Name),
    /// This source is labelled to be snapshotted at every change.
    SourceLabelled(Name),
    /// This snapshot holds the content that its source had until now.
    ContentReplaced(Name),
    /// This snapshot was created, changed or deleted.
    Snapshot(Name),
    /// This snapshot is new among those of its source.
    SnapshotAdded(Name),
    /// This snapshot is deleted.
    SnapshotDeleted(Name),
    /// This source is in bind mode, and is new or changed.
    Bound(Name),
    /// This source is deleted, or no longer in bind mode.
    Unbound {
        /// The source.
        name: Name,
        /// Whether anything used it, or owned it.
        is_used: bool,
    },
    /// This namespace opts workloads in, now or with their next deployment.
    OptedIn(Arc<str>),
    /// This namespace no longer opts in workloads that are not deployed.
    OptedOut(Arc<str>),
    /// Something of this namespace is left out of the world.
    PartlyKnown(Arc<str>),
    /// Nothing of this namespace is left out of the world any more.
    FullyKnown(Arc<str>),
}
