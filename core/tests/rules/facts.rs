//! The memory of the facts that a decision reads.

use confrev::{
    annotations,
    resolve::{Facts, Observed},
    snapshot::{DigestKey, Keying, ObjectName, SourceKind},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, world},
    world::{configmap, deployment},
};

/// A content of 1 MiB may have a hundred thousand keys, which are kept apart from its text.
#[test]
fn many_small_keys_count_with_their_memory() {
    let size = |keys: usize| {
        let data: serde_json::Map<_, _> = (0..keys).map(|key| (format!("{key:05}"), json!(""))).collect();
        let metadata = json!({"name": "demo", "uid": "1", "resourceVersion": "1"});
        let text = json!({"metadata": metadata, "data": data}).to_string();
        let mut facts = Facts::default();
        let name = ObjectName::new(SourceKind::ConfigMap, "demo");
        let observed = Observed::read(SourceKind::ConfigMap, text.into_bytes()).unwrap();
        facts.set_object(name.clone(), Some(observed));
        let (_, bytes) = facts.size();
        facts.set_object(name, None);
        assert_eq!(facts.size().1, 0);
        bytes
    };
    assert!(size(1) < 300, "{}", size(1));
    // In a B-tree, a key takes 24 bytes and its text, which is allocated, at least 24 more.
    assert!(size(10_000) > 10_000 * 60, "{}", size(10_000));
}

/// A guess is right if the object is the snapshot of the present content, or if that snapshot does not exist.
#[test]
fn only_right_guess_of_a_name_counts() {
    let mut world = world("blue");
    world.create(&deployment(&["demo"]));
    let source = configmap("demo");
    let snapshot = world.objects[&configmap(BLUE)].clone();
    let mut tampered = snapshot.clone();
    tampered["data"] = json!({"color": "red"});
    for (guess, found, is_right) in [
        (BLUE, Some(snapshot), true),
        (BLUE, Some(tampered), false),
        (BLUE, None, true),
        (GREEN, None, false),
    ] {
        let name = configmap(guess);
        world.remove(guess);
        world.objects.extend(found.map(|object| (name.clone(), object)));
        let mut facts = Facts::default();
        facts.set_object(source.clone(), world.observe(&source));
        let without = facts.size();
        facts.set_object(name.clone(), world.observe(&name));
        let taken = facts.take_guess(&source, &name);
        assert_eq!(taken.is_some(), is_right, "{guess}");
        assert_eq!(taken.flatten().is_some(), is_right && world.objects.contains_key(&name), "{guess}");
        assert_eq!(facts.size(), without, "{guess}: its memory counts no longer");
    }
}

/// Only such objects are read again to remove the owners.
#[test]
fn recognises_objects_with_owners_by_confrev() {
    let owners = json!([{"uid": "1"}]);
    let [ours, theirs] = [annotations::MANAGER, "helm"].map(|manager| json!([{"manager": manager}]));
    for (owners, managers, expected) in [
        (owners.clone(), ours.clone(), true),
        (owners, theirs.clone(), false),
        (Value::Null, ours, false),
        (Value::Null, theirs, false),
    ] {
        let metadata = json!({
            "name": "demo", "resourceVersion": "7", "ownerReferences": owners, "managedFields": managers,
        });
        let text = json!({"metadata": metadata}).to_string();
        let observed = Observed::read(SourceKind::ConfigMap, text.into_bytes()).unwrap();
        assert_eq!(observed.may_have_our_owners(), expected, "{metadata}");
        assert_eq!(observed.resource_version, "7");
    }
}

/// The keys of the installation may change between two reads.
#[test]
fn content_is_the_same_under_different_keys() {
    let read = |key: u8, value: &str| {
        let keying = Keying::new("ns", [DigestKey::new(&[key; 32])].into());
        let text = json!({"metadata": {"name": "demo"}, "data": {"k": value}}).to_string();
        Observed::read_keyed(SourceKind::Secret, text.into_bytes(), keying).unwrap()
    };
    assert!(read(1, "YQ==").same_content(&read(2, "YQ==")));
    assert!(!read(1, "YQ==").same_content(&read(1, "Yg==")));
}
