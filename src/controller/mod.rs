//! The controller: rolls workloads whose sources changed, binds snapshots to their users, and deletes unused snapshots.
//!
//! Level-triggered: watches maintain a small state ([`State`]), and every change of the state queues tasks. When a task is
//! due, its action is decided from the state at that time. Every replica keeps the state, because admission reads it; only
//! the leader acts.

mod action;
mod agenda;
mod bound;
mod clock;
mod events;
mod execute;
mod hold;
mod joining;
mod lanes;
mod leader;
mod lean;
mod memory;
mod most;
mod namespaces;
mod objects;
mod ownership;
mod plan;
mod records;
mod referrers;
mod run;
mod standing;
mod state;
mod subjects;
mod taken;
mod texts;
mod unreadable;
mod vitals;
mod watch;

use std::{fmt, sync::Arc};

use jiff::SignedDuration;

pub use action::{Action, Outcome};
pub use agenda::{Agenda, Task};
pub use bound::BoundRecord;
pub use execute::{ensure, execute};
pub use leader::{Leadership, lead};
pub use lean::{FromText, Lean, LeanMeta};
pub use most::MOST_OWNERS;
pub use namespaces::Served;
pub use objects::SourceMeta;
pub use plan::Step;
pub use records::{Revision, RevisionKey, SnapshotRecord};
pub use run::{Shared, run};
pub use state::State;
pub use subjects::{Labelled, Namespaces, Referring, Revisions, Snapshots, Subject, UsedSources, Workloads};
pub use watch::{take, watch_all};

use crate::{
    cluster::Version,
    snapshot::{ObjectName, SourceKind},
};

/// A ConfigMap or Secret of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Kind and name.
    pub object: ObjectName,
}

impl Name {
    /// An object of a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, object: ObjectName) -> Self {
        Self { namespace: namespace.into(), object }
    }

    /// Another object of the same kind and namespace.
    #[must_use]
    pub fn sibling(&self, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: Arc::clone(&self.namespace), object: ObjectName::new(self.object.kind, name) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.object.kind, self.namespace, self.object.name)
    }
}

/// The controller's settings, from the options of `serve`.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a changed source waits for an apply of the workload, which makes a roll unnecessary: a ConfigMap and a
    /// workload that are applied together make one new revision.
    pub settle: SignedDuration,
    /// How long an unused snapshot is kept.
    pub orphan_grace: SignedDuration,
    /// Automatic rolls per second, over all workloads.
    pub rolls_per_second: u32,
    /// The most snapshots of one source. At this limit the controller creates none in advance, before a workload references
    /// them.
    pub max_snapshots: usize,
    /// Whether Secrets get snapshots. If not, no Secret is ever read.
    pub secrets: bool,
}

impl Config {
    /// The kinds of sources that are watched.
    fn source_kinds(&self) -> &'static [SourceKind] {
        if self.secrets { &[SourceKind::ConfigMap, SourceKind::Secret] } else { &[SourceKind::ConfigMap] }
    }

    /// The time between two rolls at the global rate.
    fn roll_pause(&self) -> SignedDuration {
        SignedDuration::from_nanos(1_000_000_000 / i64::from(self.rolls_per_second.max(1)))
    }
}

impl SnapshotRecord {
    /// The uid and resourceVersion that writes require.
    fn version(&self) -> Version {
        Version { uid: self.uid.to_string(), resource_version: self.resource_version.clone() }
    }
}
