//! Which snapshots of a source to check again: those whose rank among the newest may have changed.

use std::sync::Arc;

use super::{
    Snapshots,
    by_age::{FEW, Ranking},
};
use crate::controller::{
    index::{change::IndexChange, records::SourceRecord},
    name::Name,
};

impl Snapshots {
    /// Reports the snapshots whose rank changes with a new or a deleted snapshot of the source.
    pub(in crate::controller::index) fn rank_neighbours(
        &mut self,
        source: &Name,
        known: Option<&SourceRecord>,
        changes: &mut Vec<IndexChange>,
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
    fn report_ranks(&self, source: &Name, beyond: usize, changes: &mut Vec<IndexChange>) {
        let Some(by_age) = self.by_source.get(source) else { return };
        let Some(ranking) = &by_age.ranking else { return };
        let present = self.ages_with(source, &ranking.digests);
        let reach = present.len() + beyond + 1;
        let ranks = ranking.keep.saturating_sub(reach)..ranking.keep.saturating_add(reach).min(by_age.len());
        let names = ranks.filter_map(|rank| by_age.at_rank(&present, rank));
        changes.extend(names.map(|name| IndexChange::Owners(source.sibling(Arc::clone(name)))));
    }

    /// Reports the snapshots of a source that was read. If there are many, only those that the change may affect are
    /// reported.
    pub(in crate::controller::index) fn rank_again(
        &mut self,
        source: &Name,
        known: Option<&SourceRecord>,
        changes: &mut Vec<IndexChange>,
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
        changes.extend(again.into_iter().map(|name| IndexChange::Owners(source.sibling(name))));
        for digests in [&old_digests, &digests] {
            changes.extend(self.with(source, digests).map(|(name, _)| IndexChange::Owners(name)));
        }
        let was_present = self.with(source, &old_digests).count();
        self.report_ranks(source, beyond + was_present, changes);
    }

    /// Records a snapshot to be checked once its source has been read.
    pub(crate) fn rank_when_read(&mut self, name: &Name) {
        let Some(record) = self.records.get(name) else { return };
        let source = name.sibling(Arc::clone(&record.source));
        // Without a ranking, all are checked then.
        if let Some(ranking) = self.by_source.get_mut(&source).and_then(|by_age| by_age.ranking.as_mut()) {
            ranking.again.insert(Arc::clone(&name.object.name));
        }
    }

    /// Forgets the rankings: all snapshots are checked when their sources are read.
    pub(crate) fn forget_rankings(&mut self) {
        for by_age in self.by_source.values_mut() {
            by_age.ranking = None;
        }
    }

    /// Reports all snapshots of a source.
    fn report_all_of(&self, source: &Name, changes: &mut Vec<IndexChange>) {
        changes.extend(self.of(source).map(IndexChange::Owners));
    }

    /// How many sources have a ranking.
    #[cfg(test)]
    pub(in crate::controller::index) fn ranked(&self) -> usize {
        self.by_source.values().filter(|by_age| by_age.ranking.is_some()).count()
    }
}
