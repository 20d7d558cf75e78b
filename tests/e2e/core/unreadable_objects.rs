//! Objects that cannot be read, and revisions without their label: an object of one tenant never affects another tenant.

use confrev_controlplane::{ControlPlane, wait_for};
use serde_json::{Value, json};

use crate::events::told;
use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, each_kind, name_of};

/// Nested arrays, deeper than JSON parsers accept.
fn nested() -> Value {
    (0..200).fold(json!(1), |inner, _| json!([inner]))
}

/// A Rollout with the nested value inside its template, or in a field that confrev ignores.
fn hostile(name: &str, in_template: bool) -> Value {
    let mut rollout = Workload::new(Kind::Rollout, name, &["demo"]).manifest();
    if in_template {
        rollout["spec"]["template"]["spec"]["volumes"][0]["confrev-nested"] = nested();
    } else {
        let plugin = json!({"plugin": {"name": "example.com/deep", "config": {"deep": nested()}}});
        rollout["spec"]["strategy"] = json!({"canary": {"steps": [plugin, {"pause": {}}]}});
    }
    rollout
}

#[test]
fn readiness_and_other_tenants_survive_deep_objects() {
    let world = World::new("deep");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    let mut confrev = exclusive();
    world.apply(&web.manifest()).ok();
    for in_template in [false, true] {
        let name = if in_template { "in-template" } else { "in-strategy" };
        let path = format!("/apis/argoproj.io/v1alpha1/namespaces/{}/rollouts", world.name());
        let (code, answer) = ControlPlane::shared().api().post(&path, &hostile(name, in_template));
        assert!(code < 300, "{name}: {code} {answer}");
    }
    confrev.kill();
    confrev.start();
    wait_for("confrev to be ready despite deeply nested objects", LIMIT, || confrev.is_ready().then_some(()));
    let confrev = confrev.downgrade();
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    drop(confrev);
}

#[test]
fn unreadable_revision_keeps_its_snapshot_and_is_named() {
    let _confrev = running();
    let world = World::new("unreadable");
    let source = |text: &str| {
        let labels = json!({"confrev.dev/enabled": "true"});
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo", "labels": labels},
            "data": {"text": text},
        })
    };
    world.apply(&source("A")).ok();
    world.wait_snapshot_texts("demo", &["A"]);
    let snapshot = world.snapshot_name("demo", "A");
    // A revision that cannot be parsed: it may refer to every name that it contains.
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
        "metadata": {"name": "odd", "labels": {"confrev.dev/revision": "0123456789"}},
        "data": {"spec": {"template": {"spec": {"volumes": {"odd": snapshot}}}}},
    });
    world.apply(&revision).ok();
    let event = "ObjectUnreadable ControllerRevision/odd";
    wait_for("an Event on the unreadable object", LIMIT, || {
        let events = told(&world);
        if events.contains_key(event) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    // The source owns the newest snapshot only.
    world.apply(&source("B")).ok();
    wait_for("the unreadable revision to own the snapshot", LIMIT, || {
        let object = world.cluster.get("configmap", world.name(), &snapshot).ok_or("it does not exist")?;
        let owners = object["metadata"]["ownerReferences"].to_string();
        if owners.contains("\"odd\"") { Ok(()) } else { Err(owners) }
    });
    world.delete("controllerrevision", "odd");
    world.wait_snapshot_texts("demo", &["B"]);
}

#[test]
fn removing_the_revision_label_changes_nothing() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("label");
        world.set_config("demo", "A");
        let web = Workload::new(kind, "web", &["demo"]).replicas(4).pausing();
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A", "A", "A", "A"]);
        let stable = name_of(&world.replica_sets(&web)[0]);
        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
        world.kubectl(&["label", "replicaset", &stable, "confrev.dev/revision-"]).ok();
        // Longer than confrev needs to remove a superfluous owner, and to delete an unused snapshot.
        confrev_controlplane::holds_for(
            "that the snapshot is kept",
            std::time::Duration::from_secs(30),
            || {
                let texts = world.snapshot_texts("demo");
                if texts.contains(&"A".to_owned()) { Ok(()) } else { Err(format!("{texts:?}")) }
            },
        );
        world.lose_pod(&web, "demo", "A");
        world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
        // The snapshot of the unlabelled revision is still deleted with that revision.
        world.promote(&web);
        world.wait_reads(&web, "demo", &["B", "B", "B", "B"]);
        world.patch(&web, &json!({"spec": {"revisionHistoryLimit": 0}}));
        world.wait_snapshot_texts("demo", &["B"]);
    });
}
