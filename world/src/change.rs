//! What a change of the world may require of the controller.

use std::sync::Arc;

use crate::{name::Name, objects::WorkloadKey};

/// An object to check, since something that it depends on has changed. What follows is decided from its state then. The kinds
/// about the end or the beginning of something say what only the change shows. Changes are reported in the order in which they happened.
#[derive(Debug)]
pub enum WorldChange {
    /// A workload, a source that it uses, or a verdict on the content of one.
    Workload(WorkloadKey),
    /// A workload that has other references than before, or that has lost a source.
    Unresolved(WorkloadKey),
    /// A source: what is known of it, its snapshots, or what needs it.
    Source(Name),
    /// A source whose newest content has a verdict, which may concern the other sources of its group.
    Judged(Name),
    /// A snapshot or bound object: itself, its users, or the owners that it should have.
    Object(Name),
    /// A snapshot or bound object of which a live read no longer proves an owner.
    Unproven(Name),
    /// A snapshot that is new among those of its source.
    Added(Name),
    /// A snapshot or bound object that a workload or revision refers to, and that is not known.
    Absent(Name),
    /// A snapshot that is deleted.
    Deleted(Name),
    /// A source that is deleted, or no longer in bind mode.
    Unbound {
        /// The source.
        name: Name,
        /// Whether anything used it, or owned it.
        is_used: bool,
    },
    /// What a namespace says about its workloads.
    Namespace(Arc<str>),
    /// Whether all of a namespace is in the world.
    Share(Arc<str>),
}
