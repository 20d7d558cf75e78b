//! Containers that really crash: they start with the new content, are ready, and end some seconds later.

use std::env;
use std::time::Instant;

use confrev_controlplane::wait_for;
use confrev_test_support::requests::Requests;
use serde_json::json;

use crate::any_kind::Load;
use crate::printing::{printing, wait_printed};
use crate::shared::{LIMIT, running};
use crate::world::{World, expect, snapshot_of, text, verdict};

/// Ends five seconds after it has read the bad content, each time that the kubelet starts it.
const CRASHES: &str = r#"[ "$(cat /demo/text)" != bad ] || { sleep 5; exit 1; }; "#;

/// A workload whose container crashes with the bad content.
fn crashing(name: &str) -> Load {
    let mut load = printing("deployments", name).spec(json!({"replicas": 1}));
    let command = &mut load.manifest["spec"]["template"]["spec"]["containers"][0]["command"][2];
    *command = json!(format!("{CRASHES}{}", text(command)));
    load
}

/// Workloads at rest on good content, whose source has these waves.
fn deployed(world: &World, count: usize, waves: &str) -> Vec<Load> {
    world.set_config("demo", "good");
    world.set_on_demo(&[&format!("waves={waves}"), "bake=10m", "unhealthy-after=5s", "on-failure=revert"]);
    let loads: Vec<_> = (0..count).map(|number| crashing(&format!("web-{number}"))).collect();
    for load in &loads {
        load.apply(world).ok();
    }
    for load in &loads {
        wait_printed(world, load, &["good"]);
    }
    loads
}

/// How many workloads have or had the bad content: each has a ReplicaSet with it.
fn reached(world: &World) -> usize {
    let bad = world.snapshot_name("demo", "bad");
    let sets = world.cluster.list("replicasets", world.name(), "");
    sets.iter().filter(|set| snapshot_of(&set["spec"]["template"], "demo").as_ref() == Some(&bad)).count()
}

/// Waits for the verdict on the bad content. Its Event is lost if the leader changes at that moment.
fn wait_refused(world: &World) {
    let bad = world.snapshot_name("demo", "bad");
    wait_for("the content to be refused", LIMIT, || {
        let snapshot = world.cluster.get("configmap", world.name(), &bad).ok_or("it has no snapshot")?;
        expect(&verdict(&snapshot)["failed"].is_object(), &true)
    });
}

fn wait_back(world: &World, loads: &[Load]) {
    wait_for("all workloads to be back", LIMIT, || {
        loads.iter().try_for_each(|load| load.resolves_to(world, "demo", "good"))
    });
    for load in loads {
        wait_printed(world, load, &["good"]);
    }
}

/// Its own controller reports a complete rollout before the container ends. No other workload follows.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn container_that_crashes_in_its_bake_goes_back() {
    let _confrev = running();
    let world = World::new("crash");
    let loads = deployed(&world, 3, "1");
    world.set_config("demo", "bad");
    wait_refused(&world);
    wait_back(&world, &loads);
    assert_eq!(reached(&world), 1, "workloads with the bad content");
}

/// They move at once and crash, unless the first is back before the last has moved. The way back has no waves, and keeps to the rate of
/// rolls. `CONFREV_CRASHES` sets their number.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn many_crashed_workloads_come_back() {
    let count = env::var("CONFREV_CRASHES").map_or(16, |count| count.parse().expect("a number"));
    let _confrev = running();
    let world = World::new("crash-many");
    let loads = deployed(&world, count, "100%");
    let before = Requests::of(world.cluster);
    world.set_config("demo", "bad");
    wait_for("the first crash", LIMIT, || {
        let has_crashed = |load: &Load| load.live(&world)["status"]["availableReplicas"].is_null();
        loads.iter().any(has_crashed).then_some(()).ok_or("none")
    });
    let crashed = Instant::now();
    wait_refused(&world);
    wait_back(&world, &loads);
    let reached = reached(&world);
    assert!(reached > 1, "the first of {count} was back before another moved");
    println!("{reached} of {count} workloads were back {:.0?} after the first crash", crashed.elapsed());
    println!("{}", Requests::of(world.cluster).since(&before));
}
