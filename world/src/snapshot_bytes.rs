//! The bytes of a source's unused snapshots, which have a limit beside the number that the source keeps.
//!
//! A watch reports metadata only, so each snapshot records its size (the annotation `bytes`). The newest snapshot always stays.
//! Of the others, the newest stay while they and all newer unused ones fit into the limit. Snapshots in use do not count.

use crate::{
    change::WorldChange,
    name::Name,
    records::{KnownSource, SourceRecord},
    world::World,
};

impl World {
    /// Whether the source keeps this snapshot, used or not.
    pub fn keeps(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        self.snapshots.is_among_newest(source, name, known) && !self.exceeds_bytes(source, name)
    }

    /// Whether a snapshot is unused, and does not fit into the limit beside the newer unused ones of its source.
    pub fn exceeds_bytes(&self, source: &Name, name: &Name) -> bool {
        let limit = self.config.max_snapshot_bytes;
        // Without the newest, nothing can exceed the limit if all together do not.
        if self.snapshots.bytes(source) <= limit || self.is_used(name) {
            return false;
        }
        let mut sum = 0;
        let known = self.sources.get(source).and_then(KnownSource::existing);
        for (rank, other) in self.snapshots.by_rank(source, known).enumerate() {
            if other == *name && rank == 0 {
                return false;
            }
            if !self.is_used(&other) {
                sum += self.snapshots.bytes_of(&other);
            }
            if sum > limit || other == *name {
                return sum > limit;
            }
        }
        false
    }

    /// Whether the source may get another snapshot in advance. Those beyond the limit are deleted within a minute, so only a
    /// source that changes much faster has twice as many bytes.
    pub fn has_room_for_snapshot(&self, source: &Name) -> bool {
        let most = self.config.max_snapshot_bytes.saturating_mul(2);
        if self.snapshots.bytes(source) <= most {
            return true;
        }
        let unused = self.snapshots.of(source).filter(|name| !self.is_used(name));
        unused.map(|name| self.snapshots.bytes_of(&name)).sum::<u64>() <= most
    }

    /// Reports the snapshots of a source that the limit concerns from now on, or no longer.
    pub(super) fn weigh_snapshots(&self, source: &Name, changes: &mut Vec<WorldChange>) {
        let limit = self.config.max_snapshot_bytes;
        if self.snapshots.bytes(source) <= limit {
            return;
        }
        let Some(known) = self.existing_source(source) else { return };
        let mut sum = 0;
        for (rank, name) in self.snapshots.by_rank(source, Some(known)).enumerate() {
            let Some(record) = self.snapshots.get(&name).filter(|_| !self.is_used(&name)) else { continue };
            sum += u64::from(record.bytes);
            let exceeds = rank > 0 && sum > limit;
            let is_kept = rank < known.keep && !exceeds;
            let is_owned = record.owners.iter().any(|owner| owner.uid == known.uid);
            if is_kept != is_owned || (exceeds && record.owners.is_empty()) {
                changes.push(WorldChange::Object(name));
            }
        }
    }

    /// The source of a known snapshot.
    pub fn source_of_snapshot(&self, snapshot: &Name) -> Option<Name> {
        Some(snapshot.sibling(std::sync::Arc::clone(&self.snapshots.get(snapshot)?.source)))
    }

    /// Whether a workload or revision uses a snapshot.
    fn is_used(&self, name: &Name) -> bool {
        self.users.has_any(name) || self.findings.used(name).next().is_some()
    }
}
