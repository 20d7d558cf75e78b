//! The changes that the controller rolls a workload for.

use confrev::{
    names,
    resolve::{Health, Present, Record, Workload, is_pending},
    snapshot::{ObjectName, SourceKind},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, poke, undo, world},
    world::{NAMESPACE, World, annotate, deployment, kind, volume},
};

fn record(of: &str, stored: &Value, world: &World) -> Record {
    let (kind, text) = (kind(of), stored.to_string());
    let workload = Workload::parse(&kind, &text).unwrap();
    assert_eq!(workload.namespace(), NAMESPACE);
    Record::of(&workload, Health::Settled, &world.rotated)
}

/// Whether the controller rolls this Deployment.
fn pending(world: &World, stored: &Value) -> bool {
    let present = |name: &ObjectName| world.observe(name).as_ref().map(Present::from);
    is_pending(&record("Deployment", stored, world), present)
}

#[test]
fn setting_for_secrets_affects_no_configmap() {
    for secrets in ["true", "false"] {
        let mut world = world("blue");
        let mut object = deployment(&["demo"]);
        annotate(&mut object, names::SECRETS, secrets);
        let stored = world.create(&object);
        assert!(!pending(&world, &stored));
        world.set("demo", json!({"color": "green"}));
        assert!(pending(&world, &stored), "{secrets}");
    }
}

/// The Secret did not exist when the workload was admitted.
#[test]
fn new_secret_rolls_workload_that_asks_for_secrets() {
    for secrets in [Some("true"), Some("false"), None] {
        let mut world = World::default();
        let mut object = deployment(&[]);
        object["spec"]["template"]["spec"]["volumes"] =
            json!([{"name": "s", "secret": {"secretName": "demo"}}]);
        if let Some(secrets) = secrets {
            annotate(&mut object, names::SECRETS, secrets);
        }
        let stored = world.create(&object);
        let secret = json!({"metadata": {"name": "demo"}, "data": {"password": "YQ=="}});
        world.objects.insert(ObjectName::new(SourceKind::Secret, "demo"), secret);
        assert_eq!(pending(&world, &stored), secrets == Some("true"), "{secrets:?}");
    }
}

/// The first snapshot decides for the source.
#[test]
fn second_snapshot_of_a_source_rolls_nothing() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let mut both = second.clone();
    let pinned = json!({"name": "old", "configMap": {"name": BLUE}});
    both["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(pinned);
    let both = world.update(&both, &second);
    assert_eq!(volume(&both, 1), BLUE);
    assert!(!pending(&world, &both));
}

/// One roll lists the object in `sources`, where its revisions are found.
#[test]
fn new_mode_bind_rolls_once() {
    let object = deployment(&["demo"]);
    let resolved = world("blue").create(&object);
    for (what, stored) in [("admitted without confrev", &object), ("resolved to a snapshot", &resolved)] {
        let mut world = world("blue");
        world.create(&object);
        world.labelled("demo", "bind");
        assert!(pending(&world, stored), "{what}");
        let rolled = poke(&mut world, stored, 1);
        assert_eq!(volume(&rolled, 0), "demo", "{what}");
        assert!(!pending(&world, &rolled), "{what}");
    }
}

/// A reference that confrev rewrote returns to the source's name.
#[test]
fn new_mode_false_rolls_only_rewritten_references() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.labelled("demo", "false");
    assert!(pending(&world, &first));
    let written = poke(&mut world, &first, 1);
    assert_eq!(volume(&written, 0), "demo");
    assert!(!pending(&world, &written));
    let pinned = world.update(&undo(&written, &first), &written);
    assert_eq!(volume(&pinned, 0), BLUE);
    assert!(!pending(&world, &pinned), "the user named the snapshot");
}

/// The controller writes nothing to Jobs and to workloads that are being deleted.
#[test]
fn only_lasting_workloads_follow_sources_and_namespace() {
    for (of, is_going, expected) in [
        ("Deployment", false, true),
        ("Deployment", true, false),
        ("Job", false, false),
        ("Job", true, false),
    ] {
        let mut world = world("blue");
        world.namespace.enabled = true;
        let mut object = deployment(&["demo"]);
        object["metadata"].as_object_mut().unwrap().remove("labels");
        let mut stored = world.review(&kind(of), &object, None).object;
        if is_going {
            stored["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let record = record(of, &stored, &world);
        assert_eq!((record.track, record.by_namespace), (expected, expected), "{of}, deleted: {is_going}");
    }
}
