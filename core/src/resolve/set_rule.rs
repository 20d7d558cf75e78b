//! Sets at admission: whether a workload waits for the other sources of a set, and what is said about mixed versions.

use std::collections::BTreeMap;

use super::{
    Membership, Seen, SetVersion, SetWait,
    decide::{Resolver, Stop},
};
use crate::{annotations, snapshot::ObjectName, template::SourceMap};

impl Resolver<'_> {
    /// Why the workload may not move to the present content of a source yet, as far as its set decides that.
    pub(super) fn set_wait(&mut self, source: &ObjectName) -> Result<Option<SetWait>, Stop> {
        let sets = self.sets_with(source)?;
        let sets = sets.iter().filter_map(|(used, (exists, set))| {
            let set = set.as_deref()?;
            Some((used, if *exists { Membership::Stated(set) } else { Membership::Missing(set) }))
        });
        Ok(SetWait::of(source, sets))
    }

    /// Finds the sources that this request would move while another one of their set stays behind. Returns whether there are more than
    /// before: then the decision is made again. A sync moves them together or not at all; a plan and a deployment say what moves.
    pub(super) fn part(&mut self, sources: &SourceMap<String>) -> Result<bool, Stop> {
        let known = self.parted.len();
        if self.plan.is_some() {
            return Ok(false);
        }
        let moves = |(source, name): &(&ObjectName, &String)| {
            self.prior.get(source).is_some_and(|kept| kept != *name) && !self.returned.contains(*source)
        };
        let moving: Vec<_> = sources.iter().filter(moves).map(|(source, _)| source.clone()).collect();
        for source in moving {
            for other in self.siblings(&source)? {
                let stays = self.prior.get(&other).is_some_and(|kept| sources.get(&other) == Some(kept));
                if stays && self.is_seen(&other)? == Seen::No {
                    self.parted.insert(source.clone(), other);
                }
            }
        }
        Ok(self.parted.len() > known)
    }

    /// The other sources of its set that the workload uses and that exist.
    fn siblings(&mut self, source: &ObjectName) -> Result<Vec<ObjectName>, Stop> {
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
    fn sets_with(
        &mut self,
        source: &ObjectName,
    ) -> Result<BTreeMap<ObjectName, (bool, Option<String>)>, Stop> {
        let mut sets = BTreeMap::new();
        let has_set =
            self.live(source)?.is_some_and(|present| present.annotation(annotations::SET).is_some());
        let Some(template) = self.request.new.template.as_ref().filter(|_| has_set) else { return Ok(sets) };
        for reference in self.references(template) {
            let object = ObjectName::new(reference.kind, reference.name);
            let used = self.source_of(&object)?.unwrap_or(object);
            if sets.contains_key(&used) || (self.stays_as_written(&used)? && !self.is_live_mode(&used)?) {
                continue;
            }
            let set = match self.live(&used)? {
                Some(present) => (true, present.annotation(annotations::SET)),
                None => (false, self.before.get(&used).and_then(|before| before.set.clone())),
            };
            sets.insert(used, set);
        }
        Ok(sets)
    }

    /// Warns of a workload that begins between the writes of the sources of a set: nothing else is there to run with.
    pub(super) fn warn_mixed_set(&mut self, source: &ObjectName) -> Result<(), Stop> {
        if let Some(SetWait::Differs { set, versions }) = self.set_wait(source)? {
            self.warnings.push(format!(
                "annotation {}: {} begins with different versions of the set {set}: {versions}",
                annotations::SET,
                self.request.new.display()
            ));
        }
        Ok(())
    }
}
