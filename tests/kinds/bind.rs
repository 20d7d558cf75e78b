//! ConfigMaps that a tool names anew on each change, and deletes as it likes.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::load::owners;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

fn bound(name: &str, text: &str) -> Value {
    let mut object = config_map(name, text);
    object["metadata"]["labels"] = json!({"confrev.dev/enabled": "bind"});
    object
}

/// The workload with this ConfigMap as its volume `demo`.
fn deployed(world: &World, web: &Workload, name: &str) {
    let mut manifest = web.manifest();
    let spec = &mut manifest["spec"]["template"]["spec"];
    spec["volumes"][0]["configMap"]["name"] = json!(name);
    spec["containers"][0]["envFrom"][0]["configMapRef"]["name"] = json!(name);
    world.apply(&manifest).ok();
}

fn wait_bound(world: &World, name: &str) {
    wait_for(&format!("a ReplicaSet to own {name}"), LIMIT, || {
        let object = world.cluster.get("configmap", world.name(), name).ok_or("it is gone")?;
        let owners = owners(&object);
        if owners.iter().any(|owner| owner.starts_with("ReplicaSet/")) {
            Ok(())
        } else {
            Err(format!("{owners:?}"))
        }
    });
}

#[test]
fn a_bound_config_map_outlives_its_deletion_for_old_pods_and_goes_with_its_last_replica_set() {
    let _confrev = running();
    let world = World::new("bind");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(2).pausing();
    world.apply(&bound("demo-1", "old")).ok();
    deployed(&world, &web, "demo-1");
    world.wait_reads(&web, "demo", &["old", "old"]);
    wait_bound(&world, "demo-1");
    assert!(world.snapshots().is_empty());

    world.apply(&bound("demo-2", "new")).ok();
    deployed(&world, &web, "demo-2");
    // Right after, as a tool does that waits for nothing.
    world.delete("configmap", "demo-1");
    world.wait_reads(&web, "demo", &["new", "old"]);
    world.lose_pod(&web, "demo", "old");
    world.reads_for(3, &web, "demo", &["new", "old"]);
    wait_bound(&world, "demo-1");
    wait_bound(&world, "demo-2");

    world.promote(&web);
    world.wait_reads(&web, "demo", &["new", "new"]);
    let sets = world.replica_sets(&web);
    let refers =
        |set: &&Value| text(&set["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]) == "demo-1";
    let old = name_of(sets.iter().find(refers).expect("the old one is kept for an undo"));
    world.delete("replicaset", &old);
    wait_for("demo-1 to go", LIMIT, || {
        let gone = world.cluster.get("configmap", world.name(), "demo-1").is_none();
        gone.then_some(())
    });
    holds_for("the new one", Duration::from_secs(3), || expect(&world.reads(&web, "demo"), &["new", "new"]));
    assert!(world.cluster.get("configmap", world.name(), "demo-2").is_some());
}
