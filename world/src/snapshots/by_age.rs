//! The snapshots of one source by age, so that one can be checked without reading the others.
//!
//! A source owns its newest `keep` snapshots: those of its present content first, then by age. If a source has many, only
//! snapshots whose rank changes are checked again.

use std::sync::Arc;

use confrev_core::{
    compact::CompactSet,
    snapshot::{Digests, is_spare},
    uid::Uid,
};
use jiff::Timestamp;

use crate::records::SourceRecord;

/// Up to this number, all snapshots of a source are checked at every change.
pub(crate) const FEW: usize = 8;

/// When a snapshot was created, and its name.
pub(crate) type Age = (Timestamp, Arc<str>);

/// The snapshots of one source.
#[derive(Debug, Default)]
pub(crate) struct ByAge {
    /// Oldest first.
    ages: CompactSet<Age>,
    /// The names with random digits, which do not follow from a digest alone. Usually none.
    spare: CompactSet<Arc<str>>,
    /// The sum of their sizes.
    bytes: u64,
    /// The ranking of the last check, if there are many.
    pub ranking: Option<Box<Ranking>>,
}

/// What decides which snapshots a source owns.
#[derive(Debug)]
pub(crate) struct Ranking {
    pub uid: Uid,
    pub keep: usize,
    pub bound_itself: bool,
    pub digests: Digests,
    pub revoked: Option<Box<str>>,
    /// Snapshots to check once the source has been read.
    pub again: CompactSet<Arc<str>>,
}

impl Ranking {
    /// The ranking by the present state of a source.
    pub(crate) fn of(source: &SourceRecord) -> Self {
        Self {
            uid: source.uid.clone(),
            keep: source.keep,
            bound_itself: source.present.bound_itself,
            digests: source.present.digests.clone(),
            revoked: source.revoked.clone(),
            again: CompactSet::default(),
        }
    }
}

impl ByAge {
    /// How many snapshots there are.
    pub(crate) fn len(&self) -> usize {
        self.ages.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.ages.is_empty()
    }

    /// The names of the snapshots, oldest first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.ages.iter().map(|(_, name)| name)
    }

    /// Adds a snapshot. Returns whether it is new.
    pub(crate) fn add(&mut self, age: Age, bytes: u32) -> bool {
        let name = Arc::clone(&age.1);
        let is_new = self.ages.insert(age);
        if is_new {
            self.bytes += u64::from(bytes);
            if is_spare(&name) {
                self.spare.insert(name);
            }
        }
        is_new
    }

    /// Removes a snapshot with the size that it was added with.
    pub(crate) fn remove(&mut self, age: &Age, bytes: u32) {
        if self.ages.remove(age) {
            self.bytes = self.bytes.saturating_sub(u64::from(bytes));
            self.spare.remove(&age.1);
        }
    }

    /// The bytes of all snapshots.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The names with random digits.
    pub(crate) fn spare(&self) -> impl Iterator<Item = &Arc<str>> {
        self.spare.iter()
    }

    /// The snapshots, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Age> {
        self.ages.iter().rev()
    }

    /// How many snapshots are newer.
    pub(crate) fn newer(&self, age: &Age) -> usize {
        let ages = self.ages.iter().as_slice();
        ages.len() - ages.partition_point(|other| other <= age)
    }

    /// The snapshot at a rank, 0 for the newest. Those in `present`, newest first, rank before all others.
    pub(crate) fn at_rank<'a>(&'a self, present: &'a [Age], rank: usize) -> Option<&'a Arc<str>> {
        if let Some((_, name)) = present.get(rank) {
            return Some(name);
        }
        let mut position = rank - present.len();
        for age in present {
            position += usize::from(self.newer(age) <= position);
        }
        self.ages.iter().rev().nth(position).map(|(_, name)| name)
    }
}
