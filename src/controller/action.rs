//! What a task comes to, and what comes of that.

use std::sync::Arc;

use super::Name;
use crate::{
    cluster::{Candidate, Event, Live, Owner, Precondition, Version, WorkloadKey},
    resolve::{Observed, Record},
    snapshot::Digest,
};

/// Something to do at the API server.
#[derive(Clone, Debug)]
pub enum Action {
    /// Read a source.
    Read(Name),
    /// Read a source beside snapshots of it whose digests cannot be computed, and learn which of them hold its content.
    Compare {
        /// The source.
        source: Name,
        /// The snapshots.
        snapshots: Vec<Name>,
    },
    /// Let admission take a workload's sources into account.
    Poke {
        /// The workload.
        workload: WorkloadKey,
        /// The condition of the write.
        condition: Precondition,
    },
    /// Set a snapshot's owners.
    SetOwners {
        /// The snapshot.
        snapshot: Name,
        /// The state on which it is conditional.
        version: Version,
        /// All owners.
        owners: Vec<Owner>,
        /// Its last owners may all be gone, and the collector at work on it.
        hazard: bool,
        /// What it must state and hold, or it is no snapshot; `None` where that was looked at before.
        verify: Option<Digest>,
        /// Only of its own may confrev take owners away: the object is a user's.
        own: bool,
    },
    /// Look live at how owners that no watch knows stand to a snapshot.
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
    /// Make a snapshot again that is referenced and gone.
    Restore {
        /// The snapshot.
        snapshot: Name,
        /// The name of its source.
        source: String,
        /// Snapshots that may hold its content.
        copies: Vec<Name>,
        /// Its content, where it is remembered.
        content: Option<Arc<Observed>>,
        /// Its first owners, where it is bound itself: without one it would be the tool's, and stay when its users go.
        owners: Vec<Owner>,
        /// Some of those who use it.
        users: Vec<Owner>,
    },
    /// Delete an object that is bound itself, which nothing uses any more.
    Release {
        /// The object.
        object: Name,
        /// Its state, on which the deletion is conditional.
        version: Version,
    },
    /// Write an Event.
    Tell(Box<Event>),
    /// Take confrev's owners off a user's object.
    Free(Name),
    /// Delete a snapshot that nothing wants.
    Sweep {
        /// The snapshot.
        snapshot: Name,
        /// The state on which it is conditional.
        version: Version,
        /// What it must hold, or it is none.
        digest: Digest,
    },
    /// Find the workloads of a namespace that opts in, which admission does not know yet.
    OptIn(Arc<str>),
}

/// What came of an action.
#[derive(Debug)]
pub enum Outcome {
    /// A source was read.
    Read(Option<Box<Observed>>),
    /// A workload was poked; this is what admission made of it.
    Poked(Box<Record>),
    /// A workload had changed before it was poked; as it is now.
    Changed(Live),
    /// The workloads of a namespace that carry no label.
    Unlabelled(Vec<(WorkloadKey, Candidate)>),
    /// Owners were set on a snapshot that the collector may be at work on; the object as it then was.
    OwnersSet(Box<Observed>),
    /// Owners were looked at live.
    Verified {
        /// They use the snapshot.
        used: Vec<Owner>,
        /// They are gone, or refer to something else.
        unused: Vec<Owner>,
    },
    /// An object that is bound itself was deleted; the object as it last was.
    Released(Box<Observed>),
    /// It bears the labels of a snapshot and is none, as it was then.
    Impostor(Version),
    /// A snapshot was made again.
    Restored,
    /// A snapshot is referenced and gone, and its content is not known any more.
    Lost,
    /// Done, and nothing is learned that a watch will not tell.
    Done,
}
