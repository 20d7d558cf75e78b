//! What the annotation `hold` of a request says.

use std::collections::{BTreeMap, BTreeSet};

use crate::{resolve::Policy, snapshot::ObjectName, template::SourceMap};

/// The holds of a request.
#[derive(Default)]
pub(super) struct Holds {
    /// The snapshot of each source on hold.
    pub(super) now: SourceMap<String>,
    /// The names in the stored annotation.
    pub(super) stored: BTreeSet<ObjectName>,
    /// The sources that the stored workload kept on hold.
    pub(super) before: SourceMap<String>,
}

impl Holds {
    /// Whether the request ends the hold of the source.
    pub(super) fn has_ended(&self, source: &ObjectName) -> bool {
        self.now.get(source).is_none() && self.before.get(source).is_some()
    }

    /// The snapshots to hold, if the undos of this request change them. `undone`: the source of each undo, with the snapshot to hold.
    pub(super) fn moved(
        &self,
        policy: &Policy,
        undone: &BTreeMap<ObjectName, Option<ObjectName>>,
    ) -> Option<BTreeSet<ObjectName>> {
        let mut hold = policy.hold.clone();
        for (source, snapshot) in undone {
            if let Some(held) = self.now.get(source) {
                hold.remove(&ObjectName::new(source.kind, held.as_str()));
            }
            hold.extend(snapshot.clone());
        }
        (hold != policy.hold).then_some(hold)
    }
}
