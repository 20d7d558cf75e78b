//! A ConfigMap that changes all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::any_kind::Load;
use crate::rolls::roll_time;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, snapshot_of};

/// How long the ConfigMap changes.
const STORM: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A workload of each kind of revision, and its minimum number of seconds between two rolls.
fn loads() -> Vec<(Load, i64)> {
    let load = |kind, name: &str, seconds: i64| {
        // Every revision is kept, so that the test can count rolls.
        let spec = json!({"revisionHistoryLimit": 100});
        let mut load =
            Load::new(kind, name, &["demo"]).spec(spec).annotation("min-interval", &format!("{seconds}s"));
        if kind != "daemonsets" {
            load = load.spec(json!({"replicas": 1}));
        }
        (load, seconds)
    };
    vec![
        load("deployments", "quick", 2),
        load("rollouts", "rollout", 3),
        load("statefulsets", "set", 5),
        load("daemonsets", "daemon", 7),
        load("deployments", "slow", 20),
    ]
}

/// The observed times of confrev's rolls, by workload.
#[derive(Default)]
struct Rolls(BTreeMap<String, BTreeSet<Timestamp>>);

impl Rolls {
    fn look(rolls: &Mutex<Self>, world: &World, loads: &[(Load, i64)]) {
        for (load, _) in loads {
            let at = roll_time(&load.live(world));
            rolls.lock().expect("no panic").0.entry(load.name.clone()).or_default().extend(at);
        }
    }

    /// Whether each workload has rolled twice.
    fn have_distances(&self) -> bool {
        self.0.values().all(|rolls| rolls.len() >= 2)
    }
}

/// Runs `all` and records the rolls meanwhile. The checks are frequent: of two rolls between two checks, only the
/// second would be recorded.
fn watched<T>(world: &World, loads: &[(Load, i64)], all: impl FnOnce(&Mutex<Rolls>) -> T) -> (Rolls, T) {
    let rolls = Mutex::new(Rolls::default());
    let value = thread::scope(|scope| {
        // The sender is dropped at the end, also by a panic.
        let (going_on, end) = mpsc::channel::<()>();
        scope.spawn({
            let rolls = &rolls;
            move || loop {
                let goes_on = end.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout);
                // One more check after the end includes the last roll.
                Rolls::look(rolls, world, loads);
                if !goes_on {
                    return;
                }
            }
        });
        let value = all(&rolls);
        drop(going_on);
        value
    });
    (rolls.into_inner().expect("no panic"), value)
}

/// Writes the ConfigMap during the storm; returns the number of writes. A busy machine takes longer until each workload has rolled twice.
fn changed_all_the_time(world: &World, rolls: &Mutex<Rolls>, start: Instant) -> u32 {
    let path = format!("/api/v1/namespaces/{}/configmaps/demo", world.name());
    let mut changes = 0_u32;
    let have_distances = || rolls.lock().expect("no panic").have_distances();
    while start.elapsed() < STORM || (start.elapsed() < 5 * STORM && !have_distances()) {
        changes += 1;
        let change = json!({"data": {"text": changes.to_string()}});
        let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
        assert_eq!(code, 200, "{answer}");
        // The rest of the pause. The distance of the writes is part of the scenario; the test waits for nothing here.
        thread::sleep((PAUSE * changes).saturating_sub(start.elapsed()));
    }
    changes
}

/// The snapshots that the templates of workloads and revisions name.
fn in_use(world: &World, loads: &[(Load, i64)]) -> BTreeSet<String> {
    let mut templates: Vec<_> = loads.iter().map(|(load, _)| load.stored(world)).collect();
    for kind in ["replicasets", "controllerrevisions"] {
        let revisions = world.cluster.list(kind, world.name(), "");
        let pointers = ["/spec/template", "/data/spec/template"];
        templates
            .extend(revisions.iter().flat_map(|r| pointers.iter().filter_map(|p| r.pointer(p).cloned())));
    }
    templates.iter().filter_map(|template| snapshot_of(template, "demo")).collect()
}

/// The ConfigMap changes ten times a second. At the end, only the snapshots in use are left.
#[test]
fn changing_configmap_rolls_once_per_min_interval() {
    let confrev = running();
    let world = World::new("storm");
    let loads = loads();
    world.set_config("demo", "0");
    for (load, _) in &loads {
        load.apply(&world).ok();
        load.wait_reads(&world, "demo", &["0"]);
    }
    let before: Vec<_> = loads.iter().map(|(load, _)| load.changes(&world)).collect();
    // From here on, other tests may kill confrev during the storm.
    drop(confrev);

    let (rolls, (changes, _confrev)) = watched(&world, &loads, |rolls| {
        let changes = changed_all_the_time(&world, rolls, Instant::now());
        let confrev = running();
        let last = changes.to_string();
        for (load, _) in &loads {
            load.wait_resolved(&world, "demo", &last);
            load.wait_reads(&world, "demo", &[&last]);
        }
        (changes, confrev)
    });
    for ((load, seconds), before) in loads.iter().zip(before) {
        let rolls: Vec<_> = rolls.0[&load.name].iter().copied().collect();
        for pair in rolls.windows(2) {
            let apart = pair[1].duration_since(pair[0]);
            assert!(apart >= SignedDuration::from_secs(*seconds), "{} rolled at {rolls:?}", load.name);
        }
        assert!(rolls.len() >= 2, "{} rolled at {rolls:?} of {changes} changes", load.name);
        // The test has seen every roll: each makes one revision, or none if the workload's own controller is late.
        let changes = load.changes(&world);
        assert!(
            changes <= before + rolls.len(),
            "{} changed {changes} times, rolled at {rolls:?}",
            load.name
        );
    }
    only_what_is_used_is_left(&world, &loads);
}

/// The newest snapshot, which the source keeps, is in use as well.
fn only_what_is_used_is_left(world: &World, loads: &[(Load, i64)]) {
    let present = || world.snapshots().iter().map(name_of).collect::<BTreeSet<_>>();
    wait_for("unused snapshots to be deleted", LIMIT, || expect(&present(), &in_use(world, loads)));
    holds_for("the set of used snapshots", Duration::from_secs(3), || {
        expect(&present(), &in_use(world, loads))
    });
}
