//! Snapshots, as the watches report them.

use std::sync::Arc;

use confrev_core::{
    compact::CompactSet,
    snapshot::{DIGITS, SourceKind, snapshot_name},
};

use crate::{
    change::WorldChange,
    name::Name,
    objects::Owner,
    records::{KnownSource, SnapshotRecord},
    shares::{self, Class},
    snapshots::{Removed, Snapshots},
    world::World,
};

impl World {
    /// Applies a snapshot as it is now; `None` if it is deleted.
    pub fn apply_snapshot(
        &mut self,
        name: &Name,
        record: Option<SnapshotRecord>,
        changes: &mut Vec<WorldChange>,
    ) {
        // confrev may not write in other namespaces.
        let record = record.filter(|_| self.config.served.contains(&name.namespace));
        let (name, record) = (self.interner.intern(name.clone()), self.interner.intern(record));
        let old = self.snapshots.set(&name, record.clone());
        if old == record {
            return;
        }
        let owners =
            |record: &Option<SnapshotRecord>| record.as_ref().map_or(0, |known| known.owners.iter().count());
        let sizes = (shares::of_owners(owners(&old)), shares::of_owners(owners(&record)));
        self.shares.charge(&name.namespace, Class::Owners, sizes);
        let (had, has) = (old.as_ref().map(|old| &old.owners), record.as_ref().map(|record| &record.owners));
        self.owners_changed(&name, had, has);
        let place = |record: &SnapshotRecord| {
            (Arc::clone(&record.source), record.created, record.digest, record.bytes)
        };
        if let Some(old) = old.as_ref().filter(|old| record.as_ref().map(place) != Some(place(old))) {
            self.remove_from_source(&name, old, changes);
        }
        let Some(record) = record else {
            changes.push(WorldChange::Deleted(name));
            return;
        };
        let source = name.sibling(Arc::clone(&record.source));
        if let Some(old) = &old {
            self.doubt_removed_source(&source, &name, (&old.owners, &record.owners), changes);
        }
        let is_new = self.add_to_source(&source, &name, &record);
        if is_new {
            // A new snapshot may push an older one out of the newest `keep`.
            self.rank_neighbours(&source, changes);
            self.weigh_snapshots(&source, changes);
            self.doubt_content(&source, &record);
            changes.push(WorldChange::Added(name.clone()));
        }
        let is_judged = old.map_or(record.verdict.is_some(), |old| old.verdict != record.verdict);
        self.content_changed(&source, (is_new, is_judged), changes);
        if is_new || is_judged {
            changes.push(WorldChange::Source(source));
        } else {
            self.need(&source, changes);
        }
        changes.push(WorldChange::Object(name));
    }

    /// Reports what a new snapshot of a source, or the verdict on one, requires of others. If the source is not known, its read does so.
    fn content_changed(
        &self,
        source: &Name,
        (is_new, is_judged): (bool, bool),
        changes: &mut Vec<WorldChange>,
    ) {
        let Some(known) = self.existing_source(source) else { return };
        // A workload may have failed before the watch reports the snapshot, and only a known snapshot can get a verdict.
        if is_judged || (is_new && self.change(source, known).policy().is_limited()) {
            self.mark_users(source, changes);
        }
        if is_judged {
            // One that failed before may no longer be among those that are kept.
            changes.extend(self.failures(source, known).map(WorldChange::Object));
            changes.push(WorldChange::Judged(source.clone()));
        }
    }

    /// A source is read again, to compare it with a new snapshot whose digest cannot be computed.
    fn doubt_content(&mut self, source: &Name, record: &SnapshotRecord) {
        if self.config.is_unverifiable(record)
            && self
                .existing_source(source)
                .is_some_and(|known| !known.present.digests.contains(&record.digest))
        {
            self.set_source_unknown(source);
        }
    }

    /// If another client removed the source from the owners of a snapshot that it keeps, the source is read again: the garbage
    /// collector removes deleted owners, and a watch may not have reported the deletion.
    fn doubt_removed_source(
        &mut self,
        source: &Name,
        name: &Name,
        (old, new): (&CompactSet<Owner>, &CompactSet<Owner>),
        changes: &mut Vec<WorldChange>,
    ) {
        let Some(known) = self.existing_source(source) else { return };
        let owns = |owners: &CompactSet<Owner>| owners.iter().any(|owner| owner.uid == known.uid);
        if owns(old) && !owns(new) && self.keeps(source, name, known) {
            self.set_source_unknown(source);
            changes.push(WorldChange::Source(source.clone()));
        }
    }

    /// Adds a snapshot of a source. Returns whether it is new.
    fn add_to_source(&mut self, source: &Name, name: &Name, record: &SnapshotRecord) -> bool {
        if !self.snapshots.has_any_of(source) {
            self.watch_namespace(&source.namespace);
        }
        self.snapshots.add_to_source(source, name, record)
    }

    /// Removes a snapshot of a source.
    fn remove_from_source(&mut self, name: &Name, record: &SnapshotRecord, changes: &mut Vec<WorldChange>) {
        let source = name.sibling(Arc::clone(&record.source));
        let was_crowded = self.snapshots.bytes(&source) > self.config.max_snapshot_bytes;
        match self.snapshots.remove_from_source(&source, name, record) {
            Some(Removed::Last) => self.unwatch_namespace(&source.namespace),
            // An older one may follow into the newest `keep`.
            Some(Removed::OneOfSeveral) => {
                self.rank_neighbours(&source, changes);
                self.weigh_snapshots(&source, changes);
                if was_crowded {
                    // The newest content may have got no snapshot.
                    self.need(&source, changes);
                }
            }
            None => {}
        }
        self.forget_source(&source, changes);
    }

    /// Reports the snapshots whose rank changes with a new or a deleted snapshot of the source.
    fn rank_neighbours(&mut self, source: &Name, changes: &mut Vec<WorldChange>) {
        let known = self.sources.get(source).and_then(KnownSource::existing);
        self.snapshots.rank_neighbours(source, known, changes);
    }

    /// The snapshots.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// The snapshots, to decide which of them are checked when their source has been read.
    pub fn snapshots_mut(&mut self) -> &mut Snapshots {
        &mut self.snapshots
    }

    /// The record of a snapshot.
    pub fn snapshot(&self, name: &Name) -> Option<&SnapshotRecord> {
        self.snapshots.get(name)
    }

    /// The snapshots of a source whose digests cannot be computed, since their key is lost.
    pub fn unverifiable_of(&self, source: &Name) -> Vec<Name> {
        // The digests of ConfigMaps have no key.
        if source.object.kind == SourceKind::ConfigMap {
            return Vec::new();
        }
        let is_unverifiable =
            |name: &Name| self.snapshots.get(name).is_some_and(|record| self.config.is_unverifiable(record));
        self.snapshots.of(source).filter(is_unverifiable).collect()
    }

    /// The name of the snapshot that most likely holds the source's present content. This is a guess: watches lag, and the
    /// snapshot may not exist yet.
    pub fn newest_snapshot(&self, source: &Name) -> Option<String> {
        let known = match self.sources.get(source)? {
            KnownSource::Exists(known) if !self.snapshots.has_content_of(source, known) => {
                return Some(snapshot_name(&source.object.name, &known.present.digests.current(), DIGITS[0]));
            }
            KnownSource::Exists(known) => Some(&**known),
            KnownSource::Unknown | KnownSource::Missing => None,
        };
        self.snapshots.newest_of(source, known).map(|name| name.to_string())
    }
}
