//! Sets at admission: whether a workload waits for the other sources of a set, and what is said about mixed versions.

use std::collections::BTreeMap;

use super::{outcome::Outcome, question::Question, seen::Seen, stop::Stop};
use crate::{
    annotations,
    resolve::{Membership, SetVersion, SetWait},
    snapshot::ObjectName,
    template::SourceMap,
};

impl Question<'_> {
    /// Why the workload may not move to the newest content of a source yet, as far as its set decides that.
    pub(super) fn set_wait(&self, source: &ObjectName) -> Result<Option<SetWait>, Stop> {
        let sets = self.sets_with(source)?;
        let sets = sets.iter().filter_map(|(used, (exists, set))| {
            let set = set.as_deref()?;
            Some((used, if *exists { Membership::Stated(set) } else { Membership::Missing(set) }))
        });
        Ok(SetWait::of(source, sets))
    }

    /// The sources that this request would move while another one of their set stays behind, with that one. `sources`: the snapshots to
    /// which the references resolve. A sync moves them together or not at all; a plan and a deployment say what moves.
    pub(super) fn parts(
        &self,
        outcome: &Outcome,
        sources: &SourceMap<String>,
    ) -> Result<BTreeMap<ObjectName, ObjectName>, Stop> {
        let mut parted = self.parted.clone();
        if self.roll.plan.is_some() {
            return Ok(parted);
        }
        let moves = |(source, name): &(&ObjectName, &String)| {
            self.stored.sources.get(source).is_some_and(|kept| kept != *name)
                && !outcome.returned.contains(*source)
        };
        for (source, _) in sources.iter().filter(moves) {
            for other in self.siblings(source)? {
                let kept = self.stored.sources.get(&other);
                let stays = kept.is_some_and(|kept| sources.get(&other) == Some(kept));
                if stays && self.is_seen(&other)? == Seen::No {
                    parted.insert(source.clone(), other);
                }
            }
        }
        Ok(parted)
    }

    /// The other sources of its set that the workload uses and that exist.
    fn siblings(&self, source: &ObjectName) -> Result<Vec<ObjectName>, Stop> {
        let sets = self.sets_with(source)?;
        let name = |of: &ObjectName| match sets.get(of)? {
            (true, Some(set)) => SetVersion::parse(set).map(|set| set.name),
            _ => None,
        };
        let own = name(source);
        let is_sibling = |other: &&ObjectName| *other != source && own.is_some() && name(other) == own;
        Ok(sets.keys().filter(is_sibling).cloned().collect())
    }

    /// The sources of the workload, whether each exists, and its set; none if this source is in no set.
    fn sets_with(&self, source: &ObjectName) -> Result<BTreeMap<ObjectName, (bool, Option<String>)>, Stop> {
        let mut sets = BTreeMap::new();
        if self.object(source)?.is_none_or(|newest| newest.annotation(annotations::SET).is_none()) {
            return Ok(sets);
        }
        for reference in &self.references {
            let object = ObjectName::new(reference.kind, reference.name);
            let used = self.source_of(&object)?.unwrap_or(object);
            if sets.contains_key(&used) || (self.stays_as_written(&used)? && !self.is_live_mode(&used)?) {
                continue;
            }
            let set = match self.object(&used)? {
                Some(newest) => (true, newest.annotation(annotations::SET)),
                None => (false, self.stored.state.get(&used).and_then(|before| before.set.clone())),
            };
            sets.insert(used, set);
        }
        Ok(sets)
    }
}

impl Outcome {
    /// Warns of a workload that begins between the writes of the sources of a set: nothing else is there to run with.
    pub(super) fn warn_mixed_set(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
    ) -> Result<(), Stop> {
        if let Some(SetWait::Differs { set, versions }) = question.set_wait(source)? {
            self.warn(format!(
                "annotation {}: {} begins with different versions of the set {set}: {versions}",
                annotations::SET,
                question.request.new.display()
            ));
        }
        Ok(())
    }
}
