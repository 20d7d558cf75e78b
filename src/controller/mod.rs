//! The controller: rolls workloads whose sources changed, binds snapshots to what uses them, sweeps what nothing wants.
//!
//! Level-triggered: watches keep a small state ([`State`]), every change of it enters tasks on an agenda, and a task that
//! is due decides by what is known then. Every replica keeps the state, since admission asks it; only the leader acts.

mod action;
mod agenda;
mod bound;
mod clock;
mod events;
mod execute;
mod hold;
mod joining;
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
    /// That object of that namespace.
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

/// What the operator sets.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a change waits for the workload's own apply, which then takes it along: a ConfigMap and a workload that
    /// are applied together make one new revision.
    pub settle: SignedDuration,
    /// How long a snapshot lives on that nothing wants.
    pub orphan_grace: SignedDuration,
    /// Automatic rolls in a second, over all workloads.
    pub rolls_per_second: u32,
    /// Snapshots of one source beyond which the controller makes none of content that nothing uses yet.
    pub max_snapshots: usize,
    /// Whether Secrets are snapshotted at all; without it none is ever read.
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
    /// The state on which writes are conditional.
    fn version(&self) -> Version {
        Version { uid: self.uid.to_string(), resource_version: self.resource_version.clone() }
    }
}
