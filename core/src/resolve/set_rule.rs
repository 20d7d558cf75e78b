//! Sets at admission: whether a workload waits for the other sources of a set, and what is said about mixed versions.

use std::collections::BTreeMap;

use super::{
    Membership, Observed, SetVersion, SetWait,
    decide::{Resolver, Stop},
};
use crate::{annotations, snapshot::ObjectName};

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

    /// The other sources of its set whose present contents the workload does not have yet: they move together or not at all.
    pub(super) fn moving_with(&mut self, source: &ObjectName) -> Result<Vec<ObjectName>, Stop> {
        let sets = self.sets_with(source)?;
        let name = |of: &ObjectName| {
            let (_, set) = sets.get(of)?;
            Some(SetVersion::parse(set.as_deref()?)?.name.to_owned())
        };
        let Some(own) = name(source) else { return Ok(Vec::new()) };
        let mut moving = Vec::new();
        for other in sets.keys().filter(|other| *other != source && name(other).as_ref() == Some(&own)) {
            let seen = self.seen(other);
            let has_it = |present: &Observed| seen.is_some_and(|seen| present.digests().contains(&seen));
            if self.live(other)?.is_some_and(|present| !has_it(present)) {
                moving.push(other.clone());
            }
        }
        Ok(moving)
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
