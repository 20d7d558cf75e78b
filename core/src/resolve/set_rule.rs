//! Sets at admission: whether a workload waits for the other sources of a set, and what is said about mixed versions.

use std::collections::BTreeMap;

use super::{
    Membership, SetWait,
    decide::{Resolver, Stop},
};
use crate::{annotations, snapshot::ObjectName};

impl Resolver<'_> {
    /// Why the workload may not move to the present content of a source yet, as far as its set decides that.
    pub(super) fn set_wait(&mut self, source: &ObjectName) -> Result<Option<SetWait>, Stop> {
        let has_set =
            self.live(source)?.is_some_and(|present| present.annotation(annotations::SET).is_some());
        let Some(template) = self.request.new.template.as_ref().filter(|_| has_set) else { return Ok(None) };
        let mut sets = BTreeMap::new();
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
        let sets = sets.iter().filter_map(|(used, (exists, set))| {
            let set = set.as_deref()?;
            Some((used, if *exists { Membership::Stated(set) } else { Membership::Missing(set) }))
        });
        Ok(SetWait::of(source, sets))
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
