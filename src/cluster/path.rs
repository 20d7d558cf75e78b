//! Paths of the API server, built from checked names: no text of a request becomes part of a URL unchecked. kube builds such
//! paths too, but inserts names without a check.

use super::error::ApiError;
use crate::snapshot::{is_namespace_name, is_object_name};

/// The path of a collection in a namespace.
pub(crate) fn collection(api_version: &str, namespace: &str, plural: &str) -> Result<String, ApiError> {
    if !is_namespace_name(namespace) {
        return Err(ApiError::InvalidName { what: "namespace", name: namespace.to_owned() });
    }
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    Ok(format!("{root}/{api_version}/namespaces/{namespace}/{plural}"))
}

/// The path of an object in a namespace.
pub(crate) fn object(
    api_version: &str,
    namespace: &str,
    plural: &str,
    name: &str,
) -> Result<String, ApiError> {
    if !is_object_name(name) {
        return Err(ApiError::InvalidName { what: "object", name: name.to_owned() });
    }
    Ok(format!("{}/{name}", collection(api_version, namespace, plural)?))
}

/// The path of an object in an API group that is in no namespace.
pub(crate) fn cluster_object(api_version: &str, plural: &str, name: &str) -> Result<String, ApiError> {
    if !is_object_name(name) {
        return Err(ApiError::InvalidName { what: "object", name: name.to_owned() });
    }
    Ok(format!("/apis/{api_version}/{plural}/{name}"))
}

/// The path of a namespace.
pub(crate) fn namespace(name: &str) -> Result<String, ApiError> {
    if !is_namespace_name(name) {
        return Err(ApiError::InvalidName { what: "namespace", name: name.to_owned() });
    }
    Ok(format!("/api/v1/namespaces/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_never_become_part_of_a_path() {
        for name in ["", "..", "a/b", "a?b", "a#b", "a%2Fb", "A", "a b", "../../secrets", "-a", "a-", "a..b"]
        {
            assert!(collection("v1", name, "configmaps").is_err(), "{name:?}");
            assert!(namespace(name).is_err(), "{name:?}");
            assert!(
                cluster_object("argoproj.io/v1alpha1", "clusteranalysistemplates", name).is_err(),
                "{name:?}"
            );
            assert!(object("v1", "ns", "configmaps", name).is_err(), "{name:?}");
        }
        assert!(collection("v1", "a.b", "configmaps").is_err(), "a namespace is one label");
        assert_eq!(
            object("apps/v1", "ns", "deployments", "a.b").unwrap(),
            "/apis/apps/v1/namespaces/ns/deployments/a.b"
        );
        assert_eq!(collection("v1", "ns", "secrets").unwrap(), "/api/v1/namespaces/ns/secrets");
    }
}
