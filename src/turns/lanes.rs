//! Items by namespace. Namespaces take turns, and the items of one namespace keep their order.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use super::Turns;

/// Items of type `T` by key, such as a namespace. Within a key, the item that is due longest comes first; the identities `I`
/// order items of the same time.
#[derive(Debug)]
pub(crate) struct Lanes<K, A, I, T = ()> {
    by_key: HashMap<K, Lane<A, I, T>>,
    turns: Turns<K, A>,
    /// How many items wait.
    len: usize,
}

/// The items of one key; never empty.
#[derive(Debug)]
struct Lane<A, I, T> {
    items: BTreeMap<(A, I), T>,
    /// No item is due before this time.
    rests_until: Option<A>,
}

impl<A: Copy + Ord, I: Ord, T> Lane<A, I, T> {
    /// When the next item is due.
    fn next(&self) -> Option<A> {
        let (at, _) = self.items.first_key_value()?.0;
        Some(self.rests_until.map_or(*at, |until| until.max(*at)))
    }
}

impl<K, A, I, T> Default for Lanes<K, A, I, T> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), turns: Turns::default(), len: 0 }
    }
}

impl<K: Clone + Ord + Hash, A: Copy + Ord, I: Clone + Ord, T> Lanes<K, A, I, T> {
    /// Adds an item.
    pub(crate) fn insert(&mut self, key: &K, entry: (A, I), item: T) {
        if let Some(lane) = self.by_key.get_mut(key) {
            self.len += usize::from(lane.items.insert(entry, item).is_none());
            self.turns.set(key, lane.next());
        } else {
            let lane = Lane { items: BTreeMap::from([(entry, item)]), rests_until: None };
            self.len += 1;
            self.turns.set(key, lane.next());
            self.by_key.insert(key.clone(), lane);
        }
    }

    /// Adds an item that was handed out before. No item of its key is due before `until`.
    pub(crate) fn put_back(&mut self, key: &K, entry: (A, I), item: T, until: A) {
        self.insert(key, entry, item);
        if let Some(lane) = self.by_key.get_mut(key) {
            lane.rests_until = Some(until);
            self.turns.set(key, lane.next());
        }
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, key: &K, entry: &(A, I)) -> Option<T> {
        let lane = self.by_key.get_mut(key)?;
        let item = lane.items.remove(entry)?;
        self.len -= 1;
        let next = lane.next();
        self.turns.set(key, next);
        if next.is_none() {
            self.by_key.remove(key);
        }
        Some(item)
    }

    /// The item whose turn it is, with the time when it was due, and since when its key waits for this turn.
    pub(crate) fn first(&mut self, now: A) -> Option<(A, &(A, I))> {
        self.first_where(now, |_| true)
    }

    /// Like [`Lanes::first`], of the keys that may have a turn.
    pub(crate) fn first_where(&mut self, now: A, may: impl FnMut(&K) -> bool) -> Option<(A, &(A, I))> {
        let (since, key) = self.turns.first(now, may)?;
        let (entry, _) = self.by_key.get(key)?.items.first_key_value()?;
        Some((since, entry))
    }

    /// Removes and returns the item whose turn it is. Its key waits for another turn.
    pub(crate) fn pop(&mut self, now: A) -> Option<(K, (A, I), T)> {
        self.pop_where(now, |_| true)
    }

    /// Like [`Lanes::pop`], of the keys that may have a turn.
    pub(crate) fn pop_where(&mut self, now: A, may: impl FnMut(&K) -> bool) -> Option<(K, (A, I), T)> {
        let key = self.turns.first(now, may)?.1.clone();
        let lane = self.by_key.get_mut(&key)?;
        let (entry, item) = lane.items.pop_first()?;
        self.len -= 1;
        let next = lane.next();
        self.turns.served(&key, next);
        if next.is_none() {
            self.by_key.remove(&key);
        }
        Some((key, entry, item))
    }

    /// When the next item is due.
    pub(crate) fn next(&self) -> Option<A> {
        self.turns.next()
    }

    /// Like [`Lanes::next`], without the items of the keys that may have no turn, as far as they were due at the last question.
    pub(crate) fn next_where(&self, may: impl FnMut(&K) -> bool) -> Option<A> {
        self.turns.next_where(may)
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The items of a key, in their order.
    pub(crate) fn of(&self, key: &K) -> impl Iterator<Item = (&(A, I), &T)> {
        self.by_key.get(key).into_iter().flat_map(|lane| &lane.items)
    }

    /// How many items of a key wait.
    pub(crate) fn len_of(&self, key: &K) -> usize {
        self.by_key.get(key).map_or(0, |lane| lane.items.len())
    }

    /// The key with the most items.
    pub(crate) fn longest(&self) -> Option<&K> {
        let longest = self.by_key.iter().max_by_key(|(key, lane)| (lane.items.len(), *key))?;
        Some(longest.0)
    }

    /// Removes every item that is not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&I, &mut T) -> bool) {
        let Self { by_key, turns, len } = self;
        by_key.retain(|key, lane| {
            *len -= lane.items.len();
            lane.items.retain(|(_, id), item| keep(id, item));
            *len += lane.items.len();
            turns.set(key, lane.next());
            !lane.items.is_empty()
        });
    }
}
