//! Items by namespace, of which a limited number waits.

use std::{collections::BTreeMap, hash::Hash};

use super::Lanes;

/// How many items may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Of one key.
    pub each: usize,
    /// Of all keys.
    pub total: usize,
}

/// Items of type `T` by key, such as a namespace, in the order in which they were added.
///
/// If a key has too many items, or has the most items while all keys have too many, one of its items is dropped and counted.
#[derive(Debug)]
pub(crate) struct BoundedLanes<K, A, T> {
    lanes: Lanes<K, A, u64, T>,
    bounds: Bounds,
    /// The rank of an item. An item is dropped only if no waiting item of its key has a lower rank.
    rank: fn(&T) -> u8,
    /// How many items were added so far.
    added: u64,
    dropped: BTreeMap<K, u64>,
}

/// An item that was handed out. [`BoundedLanes::put_back`] lets it wait again, before the others of its key.
#[derive(Debug)]
pub(crate) struct Ticket<K, A, T> {
    /// The item.
    pub item: T,
    /// Its key.
    pub key: K,
    entry: (A, u64),
}

impl<K: Clone + Ord + Hash, A: Copy + Ord, T> BoundedLanes<K, A, T> {
    /// No items, and these bounds.
    pub(crate) fn new(bounds: Bounds, rank: fn(&T) -> u8) -> Self {
        Self { lanes: Lanes::default(), bounds, rank, added: 0, dropped: BTreeMap::new() }
    }

    /// Adds an item, which is due at a time. Returns the item that was dropped for lack of room.
    pub(crate) fn push(&mut self, key: &K, at: A, item: T) -> Option<T> {
        let (of_key, rank) = (self.lanes.len_of(key), (self.rank)(&item));
        let mut dropped = None;
        if of_key >= self.bounds.each || self.lanes.len() >= self.bounds.total {
            // A key with more items makes room for one with fewer.
            let longest = self.lanes.longest().filter(|longest| self.lanes.len_of(longest) > of_key).cloned();
            dropped = match longest.filter(|_| of_key < self.bounds.each) {
                Some(longest) => self.make_room(&longest, u8::MAX),
                None => self.make_room(key, rank),
            };
            if dropped.is_none() {
                *self.dropped.entry(key.clone()).or_default() += 1;
                return Some(item);
            }
        }
        self.added += 1;
        self.lanes.insert(key, (at, self.added), item);
        dropped
    }

    /// Drops the oldest item of the lowest rank below `rank`.
    fn make_room(&mut self, key: &K, rank: u8) -> Option<T> {
        let ranked = self.lanes.of(key).map(|(entry, item)| ((self.rank)(item), *entry));
        let (_, entry) = ranked.filter(|(of, _)| *of < rank).min()?;
        *self.dropped.entry(key.clone()).or_default() += 1;
        self.lanes.remove(key, &entry)
    }

    /// Since when the key waits whose turn it is.
    pub(crate) fn first(&mut self, now: A) -> Option<A> {
        self.lanes.first(now).map(|(since, _)| since)
    }

    /// Removes and returns the item whose turn it is.
    pub(crate) fn pop(&mut self, now: A) -> Option<Ticket<K, A, T>> {
        self.pop_where(now, |_| true)
    }

    /// Like [`BoundedLanes::pop`], of the keys that may have a turn.
    pub(crate) fn pop_where(&mut self, now: A, may: impl FnMut(&K) -> bool) -> Option<Ticket<K, A, T>> {
        self.lanes.pop_where(now, may).map(|(key, entry, item)| Ticket { item, key, entry })
    }

    /// A ticket for an item that did not wait here.
    pub(crate) fn ticket(&mut self, key: K, at: A, item: T) -> Ticket<K, A, T> {
        self.added += 1;
        Ticket { item, key, entry: (at, self.added) }
    }

    /// Lets an item that was handed out wait until a time, and the others of its key with it.
    pub(crate) fn put_back(&mut self, ticket: Ticket<K, A, T>, until: A) {
        self.lanes.put_back(&ticket.key, ticket.entry, ticket.item, until);
    }

    /// When the next item is due.
    pub(crate) fn next(&self) -> Option<A> {
        self.lanes.next()
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Removes every item that is not to be kept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.lanes.retain(|_, item| keep(item));
    }

    /// How many items of each key were dropped since the last call.
    pub(crate) fn take_dropped(&mut self) -> BTreeMap<K, u64> {
        std::mem::take(&mut self.dropped)
    }
}
