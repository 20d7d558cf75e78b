//! Sets and maps that usually hold one or two elements. They are sorted vectors without spare capacity, since there are
//! thousands of them, and the smallest B-tree has room for eleven elements.

/// Up to this length, a vector grows by one element at a time; then it doubles.
const ONE_BY_ONE: usize = 8;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FewSet<T>(Vec<T>);

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FewMap<K, V>(Box<[(K, V)]>);

impl<T> Default for FewSet<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord> FewSet<T> {
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

impl<T> FewSet<T> {
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

impl<T: Ord> FromIterator<T> for FewSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements: Vec<_> = elements.into_iter().collect();
        elements.sort_unstable();
        elements.dedup();
        elements.shrink_to_fit();
        Self(elements)
    }
}

impl<'s, T> IntoIterator for &'s FewSet<T> {
    type Item = &'s T;
    type IntoIter = std::slice::Iter<'s, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> IntoIterator for FewSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K, V> Default for FewMap<K, V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<K, V> IntoIterator for FewMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

impl<K: Ord, V> FewMap<K, V> {
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

impl<K: Ord, V> FromIterator<(K, V)> for FewMap<K, V> {
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
    fn few_set_behaves_like_btree_set() {
        let (mut few, mut many) = (FewSet::default(), BTreeSet::new());
        // Every pair of steps occurs.
        let mut step = 7_u32;
        for _ in 0..10_000 {
            step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (element, puts) = (step >> 27, step >> 26 & 1 == 1);
            let changed = if puts {
                (few.insert(element), many.insert(element))
            } else {
                (few.remove(&element), many.remove(&element))
            };
            assert_eq!(changed.0, changed.1);
            assert_eq!(few.contains(&element), puts);
            assert!(few.iter().eq(&many) && few.is_empty() == many.is_empty());
        }
        let half: FewSet<_> = few.iter().copied().take(2).collect();
        let none: FewSet<_> = [100].into_iter().collect();
        assert!(none.is_disjoint(&few) && !half.is_disjoint(&few));
        assert!(half.is_subset(&few) && !few.is_subset(&half) && few == many.iter().copied().collect());
    }

    /// Of two values for one key, the first one stays.
    #[test]
    fn few_map_behaves_like_btree_map() {
        let pairs = [(3, 'c'), (1, 'a'), (2, 'b'), (1, 'z')];
        let few: FewMap<_, _> = pairs.into_iter().collect();
        let many: BTreeMap<_, _> = pairs.into_iter().rev().collect();
        for key in 0..5 {
            assert_eq!(few.get(&key), many.get(&key));
            assert_eq!(few.contains_key(&key), many.contains_key(&key));
        }
    }

    #[test]
    fn small_set_has_no_spare_capacity() {
        let mut few = FewSet::default();
        for element in 0..ONE_BY_ONE {
            few.insert(element);
            assert_eq!(few.0.capacity(), few.0.len());
        }
    }
}
