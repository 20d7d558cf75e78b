//! Whether a workload is opted in: its own label wins over its namespace's.

use super::{Facts, Request};
use crate::names;

/// Whose word the label is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// The workload's label is its own, whatever its value.
    Workload,
    /// The label is there because the namespace gave it, or is to be given by it.
    Namespace,
}

/// Where a workload stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OptIn {
    /// Opted in.
    In(Giver),
    /// Not opted in, or no longer.
    Out(Giver),
    /// It depends on the namespace, which was not read yet.
    Unknown,
    /// The label has a value that means nothing.
    Malformed(String),
}

/// Decides from the object as it shall be.
pub(super) fn opt_in(request: &Request<'_>, facts: &Facts) -> OptIn {
    let by_namespace = || match facts.namespace() {
        None => OptIn::Unknown,
        Some(namespace) if namespace.enabled => OptIn::In(Giver::Namespace),
        Some(_) => OptIn::Out(Giver::Namespace),
    };
    let workload = &request.new;
    // A label that was the namespace's becomes the workload's own as soon as an applier states it. An undo of a Deployment
    // brings back annotations of a time at which the mark was not there, so the stored object counts as well.
    let is_given = |workload: &super::Workload<'_>| {
        workload.label(names::ENABLED) == Some("true") && workload.annotation(names::ENABLED_BY).is_some()
    };
    let old = request.old.as_ref();
    let given = (is_given(workload) || old.is_some_and(is_given)) && !workload.enabled_is_owned_after(old);
    match workload.label(names::ENABLED) {
        Some("true") if given => by_namespace(),
        Some("true") => OptIn::In(Giver::Workload),
        Some("false") => OptIn::Out(Giver::Workload),
        Some(value) => OptIn::Malformed(format!(
            "label {}: {value:?} is not allowed, use \"true\" or \"false\"",
            names::ENABLED
        )),
        None => by_namespace(),
    }
}
