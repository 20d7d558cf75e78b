//! Snapshots, as the watches report them, by name and by source.

use std::{cmp::Reverse, sync::Arc};

use super::{
    Index,
    by_age::{Age, ByAge},
    change::Change,
    records::{SnapshotRecord, SourceRecord, SourceState},
};
use crate::{
    cluster::Owner,
    compact::CompactSet,
    controller::name::Name,
    snapshot::{DIGITS, Digest, Digests, SourceKind, snapshot_name},
};

impl Index {
    /// Applies a snapshot as it is now; `None` if it is deleted.
    pub(crate) fn apply_snapshot(
        &mut self,
        name: &Name,
        record: Option<SnapshotRecord>,
        changes: &mut Vec<Change>,
    ) {
        // confrev may not write in other namespaces.
        let record = record.filter(|_| self.settings.served.contains(&name.namespace));
        let (name, record) = (self.interner.intern(name.clone()), self.interner.intern(record));
        let old = match &record {
            Some(record) => self.snapshots.insert(name.clone(), record.clone()),
            None => self.snapshots.remove(&name),
        };
        if old == record {
            return;
        }
        changes.push(Change::Snapshot(name.clone()));
        let (had, has) = (old.as_ref().map(|old| &old.owners), record.as_ref().map(|record| &record.owners));
        self.owners_changed(&name, had, has);
        let place = |record: &SnapshotRecord| (Arc::clone(&record.source), record.created, record.digest);
        if let Some(old) = old.as_ref().filter(|old| record.as_ref().map(place) != Some(place(old))) {
            self.remove_from_source(&name, old, changes);
        }
        let Some(record) = record else {
            changes.push(Change::SnapshotDeleted(name));
            return;
        };
        let source = name.sibling(Arc::clone(&record.source));
        if let Some(old) = &old {
            self.doubt_removed_source(&source, &name, (&old.owners, &record.owners), changes);
        }
        if self.add_to_source(&source, &name, &record) {
            // A new snapshot may push an older one out of the newest `keep`.
            self.rank_neighbours(&source, changes);
            changes.push(Change::SnapshotAdded(name.clone()));
        }
        changes.push(Change::SourceNeeded(source));
        changes.push(Change::Owners(name));
    }

    /// If another client removed the source from the owners of a snapshot that it keeps, the source is read again: the garbage
    /// collector removes deleted owners, and a watch may not have reported the deletion.
    fn doubt_removed_source(
        &mut self,
        source: &Name,
        name: &Name,
        (old, new): (&CompactSet<Owner>, &CompactSet<Owner>),
        changes: &mut Vec<Change>,
    ) {
        let Some(known) = self.existing_source(source) else { return };
        let owns = |owners: &CompactSet<Owner>| owners.iter().any(|owner| owner.uid == known.uid);
        if owns(old) && !owns(new) && self.is_among_newest(source, name, known) {
            self.set_source_unknown(source);
            changes.push(Change::SourceOutdated(source.clone()));
        }
    }

    /// Adds a snapshot of a source. Returns whether it is new.
    fn add_to_source(&mut self, source: &Name, name: &Name, record: &SnapshotRecord) -> bool {
        if !self.by_source.contains_key(source) {
            self.watched.add(&source.namespace);
        }
        let by_age = self.by_source.entry(source.clone()).or_default();
        by_age.add((record.created, Arc::clone(&name.object.name)))
    }

    /// Removes a snapshot of a source.
    fn remove_from_source(&mut self, name: &Name, record: &SnapshotRecord, changes: &mut Vec<Change>) {
        let source = name.sibling(Arc::clone(&record.source));
        if let Some(by_age) = self.by_source.get_mut(&source) {
            by_age.remove(&(record.created, Arc::clone(&name.object.name)));
            if by_age.is_empty() {
                self.by_source.remove(&source);
                self.unwatch_namespace(&source.namespace);
            } else {
                // An older one may follow into the newest `keep`.
                self.rank_neighbours(&source, changes);
            }
        }
        self.forget_source(&source, changes);
    }

    /// The record of a snapshot.
    pub(crate) fn snapshot(&self, name: &Name) -> Option<&SnapshotRecord> {
        self.snapshots.get(name)
    }

    /// All snapshots.
    pub(crate) fn snapshots(&self) -> impl ExactSizeIterator<Item = (&Name, &SnapshotRecord)> {
        self.snapshots.iter()
    }

    /// How many snapshots a source has.
    pub(crate) fn snapshot_count(&self, source: &Name) -> usize {
        self.by_source.get(source).map_or(0, ByAge::len)
    }

    /// The names of a source's snapshots.
    pub(super) fn snapshots_of(&self, source: &Name) -> impl Iterator<Item = Name> {
        let names = self.by_source.get(source).into_iter().flat_map(ByAge::names);
        names.map(|name| source.sibling(Arc::clone(name)))
    }

