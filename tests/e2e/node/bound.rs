//! ConfigMaps to which a tool gives a new name at each change, and which it deletes at once.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::{Load, owners};
use crate::printing::{canary_of_two, delete_pod, keep_printed, pod_that_printed, wait_printed};
use crate::shared::{LIMIT, running};
use crate::world::World;

fn bound(name: &str, text: &str) -> Value {
    let metadata = json!({"name": name, "labels": {"confrev.dev/enabled": "bind"}});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}})
}

fn reading(name: &str) -> Load {
    let mut load = canary_of_two("web");
    let spec = &mut load.manifest["spec"]["template"]["spec"];
    spec["volumes"] = json!([{"name": "demo", "configMap": {"name": name}}]);
    spec["containers"][0]["env"][0]["valueFrom"]["configMapKeyRef"]["name"] = json!(name);
    load
}

#[test]
#[ignore = "it needs real nodes: make test-node"]
fn deleted_bound_config_map_still_starts_pods() {
    let _confrev = running();
    let world = World::new("bind");
    world.apply(&bound("demo-1", "blue")).ok();
    reading("demo-1").apply(&world).ok();
    let web = reading("demo-2");
    wait_printed(&world, &web, &["blue", "blue"]);
    wait_for("a ReplicaSet to own demo-1", LIMIT, || {
        let object = world.cluster.get("configmap", world.name(), "demo-1").ok_or("it does not exist")?;
        let owners = owners(&object);
        if owners.iter().any(|o| o.starts_with("ReplicaSet/")) { Ok(()) } else { Err(format!("{owners:?}")) }
    });

    world.apply(&bound("demo-2", "green")).ok();
    web.apply(&world).ok();
    world.delete("configmap", "demo-1");
    wait_printed(&world, &web, &["blue", "green"]);
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    wait_printed(&world, &web, &["blue", "green"]);
    keep_printed(&world, &web, &["blue", "green"]);
}
