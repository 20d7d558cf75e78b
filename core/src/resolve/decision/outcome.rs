//! What the rules record beside the names of the references.

use std::collections::{BTreeMap, BTreeSet};

use super::{question::Question, stop::Stop};
use crate::{
    resolve::Ensure,
    snapshot::{Digest, ObjectName},
    template::{Reference, SourceMap},
    tie::Remembered,
};

/// What the rules record in one pass.
#[derive(Default)]
pub(super) struct Outcome {
    /// The snapshots to create, by name.
    pub(super) ensure: BTreeMap<ObjectName, Ensure>,
    /// Existing snapshots to bind to the workload at once.
    pub(super) adopt: BTreeSet<ObjectName>,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
    /// What the template requires and does not exist, one sentence each.
    pub(super) missing: Vec<String>,
    /// What the workload remembers of each source from now on.
    pub(super) state: SourceMap<Remembered>,
    /// The sources in mode `live`, with the digest of the content that the template reads.
    pub(super) live: SourceMap<Digest>,
    /// Sources whose newest content is refused, and of which the workload returns to another snapshot.
    pub(super) returned: BTreeSet<ObjectName>,
    /// The sources on hold to which the template refers.
    pub(super) held: BTreeSet<ObjectName>,
    /// The sources of which the request undoes a change, with the snapshot to hold; `None`: the newest content.
    pub(super) undone: BTreeMap<ObjectName, Option<ObjectName>>,
}

fn no_key(source: &ObjectName, key: &str) -> String {
    format!("{source} has no key {key:?}: pods that refer to it do not start")
}

impl Outcome {
    /// Adds a warning.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Records the keys that the reference requires and the content of its snapshot lacks.
    pub(super) fn check_keys(
        &mut self,
        question: &Question<'_>,
        reference: &Reference<'_>,
        source: &ObjectName,
        snapshot: &str,
    ) {
        let Some(keys) = reference.keys.as_ref().filter(|_| !reference.optional) else { return };
        let snapshot = ObjectName::new(source.kind, snapshot);
        let content = if self.ensure.contains_key(&snapshot) { source } else { &snapshot };
        // If the content was not read, the reference did not change, and was checked when it last changed.
        let Some(content) = question.known(content) else { return };
        let lacking = keys.iter().filter(|key| !content.has_key(key));
        self.missing.extend(lacking.map(|key| no_key(source, key)));
    }

    /// Whether the newest content of the source lacks a key that the template requires. Pods start when the source has it: until
    /// then, the references of a workload without a snapshot stay as written, as those to a source that does not exist.
    pub(super) fn lacks_required_key(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        reference: &Reference<'_>,
    ) -> Result<bool, Stop> {
        let Some(required) = question.required.get(&(reference.kind, reference.name)) else {
            return Ok(false);
        };
        let Some(newest) = question.known(source) else { return Ok(false) };
        let lacking: Vec<_> = required.iter().filter(|key| !newest.has_key(key)).collect();
        if lacking.is_empty() {
            return Ok(false);
        }
        self.missing.extend(lacking.into_iter().map(|key| no_key(source, key)));
        self.mark_seen(question, source)?;
        self.state.entry(source).lacking = true;
        Ok(true)
    }

    /// Binds a snapshot to the workload at once, if the stored template does not name it yet.
    pub(super) fn adopt_new(&mut self, question: &Question<'_>, snapshot: ObjectName) {
        if !question.stored.names.contains(&snapshot) {
            self.adopt.insert(snapshot);
        }
    }

    pub(super) fn warn_source_is_missing(&mut self, source: &ObjectName, snapshot: &str) {
        self.warn(format!("{source} no longer exists: its references keep the snapshot {snapshot:?}"));
    }
}
