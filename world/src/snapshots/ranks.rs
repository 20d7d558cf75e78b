//! Which snapshots of a source to check again: those whose rank among the newest may have changed.

use std::sync::Arc;

use crate::{
    change::WorldChange,
    name::Name,
    records::SourceRecord,
    snapshots::{
        Snapshots,
        by_age::{FEW, Ranking},
    },
};

impl Snapshots {
    /// Reports the snapshots whose rank changes with a new or a deleted snapshot of the source.
    pub fn rank_neighbours(
        &mut self,
        source: &Name,
        known: Option<&SourceRecord>,
        changes: &mut Vec<WorldChange>,
    ) {
        let known = known.map(Ranking::of);
        let Some(by_age) = self.by_source.get_mut(source) else { return };
        match (&by_age.ranking, known) {
            (None, Some(known)) if by_age.len() > FEW => {
                // Until now there were few, and all were checked.
                by_age.ranking = Some(Box::new(known));
            }
            (None, Some(_)) => return self.report_all_of(source, changes),
            // All are checked when the source is read.
            (None, None) => return,
            (Some(_), _) => {}
        }
        self.report_ranks(source, 0, changes);
    }

    /// Reports the snapshots around the last rank that the source owns, and `beyond` more on both sides.
    fn report_ranks(&self, source: &Name, beyond: usize, changes: &mut Vec<WorldChange>) {
        let Some(by_age) = self.by_source.get(source) else { return };
        let Some(ranking) = &by_age.ranking else { return };
        let present = self.ages_with(source, &ranking.digests);
        let reach = present.len() + beyond + 1;
        let ranks = ranking.keep.saturating_sub(reach)..ranking.keep.saturating_add(reach).min(by_age.len());
        let names = ranks.filter_map(|rank| by_age.at_rank(&present, rank));
        changes.extend(names.map(|name| WorldChange::Object(source.sibling(Arc::clone(name)))));
    }

    /// Reports the snapshots of a source that was read. If there are many, only those that the change may affect are
    /// reported.
    pub fn rank_again(
        &mut self,
        source: &Name,
        known: Option<&SourceRecord>,
        changes: &mut Vec<WorldChange>,
    ) {
        let new = known.map(Ranking::of);
        let Some(by_age) = self.by_source.get_mut(source) else { return };
        let old = by_age.ranking.take();
        let (new, old) = match (new, old) {
            (Some(new), Some(old)) => (new, old),
            (new, _) => {
                by_age.ranking = new.filter(|_| by_age.len() > FEW).map(Box::new);
                return self.report_all_of(source, changes);
            }
        };
        let is_same =
            (&old.uid, old.bound_itself, &old.revoked) == (&new.uid, new.bound_itself, &new.revoked);
        let beyond = old.keep.abs_diff(new.keep);
        let digests = new.digests.clone();
        by_age.ranking = Some(Box::new(new));
        if !is_same {
            return self.report_all_of(source, changes);
        }
        let Ranking { digests: old_digests, again, .. } = *old;
        changes.extend(again.into_iter().map(|name| WorldChange::Object(source.sibling(name))));
        for digests in [&old_digests, &digests] {
            changes.extend(self.with(source, digests).map(|(name, _)| WorldChange::Object(name)));
        }
        let was_present = self.with(source, &old_digests).count();
        self.report_ranks(source, beyond + was_present, changes);
    }

    /// Records a snapshot to be checked once its source has been read.
    pub fn rank_when_read(&mut self, name: &Name) {
        let Some(record) = self.records.get(name) else { return };
        let source = name.sibling(Arc::clone(&record.source));
        // Without a ranking, all are checked then.
        if let Some(ranking) = self.by_source.get_mut(&source).and_then(|by_age| by_age.ranking.as_mut()) {
            ranking.again.insert(Arc::clone(&name.object.name));
        }
    }

    /// Reports all snapshots of a source.
    fn report_all_of(&self, source: &Name, changes: &mut Vec<WorldChange>) {
        changes.extend(self.of(source).map(WorldChange::Object));
    }

    /// How many sources have a ranking.
    #[cfg(test)]
    pub fn ranked(&self) -> usize {
        self.by_source.values().filter(|by_age| by_age.ranking.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        fixture::{snapshot, snapshot_record, source, source_record, world},
        world::World,
    };

    /// The oldest ones; the newest holds the present content.
    const CONTENTS: [u8; 12] = [11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 29];

    fn known(keep: usize) -> SourceRecord {
        SourceRecord { keep, ..source_record("c", 29) }
    }

    /// How many snapshots of the source are checked after an update of the world.
    fn checked(world: &mut World, update: impl FnOnce(&mut World, &mut Vec<WorldChange>)) -> usize {
        let mut changes = Vec::new();
        update(world, &mut changes);
        let names: BTreeSet<_> = changes
            .iter()
            .filter_map(|change| match change {
                WorldChange::Object(name) => Some(name),
                _ => None,
            })
            .collect();
        names.len()
    }

    /// A world of a source with so many snapshots that keeps the newest one, which was read.
    fn of_many(count: usize) -> World {
        let mut world = world(&[]);
        for content in &CONTENTS[CONTENTS.len() - count..] {
            let name = source("c").sibling(snapshot("c", *content));
            world.apply_snapshot(&name, Some(snapshot_record("c", *content)), &mut Vec::new());
        }
        let read =
            |world: &mut World, changes: &mut Vec<_>| world.set_read(&source("c"), Some(known(1)), changes);
        assert_eq!(checked(&mut world, read), count, "a start checks all");
        world
    }

    #[test]
    fn only_neighbours_of_a_rank_are_checked() {
        for (count, at_read, at_deletion, at_creation) in [
            (3, 3, 2, 4),
            (FEW - 1, FEW - 1, FEW - 2, FEW),
            (FEW, FEW, FEW - 1, 4),
            (FEW + 1, 4, 3, 4),
            (12, 4, 3, 4),
        ] {
            let name = |content| source("c").sibling(snapshot("c", content));
            let oldest = name(CONTENTS[CONTENTS.len() - count]);
            let reread = |world: &mut World, changes: &mut Vec<_>| {
                world.set_source_unknown(&source("c"));
                world.set_read(&source("c"), Some(known(1)), changes);
            };
            let delete =
                |world: &mut World, changes: &mut Vec<_>| world.apply_snapshot(&oldest, None, changes);
            let create = |world: &mut World, changes: &mut Vec<_>| {
                world.apply_snapshot(&name(4), Some(snapshot_record("c", 4)), changes);
            };
            assert_eq!(checked(&mut of_many(count), reread), at_read, "of {count}, at a read");
            assert_eq!(checked(&mut of_many(count), delete), at_deletion, "of {count}, at a deletion");
            assert_eq!(checked(&mut of_many(count), create), at_creation, "of {count}, at a creation");
        }
    }
}
