//! The API paths of the kinds that tests use.

/// The plural name, the API group and version, and whether the kind is namespaced.
const RESOURCES: &[(&str, &str, bool)] = &[
    ("configmaps", "v1", true),
    ("secrets", "v1", true),
    ("pods", "v1", true),
    ("podtemplates", "v1", true),
    ("services", "v1", true),
    ("serviceaccounts", "v1", true),
    ("events", "v1", true),
    ("namespaces", "v1", false),
    ("nodes", "v1", false),
    ("deployments", "apps/v1", true),
    ("replicasets", "apps/v1", true),
    ("statefulsets", "apps/v1", true),
    ("daemonsets", "apps/v1", true),
    ("controllerrevisions", "apps/v1", true),
    ("jobs", "batch/v1", true),
    ("cronjobs", "batch/v1", true),
    ("leases", "coordination.k8s.io/v1", true),
    ("roles", "rbac.authorization.k8s.io/v1", true),
    ("rolebindings", "rbac.authorization.k8s.io/v1", true),
    ("clusterroles", "rbac.authorization.k8s.io/v1", false),
    ("clusterrolebindings", "rbac.authorization.k8s.io/v1", false),
    ("mutatingwebhookconfigurations", "admissionregistration.k8s.io/v1", false),
    ("validatingwebhookconfigurations", "admissionregistration.k8s.io/v1", false),
    ("validatingadmissionpolicies", "admissionregistration.k8s.io/v1", false),
    ("validatingadmissionpolicybindings", "admissionregistration.k8s.io/v1", false),
    ("customresourcedefinitions", "apiextensions.k8s.io/v1", false),
    ("rollouts", "argoproj.io/v1alpha1", true),
    ("analysisruns", "argoproj.io/v1alpha1", true),
    ("analysistemplates", "argoproj.io/v1alpha1", true),
    ("experiments", "argoproj.io/v1alpha1", true),
];

/// The path of a kind's collection. The kind is written as for kubectl (`ReplicaSet`, `replicaset` or `replicasets`),
/// or, if it is not in the list above, as group, version and plural: `apps/v1/deployments`. The namespace of a
/// cluster-scoped kind is ignored; an empty one means all namespaces.
///
/// # Panics
/// If the kind is unknown.
pub(crate) fn path(kind: &str, namespace: &str) -> String {
    let lower = kind.to_lowercase();
    let forms = [lower.clone(), format!("{lower}s"), format!("{}ies", lower.trim_end_matches('y'))];
    let known = RESOURCES.iter().find(|(plural, ..)| forms.iter().any(|form| form == plural));
    let (plural, version, namespaced) = match (known, lower.rsplit_once('/')) {
        (Some((plural, version, namespaced)), _) => (*plural, *version, *namespaced),
        (None, Some((version, plural))) => (plural, version, true),
        (None, None) => panic!("write the kind {kind} as group/version/plural, such as apps/v1/deployments"),
    };
    let root = if version.contains('/') { "apis" } else { "api" };
    match namespace {
        namespace if namespaced && !namespace.is_empty() => {
            format!("/{root}/{version}/namespaces/{namespace}/{plural}")
        }
        _ => format!("/{root}/{version}/{plural}"),
    }
}

/// Escapes a value of a query.
pub(crate) fn escape(value: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_kinds_in_all_spellings_of_kubectl() {
        for kind in ["ReplicaSet", "replicaset", "replicasets"] {
            assert_eq!(path(kind, "shop"), "/apis/apps/v1/namespaces/shop/replicasets");
        }
        assert_eq!(path("ConfigMap", "shop"), "/api/v1/namespaces/shop/configmaps");
        assert_eq!(path("ConfigMap", ""), "/api/v1/configmaps");
        assert_eq!(path("Node", "shop"), "/api/v1/nodes");
        assert!(path("ValidatingAdmissionPolicy", "").ends_with("/validatingadmissionpolicies"));
    }

    #[test]
    fn other_kinds_need_group_version_and_plural() {
        assert_eq!(
            path("policy/v1/poddisruptionbudgets", "a"),
            "/apis/policy/v1/namespaces/a/poddisruptionbudgets"
        );
    }

    #[test]
    fn a_selector_is_escaped_for_the_query() {
        assert_eq!(escape("app=x,tier in (a)"), "app%3Dx%2Ctier%20in%20%28a%29");
    }
}
