//! The controller: rolls workloads whose sources changed, binds snapshots to their users, and deletes unused snapshots.
//!
//! Level-triggered: the watches update the world ([`crate::world`]), and each change of it queues tasks. When a task is due, its
//! action is decided from what is known at that time. Every replica keeps the world, because admission reads it; only the
//! leader acts.
//!
//! `watch` feeds the world through `reconcile`, which fills the `queue`; `tasks` decide what to do, do it, and apply the answers to
//! both; `run` drives them.

mod action;
mod config;
mod contents;
mod leader;
mod memory;
mod queue;
mod reconcile;
mod run;
mod shared;
mod tasks;
mod vitals;
mod watch;

pub use action::{Action, Analysed, Outcome, VerdictSet};
pub use config::Config;
pub use leader::{Leadership, lead};
pub use queue::{ObjectStep, Queue, Task};
pub use reconcile::state::State;
pub use run::run;
pub use shared::Shared;
pub use tasks::{Next, ensure, execute};
pub use watch::{
    follow::take,
    object::{FromText, PartialObject, RawObject},
    subjects::{
        LabelledSubject, NamespacesSubject, ReferringSubject, RevisionsSubject, SnapshotsSubject, Subject,
        UsedSourcesSubject, WorkloadsSubject,
    },
    watch_all,
};
