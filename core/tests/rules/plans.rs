//! Plans in the annotation `roll`: what they name moves, and nothing else does.

use std::collections::BTreeMap;

use confrev::{
    annotations,
    resolve::{Health, Move, Plan, Record, RecordedFailure, To, Verdict, Workload, roll_time},
    snapshot::ObjectName,
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo},
    world::{World, annotate, configmap, deployment, kind, remembered, volume},
};

const REASON: &str = "Deployment/api failed: ProgressDeadlineExceeded";

fn planned(stored: &Value, second: i64, moves: &[(&str, To, bool)]) -> Value {
    let moves = moves
        .iter()
        .map(|(source, to, forced)| (configmap(source), Move { to: to.clone(), forced: *forced }));
    let moves: BTreeMap<ObjectName, Move> = moves.collect();
    let time = jiff::Timestamp::from_second(second).unwrap();
    let mut new = stored.clone();
    annotate(&mut new, annotations::ROLL, &Plan::of_person(time, moves).to_value());
    new
}

fn snapshot(name: &str) -> To {
    To::Snapshot(name.to_owned())
}

fn denial(world: &mut World, new: &Value, old: &Value) -> Option<String> {
    world.review(&kind("Deployment"), new, Some(old)).decision.denial
}

/// What a workload has, but for the plan itself.
fn outcome(object: &Value) -> [Value; 2] {
    [object["spec"].clone(), object["metadata"]["annotations"][annotations::STATE].clone()]
}

/// Gives the source this content, and these annotations alone.
fn set_with(world: &mut World, color: &str, annotations: &Value) {
    world.set("demo", json!({"color": color}));
    let demo = world.objects.get_mut(&configmap("demo")).unwrap();
    demo["metadata"]["annotations"] = annotations.clone();
}

/// A plan leads to the same as the template that `kubectl rollout undo` writes. Another webhook may cause a second admission.
#[test]
fn plan_of_an_undo_equals_the_undo() {
    for reverts in [false, true] {
        let mut world = World::default();
        let set = |world: &mut World, color: &str| {
            world.set("demo", json!({"color": color}));
            if reverts {
                let demo = world.objects.get_mut(&configmap("demo")).unwrap();
                demo["metadata"]["annotations"] = json!({annotations::ON_FAILURE: "revert"});
            }
        };
        set(&mut world, "blue");
        let first = world.create(&deployment(&["demo"]));
        set(&mut world, "green");
        let second = poke(&mut world, &first, 5);
        let undone = world.update(&undo(&second, &first), &second);
        let moved = world.update(&planned(&second, 9, &[("demo", snapshot(BLUE), false)]), &second);
        assert_eq!(outcome(&moved), outcome(&undone), "reverts: {reverts}");
        assert_eq!(world.update(&moved, &second), moved, "reverts: {reverts}, admitted again");
        // The same template is applied again: the pin ends, as after an undo.
        let back = world.update(&planned(&moved, 11, &[("demo", To::Present, false)]), &moved);
        assert_eq!((volume(&back, 0), remembered(&back, "pinned")), (GREEN, Value::Null));
        assert_eq!(world.update(&back, &moved), back, "admitted again");
    }
}

/// Also a source that has changed, and a reference that is not resolved.
#[test]
fn source_that_no_plan_names_stays() {
    let mut world = World::default();
    for name in ["demo", "other", "third"] {
        world.set(name, json!({"color": "blue"}));
    }
    let unresolved = world.objects.remove(&configmap("third")).unwrap();
    let first = world.create(&deployment(&["demo", "other", "third"]));
    world.objects.insert(configmap("third"), unresolved);
    for name in ["demo", "other"] {
        world.set(name, json!({"color": "green"}));
    }
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    let time = jiff::Timestamp::from_second(5).unwrap();
    let mut automatic = first.clone();
    let plan = Plan::automatic(time, &[(configmap("demo"), digest)]);
    annotate(&mut automatic, annotations::ROLL, &plan.to_value());
    for new in [automatic, planned(&first, 5, &[("demo", To::Present, false)])] {
        let moved = world.update(&new, &first);
        let names = [0, 1, 2].map(|index| volume(&moved, index));
        assert_eq!(names, [GREEN, volume(&first, 1), "third"]);
        let seen = |object: &Value| remembered(object, "seen")["configmaps"]["other"].clone();
        assert_eq!(seen(&moved), seen(&first), "it stays pending");
        assert_eq!(world.update(&moved, &first), moved, "admitted again");
    }
}