    /// The snapshots of a source whose digests cannot be computed, since their key is lost.
    pub(crate) fn unverifiable_of(&self, source: &Name) -> Vec<Name> {
        // The digests of ConfigMaps have no key.
        if source.object.kind == SourceKind::ConfigMap {
            return Vec::new();
        }
        let is_unverifiable = |name: &Name| {
            self.snapshots.get(name).is_some_and(|record| self.settings.is_unverifiable(record))
        };
        self.snapshots_of(source).filter(is_unverifiable).collect()
    }

    /// The snapshots of a source that state one of these digests. Their names contain the digest.
    pub(crate) fn snapshots_with<'s>(
        &'s self,
        source: &'s Name,
        digests: &'s Digests,
    ) -> impl Iterator<Item = (Name, &'s SnapshotRecord)> {
        let named = digests.iter().flat_map(move |digest| {
            let name = move |digits| source.sibling(snapshot_name(&source.object.name, digest, digits));
            DIGITS.into_iter().map(move |digits| (name(digits), digest))
        });
        named.filter_map(move |(name, digest)| {
            let record = self.snapshots.get(&name)?;
            (record.digest == *digest && record.source == source.object.name).then_some((name, record))
        })
    }

    /// Whether a snapshot of the source's present content is known.
    pub(crate) fn has_snapshot_of(&self, source: &Name, record: &SourceRecord) -> bool {
        self.snapshots_with(source, &record.present.digests).next().is_some()
    }

    /// The snapshots of any source in the namespace that hold the content after which the snapshot `name` of `source` is
    /// named.
    pub(crate) fn twins(&self, name: &Name, source: &str) -> Vec<Name> {
        let start = |name: &str| Some(name.rsplit_once('-')?.1.get(..DIGITS[0])?.to_owned());
        let Some(wanted) = start(&name.object.name) else { return Vec::new() };
        let holds =
            |digest: &Digest| DIGITS.iter().any(|n| snapshot_name(source, digest, *n) == *name.object.name);
        let is_near =
            |(of, _): &(&Name, &ByAge)| of.namespace == name.namespace && of.object.kind == name.object.kind;
        let near = self.by_source.range(name.sibling("")..).take_while(is_near);
        let named = near.flat_map(|(of, by_age)| by_age.names().map(move |twin| (of, twin)));
        let alike =
            named.filter(|(_, twin)| start(twin).as_ref() == Some(&wanted) && **twin != name.object.name);
        let twins = alike.map(|(of, twin)| of.sibling(Arc::clone(twin)));
        twins.filter(|twin| self.snapshots.get(twin).is_some_and(|record| holds(&record.digest))).collect()
    }

    /// The snapshots of a source with one of these digests, newest first.
    pub(crate) fn ages_with(&self, source: &Name, digests: &Digests) -> Vec<Age> {
        let ages = self.snapshots_with(source, digests);
        let mut ages: Vec<Age> =
            ages.map(|(name, record)| (record.created, Arc::clone(&name.object.name))).collect();
        ages.sort_by_key(|age| Reverse(age.clone()));
        ages.dedup();
        ages
    }

    /// Whether a snapshot is among the newest `keep` of its source: the present content first, then by age.
    pub(crate) fn is_among_newest(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        let (Some(record), Some(by_age)) = (self.snapshots.get(name), self.by_source.get(source)) else {
            return false;
        };
        let age = (record.created, Arc::clone(&name.object.name));
        let present = self.ages_with(source, &known.present.digests);
        let newer = present.iter().take_while(|other| **other > age).count();
        let before = if present.contains(&age) { newer } else { by_age.newer(&age) + present.len() - newer };
        before < known.keep
    }

    /// The snapshot of a source that holds its present content, or else the newest one.
    fn newest_of(&self, source: &Name, known: Option<&SourceRecord>) -> Option<Arc<str>> {
        let present = known.map(|known| self.ages_with(source, &known.present.digests)).unwrap_or_default();
        self.by_source.get(source)?.at_rank(&present, 0).cloned()
    }

    /// The name of the snapshot that most likely holds the source's present content. This is a guess: watches lag, and the
    /// snapshot may not exist yet.
    pub(crate) fn newest_snapshot(&self, source: &Name) -> Option<String> {
        let known = match self.sources.get(source)? {
            SourceState::Exists(known) if !self.has_snapshot_of(source, known) => {
                return Some(snapshot_name(&source.object.name, &known.present.digests.current(), DIGITS[0]));
            }
            SourceState::Exists(known) => Some(&**known),
            SourceState::Unknown | SourceState::Missing => None,
        };
        self.newest_of(source, known).map(|name| name.to_string())
    }

    /// Reports all snapshots of a source.
    pub(crate) fn report_all_of(&self, source: &Name, changes: &mut Vec<Change>) {
        changes.extend(self.snapshots_of(source).map(Change::Owners));
    }
}
