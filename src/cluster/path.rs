//! Paths of the API server, built from checked names: no text of a request becomes part of a URL unchecked.

use super::ApiError;
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

/// The path of a namespace.
pub(crate) fn namespace(name: &str) -> Result<String, ApiError> {
    if !is_namespace_name(name) {
        return Err(ApiError::InvalidName { what: "namespace", name: name.to_owned() });
    }
    Ok(format!("/api/v1/namespaces/{name}"))
}

/// A label selector as it appears in a query.
pub(crate) fn selector(labels: &str) -> String {
    let mut encoded = String::with_capacity(labels.len() + 16);
    for character in labels.chars() {
        match character {
            '/' => encoded.push_str("%2F"),
            '=' => encoded.push_str("%3D"),
            ',' => encoded.push_str("%2C"),
            '!' => encoded.push_str("%21"),
            '(' => encoded.push_str("%28"),
            ')' => encoded.push_str("%29"),
            ' ' => encoded.push_str("%20"),
            other => encoded.push(other),
        }
    }
    encoded
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
            assert!(object("v1", "ns", "configmaps", name).is_err(), "{name:?}");
        }
        assert!(collection("v1", "a.b", "configmaps").is_err(), "a namespace is one label");
        assert_eq!(
            object("apps/v1", "ns", "deployments", "a.b").unwrap(),
            "/apis/apps/v1/namespaces/ns/deployments/a.b"
        );
        assert_eq!(collection("v1", "ns", "secrets").unwrap(), "/api/v1/namespaces/ns/secrets");
    }

    #[test]
    fn selectors_are_encoded_for_a_query() {
        assert_eq!(selector("a/b in (x,y),!c=1"), "a%2Fb%20in%20%28x%2Cy%29%2C%21c%3D1");
    }
}
