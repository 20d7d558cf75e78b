//! Only the garbage collector deletes a snapshot, after the last revision that reads it.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, SNAPSHOTS, World, each_kind, expect, name_of, text};

/// Content, confrev's labels and annotations, ownerReferences and finalizers are protected.
#[test]
fn administrator_cannot_change_or_delete_bound_snapshots() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("guard");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        world.wait_at_rest();
        let snapshot = world.resolved(&web, "demo").expect("the reference is resolved");
        let read = || world.cluster.get("configmap", world.name(), &snapshot).expect("the snapshot exists");
        // A confrev that has just started leads only after the Lease of the previous process has expired.
        wait_for("the snapshot to be bound", LIMIT, || {
            let owners = read()["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
            if owners >= 3 { Ok(()) } else { Err(format!("{owners} owners")) }
        });
        world.wait_at_rest();
        let before = read();

        for (change, reason) in [
            (json!({"data": {"text": "evil"}}), "immutable"),
            (json!({"immutable": null}), "immutable"),
            (json!({"metadata": {"labels": {"confrev.dev/source": "other"}}}), "are confrev's"),
            (json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}), "are confrev's"),
            (json!({"metadata": {"annotations": {"confrev.dev/digest": "sha256:0"}}}), "are confrev's"),
            (json!({"metadata": {"ownerReferences": null}}), "ownerReferences"),
            (json!({"metadata": {"finalizers": ["example.com/mine"]}}), "finalizers"),
        ] {
            let refusal = patched(&world, &snapshot, &change).expect_err(&change.to_string());
            assert!(refusal.contains(reason), "{change}: {refusal}");
        }
        let refusal = world.kubectl(&["delete", "configmap", &snapshot]).refused();
        assert!(refusal.contains("in use by") && refusal.contains("ReplicaSet/web-"), "{refusal}");
        let all = format!("/api/v1/namespaces/{}/configmaps?labelSelector={SNAPSHOTS}", world.name());
        assert_eq!(world.cluster.api().delete(&all).0, 403);
        assert_eq!(read(), before);

        patched(&world, &snapshot, &json!({"metadata": {"labels": {"team": "shop"}}}))
            .expect("other labels may change");
    });
}

fn patched(world: &World, snapshot: &str, change: &Value) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{}/configmaps/{snapshot}", world.name());
    match world.cluster.api().patch(&path, "application/merge-patch+json", change) {
        (200, _) => Ok(()),
        (_, answer) => Err(text(&answer["message"])),
    }
}

#[test]
fn snapshot_is_deleted_only_with_last_replica_set() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("collect");
        let workloads = ["one", "two"].map(|name| Workload::new(kind, name, &["demo"]).replicas(0));
        world.set_config("demo", "A");
        for workload in &workloads {
            world.apply(&workload.manifest()).ok();
            world.wait_replica_sets(workload, 1);
        }
        world.set_config("demo", "B");
        for workload in &workloads {
            world.wait_resolved(workload, "demo", "B");
            world.wait_replica_sets(workload, 2);
        }
        let snapshot = world.snapshot_name("demo", "A");
        let owners = || {
            let snapshot = world.cluster.get("configmap", world.name(), &snapshot)?;
            let owners = snapshot["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let mut names: Vec<_> = owners.iter().map(|owner| text(&owner["name"])).collect();
            names.sort();
            Some(names)
        };
        let old = workloads.clone().map(|workload| old_replica_set(&world, &workload, &snapshot));
        // Only revisions own it: the workloads and the source have moved to B.
        wait_for("the old ReplicaSets to own A's snapshot", LIMIT, || expect(&owners(), &Some(old.to_vec())));

        world.delete("replicaset", &old[0]);
        holds_for("A's snapshot", Duration::from_secs(4), || owners().ok_or("it was deleted"));
        assert_eq!(owners(), Some(vec![old[1].clone()]));
        world.delete(kind.name(), "two");
        wait_for("A's snapshot to be deleted", LIMIT, || owners().is_none().then_some(()));
        assert_eq!(world.snapshot_texts("demo"), ["B"]);
    });
}

/// The name of the workload's ReplicaSet that reads this snapshot.
fn old_replica_set(world: &World, workload: &Workload, snapshot: &str) -> String {
    let is_old = |set: &&Value| {
        crate::world::snapshot_of(&set["spec"]["template"], "demo").as_deref() == Some(snapshot)
    };
    name_of(world.replica_sets(workload).iter().find(is_old).expect("an old ReplicaSet exists"))
}
