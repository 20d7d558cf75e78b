//! Many workloads break at once with a content, and all go back.

use std::collections::BTreeSet;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use confrev_controlplane::wait_for;
use confrev_test_support::{
    gates::{close_gates, reads_until_broken, with_open_gates},
    requests::Requests,
};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, snapshot_of};

const WORKLOADS: usize = 100;

/// How many Deployments have ended their rollout with this snapshot.
fn settled(world: &World, snapshot: &str) -> usize {
    let has_ended = |one: &&Value| {
        let status = &one["status"];
        let counts = ["replicas", "updatedReplicas", "availableReplicas"];
        status["observedGeneration"] == one["metadata"]["generation"]
            && counts.iter().all(|count| status[*count] == 1)
            && snapshot_of(&one["spec"]["template"], "demo").as_deref() == Some(snapshot)
    };
    world.cluster.list("deployments", world.name(), "").iter().filter(has_ended).count()
}

fn wait_settled(world: &World, content: &str) {
    let snapshot = manifests::snapshot_of_demo(&json!({"text": content}));
    let what = format!("all workloads to run with {content:?}");
    wait_for(&what, 4 * LIMIT, || expect(&settled(world, &snapshot), &WORKLOADS));
}

/// Waits until none of the pods with these uids is left.
fn wait_lost(world: &World, lost: &BTreeSet<String>) {
    wait_for("the pods to be lost", 4 * LIMIT, || expect(&pods(world).intersection(lost).count(), &0));
}

/// The uids of the pods.
fn pods(world: &World) -> BTreeSet<String> {
    world
        .cluster
        .list("pods", world.name(), "")
        .iter()
        .map(|pod| pod["metadata"]["uid"].to_string())
        .collect()
}

/// Their own controllers have reported complete rollouts when all pods are lost, and those in their place do not start.
#[test]
#[ignore = "takes minutes: `make test-waves`"]
fn many_broken_workloads_come_back() {
    let _confrev = running();
    let world = World::new("broken");
    let is_broken = AtomicBool::new(false);
    let gated = |number: usize| {
        let mut load = Load::new("deployments", &format!("web-{number}"), &["demo"]);
        close_gates(&mut load.manifest);
        load.spec(json!({"replicas": 1})).manifest
    };
    with_open_gates(from_ref(&world), reads_until_broken(&is_broken), || {
        world.set_config("demo", "A");
        world.set_on_demo(&["waves=100%", "bake=10m", "unhealthy-after=5s", "on-failure=revert"]);
        world.apply(&manifests::list(&(0..WORKLOADS).map(gated).collect::<Vec<_>>())).ok();
        wait_settled(&world, "A");
        let at_start = Requests::of(world.cluster);
        let lost = pods(&world);
        let start = Instant::now();
        world.kubectl(&["delete", "pods", "--all", "--wait=false"]).ok();
        wait_lost(&world, &lost);
        wait_settled(&world, "A");
        println!("without a change, {WORKLOADS} workloads were back after {:.0?}", start.elapsed());
        println!("{}", Requests::of(world.cluster).since(&at_start));

        world.set_config("demo", "B");
        wait_settled(&world, "B");

        let at_start = Requests::of(world.cluster);
        is_broken.store(true, Ordering::Relaxed);
        world.kubectl(&["delete", "pods", "--all", "--wait=false"]).ok();
        let broken = Instant::now();
        wait_settled(&world, "A");
        println!("{WORKLOADS} workloads were back after {:.0?}", broken.elapsed());
        println!("{}", Requests::of(world.cluster).since(&at_start));
    });
}
