//! Waves of a change: the workloads that a leader rolls, which knows the cluster's own state only.

use std::collections::BTreeSet;

use confrev::{
    annotations,
    controller::{Action, Analysed, Outcome},
    resolve::{
        AnalysisRun,
        Health::{self, Failed, Progressing, Settled, Unavailable},
        RunState, order_of_namespace,
    },
    telemetry::metrics::Reason,
    world::NamespaceSettings,
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

/// What a new leader does within a few seconds.
#[derive(Debug, Default)]
struct Led {
    /// The names of the workloads that it rolls.
    rolled: BTreeSet<String>,
    /// Its Events: the reason, the kind of the object, and the note.
    events: Vec<(Reason, String, String)>,
}

/// Lets a new leader act. `annotations` are those of the source, and `run` is what it finds of an analysis.
fn led(
    workloads: &[(String, Value, Health)],
    annotations: &Value,
    namespace: NamespaceSettings,
    run: &RunState,
    second: i64,
) -> Led {
    let mut desk = Desk::new();
    desk.now = Timestamp::from_second(START + second).unwrap();
    desk.state.apply_namespace_settings(&"ns".into(), namespace, desk.now);
    for (name, object, health) in workloads {
        desk.state.apply_workload(&key(name), Some(record(object, *health)), desk.now);
    }
    let mut led = Led::default();
    for _ in 0..4 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => {
                    let green = observed(json!({"color": "green"}), annotations.clone(), "2");
                    Outcome::Read(Some(Box::new(green)))
                }
                // The roll stays in progress.
                Action::Poke { workload, .. } => {
                    led.rolled.insert(workload.name.to_string());
                    continue;
                }
                Action::WriteEvent(event) => {
                    led.events.push((event.reason, event.regarding.kind, event.note));
                    Outcome::Done
                }
                Action::Analyse { wave, run: name, .. } => {
                    let run = AnalysisRun { name, state: run.clone() };
                    Outcome::Analysed(Analysed { run, wave, is_new: false })
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.pass(1);
    }
    led
}

/// The names of the workloads that a new leader rolls within a few seconds.
fn rolled_by_new_leader(
    workloads: &[(String, Value, Health)],
    annotations: &Value,
    second: i64,
) -> BTreeSet<String> {
    led(workloads, annotations, NamespaceSettings::default(), &RunState::Running, second).rolled
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
        let rolled = rolled_by_new_leader(&workloads, &waves(), second);
        assert_eq!(rolled.len(), count, "{moved:?} after {second} s: {rolled:?}");
        // Another leader chooses the same workloads.
        assert_eq!(rolled_by_new_leader(&workloads, &waves(), second), rolled);
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
        assert_eq!(rolled_by_new_leader(&all, &waves(), 0), BTreeSet::from([first.to_owned()]));
    }
}

/// A namespace with this order.
fn ordered(order: &str) -> NamespaceSettings {
    let order = order_of_namespace("ns", order).map_err(Box::from);
    NamespaceSettings { order: Some(order), ..NamespaceSettings::default() }
}

/// Annotations of a source with waves, and this one.
fn with(key: &str, value: &str) -> Value {
    let mut settings = json!({annotations::WAVES: "1"});
    settings[key] = json!(value);
    settings
}

/// What the webhook did not see. Nothing moves, and an Event on the source has the reason.
#[test]
fn invalid_settings_move_nothing_and_are_reported() {
    let none = NamespaceSettings::default;
    let order = "Namespace \"ns\": annotation confrev.dev/order";
    for (source, namespace, says) in [
        (json!({annotations::WAVES: "half"}), none(), "waves: \"half\""),
        (json!({annotations::BAKE: "5m"}), none(), "without confrev.dev/waves"),
        (with(annotations::BAKE, "soon"), none(), "bake: \"soon\""),
        (with(annotations::ON_FAILURE, "undo"), none(), "\"undo\""),
        (with(annotations::WINDOW, "09:00-17:00 Mars/Base"), none(), "a time zone"),
        (with(annotations::WINDOW, "09:00-09:00"), none(), "never open"),
        (with(annotations::SET, "shop"), none(), "NAME/VERSION"),
        (with(annotations::ANALYSIS, "A B"), none(), "\"A B\""),
        (with(annotations::BAKE, "1s"), ordered("first"), order),
        (json!({annotations::MAX_IN_FLIGHT: "1"}), ordered(""), order),
    ] {
        let found = led(&workloads(&[]), &source, namespace, &RunState::Successful, 0);
        let [(Reason::SettingInvalid, kind, note)] = &found.events[..] else { panic!("{source}: {found:?}") };
        assert!(found.rolled.is_empty() && kind == "ConfigMap" && note.contains(says), "{source}: {found:?}");
    }
    for template in ["none", "cluster/none"] {
        let unavailable = RunState::Unavailable("it does not exist".into());
        let found = led(&workloads(&[]), &with(annotations::ANALYSIS, template), none(), &unavailable, 0);
        let [(Reason::AnalysisHeld, _, note)] = &found.events[..] else { panic!("{template}: {found:?}") };
        let says = note.starts_with("no wave begins") && note.ends_with("it does not exist");
        assert!(found.rolled.is_empty() && says, "{template}: {found:?}");
    }
}

/// What is valid, or has no effect.
#[test]
fn other_settings_of_namespaces_hold_nothing() {
    let mut own = workloads(&[]);
    for (_, object, _) in &mut own {
        object["metadata"]["annotations"][annotations::ORDER] = json!("1");
    }
    for (source, namespace, workloads, count) in [
        (with(annotations::BAKE, "1s"), ordered("-1"), workloads(&[]), 1),
        (with(annotations::BAKE, "1s"), ordered("first"), own, 1),
        (json!({annotations::ON_FAILURE: "revert"}), ordered("first"), workloads(&[]), 4),
        (json!({}), ordered("first"), workloads(&[]), 4),
        (with(annotations::ANALYSIS, "sound"), NamespaceSettings::default(), workloads(&[]), 1),
    ] {
        let found = led(&workloads, &source, namespace, &RunState::Successful, 0);
        let invalid = found.events.iter().find(|(reason, ..)| reason.is_warning());
        assert_eq!((found.rolled.len(), invalid), (count, None), "{source}");
    }
}
