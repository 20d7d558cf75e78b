//! Contents to which no workload rolls: those that fail the schema of their source, and those that lack a key that the template
//! requires.

use super::{
    MissingPolicy,
    decide::{Resolver, Stop},
    schema::correct_schema,
};
use crate::{
    gates::{lacks_key, refused_content},
    snapshot::{ObjectName, SourceKind},
};

impl Resolver<'_> {
    /// Why the present content of a source fails its schema; `None` if it has none or matches it, or if the client of the review
    /// may not learn that. The verdict is always a fact, so the decision knows nothing that the reader of the facts withholds.
    pub(super) fn schema_failure(&mut self, source: &ObjectName) -> Result<Option<String>, Stop> {
        let Some(present) = self.live(source)? else { return Ok(None) };
        if present.schema().is_none() || self.facts.withholds_verdicts() {
            return Ok(None);
        }
        match self.facts.verdict(source) {
            Some(Ok(())) => Ok(None),
            Some(Err(failure)) => Ok(Some(refused_content(source, failure))),
            None => {
                self.needs.insert(super::Need::Schema(source.clone()));
                Err(Stop::Unknown)
            }
        }
    }

    /// Whether the controller alone moves references that this request leaves in place, since it checks the content against its
    /// schema before it does. It moves them by a new value of `roll`. References by the source's name resolve to the newest
    /// content nevertheless.
    pub(super) fn is_left_to_controller(&mut self, source: &ObjectName) -> Result<bool, Stop> {
        let withholds = self.facts.withholds_verdicts() && !self.is_poke;
        Ok(withholds && self.live(source)?.is_some_and(|present| present.schema().is_some()))
    }

    /// Refuses a roll of a workload with a snapshot, `kept`, to a content that lacks a key which the template requires: new pods would
    /// not start. With `missing: deny`, every request is checked; with `allow`, none.
    pub(super) fn keeps_required_keys(&mut self, source: &ObjectName, kept: &str) -> Result<(), Stop> {
        if self.policy.missing != MissingPolicy::Warn {
            return Ok(());
        }
        let Some(present) = self.live(source)? else { return Ok(()) };
        let required = [&*source.name, kept].map(|name| self.required.get(&(source.kind, name)));
        let lacking = required.into_iter().flatten().flatten().find(|key| !present.has_key(key)).copied();
        let Some(key) = lacking else { return Ok(()) };
        let key = (source.kind == SourceKind::ConfigMap).then_some(key);
        Err(Stop::Deny(lacks_key(source, key)))
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
            return Err(Stop::Deny(format!("{failure}: {}", correct_schema(source))));
        };
        self.forget_seen(source);
        self.keep_seen(source);
        self.warnings.push(format!("{failure}: {} keeps {kept:?}", self.request.new.display()));
        Ok(kept.to_owned())
    }
}
