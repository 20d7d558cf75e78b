//! Digests of Secrets: a guess under another name shows nothing, and a snapshot that was restored into another namespace is one.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::{Load, owners};
use crate::shared::running;
use crate::world::{LIMIT, SNAPSHOTS, World, expect, name_of, text};

fn pin(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
           "metadata": {"name": name, "labels": {"confrev.dev/enabled": "true"}}, "stringData": {"pin": "4711"}})
}

/// A Deployment that reads this Secret, or snapshot of it.
fn reading(secret: &str) -> Load {
    let mut load = Load::new("deployments", "web", &[]).annotation("secrets", "true");
    load.manifest["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "s", "secret": {"secretName": secret}}]);
    load
}

/// The snapshot of a Secret, once it exists.
fn snapshot_of(world: &World, source: &str) -> Value {
    wait_for("the snapshot of a Secret", LIMIT, || {
        let all = world.cluster.list("secrets", world.name(), SNAPSHOTS);
        all.into_iter()
            .find(|snapshot| snapshot["metadata"]["annotations"]["confrev.dev/source-name"] == source)
    })
}

/// Who may create Secrets, and read workloads, compares the names of snapshots.
#[test]
fn guess_under_another_name_has_another_snapshot_name() {
    let _confrev = running();
    let world = World::new("guess");
    world.apply(&pin("db")).ok();
    reading("db").apply(&world).ok();
    world.apply(&pin("guess")).ok();
    let [hidden, guess] = ["db", "guess"].map(|source| snapshot_of(&world, source));
    let digits = |snapshot: &Value| name_of(snapshot).rsplit_once('-').expect("digits").1.to_owned();
    assert_eq!(hidden["data"], guess["data"], "the guess is right");
    assert_ne!(digits(&hidden), digits(&guess));
    let digest = |snapshot: &Value| text(&snapshot["metadata"]["annotations"]["confrev.dev/digest"]);
    assert_ne!(digest(&hidden), digest(&guess));
}

/// A backup of one namespace is restored into another, as Velero does.
#[test]
fn restored_snapshot_is_bound_and_deleted() {
    let _confrev = running();
    let [world, restored] = ["backup", "restored"].map(World::new);
    world.apply(&pin("db")).ok();
    reading("db").apply(&world).ok();
    let mut snapshot = snapshot_of(&world, "db");
    for field in
        ["uid", "resourceVersion", "creationTimestamp", "ownerReferences", "managedFields", "namespace"]
    {
        snapshot["metadata"].as_object_mut().unwrap().remove(field);
    }
    restored.cluster.create("secret", restored.name(), &snapshot);
    let name = name_of(&snapshot);
    let web = reading(&name);
    let mut web = web.clone();
    let sources = json!({"secrets": {"db": name}}).to_string();
    web.manifest["spec"]["template"]["metadata"]["annotations"] = json!({"confrev.dev/sources": sources});
    web.apply(&restored).ok();
    let found = || restored.cluster.get("secret", restored.name(), &name);
    wait_for("the restored snapshot to be bound", LIMIT, || {
        let snapshot = found().ok_or("it is missing")?;
        let bound = owners(&snapshot).iter().any(|owner| owner.starts_with("ReplicaSet/"));
        if bound { Ok(()) } else { Err(format!("{:?}", owners(&snapshot))) }
    });
    restored.kubectl(&["delete", "deployment", "web"]).ok();
    wait_for("the restored snapshot to be deleted", LIMIT, || expect(&found().is_none(), &true));
    // One that nothing uses is deleted as well.
    restored.cluster.create("secret", restored.name(), &snapshot);
    wait_for("the unused snapshot to be deleted", LIMIT, || expect(&found().is_none(), &true));
    // A workload on hold comes back with it.
    restored.cluster.create("secret", restored.name(), &snapshot);
    let held = web.annotation("hold", &format!("secret/{name}"));
    held.apply(&restored).ok();
    let live = held.live(&restored);
    assert_eq!(live["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"], *name);
}
