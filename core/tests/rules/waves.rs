//! Waves at admission: which writes move a workload, and what records the move.

use confrev::{annotations, resolve::Plan};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, poked, undo},
    world::{World, annotate, configmap, deployment, remembered, volume},
};

fn set(world: &mut World, color: &str, waves: &str) {
    world.set("demo", json!({"color": color}));
    let object = world.objects.get_mut(&configmap("demo")).unwrap();
    object["metadata"]["annotations"] = json!({annotations::WAVES: waves});
}

/// A workload at blue, whose source has changed to green.
fn pending(waves: &str) -> (World, Value) {
    let mut world = World::default();
    set(&mut world, "blue", waves);
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, "green", waves);
    (world, stored)
}

fn moved(object: &Value) -> Value {
    remembered(object, "moved")
}

/// With settings that cannot be followed, nothing moves.
#[test]
fn sync_moves_no_workload_of_source_with_waves() {
    for waves in ["1", "x"] {
        let (mut world, stored) = pending(waves);
        let admitted = world.admit(&deployment(&["demo"]), Some(&stored));
        assert_eq!(admitted.object["spec"], stored["spec"], "{waves}");
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains(BLUE) && warning.contains(annotations::WAVES), "{waves}: {warning}");
        let mut deployed = deployment(&["demo"]);
        deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        let deployed = world.update(&deployed, &stored);
        assert_eq!((volume(&deployed, 0), moved(&deployed)), (GREEN, Value::Null), "{waves}: a deployment");
    }
}

/// A chart writes the hash of a ConfigMap into the template, so each change is a deployment.
#[test]
fn checksum_that_defeats_waves_is_warned_about() {
    let with_checksum = |object: &Value, text: &str| {
        let mut object = object.clone();
        object["spec"]["template"]["metadata"]["annotations"] = json!({"checksum/config": text});
        object
    };
    for (waves, is_warned) in [(Some("1"), true), (None, false)] {
        let mut world = World::default();
        let change = |world: &mut World, color: &str| match waves {
            Some(waves) => set(world, color, waves),
            None => world.set("demo", json!({"color": color})),
        };
        change(&mut world, "blue");
        let manifest = deployment(&["demo"]);
        let stored = world.create(&with_checksum(&manifest, "a"));
        change(&mut world, "green");
        let upgraded = world.admit(&with_checksum(&manifest, "b"), Some(&stored));
        assert_eq!(volume(&upgraded.object, 0), GREEN, "{waves:?}: it is a deployment");
        let found = upgraded.decision.warnings.iter().any(|text| text.contains("annotation checksum/config"));
        assert_eq!(found, is_warned, "{waves:?}: {:?}", upgraded.decision.warnings);
        let synced = world.admit(&with_checksum(&manifest, "a"), Some(&stored)).decision.warnings;
        assert!(!synced.iter().any(|text| text.contains("checksum")), "{waves:?}: {synced:?}");
    }
}

#[test]
fn roll_by_controller_records_its_time() {
    let (mut world, first) = pending("1");
    let second = poke(&mut world, &first, 5);
    let at = json!({"configmaps": {"demo": "1970-01-01T00:00:05Z"}});
    assert_eq!((volume(&second, 0), moved(&second)), (GREEN, at.clone()));
    assert_eq!(world.update(&second, &first), second, "admitted again");
    // Nothing else changes the record.
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!((volume(&undone, 0), moved(&undone)), (BLUE, at.clone()));
    let mut applied = deployment(&["demo"]);
    annotate(&mut applied, annotations::STATE, "anything");
    assert_eq!(moved(&world.update(&applied, &second)), at);
    assert_eq!(moved(&poke(&mut world, &second, 9)), at);
    set(&mut world, "red", "1");
    assert_eq!(moved(&poke(&mut world, &second, 7)), json!({"configmaps": {"demo": "1970-01-01T00:00:07Z"}}));
    // A roll in the same millisecond, to other content.
    let mut soon = poked(&second, 5);
    let at_once = Plan::automatic(
        Timestamp::from_second(5).unwrap(),
        &[(configmap("demo"), world.observe(&configmap("demo")).unwrap().digest())],
    )
    .to_value();
    annotate(&mut soon, annotations::ROLL, &at_once);
    let soon = world.update(&soon, &second);
    assert_eq!((volume(&soon, 0) == GREEN, moved(&soon)), (false, at));
    let mut asked = second.clone();
    annotate(&mut asked, annotations::ROLL, "now");
    assert_eq!(moved(&world.update(&asked, &second)), Value::Null, "a user moves it");
}

/// The controller may not know yet that a person has stopped the change.
#[test]
fn roll_to_aborted_content_keeps_snapshot() {
    for (aborted, expected) in [(GREEN, BLUE), (BLUE, GREEN)] {
        let (mut world, first) = pending("1");
        poke(&mut world, &first, 4);
        let snapshot = world.objects.get_mut(&configmap(aborted)).unwrap();
        snapshot["metadata"]["annotations"][annotations::VERDICT] = json!(r#"{"aborted":true}"#);
        let second = poke(&mut world, &first, 5);
        assert_eq!(volume(&second, 0), expected, "{aborted} is aborted");
        let seen = |object: &Value| remembered(object, "seen");
        assert_eq!(seen(&second) == seen(&first), expected == BLUE, "{aborted} is aborted");
        let mut deployed = second.clone();
        deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        deployed["spec"]["template"]["spec"]["volumes"] =
            deployment(&["demo"])["spec"]["template"]["spec"]["volumes"].clone();
        assert_eq!(volume(&world.update(&deployed, &second), 0), GREEN, "a deployment");
    }
}

/// The source of another namespace of its group may have waves.
#[test]
fn time_is_recorded_without_waves_too() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(moved(&first), Value::Null);
    world.set("demo", json!({"color": "green"}));
    let at = json!({"configmaps": {"demo": "1970-01-01T00:00:05Z"}});
    assert_eq!(moved(&poke(&mut world, &first, 5)), at);
}
