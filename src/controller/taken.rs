//! The snapshots of each source by age, so that one can be checked without reading the others.
//!
//! A source owns its newest `keep` snapshots: those of its present content first, then by age. If a source has many, only
//! snapshots whose rank changes are checked again.

use std::{cmp::Reverse, sync::Arc};

use jiff::Timestamp;

use super::{
    Name, SnapshotRecord,
    records::{Found, Source},
    state::State,
};
use crate::{
    compact::CompactSet,
    snapshot::{DIGITS, Digest, Digests, snapshot_name},
    uid::Uid,
};

/// Up to this number, all snapshots of a source are checked at every change.
const FEW: usize = 8;

/// When a snapshot was created, and its name.
type Age = (Timestamp, Arc<str>);

/// The snapshots of one source.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Oldest first.
    by_age: CompactSet<Age>,
    /// The ranking of the last check, if there are many.
    ranking: Option<Box<Ranking>>,
}

/// What decides which snapshots a source owns.
#[derive(Debug)]
struct Ranking {
    uid: Uid,
    keep: usize,
    bound_itself: bool,
    digests: Digests,
    /// Snapshots to check once the source has been read.
    again: CompactSet<Arc<str>>,
}

impl Ranking {
    fn of(found: &Found) -> Self {
        Self {
            uid: found.uid.clone(),
            keep: found.keep,
            bound_itself: found.present.bound_itself,
            digests: found.present.digests.clone(),
            again: CompactSet::default(),
        }
    }
}

impl Taken {
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_age.iter().map(|(_, name)| name)
    }

    /// How many snapshots are newer.
    fn newer(&self, age: &Age) -> usize {
        let ages = self.by_age.iter().as_slice();
        ages.len() - ages.partition_point(|other| other <= age)
    }

    /// The snapshot at a rank, 0 for the newest. Those in `present`, newest first, rank before all others.
    fn at_rank<'a>(&'a self, present: &'a [Age], rank: usize) -> Option<&'a Arc<str>> {
        if let Some((_, name)) = present.get(rank) {
            return Some(name);
        }
        let mut position = rank - present.len();
        for age in present {
            position += usize::from(self.newer(age) <= position);
        }
        self.by_age.iter().rev().nth(position).map(|(_, name)| name)
    }
}

impl State {
    /// The names of a source's snapshots.
    pub(super) fn snapshots_of(&self, source: &Name) -> Vec<Name> {
        let names = self.taken.get(source).into_iter().flat_map(Taken::names);
        names.map(|name| source.sibling(Arc::clone(name))).collect()
    }

    /// How many snapshots a source has.
    pub fn snapshot_count(&self, source: &Name) -> usize {
        self.taken.get(source).map_or(0, Taken::len)
    }

