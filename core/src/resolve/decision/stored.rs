//! What the stored workload says of its sources.

use std::collections::BTreeSet;

use crate::{
    resolve::{
        Workload,
        optin::was_decided_on,
        used::{RequiredKeys, UsedKeys, required_keys},
    },
    snapshot::{Digest, ObjectName},
    template::{SourceMap, Template},
    tie::Remembered,
};

/// What the stored workload says of its sources; empty in a creation.
pub(super) struct Stored<'r> {
    /// The `sources` annotation of the template, if an earlier decision wrote it.
    pub(super) sources: SourceMap<String>,
    /// The `live` annotation of the template, under the same condition.
    pub(super) live: SourceMap<Digest>,
    /// What the workload remembers of each source.
    pub(super) state: SourceMap<Remembered>,
    /// The names that the template refers to.
    pub(super) names: BTreeSet<ObjectName>,
    /// The keys that the template reads.
    pub(super) used: UsedKeys<'r>,
    /// The keys that the template requires.
    pub(super) required: RequiredKeys<'r>,
}

impl<'r> Stored<'r> {
    pub(super) fn of(old: Option<&'r Workload<'r>>) -> Self {
        let template = old.and_then(|old| old.template.as_ref());
        let references = template.map(Template::references).unwrap_or_default();
        let decided_on = old.filter(|old| was_decided_on(old));
        Self {
            sources: decided_on.map(Workload::sources).unwrap_or_default(),
            live: decided_on.map(Workload::live).unwrap_or_default(),
            state: old.map(Workload::state).unwrap_or_default(),
            names: references
                .iter()
                .map(|reference| ObjectName::new(reference.kind, reference.name))
                .collect(),
            used: UsedKeys::of(&references),
            required: required_keys(&references),
        }
    }

    /// The content of the source that the workload has seen.
    pub(super) fn seen(&self, source: &ObjectName) -> Option<Digest> {
        self.state.get(source)?.seen
    }

    /// The digest of the keys that the workload rejects by an undo or a pin.
    pub(super) fn pinned(&self, source: &ObjectName) -> Option<Digest> {
        self.state.get(source)?.pinned
    }
}
