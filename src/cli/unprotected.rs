//! Workloads that the label `enabled: next` of their namespace opts in with their next deployment.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    failure::Failure,
    inventory::{Unread, undecided},
    objects::{Scope, belongs_to_workload, is_called, opt_in_of, text},
    target::Target,
};
use crate::{annotations, kinds::WorkloadKind, resolve::NamespaceOptIn};

/// A workload that its next deployment opts in.
pub(super) struct Unprotected<'t> {
    /// Its namespace.
    pub(super) namespace: String,
    kind: &'t WorkloadKind,
    name: String,
}

impl Unprotected<'_> {
    /// Its kind and name.
    pub(super) fn reference(&self) -> String {
        format!("{}/{}", self.kind.kind, self.name)
    }

    /// Whether `text` names it: its name, or its kind and name.
    pub(super) fn is_named(&self, text: &str) -> bool {
        match text.split_once('/') {
            Some((kind, name)) => name == self.name && is_called(self.kind, kind),
            None => text == self.name,
        }
    }
}

/// The workloads with these labels that their next deployment opts in. What the user may not list is recorded.
pub(super) async fn read<'t>(
    target: &'t Target,
    scope: &Scope,
    labels: &str,
    unread: &mut Unread,
) -> Result<Vec<Unprotected<'t>>, Failure> {
    let namespaces = opting_in_next(target, scope, unread).await?;
    if namespaces.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    // A stored Job is never deployed again.
    for kind in target.kinds.iter().filter(|kind| kind.kind != "Job") {
        let of = (&*kind.api_version(), &*kind.plural, &*kind.kind);
        let found = unread.list(target, scope, of, &undecided(labels)).await?;
        // A Rollout with `workloadRef` is deployed with another workload.
        let takes_template = |value: &Value| value["spec"].get("workloadRef").is_some();
        let own = found.iter().filter(|value| !takes_template(value) && !belongs_to_workload(value));
        all.extend(own.filter_map(|value| {
            let namespace = text(value, "/metadata/namespace");
            let name = text(value, "/metadata/name").to_owned();
            namespaces.contains(namespace).then(|| Unprotected {
                namespace: namespace.to_owned(),
                kind,
                name,
            })
        }));
    }
    Ok(all)
}

/// The namespaces of the scope whose label opts each workload in with its next deployment.
async fn opting_in_next(
    target: &Target,
    scope: &Scope,
    unread: &mut Unread,
) -> Result<BTreeSet<String>, Failure> {
    let found = match scope {
        Scope::All => {
            let of = ("v1", "namespaces", "Namespace");
            unread.list(target, scope, of, &format!("{}=next", annotations::ENABLED)).await?
        }
        Scope::Namespace(namespace) => match target.get(&format!("/api/v1/namespaces/{namespace}")).await {
            // The settings of the namespace are unknown to this user, whatever they are.
            Err(Failure::Refused(_)) => Vec::new(),
            found => found?.into_iter().collect(),
        },
    };
    let next = found.iter().filter(|namespace| opt_in_of(namespace) == NamespaceOptIn::Next);
    Ok(next.map(|namespace| text(namespace, "/metadata/name").to_owned()).collect())
}
