//! Waves: a change reaches few workloads, proves healthy, then reaches the rest.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::any_kind::Load;
use crate::manifests;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

/// How long the moved workloads must stay healthy.
const BAKE: SignedDuration = SignedDuration::from_secs(4);
/// A workload whose pods start only when the test has checked the content that they read.
fn gated(number: usize) -> Load {
    let kind = ["deployments", "statefulsets"][number % 2];
    let mut load = Load::new(kind, &format!("web-{number}"), &["demo"]).spec(json!({"replicas": 1}));
    if kind == "statefulsets" {
        // Otherwise the controller waits forever for a pod that does not start.
        load = load.spec(json!({"podManagementPolicy": "Parallel"}));
    }
    load.manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/sound"}]);
    load
}

/// Lets pods start, except those that read `bad`.
fn open_gates(world: &World) {
    for pod in world.cluster.list("pods", world.name(), "") {
        if pod["spec"]["schedulingGates"].is_null() || world.pod_reads(&pod, "demo") == "bad" {
            continue;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", world.name(), name_of(&pod));
        let change = json!({"spec": {"schedulingGates": null}});
        // The pod may be deleted meanwhile.
        let _ = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    }
}

/// Sets a flag, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The names of the workloads whose templates have this content.
fn on(world: &World, loads: &[Load], wanted: &str) -> BTreeSet<String> {
    let on = loads.iter().filter(|load| load.resolves_to(world, "demo", wanted).is_ok());
    on.map(|load| load.name.clone()).collect()
}

/// Six workloads on `good`, of a source with waves.
fn six_in_waves(world: &World) -> Vec<Load> {
    world.set_config("demo", "good");
    let bake = format!("confrev.dev/bake={}s", BAKE.as_secs());
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1, 50%", &bake]).ok();
    let loads: Vec<_> = (0..6).map(gated).collect();
    let all: Vec<_> = loads.iter().map(|load| load.manifest.clone()).collect();
    world.apply(&manifests::list(&all)).ok();
    for load in &loads {
        load.wait_reads(world, "demo", &["good"]);
    }
    loads
}

/// Waits until all workloads have moved, and checks by the times of their rolls that no wave began early.
fn moves_in_waves(world: &World, loads: &[Load], wanted: &str) {
    wait_for("all workloads to move", 4 * LIMIT, || expect(&on(world, loads, wanted).len(), &6));
    let time = |load: &Load| {
        let roll = text(&load.live(world)["metadata"]["annotations"]["confrev.dev/roll"]);
        roll.strip_prefix("auto-").and_then(|time| time.parse::<Timestamp>().ok()).expect("a time")
    };
    let mut times: Vec<_> = loads.iter().map(time).collect();
    times.sort();
    for (end, next) in [(0, 1), (2, 3)] {
        let between = times[next].duration_since(times[end]);
        assert!(between >= BAKE, "from {end} to {next}: {between:?} of {times:?}");
    }
}

/// The first workload fails with a bad content: no other one moves. The correction goes through all waves.
#[test]
fn failed_wave_holds_the_rest_until_corrected() {
    let stopped = AtomicBool::new(false);
    let _confrev = running();
    let world = World::new("waves");
    thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                open_gates(&world);
                thread::sleep(Duration::from_millis(100));
            }
        });
        let loads = six_in_waves(&world);
        world.set_config("demo", "better");
        moves_in_waves(&world, &loads, "better");

        world.set_config("demo", "bad");
        let first = wait_for("the first workload to move", LIMIT, || {
            on(&world, &loads, "bad").pop_first().ok_or("no workload has moved")
        });
        let failing = loads.iter().find(|load| load.name == first).expect("one of the workloads");
        if failing.kind().name == "Deployment" {
            failing.patch(&world, &json!({"spec": {"progressDeadlineSeconds": 1}}));
        } else {
            failing.annotate(&world, "progress-deadline", Some("1s"));
        }
        let events = || world.cluster.list("events", world.name(), "");
        let held = || events().into_iter().find(|event| event["reason"] == "RollHeld");
        let event = wait_for("an Event on the ConfigMap", LIMIT, || held().ok_or("no Event"));
        assert!(text(&event["message"]).contains(&first), "{event}");
        let alone = || expect(&on(&world, &loads, "bad"), &BTreeSet::from([first.clone()]));
        holds_for("the hold", Duration::from_secs(6), alone);
        // A sync of all workloads moves none of them.
        let all: Vec<_> = loads.iter().map(|load| load.manifest.clone()).collect();
        world.apply(&manifests::list(&all)).ok();
        holds_for("the hold after a sync", Duration::from_secs(3), alone);

        if failing.kind().name != "Deployment" {
            failing.annotate(&world, "progress-deadline", None);
        }
        world.set_config("demo", "best");
        moves_in_waves(&world, &loads, "best");
    });
}

/// The API server refuses settings that could not be followed, whether a workload uses the source or not.
#[test]
fn invalid_waves_are_refused() {
    let _confrev = running();
    let world = World::new("waves-invalid");
    world.set_config("demo", "A");
    for (setting, says) in [
        ("waves=half", "\"half\" is not allowed, use ascending counts and percentages"),
        ("waves=10%, 5%", "is not allowed"),
        ("bake=5m", "has no effect without confrev.dev/waves"),
        ("bake=soon", "a duration"),
        ("on-failure=undo", "use \"hold\" or \"revert\""),
    ] {
        let setting = format!("confrev.dev/{setting}");
        let refused = world.kubectl(&["annotate", "configmap/demo", &setting]).refused();
        assert!(refused.contains(says) && refused.contains("ConfigMap \"demo\""), "{setting}: {refused}");
    }
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1,10%", "confrev.dev/bake=5m"]).ok();
    let web = Load::new("deployments", "web", &["demo"]).spec(json!({"replicas": 0}));
    for (key, value) in [("order", "first"), ("progress-deadline", "0s")] {
        let refused = world.apply(&web_with(key, value)).refused();
        assert!(refused.contains(key), "{refused}");
    }
    web.annotation("order", "-1").annotation("progress-deadline", "1h").apply(&world).ok();
}

fn web_with(key: &str, value: &str) -> serde_json::Value {
    Load::new("deployments", "web", &["demo"]).annotation(key, value).manifest
}
