//! Writes that confrev did not answer: the policy `confrev-carry` has kept their snapshots and marked them.
//!
//! `World::review` also checks each request of all other tests with the policy in force: it makes no difference.

use confrev::{
    annotations,
    resolve::{Carried, Plan, Request, Unmarked, Workload},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    carry::carry,
    story::{BLUE, GREEN, poke, poked, undo, world},
    world::{NAMESPACE, World, annotate, deployment, kind, volume},
};

/// A write that confrev does not answer, as it is stored.
fn unanswered(new: &Value, stored: &Value) -> Value {
    carry(&kind("Deployment"), new, Some(stored), false)
}

/// The controller's write of a marked workload: a plan that moves nothing.
fn decided_late(world: &mut World, stored: &Value, second: i64) -> Value {
    let mut new = stored.clone();
    let plan = Plan::automatic(Timestamp::from_second(second).unwrap(), &[]);
    annotate(&mut new, annotations::ROLL, &plan.to_value());
    let object = world.review_carried(&new, stored).object;
    assert_eq!(mark(&object), (None, None), "{object}");
    object
}

/// The label and the annotation.
fn mark(object: &Value) -> (Option<&str>, Option<&str>) {
    let of = |map: &str| object["metadata"][map].get(annotations::CARRIED).and_then(Value::as_str);
    (of("labels"), of("annotations"))
}

/// A request that has a mark, without it.
fn without_mark(new: &Value, old: &Value, is_believed: bool) -> Unmarked {
    let (of, new, old) = (kind("Deployment"), new.to_string(), old.to_string());
    let request = Request {
        namespace: NAMESPACE,
        secrets: true,
        new: Workload::parse(&of, &new).unwrap(),
        old: Some(Workload::parse(&of, &old).unwrap()),
        carried: Carried::default(),
    };
    Unmarked::of(&request, is_believed).unwrap()
}

fn with_image(object: &Value, image: &str) -> Value {
    let mut new = object.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    new
}

/// What `kubectl apply` sends: the names of sources, and what others have written.
fn applied(stored: &Value, image: &str) -> Value {
    let mut new = with_image(stored, image);
    new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
    new
}

/// A workload at green, and the same workload at blue before.
fn rolled() -> (World, Value, Value) {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    assert_eq!(volume(&second, 0), GREEN);
    (world, first, second)
}

#[test]
fn unanswered_change_keeps_its_snapshot_and_stays_pending() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut stored = unanswered(&applied(&first, "i:2"), &first);
    assert_eq!((volume(&stored, 0), mark(&stored)), (BLUE, (Some("true"), Some("configmaps/demo"))));
    stored = unanswered(&with_image(&stored, "i:3"), &stored);
    assert_eq!(mark(&stored).1, Some("configmaps/demo"), "the mark accumulates");
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(volume(&late, 0), BLUE, "no gate was asked");
    assert_eq!(volume(&poke(&mut world, &late, 3), 0), GREEN);
}

#[test]
fn equal_content_needs_no_roll_after_the_return() {
    let (mut world, _, second) = rolled();
    let stored = unanswered(&applied(&second, "i:2"), &second);
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(late["spec"], stored["spec"]);
    assert_eq!(late["metadata"]["annotations"], second["metadata"]["annotations"]);
}

#[test]
fn unanswered_undo_holds_after_the_return() {
    let (mut world, first, second) = rolled();
    let mut stored = unanswered(&undo(&second, &first), &second);
    assert_eq!((volume(&stored, 0), mark(&stored).1), (BLUE, Some("=configmaps/demo")));
    stored = unanswered(&with_image(&stored, "i:2"), &stored);
    assert_eq!(mark(&stored).1, Some("=configmaps/demo"));
    // Also by a roll for another reason.
    for plan in [false, true] {
        let late = if plan {
            world.review_carried(&poked(&stored, 2), &stored).object
        } else {
            decided_late(&mut world, &stored, 2)
        };
        assert_eq!(volume(&late, 0), BLUE, "{plan}");
        assert_eq!(volume(&poke(&mut world, &late, 3), 0), BLUE, "{plan}");
        let mut world = world.clone();
        world.set("demo", json!({"color": "red"}));
        assert_eq!(volume(&poke(&mut world, &late, 4), 0), "demo-354d33e656", "{plan}");
    }
}

#[test]
fn unanswered_apply_ends_an_undo() {
    let (mut world, first, second) = rolled();
    let undone = world.update(&undo(&second, &first), &second);
    let stored = unanswered(&applied(&undone, "i:2"), &undone);
    assert_eq!((volume(&stored, 0), mark(&stored).1), (BLUE, Some("configmaps/demo")));
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(volume(&late, 0), BLUE);
    assert_eq!(volume(&poke(&mut world, &late, 3), 0), GREEN, "it was applied");
}

/// The entry of the source that is no longer used stays until something else changes the template.
#[test]
fn removed_reference_starts_no_pod_after_the_return() {
    let mut world = world("blue");
    world.set("other", json!({"color": "other"}));
    let first = world.create(&deployment(&["demo", "other"]));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().pop();
    let stored = unanswered(&new, &first);
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(late["spec"], stored["spec"]);
    assert_eq!(late["metadata"]["annotations"].get(annotations::ROLL), None, "it costs no min-interval");
}

