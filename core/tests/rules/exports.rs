//! A live object is exported, and created again or elsewhere.

use confrev::{
    annotations,
    resolve::{NamespaceFacts, NamespaceOptIn},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, world},
    world::{World, annotate, configmap, deployment, kind, remembered, volume},
};

/// What `kubectl get -o yaml` gives of a stored workload, as `kubectl create` sends it: the client owns every field.
fn exported(stored: &Value) -> Value {
    let mut new = stored.clone();
    new["metadata"]["managedFields"] = json!([
        {"manager": "kubectl-create", "operation": "Update", "fieldsType": "FieldsV1",
         "fieldsV1": {"f:metadata": {"f:labels": {"f:confrev.dev/enabled": {}}}, "f:spec": {}}},
    ]);
    new
}

/// A workload of a namespace that opts in.
fn given_by_namespace() -> (World, Value) {
    let mut world = world("blue");
    world.namespace = NamespaceFacts { opt_in: NamespaceOptIn::Now, ..NamespaceFacts::default() };
    let mut object = deployment(&["demo"]);
    object["metadata"]["labels"] = json!({});
    let stored = world.create(&object);
    assert_eq!(stored["metadata"]["labels"][annotations::ENABLED], "true");
    (world, stored)
}

#[test]
fn label_of_exported_workload_is_its_namespaces() {
    let (mut world, stored) = given_by_namespace();
    let again = world.create(&exported(&stored));
    assert_eq!(volume(&again, 0), BLUE, "its own namespace opts in");
    world.namespace = NamespaceFacts::default();
    let elsewhere = world.create(&exported(&stored));
    assert_eq!(volume(&elsewhere, 0), "demo");
    assert_eq!(elsewhere["metadata"]["labels"].get(annotations::ENABLED), None);
    assert_eq!(elsewhere["metadata"]["annotations"].get(annotations::ENABLED_BY), None);
}

/// Without the mark, the label is the creator's own.
#[test]
fn label_without_mark_opts_in() {
    let (mut world, stored) = given_by_namespace();
    world.namespace = NamespaceFacts::default();
    let mut own = exported(&stored);
    own["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::ENABLED_BY);
    assert_eq!(volume(&world.create(&own), 0), BLUE);
}

/// `kubectl replace --force` deletes the workload, and with it the snapshot, before it creates the workload again.
#[test]
fn workload_on_hold_is_created_without_its_snapshot() {
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    let first = world.create(&object);
    world.set("demo", json!({"color": "green"}));
    let mut held = first.clone();
    annotate(&mut held, annotations::HOLD, BLUE);
    let held = world.update(&held, &first);
    assert_eq!(volume(&held, 0), BLUE);
    world.remove(BLUE);
    annotate(&mut object, annotations::HOLD, BLUE);
    for new in [exported(&held), object.clone()] {
        let created = world.clone().review(&kind("Deployment"), &new, None);
        assert_eq!(created.decision.denial, None);
        assert_eq!(volume(&created.object, 0), GREEN);
        assert_eq!(remembered(&created.object, "seen")["configmaps"].as_object().unwrap().len(), 1);
        let warning =
            format!("{:?} does not exist in namespace \"ns\", so it holds nothing", configmap(BLUE).name);
        assert!(
            created.decision.warnings.iter().any(|text| text.contains(&warning)),
            "{:?}",
            created.decision.warnings
        );
    }
    // The source has the content again, so the snapshot is made again.
    world.set("demo", json!({"color": "blue"}));
    for new in [exported(&held), object] {
        let mut world = world.clone();
        let created = world.review(&kind("Deployment"), &new, None);
        assert_eq!((created.decision.denial, created.decision.warnings), (None, vec![]));
        assert_eq!(volume(&created.object, 0), BLUE);
        let stored = world.create(&new);
        world.set("demo", json!({"color": "green"}));
        assert_eq!(volume(&poke(&mut world, &stored, 5), 0), BLUE, "it is held");
    }
}
