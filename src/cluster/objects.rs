//! What the calls find and do: workloads, and the uses of a ConfigMap or Secret.

use crate::{
    resolve::{Record, Use},
    world::{Precondition, WorkloadKey},
};

/// The result of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object was created now.
    Now,
    /// An object of that name already exists.
    Exists,
}

/// A workload that its namespace may opt in: it carries no `enabled` label.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The workload.
    pub record: Record,
    /// The condition that the workload still carries no label.
    pub condition: Precondition,
}

/// The most names and keys of the workloads that are found at once. Further ones are found once these are opted in.
const MAX_FOUND: usize = 16_000;

impl Candidate {
    /// Whether these are as many as are found at once: each name and key takes some hundred bytes.
    pub(crate) fn are_many(found: &[(WorkloadKey, Self)]) -> bool {
        let size = |Record { uses, ties, .. }: &Record| {
            let keys = ties.iter().filter_map(|(_, tie)| Some(tie.reads.as_ref()?.keys.len()));
            1 + Use::names(uses) + keys.sum::<usize>()
        };
        found.iter().map(|(_, candidate)| size(&candidate.record)).sum::<usize>() >= MAX_FOUND
    }
}

/// The result of a live read of a workload.
#[derive(Clone, Debug)]
pub enum LiveWorkload {
    /// No such workload exists, or it must not roll: it opts out, or is a revision of another workload.
    Apart,
    /// The workload is opted in.
    Enabled(Box<Record>),
    /// Its namespace decides.
    Unlabelled(Box<Candidate>),
}

/// How a revision or workload uses a ConfigMap or Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// No object with that uid exists.
    Gone,
    /// The template does not refer to the object, or the workload is not opted in.
    Unused,
    /// The template refers to the object, or cannot be read.
    Used,
    /// As `Used`, but the revision or workload is being deleted: it starts no more pods.
    Leaving,
}
