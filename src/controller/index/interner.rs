//! Names that many records hold, each stored once. A snapshot's name is in its own record, in the records of its source, of
//! the workload and of each revision that uses it, and beside each of them in the index of users.

use std::{collections::HashSet, sync::Arc};

use super::records::{BoundRecord, Revision, RevisionKey, SnapshotRecord, User};
use crate::{
    cluster::{Owner, WorkloadKey},
    compact::{CompactMap, CompactSet},
    controller::name::Name,
    resolve::{Record, Use},
    snapshot::ObjectName,
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

/// A value whose texts can be shared with others.
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

impl<K: Intern + Ord, V> Intern for CompactMap<K, V> {
    fn intern(&mut self, interner: &mut Interner) {
        *self = std::mem::take(self).into_iter().map(|(key, value)| (interner.intern(key), value)).collect();
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
        self.seen.intern(interner);
        self.taken_unhealthy.intern(interner);
        self.pinned.intern(interner);
        self.moved.intern(interner);
        self.previous.intern(interner);
        self.reads = std::mem::take(&mut self.reads)
            .into_iter()
            .map(|(source, mut reads)| {
                reads.keys.iter_mut().for_each(|read| read.key.intern(interner));
                (interner.intern(source), reads)
            })
            .collect();
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
    use super::*;

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
