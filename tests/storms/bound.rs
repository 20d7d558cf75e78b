//! Objects that are bound themselves, and deletions that nobody saw.

use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};

use crate::load::{Load, owners};
use crate::restart::restarted;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Labels the source to be bound itself, and waits until the workload names it and its ReplicaSet owns it.
fn bind(world: &World, web: &Load) {
    world.kubectl(&["label", "configmap/demo", "confrev.dev/enabled=bind"]).ok();
    wait_for("the workload to name its source", LIMIT, || {
        expect(&text(&web.stored(world)["spec"]["volumes"][0]["configMap"]["name"]), "demo")
    });
    wait_for("a ReplicaSet to own the source", LIMIT, || {
        let owners = owners(&world.cluster.get("configmap", world.name(), "demo").ok_or("it is gone")?);
        let bound = owners.iter().any(|owner| owner.starts_with("ReplicaSet/"));
        if bound { Ok(()) } else { Err(format!("{owners:?}")) }
    });
}

#[test]
fn a_bound_object_that_is_deleted_while_confrev_is_away_never_comes_back_with_what_it_was_before() {
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
    // Neither did anybody snapshot this.
    world.set_config("demo", "C");
    world.wait_at_rest();
    let earlier = world.snapshot_texts("demo");
    assert!(earlier.contains(&"A".to_owned()), "{earlier:?} tempt it");

    let _confrev = restarted(confrev, Program::kill, || world.delete("configmap", "demo"));
    wait_for("an Event that says so", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        events.iter().any(|event| event["reason"] == "SnapshotLost").then_some(())
    });
    holds_for("that it is gone", Duration::from_secs(5), || {
        world.cluster.get("configmap", world.name(), "demo").map_or(Ok(()), |found| Err(found.to_string()))
    });
}
