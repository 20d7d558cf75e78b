//! The objects of the cases, of configurable size.

use std::collections::BTreeMap;

use confrev_instructions::{
    annotations,
    snapshot::{ObjectName, SourceKind},
};
use serde_json::{Value, json};

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "shop";

/// The JSON of ConfigMaps, by name.
pub(crate) type Stored = BTreeMap<ObjectName, Vec<u8>>;

/// The name of the ConfigMap with this number.
pub(crate) fn source(number: usize) -> ObjectName {
    ObjectName::new(SourceKind::ConfigMap, format!("settings-{number}"))
}

/// A ConfigMap of about `bytes` bytes, as the API server returns it.
pub(crate) fn config_map(name: &str, bytes: usize) -> Vec<u8> {
    let line = "feature.flag.of.some.length = a value with \"quotes\"\n";
    let file = line.repeat(10);
    let data: BTreeMap<_, _> =
        (0..bytes.div_ceil(file.len() + 40)).map(|i| (format!("file-{i}"), &file)).collect();
    let metadata =
        json!({"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"), "resourceVersion": "1"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        .to_string()
        .into_bytes()
}

/// `count` ConfigMaps of `bytes` bytes each.
pub(crate) fn sources(count: usize, bytes: usize) -> Stored {
    (0..count).map(source).map(|name| (name.clone(), config_map(&name.name, bytes))).collect()
}

/// An opted-in Deployment of at least `bytes` bytes that refers to `references` ConfigMaps. It grows as real
/// Deployments do: by variables, and by their managedFields.
pub(crate) fn deployment(references: usize, bytes: usize) -> Value {
    let volumes: Vec<_> = (0..references)
        .map(|i| json!({"name": format!("volume-{i}"), "configMap": {"name": &*source(i).name}}))
        .collect();
    let mounts: Vec<_> = (0..references)
        .map(|i| json!({"name": format!("volume-{i}"), "mountPath": format!("/etc/settings/{i}")}))
        .collect();
    let variables = bytes.saturating_sub(references * 130) / 150;
    let variable =
        |i: usize| json!({"name": format!("SOME_VARIABLE_{i}"), "value": format!("the value of number {i}")});
    let field = |i: usize| {
        let key = format!("k:{{\"name\":\"SOME_VARIABLE_{i}\"}}");
        (key, json!({".": {}, "f:name": {}, "f:value": {}}))
    };
    let fields: serde_json::Map<_, _> = (0..variables).map(field).collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "web",
            "namespace": NAMESPACE,
            "uid": "0b0e9c5e-2a52-4f43-8a35-0a4d35ff6f0c",
            "labels": {annotations::ENABLED: "true", "app": "web"},
            "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": fields}}],
        },
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [{
                        "name": "web",
                        "image": "registry.example/web:1.2.3",
                        "env": (0..variables).map(variable).collect::<Vec<_>>(),
                        "volumeMounts": mounts,
                    }],
                    "volumes": volumes,
                },
            },
        },
    })
}

/// The body of a review. It is an update if there is a stored object.
pub(crate) fn review(object: &Value, old: Option<&Value>) -> Vec<u8> {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "name": "web",
            "namespace": NAMESPACE,
            "operation": operation,
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": object,
            "oldObject": old,
            "dryRun": false,
        },
    })
    .to_string()
    .into_bytes()
}
