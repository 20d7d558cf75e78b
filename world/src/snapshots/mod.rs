//! The snapshots by name and, for each source, by age.

mod by_age;
mod ranks;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use confrev_core::snapshot::{DIGITS, Digest, Digests, is_named_after, is_spare, snapshot_name};

use crate::{
    name::Name,
    records::{SnapshotRecord, SourceRecord},
    snapshots::by_age::{Age, ByAge},
};

/// The known snapshots.
#[derive(Debug, Default)]
pub struct Snapshots {
    records: HashMap<Name, SnapshotRecord>,
    /// The snapshots of each source.
    by_source: BTreeMap<Name, ByAge>,
}

/// Which snapshot of its source was removed.
pub(super) enum Removed {
    /// The last one.
    Last,
    /// One of several.
    OneOfSeveral,
}

impl Snapshots {
    /// The record of a snapshot.
    pub fn get(&self, name: &Name) -> Option<&SnapshotRecord> {
        self.records.get(name)
    }

    /// All snapshots.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Name, &SnapshotRecord)> {
        self.records.iter()
    }

    /// Replaces the record of a snapshot; `None` if it is deleted. Returns the previous record.
    pub(super) fn set(&mut self, name: &Name, record: Option<SnapshotRecord>) -> Option<SnapshotRecord> {
        match record {
            Some(record) => self.records.insert(name.clone(), record),
            None => self.records.remove(name),
        }
    }

    /// Adds a snapshot to those of its source. Returns whether it is new among them.
    pub(super) fn add_to_source(&mut self, source: &Name, name: &Name, record: &SnapshotRecord) -> bool {
        let by_age = self.by_source.entry(source.clone()).or_default();
        by_age.add((record.created, Arc::clone(&name.object.name)), record.bytes)
    }

    /// Removes a snapshot from those of its source; `None` if the source has none.
    pub(super) fn remove_from_source(
        &mut self,
        source: &Name,
        name: &Name,
        record: &SnapshotRecord,
    ) -> Option<Removed> {
        let by_age = self.by_source.get_mut(source)?;
        by_age.remove(&(record.created, Arc::clone(&name.object.name)), record.bytes);
        if by_age.is_empty() {
            self.by_source.remove(source);
            return Some(Removed::Last);
        }
        Some(Removed::OneOfSeveral)
    }

    /// Whether a source has any snapshot.
    pub(super) fn has_any_of(&self, source: &Name) -> bool {
        self.by_source.contains_key(source)
    }

    /// How many snapshots a source has.
    pub fn count(&self, source: &Name) -> usize {
        self.by_source.get(source).map_or(0, ByAge::len)
    }

    /// The bytes of all snapshots of a source.
    pub(super) fn bytes(&self, source: &Name) -> u64 {
        self.by_source.get(source).map_or(0, ByAge::bytes)
    }

    /// The bytes of a snapshot.
    pub(super) fn bytes_of(&self, name: &Name) -> u64 {
        self.records.get(name).map_or(0, |record| u64::from(record.bytes))
    }

    /// The snapshots of a source in the order of their ranks: those of its present content first, then by age.
    pub(super) fn by_rank<'s>(
        &'s self,
        source: &'s Name,
        known: Option<&SourceRecord>,
    ) -> impl Iterator<Item = Name> + use<'s> {
        let present = known.map(|known| self.ages_with(source, &known.present.digests)).unwrap_or_default();
        let by_age = self.by_source.get(source).into_iter().flat_map(ByAge::newest_first);
        let others: Vec<_> = by_age.filter(|age| !present.contains(age)).collect();
        let present: Vec<_> = present.into_iter().map(|(_, name)| name).collect();
        let others = others.into_iter().map(|(_, name)| Arc::clone(name));
        present.into_iter().chain(others).map(|name| source.sibling(name))
    }

    /// The names of a source's snapshots.
    pub fn of(&self, source: &Name) -> impl Iterator<Item = Name> {
        let names = self.by_source.get(source).into_iter().flat_map(ByAge::names);
        names.map(|name| source.sibling(Arc::clone(name)))
    }

    /// The snapshots of a source that state one of these digests, and are named after it.
    pub fn with<'s>(
        &'s self,
        source: &'s Name,
        digests: &'s Digests,
    ) -> impl Iterator<Item = (Name, &'s SnapshotRecord)> {
        let named = digests.iter().flat_map(move |digest| {
            let name = move |digits| source.sibling(snapshot_name(&source.object.name, digest, digits));
            DIGITS.into_iter().map(move |digits| (name(digits), digest))
        });
        let usual = named.filter_map(move |(name, digest)| {
            let record = self.records.get(&name)?;
            (record.digest == *digest && record.source == source.object.name).then_some((name, record))
        });
        let spare = self.by_source.get(source).into_iter().flat_map(ByAge::spare).filter_map(move |name| {
            let (name, of) = (source.sibling(Arc::clone(name)), &*source.object.name);
            let record = self.records.get(&name)?;
            let is_its =
                digests.contains(&record.digest) && is_named_after(&name.object.name, of, &record.digest);
            is_its.then_some((name, record))
        });
        usual.chain(spare)
    }

    /// The names of the snapshots of a source with one of these digests that have random digits, the newest first.
    pub fn spare_with(&self, source: &Name, digests: &Digests) -> Vec<String> {
        let ages = self.ages_with(source, digests).into_iter();
        ages.filter(|(_, name)| is_spare(name)).map(|(_, name)| name.to_string()).collect()
    }

    /// Whether a snapshot of the source's present content is known.
    pub fn has_content_of(&self, source: &Name, record: &SourceRecord) -> bool {
        self.with(source, &record.present.digests).next().is_some()
    }

    /// The snapshots of any source in the namespace that hold the content after which the snapshot `name` of `source` is
    /// named.
    pub fn twins(&self, name: &Name, source: &str) -> Vec<Name> {
        let start = |name: &str| Some(name.rsplit_once('-')?.1.get(..DIGITS[0])?.to_owned());
        let Some(wanted) = start(&name.object.name) else { return Vec::new() };
        let holds = |digest: &Digest| is_named_after(&name.object.name, source, digest);
        let is_near =
            |(of, _): &(&Name, &ByAge)| of.namespace == name.namespace && of.object.kind == name.object.kind;
        let near = self.by_source.range(name.sibling("")..).take_while(is_near);
        let named = near.flat_map(|(of, by_age)| by_age.names().map(move |twin| (of, twin)));
        let alike =
            named.filter(|(_, twin)| start(twin).as_ref() == Some(&wanted) && **twin != name.object.name);
        let twins = alike.map(|(of, twin)| of.sibling(Arc::clone(twin)));
        twins.filter(|twin| self.records.get(twin).is_some_and(|record| holds(&record.digest))).collect()
    }

    /// The snapshots of a source with one of these digests, newest first.
    fn ages_with(&self, source: &Name, digests: &Digests) -> Vec<Age> {
        let ages = self.with(source, digests);
        let mut ages: Vec<Age> =
            ages.map(|(name, record)| (record.created, Arc::clone(&name.object.name))).collect();
        ages.sort_by_key(|age| Reverse(age.clone()));
        ages.dedup();
        ages
    }

    /// Whether a snapshot is among the newest `keep` of its source: the present content first, then by age.
    pub fn is_among_newest(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        let (Some(record), Some(by_age)) = (self.records.get(name), self.by_source.get(source)) else {
            return false;
        };
        let age = (record.created, Arc::clone(&name.object.name));
        let present = self.ages_with(source, &known.present.digests);
        let newer = present.iter().take_while(|other| **other > age).count();
        let before = if present.contains(&age) { newer } else { by_age.newer(&age) + present.len() - newer };
        before < known.keep
    }

    /// The snapshot of a source that holds its present content, or else the newest one.
    pub(super) fn newest_of(&self, source: &Name, known: Option<&SourceRecord>) -> Option<Arc<str>> {
        let present = known.map(|known| self.ages_with(source, &known.present.digests)).unwrap_or_default();
        self.by_source.get(source)?.at_rank(&present, 0).cloned()
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::snapshot::{ObjectName, SourceKind, spare_name};

    use super::*;
    use crate::{
        fixture::{digest, snapshot, snapshot_record, source, source_record, world},
        world::World,
    };

    /// Objects of others had all usual names. The digits of its name follow from nothing but the name itself.
    #[test]
    fn finds_random_names_by_their_content() {
        let name =
            |of: u8, digits: &str| source("a").sibling(spare_name("a", &digest(of), &digits.repeat(20)));
        let mut world = world(&[]);
        for (name, content) in [(name(2, "a"), 2), (name(2, "b"), 2), (name(3, "c"), 2), (name(3, "d"), 3)] {
            world.apply_snapshot(&name, Some(snapshot_record("a", content)), &mut Vec::new());
        }
        let found = |world: &World| world.snapshots().spare_with(&source("a"), &digest(2).into());
        let [first, second] = ["a", "b"].map(|digits| name(2, digits).object.name.to_string());
        assert_eq!(found(&world), [second, first.clone()], "one of them is named after another content");
        assert!(world.snapshots().has_content_of(&source("a"), &source_record("a", 2)));
        world.apply_snapshot(&name(2, "b"), None, &mut Vec::new());
        assert_eq!(found(&world), [first]);
    }

    /// Names begin with the digest in all sources.
    #[test]
    fn twins_hold_the_same_content() {
        let mut world = world(&[]);
        let mut add = |source: &Name, name: &str, content: u8| {
            let record = snapshot_record(&source.object.name, content);
            world.apply_snapshot(&source.sibling(name), Some(record), &mut Vec::new());
        };
        let long = snapshot_name("c", &digest(2), DIGITS[1]);
        add(&source("c"), &long, 2);
        add(&source("d"), &snapshot("d", 2), 3);
        add(&Name::new("ns", ObjectName::new(SourceKind::Secret, "b")), &snapshot("b", 2), 2);
        add(&Name::new("other", source("b").object), &snapshot("b", 2), 2);
        let wanted = source("a").sibling(snapshot("a", 2));
        let twins = [source("b").sibling(snapshot("b", 2)), source("c").sibling(long)];
        assert_eq!(world.snapshots().twins(&wanted, "a"), twins);
        let unknown = source("a").sibling(snapshot("a", 4));
        assert_eq!(world.snapshots().twins(&unknown, "a"), []);
        assert_eq!(world.snapshots().twins(&source("plain"), "plain"), []);
    }
}
