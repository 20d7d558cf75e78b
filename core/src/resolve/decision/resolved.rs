//! To what a reference resolves.

use super::question::Question;
use crate::{resolve::Observed, snapshot::ObjectName};

/// The result of resolving a reference.
#[derive(Clone)]
pub(super) enum ResolvedReference {
    /// This snapshot of the source.
    Snapshot { source: ObjectName, name: String },
    /// The source itself.
    Source(ObjectName),
    /// Nothing: this object does not exist (yet).
    Unresolved(ObjectName),
}

/// A reference to the source itself. A source that is bound itself is listed in `sources` as its own snapshot, so that its
/// revisions are found like all others.
pub(super) fn written(question: &Question<'_>, source: ObjectName) -> ResolvedReference {
    let is_bound = question.known(&source).is_some_and(Observed::is_bound_itself);
    if is_bound && !question.is_excluded(&source) {
        let name = source.name.to_string();
        return ResolvedReference::Snapshot { source, name };
    }
    ResolvedReference::Source(source)
}
