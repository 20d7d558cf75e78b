//! Whether a workload is opted in: its own label wins over its namespace's.

use super::{Facts, NamespaceOptIn, Request, Workload, bare::bare, carried::is_marked};
use crate::annotations;

/// Where the `enabled` label comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// The label is the workload's own, whatever its value.
    Workload,
    /// The label comes from the namespace, or the namespace decides whether there is one.
    Namespace,
}

/// Whether a workload is opted in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OptIn {
    /// Opted in.
    In(Giver),
    /// Not opted in, or no longer.
    Out(Giver),
    /// It depends on the namespace, which was not read yet.
    Unknown,
    /// The label has an invalid value.
    Malformed(String),
}

/// Determines whether the requested workload is opted in.
pub(super) fn opt_in(request: &Request<'_>, facts: &Facts) -> OptIn {
    let by_namespace = || match facts.namespace() {
        None => OptIn::Unknown,
        Some(namespace) => match namespace.opt_in {
            NamespaceOptIn::Now => OptIn::In(Giver::Namespace),
            NamespaceOptIn::Next if next_opts_in(request) => OptIn::In(Giver::Namespace),
            NamespaceOptIn::Next | NamespaceOptIn::Out => OptIn::Out(Giver::Namespace),
        },
    };
    let workload = &request.new;
    // A label that comes from the namespace becomes the workload's own as soon as an applier sets it. An undo of a Deployment
    // may restore annotations without the mark, so a mark on the stored object counts as well.
    let is_given = |workload: &super::Workload<'_>| {
        workload.label(annotations::ENABLED) == Some("true")
            && workload.annotation(annotations::ENABLED_BY).is_some()
    };
    let old = request.old.as_ref();
    // An export has the label and the mark. The label of a workload that is created from it is not the user's own.
    let is_owned = || old.is_some() && workload.enabled_is_owned_after(old);
    let given = (is_given(workload) || old.is_some_and(is_given)) && !is_owned();
    match workload.label(annotations::ENABLED) {
        Some("true") if given => by_namespace(),
        Some("true") => OptIn::In(Giver::Workload),
        Some("false") => OptIn::Out(Giver::Workload),
        Some(value) => OptIn::Malformed(format!(
            "label {}: {value:?} is not allowed, use \"true\" or \"false\"",
            annotations::ENABLED
        )),
        None => by_namespace(),
    }
}

/// Whether an earlier decision wrote the stored workload. The `sources` of a workload that was not opted in are not trusted.
pub(super) fn was_decided_on(stored: &Workload<'_>) -> bool {
    stored.label(annotations::ENABLED) == Some("true")
}

/// Whether the workload is opted in by a namespace that opts in with the next deployment: by a creation, or by a change of the template
/// beyond its notation. A stored workload may be opted in already; a marked one was deployed while confrev did not answer.
fn next_opts_in(request: &Request<'_>) -> bool {
    let Some(old) = &request.old else { return true };
    let template = |workload: &Workload<'_>| bare(workload.text()?, &workload.kind.template, |_| None);
    was_decided_on(old) || is_marked(old) || template(old) != template(&request.new)
}
