//! A workload that begins to read another key of a source while its reference keeps the snapshot.

use confrev::{annotations, resolve::Plan};
use serde_json::{Value, json};

use super::{
    story::poke,
    world::{World, annotate, configmap, deployment, kind, remembered, volume},
};

/// A Deployment that reads these keys through a volume.
fn reads(keys: &[&str]) -> Value {
    let mut object = deployment(&["demo"]);
    let items: Vec<_> = keys.iter().map(|key| json!({"key": key, "path": key})).collect();
    object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] = json!(items);
    object
}

/// `kubectl edit`: the snapshot's name stays, and the keys change.
fn edited(stored: &Value, keys: &[&str]) -> Value {
    let mut new = stored.clone();
    let items = &reads(keys)["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"];
    new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] = items.clone();
    new
}

/// A workload that reads `a` of a source which has since got the key `b`, without a roll.
fn grown() -> (World, Value) {
    let mut world = World::default();
    world.set("demo", json!({"a": "1"}));
    let first = world.create(&reads(&["a"]));
    world.set("demo", json!({"a": "1", "b": "1"}));
    let stored = poke(&mut world, &first, 1);
    assert_eq!(volume(&stored, 0), volume(&first, 0), "no key that the workload reads changed");
    (world, stored)
}

#[test]
fn new_key_of_present_content_moves_the_reference() {
    let (mut world, stored) = grown();
    let admitted = world.admit(&edited(&stored, &["a", "b"]), Some(&stored));
    assert_ne!(volume(&admitted.object, 0), volume(&stored, 0));
    assert_eq!(world.data(volume(&admitted.object, 0)), &json!({"a": "1", "b": "1"}));
    assert_eq!(admitted.decision.warnings, [""; 0]);
    let mut paused = stored.clone();
    annotate(&mut paused, annotations::TRACK, "false");
    let moved = world.update(&edited(&paused, &["b"]), &paused);
    assert_ne!(volume(&moved, 0), volume(&stored, 0), "paused");
}

#[test]
fn new_key_missing_everywhere_is_reported() {
    let (mut world, stored) = grown();
    let admitted = world.admit(&edited(&stored, &["a", "c"]), Some(&stored));
    assert_eq!(volume(&admitted.object, 0), volume(&stored, 0));
    let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
    assert!(warning.contains("\"c\""), "{warning}");
    let mut strict = edited(&stored, &["a", "c"]);
    annotate(&mut strict, annotations::MISSING, "deny");
    let refused = world.review(&kind("Deployment"), &strict, Some(&stored)).decision;
    assert!(refused.denial.is_some_and(|denial| denial.contains("\"c\"")));
    // The result is the same if the source is missing: the snapshot lacks the key, too.
    world.remove("demo");
    let refused = world.review(&kind("Deployment"), &strict, Some(&stored)).decision;
    assert!(refused.denial.is_some_and(|denial| denial.contains("\"c\"")));
}

#[test]
fn new_key_in_snapshot_moves_no_reference() {
    let mut world = World::default();
    world.set("demo", json!({"a": "1", "b": "1"}));
    let mut object = reads(&["a"]);
    annotate(&mut object, annotations::TRACK, "false");
    let stored = world.create(&object);
    world.set("demo", json!({"a": "2", "b": "2"}));
    for keys in [&["a", "b"][..], &["b"]] {
        let admitted = world.admit(&edited(&stored, keys), Some(&stored));
        assert_eq!(volume(&admitted.object, 0), volume(&stored, 0));
        assert_eq!(admitted.decision.warnings, [""; 0]);
    }
    // Pods start without an optional key.
    let mut optional = edited(&stored, &["a", "c"]);
    optional["spec"]["template"]["spec"]["volumes"][0]["configMap"]["optional"] = json!(true);
    let admitted = world.admit(&optional, Some(&stored));
    assert_eq!((volume(&admitted.object, 0), admitted.decision.warnings), (volume(&stored, 0), vec![]));
}

/// The source lacks a required key, and then another source moves the workload.
#[test]
fn lacking_source_stays_known_until_complete() {
    let mut world = World::default();
    world.set("demo", json!({"other": "1"}));
    world.set("more", json!({"k": "1"}));
    let mut wanted = deployment(&["demo", "more"]);
    wanted["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
        json!([{"key": "k", "path": "k"}]);
    let stored = world.create(&wanted);
    let as_written = |object: &Value| volume(object, 0) == "demo";
    assert!(as_written(&stored), "{stored}");
    assert_eq!(remembered(&stored, "lacking")["configmaps"]["demo"], true);
    world.set("more", json!({"k": "2"}));
    let digest = world.observe(&configmap("more")).unwrap().digest();
    let plan = Plan::automatic(jiff::Timestamp::from_second(5).unwrap(), &[(configmap("more"), digest)]);
    let mut moved = stored.clone();
    annotate(&mut moved, annotations::ROLL, &plan.to_value());
    let moved = world.update(&moved, &stored);
    assert!(as_written(&moved) && volume(&moved, 1) != volume(&stored, 1), "{moved}");
    assert_eq!(remembered(&moved, "lacking")["configmaps"]["demo"], true, "another source moves");
    world.set("demo", json!({"k": "1"}));
    assert!(!as_written(&poke(&mut world, &moved, 9)), "the key is there");
}