/// A typing error does not look like a success.
#[test]
fn plan_without_effect_is_reported() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    for (roll, expected) in [
        ("plan-42", Some("the plan names no source")),
        ("plan-42 demmo", Some("does not refer to ConfigMap \"demmo\", so its move")),
        ("plan-42 demo secret/demo", Some("does not refer to Secret \"demo\", so its move")),
        ("plan-42 demo", None),
        ("plan-42 *", None),
        ("tonight", None),
    ] {
        let mut new = first.clone();
        annotate(&mut new, annotations::ROLL, roll);
        let warnings = world.review(&kind("Deployment"), &new, Some(&first)).decision.warnings;
        let found: Vec<_> = warnings.iter().filter(|warning| warning.contains(annotations::ROLL)).collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{roll}: {warnings:?}");
        assert!(expected.is_none_or(|expected| found[0].contains(expected)), "{roll}: {found:?}");
    }
}

/// A source may change between the decision of the controller and the admission.
#[test]
fn plan_that_moves_nothing_leaves_no_trace() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    let plan = |second, digest| {
        let time = jiff::Timestamp::from_second(second).unwrap();
        Plan::automatic(time, &[(configmap("demo"), digest)]).to_value()
    };
    let mut stale = first.clone();
    annotate(&mut stale, annotations::ROLL, &plan(5, digest));
    world.set("demo", json!({"color": "red"}));
    assert_eq!(world.update(&stale, &first), first, "without an earlier plan");
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    let mut second = first.clone();
    annotate(&mut second, annotations::ROLL, &plan(7, digest));
    let second = world.update(&second, &first);
    assert!(volume(&second, 0) != volume(&first, 0), "it moves");
    let mut stale = second.clone();
    annotate(&mut stale, annotations::ROLL, &plan(9, digest));
    world.set("demo", json!({"color": "black"}));
    assert_eq!(world.update(&stale, &second), second, "after an earlier plan");
}

#[test]
fn plan_to_refused_content_needs_force() {
    let mut world = World::default();
    let annotations = json!({annotations::ON_FAILURE: "revert"});
    let set = |world: &mut World, color: &str| set_with(world, color, &annotations);
    set(&mut world, "blue");
    let first = world.create(&deployment(&["demo"]));
    set(&mut world, "green");
    let second = poke(&mut world, &first, 5);
    let failed = RecordedFailure { reason: REASON.into(), ..RecordedFailure::default() };
    let verdict = Verdict { failed: Some(failed), ..Verdict::default() }.text();
    world.objects.get_mut(&configmap(GREEN)).unwrap()["metadata"]["annotations"][annotations::VERDICT] =
        json!(verdict);
    let back = poke(&mut world, &second, 9);
    assert_eq!(volume(&back, 0), BLUE, "confrev took it back");
    for to in [snapshot(GREEN), To::Present] {
        let refused = denial(&mut world, &planned(&back, 11, &[("demo", to.clone(), false)]), &back);
        let refused = refused.expect("refused");
        assert!(refused.contains(REASON) && refused.contains("--force"), "{to:?}: {refused}");
        let forced = world.update(&planned(&back, 11, &[("demo", to.clone(), true)]), &back);
        assert_eq!(volume(&forced, 0), GREEN, "{to:?}");
        assert_eq!(volume(&poke(&mut world, &forced, 13), 0), GREEN, "{to:?}: a person chose it");
    }
    // A hold with it is refused as well; the refusal is known after the next change, too.
    let mut held = planned(&back, 11, &[("demo", snapshot(GREEN), false)]);
    annotate(&mut held, annotations::HOLD, GREEN);
    assert!(denial(&mut world, &held, &back).is_some());
    set(&mut world, "red");
    let third = poke(&mut world, &back, 15);
    assert!(denial(&mut world, &planned(&third, 17, &[("demo", snapshot(GREEN), false)]), &third).is_some());
    assert_eq!(denial(&mut world, &planned(&third, 17, &[("demo", snapshot(BLUE), false)]), &third), None);
}