#[test]
fn unanswered_undo_to_another_source_holds() {
    let mut world = world("blue");
    world.set("other", json!({"color": "other"}));
    let first = world.create(&deployment(&["demo"]));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "other"}}]);
    let second = world.update(&new, &first);
    world.set("demo", json!({"color": "green"}));
    let stored = unanswered(&undo(&second, &first), &second);
    assert_eq!((volume(&stored, 0), mark(&stored).1), (BLUE, Some("=configmaps/demo")));
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(volume(&poke(&mut world, &late, 3), 0), BLUE);
}

#[test]
fn newest_unanswered_write_of_a_source_counts() {
    let (mut world, first, second) = rolled();
    let undone = unanswered(&undo(&second, &first), &second);
    let again = unanswered(&applied(&undone, "i:2"), &undone);
    assert_eq!(mark(&again).1, Some("configmaps/demo"));
    let late = decided_late(&mut world, &again, 2);
    assert_eq!(volume(&poke(&mut world, &late, 3), 0), GREEN);
}

#[test]
fn person_ends_an_unanswered_undo() {
    let (mut world, first, second) = rolled();
    let stored = unanswered(&undo(&second, &first), &second);
    for roll in ["now".to_owned(), "plan-2026-01-01T00:00:00Z demo".to_owned()] {
        let mut new = stored.clone();
        annotate(&mut new, annotations::ROLL, &roll);
        assert_eq!(volume(&world.review_carried(&new, &stored).object, 0), GREEN, "{roll}");
    }
    let new = applied(&stored, "i:3");
    assert_eq!(volume(&world.review_carried(&new, &stored).object, 0), GREEN, "an apply");
}

/// A replace loses the annotations of the template, and with them the only record of its snapshots.
#[test]
fn replace_keeps_what_the_template_records() {
    let (mut world, _, second) = rolled();
    let mut stored = second.clone();
    for image in ["i:2", "i:3"] {
        stored = unanswered(&with_image(&deployment(&["demo"]), image), &stored);
        assert_eq!(volume(&stored, 0), GREEN, "{image}");
    }
    assert_eq!(stored["spec"]["template"]["metadata"], second["spec"]["template"]["metadata"]);
    let late = decided_late(&mut world, &stored, 2);
    assert_eq!(volume(&late, 0), GREEN);
}

#[test]
fn unanswered_opt_out_is_complete() {
    let (_, _, second) = rolled();
    let marked = unanswered(&with_image(&second, "i:2"), &second);
    let mut new = marked.clone();
    new["metadata"]["labels"][annotations::ENABLED] = json!("false");
    let stored = unanswered(&new, &marked);
    assert_eq!((volume(&stored, 0), mark(&stored)), ("demo", (None, None)));
    assert_eq!(stored["spec"]["template"]["metadata"]["annotations"], json!({}));
}

/// Anyone can write a mark where the policy is not in force, and controllers copy annotations.
#[test]
fn mark_by_hand_changes_nothing() {
    let (mut world, first, second) = rolled();
    for list in ["configmaps/demo", "=configmaps/demo", "?", "x,,/,configmaps/", ""] {
        for label in [true, false] {
            let mut new = second.clone();
            annotate(&mut new, annotations::CARRIED, list);
            if label {
                new["metadata"]["labels"][annotations::CARRIED] = json!("true");
            }
            let expected = world.update(&with_image(&second, "i:2"), &second);
            let unmarked = without_mark(&with_image(&new, "i:2"), &second, false);
            assert_eq!(unmarked.text, None, "{list}");
            assert_eq!(unmarked.carried, Carried::default(), "{list}");
            let mut object = with_image(&new, "i:2");
            json_patch::patch(&mut object, &unmarked.patch_with(json_patch::Patch::default())).unwrap();
            assert_eq!(mark(&object), (None, None), "{list}");
            assert_eq!(object["spec"], expected["spec"], "{list}");
        }
    }
    // The list of an old revision, without the label.
    let mut stale = undo(&second, &first);
    annotate(&mut stale, annotations::CARRIED, "configmaps/demo");
    assert_eq!(volume(&world.review_carried(&stale, &second).object, 0), BLUE, "an undo");
}

/// What a stranger could send to the port: names that would grow, and more of them than any pod has.
#[test]
fn forged_marks_rename_little() {
    let (_, _, second) = rolled();
    for (snapshot, references, is_renamed) in [(GREEN, 1, true), (GREEN, 10_001, false), ("x", 1, false)] {
        let mut stored = second.clone();
        let sources = json!({"configmaps": {"demo": snapshot}}).to_string();
        stored["spec"]["template"]["metadata"]["annotations"][annotations::SOURCES] = json!(sources);
        stored["metadata"]["labels"][annotations::CARRIED] = json!("true");
        annotate(&mut stored, annotations::CARRIED, "configmaps/demo");
        let mut new = stored.clone();
        let reference = json!({"configMapRef": {"name": snapshot}});
        new["spec"]["template"]["spec"]["volumes"] = json!([]);
        new["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!(vec![reference; references]);
        let unmarked = without_mark(&new, &stored, true);
        assert_eq!(unmarked.text.is_some(), is_renamed, "{references} of {snapshot}");
    }
}