    /// The snapshots of a source that state one of these digests. Their names contain the digest.
    pub(super) fn snapshots_with<'s>(
        &'s self,
        source: &'s Name,
        digests: &'s Digests,
    ) -> impl Iterator<Item = (Name, &'s SnapshotRecord)> {
        let named = digests.iter().flat_map(move |digest| {
            let name = move |digits| source.sibling(snapshot_name(&source.object.name, digest, digits));
            DIGITS.into_iter().map(move |digits| (name(digits), digest))
        });
        named.filter_map(move |(name, digest)| {
            let record = self.snapshots.get(&name)?;
            (record.digest == *digest && record.source == source.object.name).then_some((name, record))
        })
    }

    /// The snapshots of any source in the namespace that hold the content after which the snapshot `name` of `source` is
    /// named.
    pub(super) fn twins(&self, name: &Name, source: &str) -> Vec<Name> {
        let start = |name: &str| Some(name.rsplit_once('-')?.1.get(..DIGITS[0])?.to_owned());
        let Some(wanted) = start(&name.object.name) else { return Vec::new() };
        let holds =
            |digest: &Digest| DIGITS.iter().any(|n| snapshot_name(source, digest, *n) == *name.object.name);
        let is_near =
            |(of, _): &(&Name, &Taken)| of.namespace == name.namespace && of.object.kind == name.object.kind;
        let near = self.taken.range(name.sibling("")..).take_while(is_near);
        let named = near.flat_map(|(of, taken)| taken.names().map(move |twin| (of, twin)));
        let alike =
            named.filter(|(_, twin)| start(twin).as_ref() == Some(&wanted) && **twin != name.object.name);
        let twins = alike.map(|(of, twin)| of.sibling(Arc::clone(twin)));
        twins.filter(|twin| self.snapshots.get(twin).is_some_and(|record| holds(&record.digest))).collect()
    }

    /// The snapshots of a source with one of these digests, newest first.
    fn ages_with(&self, source: &Name, digests: &Digests) -> Vec<Age> {
        let ages = self.snapshots_with(source, digests);
        let mut ages: Vec<Age> =
            ages.map(|(name, record)| (record.created, Arc::clone(&name.object.name))).collect();
        ages.sort_by_key(|age| Reverse(age.clone()));
        ages.dedup();
        ages
    }

    /// Whether a snapshot is among the newest `keep` of its source: the present content first, then by age.
    pub(super) fn is_among_newest(&self, source: &Name, name: &Name, found: &Found) -> bool {
        let (Some(record), Some(taken)) = (self.snapshots.get(name), self.taken.get(source)) else {
            return false;
        };
        let age = (record.created, Arc::clone(&name.object.name));
        let present = self.ages_with(source, &found.present.digests);
        let newer = present.iter().take_while(|other| **other > age).count();
        let before = if present.contains(&age) { newer } else { taken.newer(&age) + present.len() - newer };
        before < found.keep
    }

    /// The snapshot of a source that holds its present content, or else the newest one.
    pub(super) fn newest_of(&self, source: &Name, found: Option<&Found>) -> Option<Arc<str>> {
        let present = found.map(|found| self.ages_with(source, &found.present.digests)).unwrap_or_default();
        self.taken.get(source)?.at_rank(&present, 0).cloned()
    }

    /// Adds a snapshot of a source. Returns whether it is new.
    pub(super) fn take(&mut self, source: &Name, name: &Name, record: &SnapshotRecord) -> bool {
        if !self.taken.contains_key(source) {
            self.hold_namespace(&source.namespace);
        }
        let taken = self.taken.entry(source.clone()).or_default();
        taken.by_age.insert((record.created, Arc::clone(&name.object.name)))
    }

    /// Removes a snapshot of a source.
    pub(super) fn untake(&mut self, name: &Name, record: &SnapshotRecord, now: Timestamp) {
        let source = name.sibling(Arc::clone(&record.source));
        if let Some(taken) = self.taken.get_mut(&source) {
            taken.by_age.remove(&(record.created, Arc::clone(&name.object.name)));
            if taken.is_empty() {
                self.taken.remove(&source);
                self.release_namespace(&source.namespace);
            } else {
                self.look_at_ranks(&source, 0, now);
            }
        }
        self.forget_source(&source);
    }

    /// Checks the snapshots whose rank changes with a new snapshot of the source.
    pub(super) fn look_at_neighbours(&mut self, source: &Name, now: Timestamp) {
        let found = match self.sources.get(source) {
            Some(Source::Found(found)) => Some(found.clone()),
            _ => None,
        };
        let Some(taken) = self.taken.get_mut(source) else { return };
        match (&taken.ranking, found) {
            (None, Some(found)) if taken.len() > FEW => {
                // Until now there were few, and all were checked.
                taken.ranking = Some(Box::new(Ranking::of(&found)));
            }
            (None, Some(_)) => return self.look_at_all_of(source, now),
            // All are checked when the source is read.
            (None, None) => return,
            (Some(_), _) => {}
        }
        self.look_at_ranks(source, 0, now);
    }

    /// Checks the snapshots around the last rank that the source owns, and `beyond` more on both sides.
    fn look_at_ranks(&mut self, source: &Name, beyond: usize, now: Timestamp) {
        let Some(taken) = self.taken.get(source) else { return };
        let Some(ranking) = &taken.ranking else { return };
        let present = self.ages_with(source, &ranking.digests);
        let reach = present.len() + beyond + 1;
        let ranks = ranking.keep.saturating_sub(reach)..ranking.keep.saturating_add(reach).min(taken.len());
        let names: Vec<_> = ranks.filter_map(|rank| taken.at_rank(&present, rank).cloned()).collect();
        for name in names {
            self.look_at_snapshot(&source.sibling(name), now);
        }
    }

    /// Checks the snapshots of a source that was read. If there are many, only those that the change may affect are
    /// checked.
    pub(super) fn look_at_changed(&mut self, source: &Name, now: Timestamp) {
        let new = match self.sources.get(source) {
            Some(Source::Found(found)) => Some(Ranking::of(found)),
            _ => None,
        };
        let Some(taken) = self.taken.get_mut(source) else { return };
        let old = taken.ranking.take();
        let is_many = taken.len() > FEW;
        let (Some(new), Some(old)) = (new, old) else {
            if let Some(Source::Found(found)) = self.sources.get(source)
                && is_many
            {
                taken.ranking = Some(Box::new(Ranking::of(found)));
            }
            return self.look_at_all_of(source, now);
        };
        let is_same = (&old.uid, old.bound_itself) == (&new.uid, new.bound_itself);
        let beyond = old.keep.abs_diff(new.keep);
        let digests = new.digests.clone();
        if let Some(taken) = self.taken.get_mut(source) {
            taken.ranking = Some(Box::new(new));
        }
        if !is_same {
            return self.look_at_all_of(source, now);
        }
        let mut changed: Vec<_> = old.again.into_iter().map(|name| source.sibling(name)).collect();
        for digests in [&old.digests, &digests] {
            changed.extend(self.snapshots_with(source, digests).map(|(name, _)| name));
        }
        let was_present = self.snapshots_with(source, &old.digests).count();
        for name in changed {
            self.look_at_snapshot(&name, now);
        }
        self.look_at_ranks(source, beyond + was_present, now);
    }

    fn look_at_all_of(&mut self, source: &Name, now: Timestamp) {
        for snapshot in self.snapshots_of(source) {
            self.look_at_snapshot(&snapshot, now);
        }
    }

    /// Records a snapshot to be checked once its source has been read.
    pub(super) fn look_again(&mut self, name: &Name) {
        let Some(record) = self.snapshots.get(name) else { return };
        let source = name.sibling(Arc::clone(&record.source));
        // Without a ranking, all are checked then.
        if let Some(ranking) = self.taken.get_mut(&source).and_then(|taken| taken.ranking.as_mut()) {
            ranking.again.insert(Arc::clone(&name.object.name));
        }
    }

    /// Forgets the rankings: all snapshots are checked when their sources are read.
    pub(super) fn forget_rankings(&mut self) {
        for taken in self.taken.values_mut() {
            taken.ranking = None;
        }
    }
}
