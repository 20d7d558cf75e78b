//! Drift, as GitOps tools compute it.

use serde_json::{Value, json};

use crate::manifests::Workload;
use crate::world::World;

/// The field managers of Argo CD (with its server-side diff) and Flux.
const MANAGERS: [&str; 3] = ["argocd-controller", "kustomize-controller", "helm-controller"];

/// The object that the API server would store: a server-side apply of the manifest in a dry-run, with force.
pub(crate) fn predicted(world: &World, path: &str, manifest: &Value, manager: &str) -> Value {
    let path = format!("{path}?dryRun=All&force=true&fieldManager={manager}");
    let (code, answer) = world.cluster.api().patch(&path, "application/apply-patch+yaml", manifest);
    assert_eq!(code, 200, "{answer}");
    answer
}

/// The pointers at which the prediction differs from the live object, for every tool.
pub(crate) fn drift(world: &World, workload: &Workload, manifest: &Value) -> Vec<String> {
    drift_of(world, &format!("{}/{}", workload.kind.path(world.name()), workload.name), manifest)
}

/// The drift of the object at this path of the API.
pub(crate) fn drift_of(world: &World, path: &str, manifest: &Value) -> Vec<String> {
    let seen = MANAGERS.map(|manager| {
        let (code, live) = world.cluster.api().get(path);
        assert_eq!(code, 200, "{live}");
        differences(&desired(predicted(world, path, manifest, manager)), &desired(live))
    });
    assert!(seen.iter().all(|other| *other == seen[0]), "every tool sees the same drift: {seen:?}");
    seen[0].clone()
}

/// The fields that the tools compare: not the metadata of each write, nor the status.
fn desired(mut object: Value) -> Value {
    for field in ["managedFields", "resourceVersion", "generation"] {
        object["metadata"].as_object_mut().expect("the object has metadata").remove(field);
    }
    object["status"] = json!({});
    object
}

/// The pointers at which two values differ.
pub(crate) fn differences(one: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(one, other, "", &mut found);
    found
}

fn compare(one: &Value, other: &Value, at: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let added = other.keys().filter(|key| !one.contains_key(*key));
            for key in one.keys().chain(added) {
                let (one, other) = (one.get(key), other.get(key));
                let null = &Value::Null;
                compare(one.unwrap_or(null), other.unwrap_or(null), &format!("{at}/{key}"), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (i, (one, other)) in one.iter().zip(other).enumerate() {
                compare(one, other, &format!("{at}/{i}"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(at.to_owned()),
    }
}
