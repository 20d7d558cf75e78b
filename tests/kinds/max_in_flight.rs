//! How far a change spreads before it has proved sound.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::load::Load;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

const WORKLOADS: usize = 6;

/// Pods start only once the test has looked at what they read: it stands for programs that fail on bad content.
fn gated(name: &str) -> Load {
    // Time enough for a sound pod on a busy machine.
    let mut load = Load::new("deployments", name, &["demo"]).spec(json!({"progressDeadlineSeconds": 8}));
    load.manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/sound"}]);
    load
}

/// Lets pods start: those that read `bad` of the first workload to have such a pod only.
fn open_gates(world: &World, first: &Mutex<Option<String>>) {
    for pod in world.cluster.list("pods", world.name(), "") {
        if pod["spec"]["schedulingGates"].is_null() {
            continue;
        }
        let app = text(&pod["metadata"]["labels"]["app"]);
        if world.pod_reads(&pod, "demo") == "bad"
            && *first.lock().unwrap().get_or_insert_with(|| app.clone()) != app
        {
            continue;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", world.name(), name_of(&pod));
        let change = json!({"spec": {"schedulingGates": null}});
        // It may be gone meanwhile.
        let _ = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    }
}

/// Ends the kubelet's part, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_change_that_breaks_the_second_workload_is_held_from_the_others_until_it_is_corrected() {
    let _confrev = running();
    let world = World::new("in-flight");
    let (stopped, first) = (AtomicBool::new(false), Mutex::new(None));
    thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                open_gates(&world, &first);
                thread::sleep(Duration::from_millis(100));
            }
        });
        held_and_corrected(&world);
    });
}

fn held_and_corrected(world: &World) {
    world.set_config("demo", "good");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
    let loads: Vec<_> = (0..WORKLOADS).map(|i| gated(&format!("web-{i}"))).collect();
    for load in &loads {
        load.apply(world).ok();
    }
    for load in &loads {
        load.wait_reads(world, "demo", &["good"]);
    }
    let on =
        |wanted: &str| loads.iter().filter(|load| load.resolves_to(world, "demo", wanted).is_ok()).count();

    world.set_config("demo", "bad");
    let held = || world.cluster.list("events", world.name(), "").into_iter().find(is_hold);
    let event = wait_for("an Event on the ConfigMap", LIMIT, || {
        let taken = on("bad");
        assert!(taken <= 2, "{taken} workloads took the bad content");
        held().ok_or(taken)
    });
    assert_eq!(event["involvedObject"]["name"], "demo", "{event}");
    holds_for("the hold", Duration::from_secs(4), || expect(&(on("bad"), on("good")), &(2, WORKLOADS - 2)));
    let reads = loads.iter().flat_map(|load| load.reads(world, "demo")).collect::<Vec<_>>();
    assert_eq!(reads.iter().filter(|text| *text == "good").count(), WORKLOADS - 1, "{reads:?}");

    world.set_config("demo", "better");
    for load in &loads {
        load.wait_reads(world, "demo", &["better"]);
    }
    let sets = world.cluster.list("replicasets", world.name(), "");
    let templates = sets.iter().map(|set| text(&set["metadata"]["labels"]["confrev.dev/revision"]));
    assert_eq!(templates.collect::<BTreeSet<_>>().len(), 3);
    // Two of each that had the bad content as well.
    assert_eq!(sets.len(), 2 * WORKLOADS + 2);
}

fn is_hold(event: &Value) -> bool {
    event["reason"] == "RollHeld" && event["involvedObject"]["kind"] == "ConfigMap"
}
