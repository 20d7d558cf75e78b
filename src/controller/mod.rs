//! The controller: rolls workloads whose sources changed, binds snapshots to their users, and deletes unused snapshots.
//!
//! Level-triggered: the watches update an `index`, and each change of the index queues tasks. When a task is due, its
//! action is decided from what is known at that time. Every replica keeps the index, because admission reads it; only the
//! leader acts.
//!
//! The dependencies have one direction: `watch` feeds the index through `reconcile`, which decides from the `index`
//! and the `queue`; `apply` executes what was decided, and `run` drives them.

mod action;
mod apply;
mod config;
mod contents;
mod index;
mod leader;
mod memory;
mod name;
mod queue;
mod reconcile;
mod run;
mod shared;
mod vitals;
mod watch;

pub use action::{Action, Analysed, Outcome, SchemaCheck, VerdictSet};
pub use apply::execute::{ensure, execute};
pub use config::Config;
pub use index::{
    live_findings::Verified,
    records::{BoundRecord, NamespaceSettings, Revision, RevisionKey, SnapshotRecord, SourceMeta},
    served::Served,
    shares::{INDEX_TOTAL, NAMESPACE_SHARE, REVISIONS_SHARE, ShareLimits},
};
pub use leader::{Leadership, lead};
pub use name::Name;
pub use queue::{ObjectStep, Queue, Task};
pub use reconcile::{Next, owners::MAX_OWNERS, state::State};
pub use run::run;
pub use shared::Shared;
pub use watch::{
    follow::take,
    object::{FromText, PartialObject, RawObject},
    subjects::{
        LabelledSubject, NamespacesSubject, ReferringSubject, RevisionsSubject, SnapshotsSubject, Subject,
        UsedSourcesSubject, WorkloadsSubject,
    },
    watch_all,
};
