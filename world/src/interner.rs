//! Names that many records hold, each stored once. A snapshot's name is in its own record, in the records of its source, of
//! the workload and of each revision that uses it, and beside each of them in the index of users.

use std::{collections::HashSet, sync::Arc};

use confrev_core::{
    compact::{CompactMap, CompactSet},
    resolve::{Record, Use},
    snapshot::ObjectName,
    tie::{Reads, Tie},
};

use crate::{
    name::Name,
    objects::{Owner, WorkloadKey},
    records::{BoundRecord, Revision, RevisionKey, SnapshotRecord, User},
};

/// Up to this number of texts, unused texts are not dropped.
const FEW: usize = 1024;

/// The texts that records share.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    known: HashSet<Arc<str>>,
    /// The number of texts at which unused ones are dropped.
    full: usize,
}

impl Interner {
    /// The same value, with its texts replaced by equal ones that are known already.
    pub(crate) fn intern<T: Intern>(&mut self, mut value: T) -> T {
        value.intern(self);
        value
    }

    /// How many texts are stored.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.len()
    }

    fn intern_text(&mut self, text: &mut Arc<str>) {
        if let Some(known) = self.known.get(text) {
            *text = Arc::clone(known);
            return;
        }
        if self.known.len() >= self.full.max(FEW) {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.known.shrink_to_fit();
            self.full = self.known.len().saturating_mul(2);
        }
        self.known.insert(Arc::clone(text));
    }
}

/// A value whose texts can be shared with others. Objects are parsed before the world is locked, so no parser can ask the interner.
pub(crate) trait Intern {
    /// Replaces its texts by equal ones that are known already.
    fn intern(&mut self, interner: &mut Interner);
}

impl Intern for Arc<str> {
    fn intern(&mut self, interner: &mut Interner) {
        interner.intern_text(self);
    }
}

impl<T: Intern> Intern for Option<T> {
    fn intern(&mut self, interner: &mut Interner) {
        if let Some(value) = self {
            value.intern(interner);
        }
    }
}

impl<T: Intern> Intern for Vec<T> {
    fn intern(&mut self, interner: &mut Interner) {
        for value in self {
            value.intern(interner);
        }
    }
}

/// The order stays, because the texts are equal. The set is rebuilt because its values cannot be changed in place.
impl<T: Intern + Ord> Intern for CompactSet<T> {
    fn intern(&mut self, interner: &mut Interner) {
        *self = std::mem::take(self).into_iter().map(|value| interner.intern(value)).collect();
    }
}

impl<K: Intern + Ord, V: Intern> Intern for CompactMap<K, V> {
    fn intern(&mut self, interner: &mut Interner) {
        let pairs = std::mem::take(self).into_iter();
        *self = pairs.map(|(key, value)| (interner.intern(key), interner.intern(value))).collect();
    }
}

impl Intern for Tie {
    fn intern(&mut self, interner: &mut Interner) {
        self.previous.intern(interner);
        self.set.intern(interner);
        if let Some(reads) = &mut self.reads {
            reads.intern(interner);
        }
    }
}

impl Intern for ObjectName {
    fn intern(&mut self, interner: &mut Interner) {
        self.name.intern(interner);
    }
}

impl Intern for Name {
    fn intern(&mut self, interner: &mut Interner) {
        self.namespace.intern(interner);
        self.object.intern(interner);
    }
}

impl Intern for WorkloadKey {
    fn intern(&mut self, interner: &mut Interner) {
        self.namespace.intern(interner);
        self.name.intern(interner);
    }
}

impl Intern for RevisionKey {
    fn intern(&mut self, interner: &mut Interner) {
        self.namespace.intern(interner);
        self.name.intern(interner);
    }
}

impl Intern for User {
    fn intern(&mut self, interner: &mut Interner) {
        match self {
            Self::Workload(key) => key.intern(interner),
            Self::Revision(key) => key.intern(interner),
        }
    }
}

impl Intern for Owner {
    fn intern(&mut self, interner: &mut Interner) {
        for text in [&mut self.api_version, &mut self.kind, &mut self.name] {
            text.intern(interner);
        }
    }
}

impl Intern for Use {
    fn intern(&mut self, interner: &mut Interner) {
        self.source.intern(interner);
        self.snapshot.intern(interner);
    }
}

impl Intern for Record {
    fn intern(&mut self, interner: &mut Interner) {
        self.uses.intern(interner);
        self.ties.intern(interner);
    }
}

impl Intern for Reads {
    fn intern(&mut self, interner: &mut Interner) {
        for read in &mut self.keys {
            read.key.intern(interner);
        }
    }
}

impl Intern for Revision {
    fn intern(&mut self, interner: &mut Interner) {
        self.uses.intern(interner);
    }
}

impl Intern for SnapshotRecord {
    fn intern(&mut self, interner: &mut Interner) {
        self.source.intern(interner);
        self.owners.intern(interner);
    }
}

