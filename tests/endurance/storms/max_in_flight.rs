//! How far a change spreads before it has proved good, also across restarts of confrev.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};
use confrev_test_support::gates::close_gates;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::restart::restarted;
use crate::shared::{Running, held_workloads, running};
use crate::world::{LIMIT, World, expect, name_of, text};

const WORKLOADS: usize = 20;
/// The workloads roll one after the other, and each waits for its pods to start.
const ALL_IN_TURN: Duration = Duration::from_mins(4);

/// A workload whose pods start only after the test has checked the content that they read. This simulates a program
/// that fails with bad content.
pub(crate) fn gated(number: usize) -> Load {
    let kind = if number.is_multiple_of(2) { "deployments" } else { "rollouts" };
    let name = format!("web-{number}");
    // The deadline is long: no workload fails by itself on a busy machine.
    let mut load = Load::new(kind, &name, &["demo"])
        .spec(json!({"replicas": 1, "progressDeadlineSeconds": 3600, "revisionHistoryLimit": 10}));
    close_gates(&mut load.manifest);
    load
}

/// The workloads that start even with the bad content.
pub(crate) type Sound = Mutex<BTreeSet<String>>;

/// Lets pods start, except those that read `bad`.
pub(crate) fn open_gates(world: &World, sound: &Sound) {
    for pod in world.cluster.list("pods", world.name(), "") {
        if pod["spec"]["schedulingGates"].is_null() {
            continue;
        }
        let app = text(&pod["metadata"]["labels"]["app"]);
        if world.pod_reads(&pod, "demo") == "bad" && !sound.lock().unwrap().contains(&app) {
            continue;
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", world.name(), name_of(&pod));
        let change = json!({"spec": {"schedulingGates": null}});
        // The pod may be deleted meanwhile.
        let _ = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
    }
}

/// Stops the thread that opens the gates, however the test ends.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The change fails at the second of 20 workloads. The hold outlasts restarts of confrev.
#[test]
fn failed_change_is_held_until_corrected() {
    let (stopped, sound) = (AtomicBool::new(false), Sound::default());
    let _alone = held_workloads();
    let confrev = running();
    let world = World::new("in-flight");
    thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                open_gates(&world, &sound);
                thread::sleep(Duration::from_millis(100));
            }
        });
        held_and_corrected(&world, &sound, confrev);
    });
}

/// The names of the workloads whose templates have this content.
pub(crate) fn on(world: &World, loads: &[Load], wanted: &str) -> BTreeSet<String> {
    let on = loads.iter().filter(|load| load.resolves_to(world, "demo", wanted).is_ok());
    on.map(|load| load.name.clone()).collect()
}

fn held_and_corrected(world: &World, sound: &Sound, confrev: Running) {
    world.set_config("demo", "good");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
    let loads: Vec<_> = (0..WORKLOADS).map(gated).collect();
    world
        .apply(&crate::manifests::list(&loads.iter().map(|load| load.manifest.clone()).collect::<Vec<_>>()))
        .ok();
    for load in &loads {
        load.wait_reads(world, "demo", &["good"]);
    }

    // The first workload stays in progress: the others wait for it, regardless of which replica leads.
    world.set_config("demo", "bad");
    let first = wait_for("the first workload to roll", LIMIT, || {
        on(world, &loads, "bad").pop_first().ok_or("no workload has rolled")
    });
    let alone = || expect(&on(world, &loads, "bad"), &BTreeSet::from([first.clone()]));
    holds_for("the wait of the other workloads", Duration::from_secs(3), alone);
    let confrev = restarted(confrev, Program::stop, || {});
    holds_for("the wait of the other workloads after a restart", Duration::from_secs(4), alone);

    // The first workload starts after all; the second workload fails.
    sound.lock().unwrap().insert(first.clone());
    let both = wait_for("a second workload to roll", LIMIT, || {
        let both = on(world, &loads, "bad");
        if both.len() > 1 { Ok(both) } else { Err(format!("{both:?}")) }
    });
    assert_eq!(both.len(), 2, "{both:?}");
    let second = both.iter().find(|name| **name != first).expect("a second workload");
    let failing = loads.iter().find(|load| load.name == *second).expect("one of the workloads");
    failing.patch(world, &json!({"spec": {"progressDeadlineSeconds": 1}}));
    let held = || world.cluster.list("events", world.name(), "").into_iter().find(is_hold);
    let event = wait_for("an Event on the ConfigMap", LIMIT, || held().ok_or("no Event"));
    assert_eq!(event["involvedObject"]["name"], "demo", "{event}");
    assert!(text(&event["message"]).contains(second.as_str()), "{event}");
    let hold = || expect(&on(world, &loads, "bad"), &both);
    holds_for("the hold", Duration::from_secs(3), hold);
    let all = f64::from(u32::try_from(WORKLOADS).unwrap());
    let metric = |confrev: &Running| {
        let held = confrev.metric("confrev_blocked_workloads");
        // The failed workload keeps the content that it rolled to. No other test has held workloads now.
        expect(&held, &(all - 2.0))
    };
    wait_for("the metric of held workloads", LIMIT, || metric(&confrev));
    let confrev = restarted(confrev, Program::kill, || {});
    wait_for("the same metric after a restart", LIMIT, || metric(&confrev));
    holds_for("the hold after a restart", Duration::from_secs(4), hold);
    let reads = loads.iter().flat_map(|load| load.reads(world, "demo")).collect::<Vec<_>>();
    assert_eq!(reads.iter().filter(|text| *text == "good").count(), WORKLOADS - 1, "{reads:?}");

    corrected(world, &loads, &confrev);
}

fn corrected(world: &World, loads: &[Load], confrev: &Running) {
    world.set_config("demo", "better");
    wait_for("all workloads to roll to the correction in turn", ALL_IN_TURN, || {
        let on = on(world, loads, "better").len();
        if on == WORKLOADS { Ok(()) } else { Err(on) }
    });
    for load in loads {
        load.wait_reads(world, "demo", &["better"]);
    }
    wait_for("the metric to report no held workloads", LIMIT, || {
        expect(&confrev.metric("confrev_blocked_workloads"), &0.0)
    });
    let sets = world.cluster.list("replicasets", world.name(), "");
    let templates = sets.iter().map(|set| text(&set["metadata"]["labels"]["confrev.dev/revision"]));
    assert_eq!(templates.collect::<BTreeSet<_>>().len(), 3);
    // Two ReplicaSets of each workload, and a third one of the two workloads that had the bad content.
    assert_eq!(sets.len(), 2 * WORKLOADS + 2);
}

fn is_hold(event: &Value) -> bool {
    event["reason"] == "RollHeld" && event["involvedObject"]["kind"] == "ConfigMap"
}
