//! Contents to which no workload rolls: those that fail the schema of their source, and those that lack a key that the template
//! requires.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::{
    gates::{lacks_key, refused_content},
    resolve::{MissingPolicy, Need, correct_schema},
    snapshot::{ObjectName, SourceKind},
};

impl Question<'_> {
    /// Why the newest content of a source fails its schema; `None` if it has none or matches it, or if the client of the review
    /// may not learn that. The verdict is always a fact, so the decision knows nothing that the reader of the facts withholds.
    pub(super) fn schema_failure(&self, source: &ObjectName) -> Result<Option<String>, Stop> {
        let Some(newest) = self.object(source)? else { return Ok(None) };
        if newest.schema().is_none() || self.facts.withholds_verdicts() {
            return Ok(None);
        }
        match self.facts.verdict(source) {
            Some(Ok(())) => Ok(None),
            Some(Err(failure)) => Ok(Some(refused_content(source, failure))),
            None => Err(self.need(Need::Schema(source.clone()))),
        }
    }

    /// Whether the controller alone moves references that this request leaves in place, since it checks the content against its
    /// schema before it does. It moves them by a new value of `roll`. References by the source's name resolve to the newest
    /// content nevertheless.
    pub(super) fn is_left_to_controller(&self, source: &ObjectName) -> Result<bool, Stop> {
        let withholds = self.facts.withholds_verdicts() && !self.roll.is_poke;
        Ok(withholds && self.object(source)?.is_some_and(|newest| newest.schema().is_some()))
    }

    /// Refuses a roll of a workload with a snapshot, `kept`, to a content that lacks a key which the template requires: new pods would
    /// not start. With `missing: deny`, every request is checked; with `allow`, none.
    pub(super) fn keeps_required_keys(&self, source: &ObjectName, kept: &str) -> Result<(), Stop> {
        if self.policy.missing != MissingPolicy::Warn {
            return Ok(());
        }
        let Some(newest) = self.object(source)? else { return Ok(()) };
        let required = [&*source.name, kept].map(|name| self.required.get(&(source.kind, name)));
        let lacking = required.into_iter().flatten().flatten().find(|key| !newest.has_key(key)).copied();
        let Some(key) = lacking else { return Ok(()) };
        let key = (source.kind == SourceKind::ConfigMap).then_some(key);
        Err(Stop::Deny(lacks_key(source, key)))
    }
}

impl Outcome {
    /// The snapshot of a source whose newest content fails its schema. A workload keeps the snapshot that it has, and the change
    /// stays pending; a roll, and a workload without a snapshot, are refused.
    pub(super) fn without_failing(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: Option<&str>,
        failure: &str,
    ) -> Result<String, Stop> {
        let Some(kept) = kept.filter(|_| !question.roll.is_poke) else {
            return Err(Stop::Deny(format!("{failure}: {}", correct_schema(source))));
        };
        self.restore_seen(question, source);
        self.warn(format!("{failure}: {} keeps {kept:?}", question.request.new.display()));
        Ok(kept.to_owned())
    }
}
