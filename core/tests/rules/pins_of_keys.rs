//! An undo or a pin of a workload that reads some keys of a source: it ends when one of those keys changes.

use confrev::annotations;
use serde_json::{Value, json};

use super::{
    story::poke,
    world::{World, annotate, deployment, remembered, volume},
};

/// A Deployment that reads these keys as environment variables, and one key more through a volume.
fn reads(keys: &[&str]) -> Value {
    let mut object = deployment(&["demo"]);
    object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
        json!([{"key": "mine", "path": "mine"}]);
    let env: Vec<_> = keys
        .iter()
        .map(|key| json!({"name": key, "valueFrom": {"configMapKeyRef": {"name": "demo", "key": key}}}))
        .collect();
    object["spec"]["template"]["spec"]["containers"][0]["env"] = json!(env);
    object
}

/// The previous template, as `kubectl confrev undo` restores it.
fn undone(stored: &Value, to: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"] = to["spec"]["template"].clone();
    new
}

/// A workload that reads `mine` and these keys, changed from `mine: 1` to `mine: 2`, and was undone.
fn put_back(keys: &[&str]) -> (World, Value) {
    let mut world = World::default();
    world.set("demo", json!({"mine": "1", "other": "1", "unread": "1"}));
    let first = world.create(&reads(keys));
    world.set("demo", json!({"mine": "2", "other": "1", "unread": "1"}));
    let second = poke(&mut world, &first, 1);
    let back = world.update(&undone(&second, &first), &second);
    assert_eq!(volume(&back, 0), volume(&first, 0));
    (world, back)
}

fn pinned(object: &Value) -> bool {
    !remembered(object, "pinned").is_null()
}

#[test]
fn change_of_unread_key_keeps_undo() {
    let (mut world, back) = put_back(&["other"]);
    assert!(pinned(&back));
    world.set("demo", json!({"mine": "2", "other": "1", "unread": "2"}));
    let after = poke(&mut world, &back, 2);
    assert_eq!(volume(&after, 0), volume(&back, 0));
    assert_eq!(after["spec"]["template"], back["spec"]["template"]);
    // The change counts as seen, and the undo outlives more of them, without the snapshot of the content that it rejected.
    assert_ne!(remembered(&after, "seen"), remembered(&back, "seen"));
    let rejected = |name: &str| name.starts_with("demo-") && name != volume(&back, 0);
    world.objects.retain(|name, _| !rejected(&name.name));
    world.set("demo", json!({"mine": "2", "other": "1", "unread": "3"}));
    let after = poke(&mut world, &after, 3);
    assert_eq!(volume(&after, 0), volume(&back, 0));
}

#[test]
fn change_of_read_key_ends_undo() {
    for changed in [json!({"mine": "3", "other": "1"}), json!({"mine": "2", "other": "2"})] {
        let (mut world, back) = put_back(&["other"]);
        world.set("demo", changed.clone());
        let after = poke(&mut world, &back, 2);
        assert_eq!(world.data(volume(&after, 0)), &changed);
        assert!(!pinned(&after), "{changed}");
    }
}

#[test]
fn person_ends_undo_of_keys() {
    let (mut world, back) = put_back(&[]);
    let mut asked = back.clone();
    annotate(&mut asked, annotations::ROLL, "now");
    let after = world.update(&asked, &back);
    assert_eq!((world.data(volume(&after, 0))["mine"].as_str(), pinned(&after)), (Some("2"), false));
    let applied = world.update(&reads(&[]), &back);
    assert_eq!((world.data(volume(&applied, 0))["mine"].as_str(), pinned(&applied)), (Some("2"), false));
}

#[test]
fn undo_holds_for_keys_read_later() {
    let (mut world, back) = put_back(&[]);
    let mut more = back.clone();
    more["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "O", "valueFrom": {"configMapKeyRef": {"name": volume(&back, 0), "key": "other"}}}]);
    let more = world.update(&more, &back);
    assert_eq!(volume(&more, 0), volume(&back, 0));
    world.set("demo", json!({"mine": "2", "other": "1", "unread": "2"}));
    let same = poke(&mut world, &more, 2);
    assert_eq!(volume(&same, 0), volume(&back, 0), "an unread key");
    world.set("demo", json!({"mine": "2", "other": "2", "unread": "2"}));
    let moved = poke(&mut world, &same, 3);
    assert_ne!(volume(&moved, 0), volume(&back, 0), "a key that is read now");
}

#[test]
fn only_pins_of_keys_are_recorded() {
    let (mut world, back) = put_back(&["other"]);
    // An admission without a change writes nothing.
    assert!(world.admit(&back, Some(&back)).decision.patch.is_empty());
    // An undo to a snapshot with the values that are read pins nothing.
    world.set("demo", json!({"mine": "1", "other": "1", "unread": "9"}));
    let same = poke(&mut world, &back, 2);
    assert_eq!((volume(&same, 0), pinned(&same)), (volume(&back, 0), false));
    // Any change of a source that is read whole ends the pin, as `seen` shows.
    let mut world = World::default();
    world.set("demo", json!({"mine": "1"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"mine": "2"}));
    let second = poke(&mut world, &first, 1);
    assert!(!pinned(&world.update(&undone(&second, &first), &second)));
}
