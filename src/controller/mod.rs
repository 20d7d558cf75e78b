//! The controller: rolls workloads whose sources changed, binds snapshots to their users, and deletes unused snapshots.
//!
//! Level-triggered: the watches update the world ([`crate::world`]), and each change of it queues tasks. When a task is due, its
//! action is decided from what is known at that time. Every replica keeps the world, because admission reads it; only the
//! leader acts.
//!
//! The dependencies have one direction: `watch` feeds the world through `reconcile`, which decides from the world
//! and the `queue`; `apply` executes what was decided, and `run` drives them.

mod action;
mod apply;
mod config;
mod contents;
mod leader;
mod memory;
mod queue;
mod reconcile;
mod run;
mod shared;
mod vitals;
mod watch;

pub use action::{Action, Analysed, Outcome, VerdictSet};
pub use apply::execute::{ensure, execute};
pub use config::Config;
pub use leader::{Leadership, lead};
pub use queue::{ObjectStep, Queue, Task};
pub use reconcile::{Next, state::State};
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
