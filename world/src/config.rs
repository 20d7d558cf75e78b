//! The settings that decide which objects confrev handles, and how they are read.

use std::sync::Arc;

use confrev_core::{kinds::Kinds, snapshot::Rotated};

use crate::{
    digest_keys::DigestKeys, inherited::Inherited, objects::MAX_NAMES, records::SnapshotRecord,
    refused_list::RefusedList, served::Served, shares::ShareLimits,
};

/// The configuration of the world.
#[derive(Debug)]
pub struct WorldConfig {
    /// The kinds of workloads.
    pub kinds: Arc<Kinds>,
    /// The namespaces for which the webhooks are called.
    pub served: Served,
    /// The ConfigMaps that are never snapshotted.
    pub rotated: Rotated,
    /// What sources and workloads inherit.
    pub inherited: Inherited,
    /// The keys of the digests of Secrets.
    pub keys: DigestKeys,
    /// The contents that the installation refuses.
    pub refused: RefusedList,
    /// The most names that one object may refer to.
    pub max_names: usize,
    /// The most bytes of a source's unused snapshots.
    pub max_snapshot_bytes: u64,
    /// The shares of namespaces.
    pub shares: ShareLimits,
    /// Whether sources without the annotation `report` have the state of their changes.
    pub report_changes: bool,
    /// The health of a workload is already the worst of its own and of the Rollouts that use its template.
    pub health_is_whole: bool,
}

/// The default of [`WorldConfig::max_snapshot_bytes`].
pub const MAX_SNAPSHOT_BYTES: u64 = 16 << 20;

impl WorldConfig {
    /// The default settings for these kinds.
    pub fn new(kinds: Arc<Kinds>) -> Self {
        Self {
            kinds,
            served: Served::default(),
            rotated: Rotated::default(),
            inherited: Inherited::default(),
            keys: DigestKeys::default(),
            refused: RefusedList::default(),
            max_names: MAX_NAMES,
            max_snapshot_bytes: MAX_SNAPSHOT_BYTES,
            shares: ShareLimits::default(),
            report_changes: false,
            health_is_whole: false,
        }
    }

    /// Whether the key of a snapshot's digest is unknown.
    pub fn is_unverifiable(&self, record: &SnapshotRecord) -> bool {
        record.digest.key().is_some_and(|key| !self.keys.knows(key))
    }

    /// The settings that decide how an object is read.
    pub fn reader(&self) -> Reader {
        let Self { kinds, rotated, inherited, max_names, .. } = self;
        let (kinds, rotated, inherited) = (Arc::clone(kinds), rotated.clone(), inherited.clone());
        Reader { kinds, rotated, inherited, max_names: *max_names }
    }
}

/// The settings that decide how an object is read. They never change, but for the choices of namespaces.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The kinds of workloads.
    pub kinds: Arc<Kinds>,
    /// The ConfigMaps that are never snapshotted.
    pub rotated: Rotated,
    /// What sources and workloads inherit.
    pub inherited: Inherited,
    /// The most names that one object may refer to.
    pub max_names: usize,
}
