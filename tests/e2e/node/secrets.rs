//! Secrets, which are snapshotted on request.

use serde_json::json;

use crate::any_kind::Load;
use crate::printing::{
    canary_of_two, delete_pod, delete_source, keep_printed, pod_that_printed, wait_printed,
};
use crate::shared::running;
use crate::world::World;

fn set(world: &World, text: &str) {
    let metadata = json!({"name": "demo"});
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"text": text}});
    world.apply(&secret).ok();
}

fn reading_secret(name: &str) -> Load {
    let mut load = canary_of_two(name).annotation("secrets", "true");
    let spec = &mut load.manifest["spec"]["template"]["spec"];
    spec["volumes"] = json!([{"name": "demo", "secret": {"secretName": "demo"}}]);
    let reference = json!({"name": "demo", "key": "text"});
    spec["containers"][0]["env"] = json!([{"name": "text", "valueFrom": {"secretKeyRef": reference}}]);
    load
}

#[test]
#[ignore = "it needs real nodes: make test-node"]
fn canary_keeps_secrets() {
    let _confrev = running();
    let world = World::new("secrets");
    let web = reading_secret("web");
    set(&world, "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
    set(&world, "green");
    wait_printed(&world, &web, &["blue", "green"]);
    delete_source(&world, "secret");
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    wait_printed(&world, &web, &["blue", "green"]);
    keep_printed(&world, &web, &["blue", "green"]);
    world.argo(&["undo", "web"]).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
}
