//! The actions that tasks lead to, and their outcomes.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    cluster::{Candidate, Event, LiveWorkload},
    resolve::{Analysis, AnalysisRun, NamespaceOptIn, Observed, Record, UserDecision, Verdict},
    snapshot::{Digest, ObjectName},
    world::{Name, Owner, Precondition, Verified, Version, WorkloadKey},
};

/// The sources that a roll moves, each to the content with this digest.
pub(crate) type Moves = Vec<(ObjectName, Digest)>;

/// An operation on the API server.
#[derive(Clone, Debug)]
pub enum Action {
    /// Read a source.
    Read(Name),
    /// Read a source, and check its content against its schema.
    Check(Name),
    /// Read a source and its snapshots whose digests cannot be computed, and find out which of them hold its content.
    Compare {
        /// The source.
        source: Name,
        /// The snapshots.
        snapshots: Vec<Name>,
    },
    /// Patch a workload, so that admission resolves its references again.
    Poke {
        /// The workload.
        workload: WorkloadKey,
        /// The precondition of the write.
        condition: Precondition,
        /// The time of the last plan that the workload records.
        last_plan: Option<Timestamp>,
        /// The sources that move, each to this content.
        moves: Moves,
        /// The plan names the contents. Otherwise each source moves to the content that it has by then.
        names_contents: bool,
    },
    /// Set a snapshot's owners.
    SetOwners {
        /// The snapshot.
        snapshot: Name,
        /// The uid and resourceVersion that the write requires.
        version: Version,
        /// All owners.
        owners: Vec<Owner>,
        /// All previous owners may be deleted, so the garbage collector may be about to delete the snapshot.
        hazard: bool,
        /// The digest that the object must state and hold to be a snapshot; `None` where this was checked before.
        verify: Option<Digest>,
        /// Remove no owners but confrev's: the object is a user's.
        own: bool,
    },
    /// Write the verdict on a snapshot.
    SetVerdict {
        /// The snapshot.
        snapshot: Name,
        /// The uid and resourceVersion that the write requires.
        version: Version,
        /// The digest that the object must state and hold to be a snapshot.
        digest: Digest,
        /// The verdict.
        verdict: Box<Verdict>,
        /// Whether the verdict before it had a failure.
        had_failed: bool,
        /// The decision that was taken over, if it is one.
        decision: Option<Box<UserDecision>>,
    },
    /// Write the state of a change on its source.
    Publish {
        /// The source.
        source: Name,
        /// The uid and resourceVersion that the write requires.
        version: Version,
        /// The annotation `change`; `None` removes it.
        change: Option<Box<str>>,
    },
    /// Read owners live, and check whether they use a snapshot: owners that no watch reports as its users, or users that
    /// another client removed from its owners.
    Verify {
        /// The snapshot.
        snapshot: Name,
        /// The owners.
        owners: Vec<Owner>,
    },
    /// Snapshot the present content of a source.
    Ensure {
        /// The source.
        source: Name,
        /// Its content, if it was just read.
        content: Option<Arc<Observed>>,
    },
    /// Recreate a snapshot, or a source in bind mode, that is referenced but missing.
    Restore {
        /// The snapshot.
        snapshot: Name,
        /// The name of its source.
        source: String,
        /// Other snapshots that may hold the same content; none for a source in bind mode.
        copies: Vec<Name>,
        /// The content, if it is remembered.
        content: Option<Arc<Observed>>,
        /// The first owners of a source in bind mode. Without one, it would count as the tool's and stay after its users
        /// are deleted.
        owners: Vec<Owner>,
        /// Some of its users.
        users: Vec<Owner>,
    },
    /// Delete a source in bind mode that nothing uses any more.
    Release {
        /// The object.
        object: Name,
        /// The uid and resourceVersion that the deletion requires.
        version: Version,
    },
    /// Write an Event.
    WriteEvent(Box<Event>),
    /// Remove confrev's owners from a user's object.
    Free(Name),
    /// Delete an unused snapshot.
    Sweep {
        /// The snapshot.
        snapshot: Name,
        /// The uid and resourceVersion that the deletion requires.
        version: Version,
        /// The digest that the content must have; otherwise the object is not a snapshot.
        digest: Digest,
    },
    /// Find the workloads without the label that a namespace opts in now: all, or those that were deployed while confrev did not answer.
    OptIn(Arc<str>, NamespaceOptIn),
    /// Read the AnalysisRun that judges a wave, and create it if it does not exist. At the start of a change, only check that
    /// one can be created.
    Analyse {
        /// The source in whose namespace the run is.
        source: Name,
        /// The uid of the source, which owns the run.
        uid: String,
        /// The digest of the content.
        digest: Digest,
        /// The template.
        analysis: Analysis,
        /// The wave, counted from 1; 0 at the start of a change.
        wave: usize,
        /// The name of the run.
        run: Box<str>,
    },
    /// Terminate an AnalysisRun that judges nothing any more.
    EndAnalysis {
        /// The source that owns the run.
        source: Name,
        /// The uid of the source.
        uid: String,
        /// The name of the run.
        run: Box<str>,
    },
}

/// The AnalysisRun that judges a wave.
#[derive(Debug)]
pub struct Analysed {
    /// The run.
    pub run: AnalysisRun,
    /// The wave, counted from 1; 0 at the start of a change.
    pub wave: usize,
    /// It was created just now.
    pub is_new: bool,
}

/// A verdict that was written on a snapshot.
#[derive(Debug)]
pub struct VerdictSet {
    /// The snapshot.
    pub snapshot: Name,
    /// The version that the write required.
    pub before: Version,
    /// The resourceVersion after the write.
    pub after: String,
    /// The verdict.
    pub verdict: Box<Verdict>,
    /// Whether the verdict before it had a failure.
    pub had_failed: bool,
    /// The decision that was taken over, if it is one.
    pub decision: Option<Box<UserDecision>>,
}

/// The state of a change that was written on its source.
#[derive(Debug)]
pub struct Published {
    /// The version that the write required.
    pub before: Version,
    /// The resourceVersion after the write.
    pub after: String,
    /// The annotation `change`.
    pub change: Option<Box<str>>,
}

/// The outcome of an action.
#[derive(Debug)]
pub enum Outcome {
    /// A source was read.
    Read(Option<Box<Observed>>),
    /// A workload was poked; this is the workload as admission changed it.
    Poked(Box<Record>),
    /// A workload had changed before the poke; this is its live state.
    Changed(LiveWorkload),
    /// The workloads of a namespace without the label.
    Unlabelled(Vec<(WorkloadKey, Candidate)>),
    /// Owners were set on a snapshot that the garbage collector may be about to delete; this is the object after the write.
    OwnersSet(Box<Observed>),
    /// A verdict was written on a snapshot.
    VerdictSet(VerdictSet),
    /// The state of a change was written on its source.
    Published(Published),
    /// The AnalysisRun of a wave was read or created.
    Analysed(Analysed),
    /// The AnalysisRun with this name is terminated, ended before, or does not exist.
    AnalysisEnded(Box<str>),
    /// Owners were read live.
    Verified(Verified),
    /// A source in bind mode was deleted; this is the object before the deletion.
    Released(Box<Observed>),
    /// The object has the labels of a snapshot but is not one; this is the version that the action was for.
    Impostor(Version),
    /// A missing snapshot was recreated.
    Restored,
    /// A snapshot is referenced but missing, and its content is no longer known.
    Lost,
    /// A snapshot is referenced but missing, and another object that is not a snapshot has its name.
    Taken,
    /// Done; the watches report any further change.
    Done,
}
