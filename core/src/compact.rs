//! Sets and maps that usually hold one or two elements. They are sorted vectors without spare capacity, since there are
//! thousands of them, and the smallest B-tree has room for eleven elements.

/// Up to this length, a vector grows by one element at a time; then it doubles.
const ONE_BY_ONE: usize = 8;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactSet<T>(Vec<T>);

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactMap<K, V>(Box<[(K, V)]>);

impl<T> Default for CompactSet<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord> CompactSet<T> {
    /// Adds an element. Returns whether it is new.
    pub fn insert(&mut self, element: T) -> bool {
        let Err(at) = self.0.binary_search(&element) else { return false };
        if self.0.len() < ONE_BY_ONE {
            self.0.reserve_exact(1);
        }
        self.0.insert(at, element);
        true
    }

    /// Removes an element. Returns whether the set contained it.
    pub fn remove(&mut self, element: &T) -> bool {
        let Ok(at) = self.0.binary_search(element) else { return false };
        self.0.remove(at);
        true
    }

    /// Whether the set contains the element.
    pub fn contains(&self, element: &T) -> bool {
        self.0.binary_search(element).is_ok()
    }

    /// Whether the two sets share no element.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        !self.0.iter().any(|element| other.contains(element))
    }

    /// Whether the other set contains all elements of this one.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().all(|element| other.contains(element))
    }
}

impl<T> CompactSet<T> {
    /// Whether the set has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The elements, in ascending order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<T: Ord> FromIterator<T> for CompactSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements: Vec<_> = elements.into_iter().collect();
        elements.sort_unstable();
        elements.dedup();
        elements.shrink_to_fit();
        Self(elements)
    }
}

impl<'s, T> IntoIterator for &'s CompactSet<T> {
    type Item = &'s T;
    type IntoIter = std::slice::Iter<'s, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> IntoIterator for CompactSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K, V> Default for CompactMap<K, V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<K, V> IntoIterator for CompactMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

impl<K, V> CompactMap<K, V> {
    /// Whether the map has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The elements, in ascending order of their keys.
    pub fn iter(&self) -> std::slice::Iter<'_, (K, V)> {
        self.0.iter()
    }
}

impl<'m, K, V> IntoIterator for &'m CompactMap<K, V> {
    type Item = &'m (K, V);
    type IntoIter = std::slice::Iter<'m, (K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<K: Ord, V> CompactMap<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Whether the map contains the key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for CompactMap<K, V> {
    /// If a key occurs twice, its first value is kept.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs.dedup_by(|(a, _), (b, _)| a == b);
        Self(pairs.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn compact_set_behaves_like_btree_set() {
        let (mut compact, mut btree) = (CompactSet::default(), BTreeSet::new());
        // Every pair of steps occurs.
        let mut step = 7_u32;
        for _ in 0..10_000 {
            step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (element, puts) = (step >> 27, step >> 26 & 1 == 1);
            let changed = if puts {
                (compact.insert(element), btree.insert(element))
            } else {
                (compact.remove(&element), btree.remove(&element))
            };
            assert_eq!(changed.0, changed.1);
            assert_eq!(compact.contains(&element), puts);
            assert!(compact.iter().eq(&btree) && compact.is_empty() == btree.is_empty());
        }
        let half: CompactSet<_> = compact.iter().copied().take(2).collect();
        let none: CompactSet<_> = [100].into_iter().collect();
        assert!(none.is_disjoint(&compact) && !half.is_disjoint(&compact));
        assert!(
            half.is_subset(&compact)
                && !compact.is_subset(&half)
                && compact == btree.iter().copied().collect()
        );
    }

    /// Of two values for one key, the first one stays.
    #[test]
    fn compact_map_behaves_like_btree_map() {
        let pairs = [(3, 'c'), (1, 'a'), (2, 'b'), (1, 'z')];
        let compact: CompactMap<_, _> = pairs.into_iter().collect();
        let btree: BTreeMap<_, _> = pairs.into_iter().rev().collect();
        for key in 0..5 {
            assert_eq!(compact.get(&key), btree.get(&key));
            assert_eq!(compact.contains_key(&key), btree.contains_key(&key));
        }
    }

    #[test]
    fn small_set_has_no_spare_capacity() {
        let mut compact = CompactSet::default();
        for element in 0..ONE_BY_ONE {
            compact.insert(element);
            assert_eq!(compact.0.capacity(), compact.0.len());
        }
    }
}
