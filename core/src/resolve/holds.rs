//! What a request says about holds (annotation `hold`).

use std::collections::{BTreeMap, BTreeSet};

use super::Workload;
use crate::{annotations, snapshot::ObjectName, template::SourceMap};

/// The holds of a request.
#[derive(Default)]
pub(super) struct Holds {
    /// The snapshot of each source on hold.
    pub(super) now: SourceMap<String>,
    /// The names in the stored annotation.
    pub(super) stored: BTreeSet<ObjectName>,
    /// The sources that the stored workload kept on hold.
    pub(super) before: SourceMap<String>,
    /// The sources on hold to which the template refers.
    pub(super) used: BTreeSet<ObjectName>,
    /// The sources of which the request undoes a change, with the snapshot to hold; `None`: the present content.
    pub(super) undone: BTreeMap<ObjectName, Option<ObjectName>>,
}

/// What a hold decides about a reference.
pub(super) enum HoldRule {
    /// The reference resolves to this snapshot.
    Held(String),
    /// The request ends the hold of the source: the reference resolves to the present content.
    Ended,
    /// No hold applies.
    Free,
}

impl Holds {
    /// Whether the request ends the hold of the source.
    pub(super) fn has_ended(&self, source: &ObjectName) -> bool {
        self.now.get(source).is_none() && self.before.get(source).is_some()
    }
}

/// The warning for a workload without a template: its annotation has no effect.
pub(super) fn without_template(workload: &Workload<'_>) -> Option<String> {
    let key = annotations::HOLD;
    workload
        .annotation(key)
        .map(|_| format!("annotation {key} has no effect: set it on the object that has the template"))
}