impl Intern for BoundRecord {
    fn intern(&mut self, interner: &mut Interner) {
        self.owners.intern(interner);
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::tie::ReadKey;

    use super::*;
    use crate::{
        fixture::{self, object},
        objects::Version,
    };

    fn text(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    #[test]
    fn equal_texts_become_one() {
        let mut interner = Interner::default();
        let (first, second) = (interner.intern(text("a")), interner.intern(text("a")));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &interner.intern(text("b"))));
    }

    /// The texts of a second value, and those of a first value that is equal.
    fn shared<T: Intern + Clone>(value: impl Fn() -> T, texts: impl Fn(&T) -> Vec<Arc<str>>) {
        let mut interner = Interner::default();
        let (first, second) = (interner.intern(value()), interner.intern(value()));
        let (first, second) = (texts(&first), texts(&second));
        assert!(!first.is_empty());
        assert_eq!(first, second);
        assert!(first.iter().zip(&second).all(|(first, second)| Arc::ptr_eq(first, second)), "{first:?}");
    }

    fn workload() -> WorkloadKey {
        fixture::key("web")
    }

    fn revision() -> RevisionKey {
        RevisionKey { kind: 0, namespace: text("ns"), name: text("web-1") }
    }

    /// A record whose every text is of another object.
    fn record() -> Record {
        let read = ReadKey { key: text("key"), required: true };
        fixture::record("web", &[used()]).tied(&object("previous"), |tie| {
            tie.previous = Some(text("previous-0123456789"));
            tie.reads = Some(Box::new(Reads { whole: false, keys: Box::new([read]) }));
        })
    }

    /// A reference to a snapshot.
    fn used() -> Use {
        fixture::used("demo", Some(1))
    }

    fn texts_of_use(used: &Use) -> Vec<Arc<str>> {
        used.snapshot.iter().cloned().chain([used.source.name.clone()]).collect()
    }

    #[test]
    fn equal_values_share_their_texts() {
        shared(|| vec![Some(text("a"))], |values| values.iter().flatten().cloned().collect());
        shared(|| CompactSet::from_iter([text("a")]), |set| set.iter().cloned().collect());
        shared(
            || CompactMap::from_iter([(text("a"), text("b"))]),
            |map| map.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect(),
        );
        let name = || Name::new("ns", object("demo"));
        shared(name, |name| vec![name.namespace.clone(), name.object.name.clone()]);
        shared(workload, |key| vec![key.namespace.clone(), key.name.clone()]);
        shared(
            || User::Workload(workload()),
            |user| match user {
                User::Workload(key) => vec![key.namespace.clone(), key.name.clone()],
                User::Revision(_) => Vec::new(),
            },
        );
        shared(
            || User::Revision(revision()),
            |user| match user {
                User::Workload(_) => Vec::new(),
                User::Revision(key) => vec![key.namespace.clone(), key.name.clone()],
            },
        );
        let owner = || Owner::new("apps/v1", "ReplicaSet", "web", "1".to_owned());
        let of_owner =
            |owner: &Owner| vec![owner.api_version.clone(), owner.kind.clone(), owner.name.clone()];
        shared(owner, of_owner);
        shared(used, texts_of_use);
    }

    #[test]
    fn equal_records_share_their_texts() {
        let owner = || Owner::new("apps/v1", "ReplicaSet", "web", "1".to_owned());
        let owners = || CompactSet::from_iter([owner()]);
        let of_owners =
            |owners: &CompactSet<Owner>| owners.iter().map(|owner| owner.name.clone()).collect::<Vec<_>>();
        let snapshot = || SnapshotRecord { owners: owners(), ..fixture::snapshot_record("demo", 1) };
        shared(snapshot, |record| [vec![record.source.clone()], of_owners(&record.owners)].concat());
        let version = || Version { uid: "1".to_owned(), resource_version: "1".to_owned() };
        shared(|| BoundRecord { version: version(), owners: owners() }, |record| of_owners(&record.owners));
        shared(
            || Revision { uid: "1".into(), uses: vec![used()] },
            |revision| revision.uses.iter().flat_map(texts_of_use).collect(),
        );
        shared(record, |record| {
            let uses = record.uses.iter().flat_map(texts_of_use).collect();
            let ties = || record.ties.iter().map(|(_, tie)| tie);
            let previous: Vec<_> = ties().filter_map(|tie| tie.previous.clone()).collect();
            let reads = ties().flat_map(|tie| tie.reads.iter().flat_map(|reads| reads.keys.iter()));
            let keys: Vec<_> = reads.map(|read| read.key.clone()).collect();
            let names: Vec<_> = record.ties.iter().map(|(source, _)| source.name.clone()).collect();
            assert_eq!([&previous, &keys, &names].map(Vec::len), [1, 1, 2]);
            [uses, previous, keys, names].concat()
        });
    }

    #[test]
    fn unused_texts_are_dropped_and_used_ones_kept() {
        let mut interner = Interner::default();
        let held: Vec<_> = (0..FEW).map(|i| interner.intern(text(&format!("held {i}")))).collect();
        for i in 0..100 * FEW {
            interner.intern(text(&format!("passing {i}")));
            assert!(interner.len() <= 3 * FEW);
        }
        for name in &held {
            assert!(Arc::ptr_eq(name, &interner.intern(text(name))));
        }
    }
}
