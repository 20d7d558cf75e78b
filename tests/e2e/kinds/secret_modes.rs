//! A Secret that leaves the mode `live`.

use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::shared::running;
use crate::world::{LIMIT, World, expect};
use confrev_controlplane::{holds_for, wait_for};

fn secret(mode: Option<&str>) -> Value {
    let labels = mode.map_or(json!({}), |mode| json!({"confrev.dev/enabled": mode}));
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
           "metadata": {"name": "db", "labels": labels}, "stringData": {"text": "A"}})
}

/// The name in the template's volume.
fn named(world: &World, web: &Load) -> String {
    let live = web.live(world);
    live["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].as_str().unwrap().to_owned()
}

#[test]
fn snapshot_comes_back_when_mode_is_taken_off() {
    let _confrev = running();
    let world = World::new("live-off");
    world.apply(&secret(Some("live"))).ok();
    let mut web = Load::new("deployments", "web", &[]).annotation("secrets", "true");
    web.manifest["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "s", "secret": {"secretName": "db"}}]);
    web.apply(&world).ok();
    world.wait_at_rest();
    assert_eq!(named(&world, &web), "db");
    let revisions = || world.cluster.list("replicasets", world.name(), "app=web").len();
    let before = revisions();
    world.apply(&secret(None)).ok();
    wait_for("the snapshot to come back", LIMIT, || {
        let name = named(&world, &web);
        if name.starts_with("db-") { Ok(()) } else { Err(name) }
    });
    wait_for("the roll", LIMIT, || expect(&revisions(), &(before + 1)));
    world.wait_at_rest();
    holds_for("one roll", std::time::Duration::from_secs(3), || expect(&revisions(), &(before + 1)));
}
