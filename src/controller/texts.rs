//! Names that many records hold, each stored once. A snapshot's name is in its own record, in the records of its source, of
//! the workload and of each revision that uses it, and beside each of them in the index of users.

use std::{collections::HashSet, sync::Arc};

use super::{BoundRecord, Name, Revision, RevisionKey, SnapshotRecord};
use crate::{
    cluster::{Owner, WorkloadKey},
    compact::{CompactMap, CompactSet},
    resolve::{Record, Use},
    snapshot::ObjectName,
};

/// Up to this number of texts, unused texts are not dropped.
const FEW: usize = 1024;

/// The shared texts.
#[derive(Debug, Default)]
pub(super) struct Texts {
    known: HashSet<Arc<str>>,
    /// The number of texts at which unused ones are dropped.
    full: usize,
}

impl Texts {
    /// The same value, with its texts replaced by equal ones that are known already.
    pub(super) fn share<T: Share>(&mut self, mut value: T) -> T {
        value.share(self);
        value
    }

    /// How many texts are stored.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.len()
    }

    fn enter(&mut self, text: &mut Arc<str>) {
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
pub(super) trait Share {
    /// Replaces its texts by equal ones that are known already.
    fn share(&mut self, texts: &mut Texts);
}

impl Share for Arc<str> {
    fn share(&mut self, texts: &mut Texts) {
        texts.enter(self);
    }
}

impl<T: Share> Share for Option<T> {
    fn share(&mut self, texts: &mut Texts) {
        if let Some(value) = self {
            value.share(texts);
        }
    }
}

impl<T: Share> Share for Vec<T> {
    fn share(&mut self, texts: &mut Texts) {
        for value in self {
            value.share(texts);
        }
    }
}

/// The order stays, because the texts are equal. The set is rebuilt because its values cannot be changed in place.
impl<T: Share + Ord> Share for CompactSet<T> {
    fn share(&mut self, texts: &mut Texts) {
        *self = std::mem::take(self).into_iter().map(|value| texts.share(value)).collect();
    }
}

impl<K: Share + Ord, V> Share for CompactMap<K, V> {
    fn share(&mut self, texts: &mut Texts) {
        *self = std::mem::take(self).into_iter().map(|(key, value)| (texts.share(key), value)).collect();
    }
}

impl Share for ObjectName {
    fn share(&mut self, texts: &mut Texts) {
        self.name.share(texts);
    }
}

impl Share for Name {
    fn share(&mut self, texts: &mut Texts) {
        self.namespace.share(texts);
        self.object.share(texts);
    }
}

impl Share for WorkloadKey {
    fn share(&mut self, texts: &mut Texts) {
        self.namespace.share(texts);
        self.name.share(texts);
    }
}

impl Share for RevisionKey {
    fn share(&mut self, texts: &mut Texts) {
        self.namespace.share(texts);
        self.name.share(texts);
    }
}

impl Share for Owner {
    fn share(&mut self, texts: &mut Texts) {
        for text in [&mut self.api_version, &mut self.kind, &mut self.name] {
            text.share(texts);
        }
    }
}

impl Share for Use {
    fn share(&mut self, texts: &mut Texts) {
        self.source.share(texts);
        self.snapshot.share(texts);
    }
}

impl Share for Record {
    fn share(&mut self, texts: &mut Texts) {
        self.uses.share(texts);
        self.seen.share(texts);
        self.taken_unhealthy.share(texts);
    }
}

impl Share for Revision {
    fn share(&mut self, texts: &mut Texts) {
        self.uses.share(texts);
    }
}

impl Share for SnapshotRecord {
    fn share(&mut self, texts: &mut Texts) {
        self.source.share(texts);
        self.owners.share(texts);
    }
}

impl Share for BoundRecord {
    fn share(&mut self, texts: &mut Texts) {
        self.owners.share(texts);
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
        let mut texts = Texts::default();
        let (first, second) = (texts.share(text("a")), texts.share(text("a")));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &texts.share(text("b"))));
    }

    #[test]
    fn unused_texts_are_dropped_and_used_ones_kept() {
        let mut texts = Texts::default();
        let held: Vec<_> = (0..FEW).map(|i| texts.share(text(&format!("held {i}")))).collect();
        for i in 0..100 * FEW {
            texts.share(text(&format!("passing {i}")));
            assert!(texts.len() <= 3 * FEW);
        }
        for name in &held {
            assert!(Arc::ptr_eq(name, &texts.share(text(name))));
        }
    }
}
