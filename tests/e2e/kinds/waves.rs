//! Waves: a change reaches few workloads, proves healthy, then reaches the rest.

use std::{
    collections::BTreeSet,
    slice::from_ref,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use confrev_controlplane::{holds_for, wait_for};
use jiff::SignedDuration;
use serde_json::json;

use crate::any_kind::Load;
use crate::gates::{close_gates, reads_until_broken, with_open_gates};
use crate::manifests;
use crate::rolls::{check_waves, moved_to, roll_time};
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
    close_gates(&mut load.manifest);
    load
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
    wait_for("all workloads to move", 4 * LIMIT, || expect(&moved_to(world, loads, wanted).len(), &6));
    let time = |load: &Load| roll_time(&load.live(world)).expect("the controller moved it");
    check_waves(loads.iter().map(time).collect(), &[1, 3], BAKE).unwrap();
}

/// The first workload fails with a bad content: no other one moves. The correction goes through all waves.
#[test]
fn failed_wave_holds_the_rest_until_corrected() {
    let _confrev = running();
    let world = World::new("waves");
    with_open_gates(
        from_ref(&world),
        |world, pod| world.pod_reads(pod, "demo"),
        || {
            let loads = six_in_waves(&world);
            world.set_config("demo", "better");
            moves_in_waves(&world, &loads, "better");

            world.set_config("demo", "bad");
            let first = wait_for("the first workload to move", LIMIT, || {
                moved_to(&world, &loads, "bad").pop_first().ok_or("no workload has moved")
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
            let alone = || expect(&moved_to(&world, &loads, "bad"), &BTreeSet::from([first.clone()]));
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
        },
    );
}

/// The workload that moved first loses its pods in its bake. Another one proves the content in its place.
#[test]
fn workload_without_pods_proves_nothing() {
    let _confrev = running();
    let world = World::new("waves-idle");
    let bake = SignedDuration::from_secs(6);
    world.set_config("demo", "A");
    let annotations = ["confrev.dev/waves=1".to_owned(), format!("confrev.dev/bake={}s", bake.as_secs())];
    world.kubectl(&["annotate", "configmap/demo", &annotations[0], &annotations[1]]).ok();
    let loads: Vec<_> = (0..3)
        .map(|number| Load::new("deployments", &format!("web-{number}"), &["demo"]))
        .map(|load| load.spec(json!({"replicas": 1})))
        .collect();
    let all: Vec<_> = loads.iter().map(|load| load.manifest.clone()).collect();
    world.apply(&manifests::list(&all)).ok();
    for load in &loads {
        load.wait_reads(&world, "demo", &["A"]);
    }
    world.set_config("demo", "B");
    let first = wait_for("the first workload to move", LIMIT, || {
        moved_to(&world, &loads, "B").pop_first().ok_or("no workload has moved")
    });
    let (idle, others): (Vec<_>, Vec<_>) = loads.iter().partition(|load| load.name == first);
    idle[0].patch(&world, &json!({"spec": {"replicas": 0}}));
    wait_for("all workloads to move", LIMIT, || expect(&moved_to(&world, &loads, "B").len(), &3));
    let mut times: Vec<_> =
        others.iter().map(|load| roll_time(&load.live(&world)).expect("the controller moved it")).collect();
    times.sort();
    let between = times[1].duration_since(times[0]);
    assert!(between >= bake, "the last one moved {between} after the second one");
}

/// Its own controller reports no failure: the rollout is complete when the pods break.
#[test]
fn workload_that_breaks_in_its_bake_goes_back() {
    let _confrev = running();
    let world = World::new("waves-broken");
    let is_broken = AtomicBool::new(false);
    with_open_gates(from_ref(&world), reads_until_broken(&is_broken), || {
        world.set_config("demo", "A");
        world.set_on_demo(&["waves=1", "bake=5m", "unhealthy-after=2s", "on-failure=revert"]);
        let loads = [0, 2].map(gated);
        for load in &loads {
            load.apply(&world).ok();
            load.wait_reads(&world, "demo", &["A"]);
        }
        world.set_config("demo", "B");
        let first = wait_for("the first workload to move", LIMIT, || {
            moved_to(&world, &loads, "B").pop_first().ok_or("no workload has moved")
        });
        let moved = loads.iter().find(|load| load.name == first).expect("one of the workloads");
        world.kubectl(&["rollout", "status", &moved.reference(), "--timeout=60s"]).ok();
        moved.wait_reads(&world, "demo", &["B"]);

        is_broken.store(true, Ordering::Relaxed);
        let pods = world.cluster.ready_pods(world.name(), &format!("app={first}"));
        for pod in &pods {
            world.delete("pod", &name_of(pod));
        }
        moved.wait_reads(&world, "demo", &["A"]);
        assert_eq!(moved_to(&world, &loads, "B"), BTreeSet::new());
        let events = || world.cluster.list("events", world.name(), "");
        wait_for("an Event with the reason", LIMIT, || {
            let said: Vec<_> = events().iter().map(|event| text(&event["message"])).collect();
            let is_named = |said: &String| said.contains("not available for 2 s in its bake time");
            if said.iter().any(is_named) { Ok(()) } else { Err(said.join("\n")) }
        });
    });
}

/// The controller of Rollouts writes them in the notation of its types, so a sync differs from what is stored.
#[test]
fn sync_of_unchanged_rollouts_follows_the_waves() {
    let _confrev = running();
    let world = World::new("waves-notation");
    let loads: Vec<_> = (0..4)
        .map(|number| {
            let mut load = Load::new("rollouts", &format!("web-{number}"), &["demo"]);
            let container = &mut load.manifest["spec"]["template"]["spec"]["containers"][0];
            container["resources"] = json!({"limits": {"cpu": 1, "memory": "1024Mi"}});
            container["readinessProbe"] = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": 0});
            container["volumeMounts"][0]["readOnly"] = json!(false);
            let cpu = json!({"resourceFieldRef": {"resource": "limits.cpu"}});
            container["env"] = json!([{"name": "CPU", "valueFrom": cpu}]);
            load.spec(json!({"replicas": 1}))
        })
        .collect();
    let sync = |content: &str| {
        let mut source = manifests::config_map("demo", content);
        source["metadata"]["annotations"] = json!({"confrev.dev/waves": "1", "confrev.dev/bake": "10m"});
        let all = loads.iter().map(|load| load.manifest.clone());
        world.apply(&manifests::list(&std::iter::once(source).chain(all).collect::<Vec<_>>())).ok();
    };
    sync("A");
    for load in &loads {
        load.wait_reads(&world, "demo", &["A"]);
        wait_for("the notation of the types", LIMIT, || {
            let live = load.live(&world);
            let container = &live["spec"]["template"]["spec"]["containers"][0];
            expect(&container["resources"]["limits"]["cpu"], &json!("1"))?;
            expect(&container["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"], &json!("0"))
        });
    }
    sync("B");
    let moved = || expect(&moved_to(&world, &loads, "B").len(), &1);
    wait_for("the first workload to move", LIMIT, moved);
    holds_for("the wave", Duration::from_secs(4), moved);
}

/// A chart writes the hash of the content into the template, so an upgrade moves every workload.
#[test]
fn checksum_of_a_chart_is_warned_about() {
    let _confrev = running();
    let world = World::new("waves-checksum");
    let upgrade = |content: &str| {
        let mut source = manifests::config_map("demo", content);
        source["metadata"]["annotations"] = json!({"confrev.dev/waves": "1"});
        let mut web = Load::new("deployments", "web", &["demo"]).spec(json!({"replicas": 0}));
        web.manifest["spec"]["template"]["metadata"]["annotations"] = json!({"checksum/config": content});
        world.apply(&manifests::list(&[source, web.manifest]))
    };
    upgrade("A").ok();
    let upgraded = upgrade("B");
    assert!(upgraded.stderr.contains("annotation checksum/config"), "{}", upgraded.stderr);
    upgraded.ok();
}

/// Another source of the set follows a moment later.
#[test]
fn workload_between_writes_of_set_is_warned() {
    let _confrev = running();
    let world = World::new("set-begins");
    for (name, version) in [("db", "shop/1"), ("demo", "shop/2")] {
        let mut source = manifests::config_map(name, version);
        source["metadata"]["annotations"] = json!({"confrev.dev/set": version});
        world.apply(&source).ok();
    }
    let web = Load::new("deployments", "web", &["db", "demo"]).spec(json!({"replicas": 0}));
    let created = web.apply(&world);
    assert!(created.stderr.contains("begins with different versions of the set shop"), "{}", created.stderr);
    created.ok();
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
