//! Decides with facts that are read on demand.

use std::collections::BTreeSet;

use super::{Decision, Facts, Need, Pass, Request, resolve};

/// Decides. Between two passes, `read` adds the facts that the first one needs.
///
/// # Example
///
/// ```
/// # use std::convert::Infallible;
/// # use confrev_core::{
/// #     kinds::Kinds,
/// #     resolve::{Carried, Facts, NamespaceFacts, Need, Observed, Request, Spares, Workload, decide},
/// #     snapshot::{ObjectName, SourceKind},
/// # };
/// let deployment = r#"{
///     "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
///     "spec": {"template": {"spec": {"volumes": [{"name": "v", "configMap": {"name": "demo"}}]}}}
/// }"#;
/// let config_map = r#"{"metadata": {"name": "demo"}, "data": {"color": "blue"}}"#;
///
/// let kinds = Kinds::default();
/// let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
/// let new = Workload::parse(kind, deployment).unwrap();
/// let request = Request { namespace: "shop", secrets: false, new, old: None, carried: Carried::default() };
/// let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
/// let decision = decide(&request, &mut Facts::default(), |needs, facts| {
///     for need in needs {
///         match need {
///             Need::Object(name) if name == demo => {
///                 let observed = Observed::read(SourceKind::ConfigMap, config_map.as_bytes()).unwrap();
///                 facts.set_object(name, Some(observed));
///             }
///             Need::Object(name) => facts.set_object(name, None),
///             Need::Namespace => facts.set_namespace(NamespaceFacts::default()),
///             Need::Target(_) => facts.set_target_enabled(false),
///             Need::Revisions(_) => facts.set_revisions(Vec::new()),
///             Need::Schema(source) => facts.set_verdict(source, None),
///             Need::Spares(source) => facts.set_spares(source, Spares::default()),
///             Need::Newest { .. } => {}
///         }
///     }
///     Ok::<_, Infallible>(())
/// });
///
/// let decision = decision.unwrap();
/// assert_eq!(decision.ensure[0].name, "demo-3a18d34e26");
/// let patch = serde_json::to_string(&decision.patch).unwrap();
/// assert!(patch.contains(r#""value":"demo-3a18d34e26""#), "{patch}");
/// ```
pub fn decide<E>(
    request: &Request<'_>,
    facts: &mut Facts,
    mut read: impl FnMut(BTreeSet<Need>, &mut Facts) -> Result<(), E>,
) -> Result<Decision, E> {
    loop {
        match resolve(request, facts) {
            Pass::Decided(decision) => return Ok(decision),
            Pass::Needs(needs) => read(needs, facts)?,
        }
    }
}
