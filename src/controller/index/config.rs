//! The settings that decide which objects confrev handles, and how they are read.

use std::sync::Arc;

use super::{records::SnapshotRecord, served::Served, shares::ShareLimits};
use crate::{
    cluster::{ChosenStrategies, DigestKeys, MAX_NAMES},
    kinds::Kinds,
    snapshot::Rotated,
};

/// The configuration of the index.
#[derive(Debug)]
pub(crate) struct IndexConfig {
    /// The kinds of workloads.
    pub kinds: Arc<Kinds>,
    /// The namespaces for which the webhooks are called.
    pub served: Served,
    /// The ConfigMaps that are never snapshotted.
    pub rotated: Rotated,
    /// The strategies that apply to sources.
    pub strategies: ChosenStrategies,
    /// The keys of the digests of Secrets.
    pub keys: DigestKeys,
    /// The most names that one object may refer to.
    pub max_names: usize,
    /// The most bytes of a source's unused snapshots.
    pub max_snapshot_bytes: u64,
    /// The shares of namespaces.
    pub shares: ShareLimits,
}

/// The default of [`IndexConfig::max_snapshot_bytes`].
pub(crate) const MAX_SNAPSHOT_BYTES: u64 = 16 << 20;

impl IndexConfig {
    /// The default settings for these kinds.
    pub(crate) fn new(kinds: Arc<Kinds>) -> Self {
        Self {
            kinds,
            served: Served::default(),
            rotated: Rotated::default(),
            strategies: ChosenStrategies::default(),
            keys: DigestKeys::default(),
            max_names: MAX_NAMES,
            max_snapshot_bytes: MAX_SNAPSHOT_BYTES,
            shares: ShareLimits::default(),
        }
    }

    /// Whether the key of a snapshot's digest is unknown.
    pub(crate) fn is_unverifiable(&self, record: &SnapshotRecord) -> bool {
        record.digest.key().is_some_and(|key| !self.keys.knows(key))
    }

    /// The settings that decide how an object is read.
    pub(crate) fn reader(&self) -> Reader {
        let Self { kinds, rotated, strategies, max_names, .. } = self;
        let (kinds, rotated, strategies) = (Arc::clone(kinds), rotated.clone(), strategies.clone());
        Reader { kinds, rotated, strategies, max_names: *max_names }
    }
}

/// The settings that decide how an object is read. They never change, but for the choices of namespaces.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The kinds of workloads.
    pub(crate) kinds: Arc<Kinds>,
    /// The ConfigMaps that are never snapshotted.
    pub(crate) rotated: Rotated,
    /// The strategies that apply to sources.
    pub(crate) strategies: ChosenStrategies,
    /// The most names that one object may refer to.
    pub(crate) max_names: usize,
}
