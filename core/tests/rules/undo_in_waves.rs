//! Undos and pins of workloads that a change with waves has not reached.

use confrev::{
    annotations,
    kinds::Kinds,
    resolve::{Health, MemberState, Record, Workload, WorkloadView},
    snapshot::{Digest, Rotated},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo},
    undo_by_revision::replica_set,
    world::{World, configmap, deployment, remembered, volume},
};

fn set(world: &mut World, color: &str) {
    set_with(world, color, &json!({annotations::WAVES: "1"}));
}

fn set_with(world: &mut World, color: &str, settings: &Value) {
    world.set("demo", json!({"color": color}));
    let object = world.objects.get_mut(&configmap("demo")).unwrap();
    object["metadata"]["annotations"] = settings.clone();
}

/// A workload with another image than its first revision, before the waves of green reach it.
fn behind() -> (World, Value, Value) {
    behind_with(&json!({annotations::WAVES: "1"}))
}

fn behind_with(settings: &Value) -> (World, Value, Value) {
    let mut world = World::default();
    set_with(&mut world, "blue", settings);
    let first = world.create(&deployment(&["demo"]));
    world.revisions.push(replica_set(&first));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let second = world.update(&new, &first);
    set_with(&mut world, "green", settings);
    (world, first, second)
}

/// How the workload stands towards the present content.
fn member_state(world: &World, stored: &Value) -> MemberState {
    let kinds = Kinds::default();
    let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
    let text = stored.to_string();
    let record = Record::of(&Workload::parse(kind, &text).unwrap(), Health::Settled, &Rotated::default());
    let (source, present) = (configmap("demo"), world.observe(&configmap("demo")).unwrap());
    let view = WorkloadView {
        kind,
        path: ["ns", "web"],
        namespace_order: None,
        health: Health::Settled,
        source: &source,
        present: &(&present).into(),
        set: None,
    };
    let of_present = confrev::snapshot::snapshot_name("demo", &present.digest(), 10);
    let held = |is_present| if is_present { present.digest() } else { Digest::of_bytes("other") };
    record.member_state(&view, |used| Some(held(used.snapshot.as_deref() == Some(&of_present))))
}

/// The waves still move it, and it says nothing about the content.
#[test]
fn undo_of_image_leaves_workload_behind() {
    let (mut world, first, second) = behind();
    for replaces_annotations in [false, true] {
        let mut undone = undo(&second, &first);
        if replaces_annotations {
            undone["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
        }
        let undone = world.update(&undone, &second);
        assert_eq!((volume(&undone, 0), remembered(&undone, "seen")), (BLUE, remembered(&second, "seen")));
        assert_eq!(world.update(&undone, &second), undone, "admitted again");
        assert!(matches!(member_state(&world, &undone), MemberState::Waits(_)), "{undone}");
        assert_eq!(volume(&poke(&mut world, &undone, 5), 0), GREEN);
    }
}

/// A person chose the snapshot, so it stays. The workload never had the content that it does not take.
#[test]
fn pin_before_the_waves_holds_no_other() {
    let (mut world, first, _) = behind();
    set(&mut world, "red");
    let red = volume(&world.clone().create(&deployment(&["demo"])), 0).to_owned();
    let at_red = poke(&mut world, &first, 5);
    assert_eq!(volume(&at_red, 0), red);
    set(&mut world, "green");
    let pinned = world.update(&undo(&at_red, &first), &at_red);
    assert_eq!(volume(&pinned, 0), BLUE);
    assert_eq!(member_state(&world, &pinned), MemberState::Apart);
    assert_eq!(world.update(&pinned, &at_red), pinned, "admitted again");
    let mut edited = pinned.clone();
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:3");
    let edited = world.update(&edited, &pinned);
    assert_eq!((volume(&edited, 0), member_state(&world, &edited)), (BLUE, MemberState::Apart));
    assert_eq!(volume(&poke(&mut world, &edited, 9), 0), BLUE, "it is not rolled forward");
    // To move to the content and to undo that is a verdict.
    let mut moved = edited.clone();
    moved["metadata"]["annotations"][annotations::ROLL] = json!("now");
    let moved = world.update(&moved, &edited);
    assert_eq!(volume(&moved, 0), GREEN);
    let back = world.update(&undo(&moved, &edited), &moved);
    let MemberState::Moved(member_state) = member_state(&world, &back) else { panic!("{back}") };
    assert!(member_state.rolled_back);
}

/// The source of another namespace of its group may have waves, which a workload must not hold that never had the content.
#[test]
fn undo_without_own_waves_holds_no_other() {
    let none = json!({});
    let (mut world, first, second) = behind_with(&none);
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!((volume(&undone, 0), member_state(&world, &undone)), (BLUE, MemberState::Apart));
    assert_eq!(world.update(&undone, &undone), undone, "admitted again");
    set_with(&mut world, "red", &none);
    let at_red = poke(&mut world, &undone, 5);
    set_with(&mut world, "green", &none);
    let pinned = world.update(&undo(&at_red, &first), &at_red);
    assert_eq!((volume(&pinned, 0), member_state(&world, &pinned)), (BLUE, MemberState::Apart));
}

/// The workload had the content.
#[test]
fn undo_of_content_is_a_verdict() {
    for settings in [json!({annotations::WAVES: "1"}), json!({})] {
        let (mut world, _, second) = behind_with(&settings);
        let moved = poke(&mut world, &second, 5);
        let back = world.update(&undo(&moved, &second), &moved);
        let MemberState::Moved(member_state) = member_state(&world, &back) else { panic!("{back}") };
        assert!(member_state.rolled_back, "{settings}");
    }
}
