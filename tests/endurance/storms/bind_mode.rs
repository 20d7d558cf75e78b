//! Objects that are bound themselves, and deletions while confrev is down.

use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};

use crate::any_kind::{Load, owners};
use crate::restart::restarted;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Labels the source `bind`. Waits until the workload names the source and its ReplicaSet owns the source.
fn bind(world: &World, web: &Load) {
    world.kubectl(&["label", "configmap/demo", "confrev.dev/enabled=bind"]).ok();
    wait_for("the workload to name its source", LIMIT, || {
        expect(&text(&web.stored(world)["spec"]["volumes"][0]["configMap"]["name"]), "demo")
    });
    wait_for("a ReplicaSet to own the source", LIMIT, || {
        let owners =
            owners(&world.cluster.get("configmap", world.name(), "demo").ok_or("the source is missing")?);
        let bound = owners.iter().any(|owner| owner.starts_with("ReplicaSet/"));
        if bound { Ok(()) } else { Err(format!("{owners:?}")) }
    });
}

/// It is deleted while confrev is down: its last content has no snapshot, so the loss is reported.
#[test]
fn bound_object_is_not_restored_with_earlier_content() {
    let confrev = running();
    let world = World::new("bound-away");
    let web = Load::new("deployments", "web", &["demo"]);
    world.set_config("demo", "A");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=5"]).ok();
    web.apply(&world).ok();
    web.wait_resolved(&world, "demo", "A");
    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");
    bind(&world, &web);
    // No snapshot of this content exists either.
    world.set_config("demo", "C");
    world.wait_at_rest();
    let earlier = world.snapshot_texts("demo");
    assert!(earlier.contains(&"A".to_owned()), "an earlier content exists: {earlier:?}");

    let _confrev = restarted(confrev, Program::kill, || world.delete("configmap", "demo"));
    wait_for("an Event about the loss", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        events.iter().any(|event| event["reason"] == "SnapshotLost").then_some(())
    });
    holds_for("the absence of the source", Duration::from_secs(5), || {
        world.cluster.get("configmap", world.name(), "demo").map_or(Ok(()), |found| Err(found.to_string()))
    });
}
