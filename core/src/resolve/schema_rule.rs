//! Contents to which no workload rolls: those that fail the schema of their source, and those that lack a key that the template
//! requires and the workload's snapshot has.

use super::{
    MissingPolicy,
    decide::{Resolver, Stop},
};
use crate::{annotations, snapshot::ObjectName};

impl Resolver<'_> {
    /// Why the present content of a source fails its schema; `None` if it has none or matches it.
    pub(super) fn schema_failure(&mut self, source: &ObjectName) -> Result<Option<String>, Stop> {
        let Some(present) = self.live(source)? else { return Ok(None) };
        let failure = match present.schema() {
            None => return Ok(None),
            Some(Err(invalid)) => invalid,
            Some(Ok(_)) => match self.facts.verdict(source) {
                Some(Ok(())) => return Ok(None),
                Some(Err(failure)) => failure.to_owned(),
                None => {
                    self.needs.insert(super::Need::Schema(source.clone()));
                    return Err(Stop::Unknown);
                }
            },
        };
        Ok(Some(format!("the content of {source} is refused: {failure}")))
    }

    /// Refuses a roll to a content that lacks a key of the workload's snapshot `kept`, if the template requires the key. New pods
    /// would not start. With `missing: deny`, every request is checked; with `allow`, none.
    pub(super) fn keeps_required_keys(&mut self, source: &ObjectName, kept: &str) -> Result<(), Stop> {
        if self.policy.missing != MissingPolicy::Warn {
            return Ok(());
        }
        let Some(present) = self.live(source)? else { return Ok(()) };
        let required = [&*source.name, kept].map(|name| self.required.get(&(source.kind, name)));
        let lacking = required.into_iter().flatten().flatten().find(|key| !present.has_key(key)).copied();
        let Some(key) = lacking else { return Ok(()) };
        let had = self.live(&ObjectName::new(source.kind, kept))?.is_some_and(|kept| kept.has_key(key));
        if had {
            return Err(Stop::Deny(format!(
                "{source} has no key {key:?}: new pods would not start: add the key, or set annotation {} to \"allow\"",
                annotations::MISSING
            )));
        }
        Ok(())
    }

    /// The snapshot of a source whose present content fails its schema. A workload keeps the snapshot that it has, and the change
    /// stays pending; a roll, and a workload without a snapshot, are refused.
    pub(super) fn without_failing(
        &mut self,
        source: &ObjectName,
        kept: Option<&str>,
        failure: &str,
    ) -> Result<String, Stop> {
        let Some(kept) = kept.filter(|_| !self.is_poke) else {
            return Err(Stop::Deny(format!(
                "{failure}: correct {source}, or its annotation {}",
                annotations::SCHEMA
            )));
        };
        self.now_seen.remove(source);
        self.keep_seen(source);
        self.warnings.push(format!("{failure}: {} keeps {kept:?}", self.request.new.display()));
        Ok(kept.to_owned())
    }
}
