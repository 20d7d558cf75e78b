//! Waves of a change: the workloads that a leader rolls, which knows the cluster's own state only.

use std::collections::BTreeSet;

use confrev::{
    annotations,
    controller::{Action, Outcome},
    resolve::Health::{self, Failed, Progressing, Settled, Unavailable},
    telemetry::metrics::Reason,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, observed, record, stored},
    story::poke,
    world::{World, configmap},
};

/// When the first workload moved.
const START: i64 = 2_000_000;

fn waves() -> Value {
    json!({annotations::WAVES: "1, 75%", annotations::BAKE: "60s"})
}

fn set(world: &mut World, color: &str) {
    world.set("demo", json!({"color": color}));
    world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"] = waves();
}

/// Four workloads, of which some have moved: by second after the start, and by health.
fn workloads(moved: &[(i64, Health)]) -> Vec<(String, Value, Health)> {
    let mut world = World::default();
    set(&mut world, "blue");
    let mut all: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| (name.to_owned(), stored(&mut world, name), Settled))
        .into_iter()
        .collect();
    set(&mut world, "green");
    for ((_, object, health), (second, now)) in all.iter_mut().zip(moved) {
        (*object, *health) = (poke(&mut world, object, START + second), *now);
    }
    all
}

/// The names of the workloads that a new leader rolls within a few seconds, and the reasons of its Events.
fn rolled_by_new_leader(
    workloads: &[(String, Value, Health)],
    annotations: &Value,
    second: i64,
) -> (BTreeSet<String>, Vec<Reason>) {
    let mut desk = Desk::new();
    desk.now = Timestamp::from_second(START + second).unwrap();
    for (name, object, health) in workloads {
        desk.state.apply_workload(&key(name), Some(record(object, *health)), desk.now);
    }
    let (mut rolled, mut reasons) = (BTreeSet::new(), Vec::new());
    for _ in 0..4 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => {
                    let green = observed(json!({"color": "green"}), annotations.clone(), "2");
                    Outcome::Read(Some(Box::new(green)))
                }
                // The roll stays in progress.
                Action::Poke { workload, .. } => {
                    rolled.insert(workload.name.to_string());
                    continue;
                }
                Action::WriteEvent(event) => {
                    reasons.push(event.reason);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.pass(1);
    }
    (rolled, reasons)
}

#[test]
fn new_leader_continues_the_wave() {
    for (moved, second, count) in [
        (&[][..], 0, 1),
        (&[(0, Settled)], 50, 0),
        (&[(0, Settled)], 61, 2),
        (&[(0, Progressing)], 1000, 0),
        (&[(0, Unavailable)], 1000, 0),
        (&[(0, Failed)], 1000, 0),
        (&[(0, Settled), (70, Progressing)], 71, 1),
        (&[(0, Settled), (70, Failed)], 71, 0),
        (&[(0, Settled), (70, Settled), (71, Settled)], 100, 0),
        (&[(0, Settled), (70, Settled), (71, Progressing)], 1000, 0),
        (&[(0, Settled), (70, Settled), (71, Settled)], 132, 1),
    ] {
        let workloads = workloads(moved);
        let (rolled, _) = rolled_by_new_leader(&workloads, &waves(), second);
        assert_eq!(rolled.len(), count, "{moved:?} after {second} s: {rolled:?}");
        // Another leader chooses the same workloads.
        assert_eq!(rolled_by_new_leader(&workloads, &waves(), second).0, rolled);
    }
}

/// `order` decides before the hash.
#[test]
fn lowest_order_moves_first() {
    for first in ["a", "b", "c", "d"] {
        let mut all = workloads(&[]);
        for (name, object, _) in &mut all {
            let order = if name == first { "-1" } else { "0" };
            object["metadata"]["annotations"][annotations::ORDER] = json!(order);
        }
        assert_eq!(rolled_by_new_leader(&all, &waves(), 0).0, BTreeSet::from([first.to_owned()]));
    }
}

#[test]
fn invalid_waves_move_nothing_and_are_reported() {
    for annotations in [json!({annotations::WAVES: "half"}), json!({annotations::BAKE: "5m"})] {
        let (rolled, reasons) = rolled_by_new_leader(&workloads(&[]), &annotations, 0);
        assert_eq!((rolled, reasons), (BTreeSet::new(), vec![Reason::SettingInvalid]), "{annotations}");
    }
}
