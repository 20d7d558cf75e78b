//! What users can do to the snapshots of a source that others change: take their names, and fill etcd with old ones. And who is
//! said to have made a change.

use std::collections::BTreeSet;

use confrev::snapshot::{Authorship, DIGITS, Object, SourceKind, snapshot_name};
use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// The names that the snapshot of this text may have by its content.
fn names(text: &str) -> [String; 4] {
    let object = config_map("demo", text).to_string();
    let digest = Object::parse(object.as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap();
    DIGITS.map(|digits| snapshot_name("demo", &digest, digits))
}

/// Who knows the next content, and may create ConfigMaps, creates them under all names that follow from it.
#[test]
fn occupied_names_stop_neither_rolls_nor_deployments() {
    let _confrev = running();
    let world = World::new("occupied");
    let longer = |snapshot: &String| !names("B").contains(snapshot) && snapshot.starts_with(&names("B")[0]);
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);
    for name in names("B") {
        world.apply(&config_map(&name, "theirs")).ok();
    }
    world.set_config("demo", "B");
    world.wait_reads(&web, "demo", &["B"]);
    let snapshot = world.resolved(&web, "demo").expect("the reference is resolved");
    assert!(longer(&snapshot), "{snapshot}");
    let other = Workload::new(Kind::Deployment, "other", &["demo"]);
    world.apply(&other.manifest()).ok();
    world.wait_reads(&other, "demo", &["B"]);
    // The controller and a review may create one each at the same moment. From then on, those two are known.
    let second = world.resolved(&other, "demo").expect("the reference is resolved");
    assert!(longer(&second), "{second}");
    let ours = world.snapshots().into_iter().map(|object| text(&object["metadata"]["name"])).filter(longer);
    let ours: BTreeSet<String> = ours.collect();
    assert!(ours.contains(&second) && ours.contains(&snapshot) && ours.len() <= 2, "{ours:?}");
    // An apply of the same template, and an undo and its end, keep to that name.
    world.apply(&web.manifest()).ok();
    assert_eq!(world.resolved(&web, "demo"), Some(snapshot));
    world.set_config("demo", "C");
    world.wait_reads(&web, "demo", &["C"]);
    for name in names("B") {
        let theirs = world.cluster.get("configmap", world.name(), &name).expect("it is left alone");
        assert_eq!(theirs["data"]["text"], "theirs");
    }
}

/// A person with the right to write the source adds an entry dated 2099, and would be the author of every later change.
#[test]
fn managed_fields_of_the_future_name_no_author() {
    let _confrev = running();
    let world = World::new("author");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    world
        .apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"},
                        "data": {"text": "A", "other": "1"}}))
        .ok();
    let mut stored: Value = serde_json::from_str(
        &world.kubectl(&["get", "configmap", "demo", "--output=json", "--show-managed-fields"]).ok(),
    )
    .unwrap();
    let entry = json!({"manager": "alice-laptop", "operation": "Update", "apiVersion": "v1", "time": "2099-01-01T00:00:00Z",
                       "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:other": {}}}});
    stored["metadata"]["managedFields"].as_array_mut().unwrap().push(entry);
    stored["data"]["text"] = json!("evil");
    world.with_file(&["replace"], &stored).ok();
    let kept = world.kubectl(&["get", "configmap", "demo", "--output=json", "--show-managed-fields"]).ok();
    let claimed = Authorship::of(kept.as_bytes(), jiff::Timestamp::MAX).expect("an author");
    assert_eq!(claimed.by, "alice-laptop (Update)", "the API server keeps the entry");
    world.apply(&web.manifest()).ok();
    let change = r#"{"data":{"text":"B"}}"#;
    world.kubectl(&["patch", "configmap", "demo", "--patch", change, "--field-manager=the-admin"]).ok();
    world.wait_resolved(&web, "demo", "B");
    let name = world.resolved(&web, "demo").unwrap();
    let snapshot = world.cluster.get("configmap", world.name(), &name).expect("the snapshot exists");
    assert_eq!(snapshot["metadata"]["annotations"]["confrev.dev/changed-by"], "the-admin (Update)");
}

/// A person who may patch one ConfigMap fills etcd with its snapshots.
#[test]
fn unused_snapshots_take_at_most_16_mib() {
    const CHANGES: usize = 30;
    const LARGE: usize = 900 << 10;
    let _confrev = running();
    let world = World::new("bytes");
    let source = |text: &str| {
        let mut object = config_map("demo", text);
        object["metadata"]["labels"] = json!({"confrev.dev/enabled": "true"});
        object["metadata"]["annotations"] = json!({"confrev.dev/keep": "1000"});
        object
    };
    let sizes = || -> Vec<usize> {
        let bytes =
            |s: &Value| text(&s["metadata"]["annotations"]["confrev.dev/bytes"]).parse().expect("a size");
        world.snapshots().iter().map(bytes).collect()
    };
    world.with_file(&["create"], &source("first")).ok();
    for change in 0..CHANGES {
        let large = format!("{change} {}", "x".repeat(LARGE));
        world.with_file(&["replace"], &source(&large)).ok();
        // Each content gets its snapshot before the next one replaces it.
        world.snapshot_name("demo", &large);
    }
    wait_for("old snapshots to be deleted", LIMIT, || {
        let sum: usize = sizes().iter().sum();
        if sum <= 16 << 20 { Ok(()) } else { Err(format!("{sum} bytes in {} snapshots", sizes().len())) }
    });
    let newest = format!("{} {}", CHANGES - 1, "x".repeat(LARGE));
    world.snapshot_name("demo", &newest);
    assert!(sizes().len() > 10, "no more than needed are deleted: {}", sizes().len());
    wait_for("an Event on the source", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        expect(&events.iter().any(|event| event["reason"] == "SnapshotsDropped"), &true)
    });
}

/// 14 MiB of sources: their reads and their snapshots fit into the memory of one review.
#[test]
fn workload_with_many_large_sources_is_admitted() {
    let _confrev = running();
    let world = World::new("large-sources");
    let names: Vec<_> = (0..20).map(|number| format!("s{number}")).collect();
    for name in &names {
        world.set_config(name, &"x".repeat(700 << 10));
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    world.apply(&Workload::new(Kind::Deployment, "web", &names).replicas(0).manifest()).ok();
    let snapshots = world.snapshots();
    assert_eq!(snapshots.len(), names.len());
}