/// A workload failed, and a person stops the change as well.
#[test]
fn abort_keeps_no_workload_on_refused_content() {
    let mut world = World::default();
    let annotations = json!({annotations::WAVES: "1", annotations::ON_FAILURE: "revert"});
    let set = |world: &mut World, color: &str| set_with(world, color, &annotations);
    set(&mut world, "blue");
    let first = world.create(&deployment(&["demo"]));
    set(&mut world, "green");
    let second = poke(&mut world, &first, 5);
    let failed = RecordedFailure { reason: REASON.into(), ..RecordedFailure::default() };
    for (failed, expected) in [(None, GREEN), (Some(failed), BLUE)] {
        let verdict = Verdict { aborted: true, failed, ..Verdict::default() }.text();
        world.objects.get_mut(&configmap(GREEN)).unwrap()["metadata"]["annotations"][annotations::VERDICT] =
            json!(verdict);
        assert_eq!(volume(&poke(&mut world, &second, 9), 0), expected);
    }
}

#[test]
fn wrong_plan_is_refused() {
    let mut world = World::default();
    for name in ["demo", "other"] {
        world.set(name, json!({"color": name}));
    }
    let stored = world.create(&deployment(&["demo", "other"]));
    for roll in [
        "plan-1 demo=demo-0000000000",
        "plan-1 demo=other",
        "plan-1 Demo",
        "plan-1 demo demo",
        "plan-1 demo=x=",
    ] {
        let mut new = stored.clone();
        annotate(&mut new, annotations::ROLL, roll);
        assert!(denial(&mut world, &new, &stored).is_some(), "{roll}");
    }
    let other = format!("plan-1 demo={}", volume(&stored, 1));
    let mut new = stored.clone();
    annotate(&mut new, annotations::ROLL, &other);
    assert!(denial(&mut world, &new, &stored).is_some(), "a snapshot of another source");
    annotate(&mut new, annotations::ROLL, "plan the next one");
    assert_eq!(denial(&mut world, &new, &stored), None, "a text of a person");
}

/// The clock of the person who wrote the last plan may have been ahead.
#[test]
fn roll_after_a_plan_of_the_future_moves() {
    let mut world = World::default();
    let annotations = json!({annotations::WAVES: "1"});
    let set = |world: &mut World, color: &str| set_with(world, color, &annotations);
    set(&mut world, "blue");
    let first = world.create(&deployment(&["demo"]));
    set(&mut world, "green");
    let second = poke(&mut world, &first, 5);
    let undone = world.update(&planned(&second, 3600, &[("demo", snapshot(BLUE), false)]), &second);
    set(&mut world, "red");
    let (kind, text) = (kind("Deployment"), undone.to_string());
    let record = Record::of(&Workload::parse(&kind, &text).unwrap(), Health::Settled, &world.rotated);
    let time = roll_time(jiff::Timestamp::from_second(60).unwrap(), record.last_plan);
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    let mut new = undone.clone();
    annotate(&mut new, annotations::ROLL, &Plan::automatic(time, &[(configmap("demo"), digest)]).to_value());
    let moved = world.update(&new, &undone);
    assert!(![BLUE, GREEN].contains(&volume(&moved, 0)), "{}", volume(&moved, 0));
}

/// The controller does not know the source of a name that no object has, so its plan cannot name it.
#[test]
fn name_of_no_object_resolves_beside_plan() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    for labels in [json!({}), json!({annotations::ENABLED: "true"})] {
        let mut stored = deployment(&["demo-0000000000"]);
        stored["metadata"]["labels"] = labels;
        let mut new = deployment(&["demo-0000000000"]);
        let plan = Plan::automatic(jiff::Timestamp::from_second(5).unwrap(), &[]);
        annotate(&mut new, annotations::ROLL, &plan.to_value());
        assert_eq!(volume(&world.update(&new, &stored), 0), BLUE, "{}", stored["metadata"]["labels"]);
    }
}

/// `kubectl rollout undo` of a Deployment restores all annotations of the old `ReplicaSet`.
#[test]
fn older_plan_moves_nothing() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 9);
    let old = planned(&second, 5, &[("demo", snapshot(BLUE), false)]);
    assert_eq!(volume(&world.update(&old, &second), 0), GREEN);
    let same = planned(&second, 9, &[("demo", snapshot(BLUE), false)]);
    assert_eq!(volume(&world.update(&same, &second), 0), BLUE, "another plan of the same millisecond");
}
