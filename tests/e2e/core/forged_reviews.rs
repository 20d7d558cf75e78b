//! Forged reviews: any client that reaches the port can send them.

use std::collections::BTreeSet;

use confrev_controlplane::ControlPlane;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload};
use crate::webhook_requests::Client;
use crate::world::{World, text};

/// Text that no live object holds.
const FORGED: &str = "forged-content-7d1f";

/// The ConfigMaps and Secrets of a namespace by name and resourceVersion.
fn objects(namespace: &str) -> BTreeSet<String> {
    let cluster = ControlPlane::shared();
    let api = cluster.api();
    let mut found = BTreeSet::new();
    for plural in ["configmaps", "secrets"] {
        let (code, list) = api.get(&format!("/api/v1/namespaces/{namespace}/{plural}"));
        assert!(code < 300, "{list}");
        for item in list["items"].as_array().expect("a list") {
            assert!(!item["data"].to_string().contains(FORGED), "{item}");
            let metadata = &item["metadata"];
            found.insert(format!("{plural} {} {}", metadata["name"], metadata["resourceVersion"]));
        }
    }
    found
}

/// A review of a ConfigMap or Secret with forged content.
fn review(resource: &str, operation: &str, namespace: &str, name: &str, label: &str) -> Value {
    let object = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"confrev.dev/enabled": label}},
        "data": {"text": FORGED},
    });
    let old = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"confrev.dev/enabled": label}},
        "data": {"text": format!("old {FORGED}")},
    });
    let (object, old) = match operation {
        "CREATE" => (object, Value::Null),
        "DELETE" => (Value::Null, old),
        _ => (object, old),
    };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "resource": {"group": "", "version": "v1", "resource": resource},
        "name": name, "namespace": namespace, "operation": operation,
        "object": object, "oldObject": old, "dryRun": false,
    }})
}

/// An opted-in workload uses `demo`, and a bound ConfigMap `bound` is in use as well.
fn victim() -> World {
    let world = World::new("forged");
    world.set_config("demo", "A");
    let bound = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "bound", "labels": {"confrev.dev/enabled": "bind"}},
        "data": {"text": "B"},
    });
    world.apply(&bound).ok();
    let workload = Workload::new(Kind::Deployment, "web", &["demo", "bound"]);
    world.apply(&workload.manifest()).ok();
    world.wait_resolved(&workload, "demo", "A");
    world.wait_at_rest();
    world
}

#[test]
fn forged_reviews_of_sources_write_nothing() {
    let client = Client::new();
    let world = victim();
    let namespaces = [world.name(), "default", "kube-system"];
    let before: Vec<_> = namespaces.iter().map(|namespace| objects(namespace)).collect();
    for namespace in namespaces {
        for (path, resource) in [("/mutate/configmaps", "configmaps"), ("/mutate/secrets", "secrets")] {
            for operation in ["CREATE", "UPDATE", "DELETE"] {
                for name in ["demo", "bound", "new"] {
                    for label in ["true", "bind"] {
                        let review = review(resource, operation, namespace, name, label);
                        let (code, answer) = client.post(path, review.to_string().as_bytes());
                        let answer: Value = serde_json::from_str(&answer).expect("JSON");
                        let allowed = answer["response"]["allowed"] == true;
                        assert_eq!((code, allowed), (200, namespace != "kube-system"), "{review}: {answer}");
                        assert!(answer["response"]["patch"].is_null(), "{answer}");
                    }
                }
            }
        }
    }
    // The controller acts on stored objects. When it has rolled this change, it has also processed the reviews' effects.
    world.set_config("demo", "C");
    let workload = Workload::new(Kind::Deployment, "web", &["demo", "bound"]);
    world.wait_resolved(&workload, "demo", "C");
    for (namespace, before) in namespaces.iter().zip(before).skip(1) {
        assert_eq!(objects(namespace), before, "{namespace}");
    }
    let snapshots = world.snapshots();
    assert_eq!(snapshots.len(), 2, "of A and C alone: {snapshots:?}");
}

#[test]
fn impossible_names_are_refused_in_one_line() {
    let client = Client::new();
    for path in ["/mutate/configmaps", "/mutate/workloads", "/validate/workloads"] {
        for (namespace, name, part) in [
            ("../../kube-system", "demo", "invalid namespace"),
            ("a/b", "demo", "invalid namespace"),
            ("Default", "demo", "invalid namespace"),
            ("default?x=y", "demo", "invalid namespace"),
            ("default", "a/b", "invalid object name"),
            ("default", "..", "invalid object name"),
            ("default", "Demo", "invalid object name"),
            ("kube-system", "demo", "is excluded"),
            ("confrev", "demo", "is excluded"),
        ] {
            let review = review("configmaps", "UPDATE", namespace, name, "true");
            let (code, answer) = client.post(path, review.to_string().as_bytes());
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let response = &answer["response"];
            assert_eq!((code, &response["allowed"]), (200, &json!(false)), "{path} {namespace} {name}");
            let message = text(&response["status"]["message"]);
            assert!(message.contains(part) && !message.contains('\n'), "{message}");
        }
    }
}

#[test]
fn forged_owners_never_reach_a_snapshot() {
    let client = Client::new();
    let world = victim();
    let workload = Workload::new(Kind::Deployment, "web", &["demo", "bound"]);
    let snapshot = world.resolved(&workload, "demo").expect("the reference is resolved");
    let live = world.live(&workload);
    // An undo of a workload that does not exist. Admission would bind the snapshot to a real workload at once.
    let mut object = live.clone();
    let mut old = live.clone();
    for object in [&mut object, &mut old] {
        object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
        object["metadata"]["name"] = json!("ghost");
    }
    old["spec"]["template"] = json!({"spec": {"containers": [{"name": "app", "image": "app"}]}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
        "name": "ghost", "namespace": world.name(), "operation": "UPDATE",
        "object": object, "oldObject": old, "dryRun": false,
    }});
    let (code, answer) = client.post("/mutate/workloads", review.to_string().as_bytes());
    assert_eq!(code, 200, "{answer}");
    let owners = |name: &str| {
        let object = world.cluster.get("configmap", world.name(), name).expect("the snapshot exists");
        object["metadata"]["ownerReferences"].to_string()
    };
    assert!(!owners(&snapshot).contains("ghost"), "{}", owners(&snapshot));
}
