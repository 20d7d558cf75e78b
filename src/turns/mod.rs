//! Turns: whatever waits in line waits by namespace, and namespaces take turns. A namespace with thousands of items delays
//! each item of another namespace by one item.
//!
//! [`Turns`] is the order of the namespaces, and [`Lanes`] has their items. [`BoundedLanes`] limits how many items wait, and
//! [`Places`] hands out a few places. All but the last are pure: they do no I/O and read no clock.

mod bounded;
mod lanes;
mod places;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use jiff::{SignedDuration, Timestamp};

pub(crate) use bounded::{BoundedLanes, Bounds, Ticket};
pub(crate) use lanes::Lanes;
pub(crate) use places::Places;

/// The longest that low-priority items wait behind urgent ones.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(2);

/// Whether a low-priority item comes before an urgent one. Both are given by the time since when their namespaces wait for
/// the present turn.
pub(crate) fn patient_comes_first(patient: Timestamp, urgent: Timestamp) -> bool {
    patient + LONGEST_WAIT < urgent
}

/// The order in which keys, such as namespaces, take turns. Each key is known by the time of its next item. Every operation
/// takes logarithmic time.
///
/// `A` is the type of times. With `()`, every item is due.
#[derive(Debug)]
pub(crate) struct Turns<K, A> {
    keys: HashMap<K, Place<A>>,
    /// The keys with a due item, by turn.
    due: BTreeMap<u64, K>,
    /// The other keys, by the time of their next item.
    later: BTreeSet<(A, K)>,
    /// How many turns were assigned so far.
    assigned: u64,
    /// The time of the last question.
    now: Option<A>,
}

/// The place of a key among the others.
#[derive(Clone, Copy, Debug)]
struct Place<A> {
    /// When its next item is due.
    at: A,
    /// Its turn, if the item is due, and since when the key waits for this turn.
    turn: Option<(u64, A)>,
}

impl<K, A> Default for Turns<K, A> {
    fn default() -> Self {
        Self { keys: HashMap::new(), due: BTreeMap::new(), later: BTreeSet::new(), assigned: 0, now: None }
    }
}

impl<K: Clone + Ord + Hash, A: Copy + Ord> Turns<K, A> {
    /// Records when the next item of a key is due; `None` if it has none. A key that is due keeps its turn.
    pub(crate) fn set(&mut self, key: &K, at: Option<A>) {
        let is_due = at.is_some_and(|at| self.now.is_some_and(|now| at <= now));
        if let (Some(place), Some(at)) = (self.keys.get_mut(key), at)
            && (place.at == at || (place.turn.is_some() && is_due))
        {
            place.at = at;
            return;
        }
        self.remove(key);
        if let Some(at) = at {
            self.later.insert((at, key.clone()));
            self.keys.insert(key.clone(), Place { at, turn: None });
        }
    }

    /// Ends the turn of a key, whose next item is due at this time. If it is due already, the key waits for another turn.
    pub(crate) fn served(&mut self, key: &K, at: Option<A>) {
        self.remove(key);
        match (at, self.now) {
            (Some(at), Some(now)) if at <= now => self.take_turn(key, at, now),
            _ => self.set(key, at),
        }
    }

    /// The key whose turn it is, of those that may have it, and since when it waits for this turn.
    pub(crate) fn first(&mut self, now: A, mut may: impl FnMut(&K) -> bool) -> Option<(A, &K)> {
        self.now = Some(now);
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((at, key)) = self.later.pop_first()
        {
            self.take_turn(&key, at, at);
        }
        let key = self.due.values().find(|key| may(key))?;
        let (_, since) = self.keys.get(key)?.turn?;
        Some((since, key))
    }

    /// When the next item of any key is due.
    pub(crate) fn next(&self) -> Option<A> {
        self.next_where(|_| true)
    }

    /// Like [`Turns::next`], without the keys that may have no turn, as far as they were due at the last question.
    pub(crate) fn next_where(&self, mut may: impl FnMut(&K) -> bool) -> Option<A> {
        let due = self.due.values().find(|key| may(key)).and_then(|key| Some(self.keys.get(key)?.at));
        let later = self.later.first().map(|(at, _)| *at);
        due.into_iter().chain(later).min()
    }

    fn remove(&mut self, key: &K) {
        match self.keys.remove(key) {
            Some(Place { turn: Some((turn, _)), .. }) => {
                self.due.remove(&turn);
            }
            Some(Place { at, turn: None }) => {
                self.later.remove(&(at, key.clone()));
            }
            None => {}
        }
    }

    /// Assigns the next turn to a key whose item is due.
    fn take_turn(&mut self, key: &K, at: A, since: A) {
        self.assigned += 1;
        self.due.insert(self.assigned, key.clone());
        self.keys.insert(key.clone(), Place { at, turn: Some((self.assigned, since)) });
    }
}
