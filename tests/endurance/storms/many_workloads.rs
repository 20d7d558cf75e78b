//! One ConfigMap with 500 workloads.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use jiff::Timestamp;
use serde_json::Value;

use crate::manifests::{Kind, Workload};
use crate::rolls::roll_time;
use crate::shared::ROLL_RATE;
use crate::shared::running;
use crate::world::{World, expect, snapshot_of};

const WORKLOADS: usize = 500;
const THREADS: usize = 8;
/// The time that the control plane's own controllers need for all workloads on a busy machine.
const LIMIT: Duration = Duration::from_mins(3);

/// Creates the workloads in parallel.
fn create(world: &World) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || {
                for number in (first..WORKLOADS).step_by(THREADS) {
                    let kind = Kind::ALL[number % Kind::ALL.len()];
                    let workload = Workload::new(kind, &format!("web-{number}"), &["demo"]).replicas(0);
                    world.cluster.create(kind.name(), world.name(), &workload.manifest());
                }
            });
        }
    });
}

fn workloads(world: &World) -> Vec<Value> {
    Kind::ALL.iter().flat_map(|kind| world.cluster.list(kind.name(), world.name(), "")).collect()
}

/// The number of ReplicaSets of each snapshot.
fn replica_sets(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for set in world.cluster.list("replicasets", world.name(), "") {
        *counts.entry(snapshot_of(&set["spec"]["template"], "demo").unwrap_or_default()).or_default() += 1;
    }
    counts
}

/// In any period, the number of rolls is limited by the rate and its burst.
#[test]
fn rolls_500_workloads_once_within_the_rate() {
    let confrev = running();
    let world = World::new("many");
    world.set_config("demo", "A");
    create(&world);
    let old = world.snapshot_name("demo", "A");
    let only_old = BTreeMap::from([(old.clone(), WORKLOADS)]);
    wait_for("the first ReplicaSets", LIMIT, || expect(&replica_sets(&world), &only_old));

    world.set_config("demo", "B");
    let new = world.snapshot_name("demo", "B");
    let both = BTreeMap::from([(old, WORKLOADS), (new.clone(), WORKLOADS)]);
    wait_for("a new ReplicaSet of each workload", LIMIT, || expect(&replica_sets(&world), &both));
    holds_for("two ReplicaSets of each workload", Duration::from_secs(3), || {
        expect(&replica_sets(&world), &both)
    });

    let all = workloads(&world);
    let mut rolls: Vec<Timestamp> = Vec::new();
    for workload in &all {
        assert_eq!(snapshot_of(&workload["spec"]["template"], "demo").as_ref(), Some(&new));
        rolls.push(roll_time(workload).expect("confrev's own"));
    }
    rolls.sort();
    assert_eq!(rolls.len(), WORKLOADS);
    // In any period, the number of rolls is at most the rate's, plus a burst of one second.
    for (first, from) in rolls.iter().enumerate() {
        for (last, to) in rolls.iter().enumerate().skip(first) {
            let seconds = to.duration_since(*from).as_secs_f64();
            // Times are written in milliseconds.
            let limit = f64::from(ROLL_RATE) * (seconds + 1.002) + 1.0;
            let count = u32::try_from(last - first + 1).expect("it is small");
            assert!(f64::from(count) <= limit, "{count} rolls from {from} to {to}, at most {limit}");
        }
    }
    let rolled = confrev.metric("confrev_rolls_total{outcome=\"rolled\"}");
    assert!(rolled >= 500.0, "{rolled} rolls are counted");
    // The old snapshot is kept by its ReplicaSets, the new one by its ReplicaSets and its source.
    assert_eq!(world.snapshot_texts("demo"), ["A", "B"]);
}
