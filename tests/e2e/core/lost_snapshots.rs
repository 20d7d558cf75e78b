//! Snapshots that are deleted in spite of the guard, while a live revision refers to them.

use std::thread;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::manifests::Workload;
use crate::shared::{Running, running};
use crate::world::{LIMIT, World, each_kind, name_of, text};

/// The user that the guard lets delete any snapshot.
const COLLECTOR: &str = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
/// Longer than confrev remembers the content of a snapshot.
const REMEMBERED: Duration = Duration::from_secs(65);

/// Creates two revisions: an old one with "A" of `demo`, and one with "B".
fn rolled(world: &World, web: &Workload) {
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(web, "demo", &["A"]);
    world.set_config("demo", "B");
    world.wait_reads(web, "demo", &["B"]);
    world.wait_at_rest();
}

fn take_away(world: &World, snapshot: &str) -> String {
    let uid = |object: Value| text(&object["metadata"]["uid"]);
    let before = world.cluster.get("configmap", world.name(), snapshot).map(uid).expect("the object exists");
    world.kubectl(&["delete", "configmap", snapshot, "--wait=false", COLLECTOR]).ok();
    before
}

/// Waits until another object of that name exists, with this content.
fn wait_made_again(world: &World, snapshot: &str, before: &str, content: &str) {
    wait_for(&format!("{snapshot} to be recreated"), LIMIT, || {
        let object = world.cluster.get("configmap", world.name(), snapshot).ok_or("it does not exist")?;
        let same = object["metadata"]["uid"] == *before || !object["metadata"]["deletionTimestamp"].is_null();
        let right = object["data"]["text"] == *content && object["immutable"] == true;
        if !same && right { Ok(()) } else { Err(object.to_string()) }
    });
}

/// Waits until an Event on this object has this reason, and names all these objects.
fn wait_told(world: &World, reason: &str, on: (&str, &str), named: &[String]) {
    wait_for(&format!("{reason} on {} {}", on.0, on.1), LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        let is_it = |event: &&Value| {
            event["reason"] == reason
                && (&event["involvedObject"]["kind"], &event["involvedObject"]["name"])
                    == (&json!(on.0), &json!(on.1))
                && named.iter().all(|part| text(&event["message"]).contains(part))
        };
        let all = || events.iter().map(|event| format!("{} {}", event["reason"], event["message"]));
        if events.iter().any(|event| is_it(&event)) {
            Ok(())
        } else {
            Err(all().collect::<Vec<_>>().join("; "))
        }
    });
}

/// The content comes from the source, or from another snapshot with the same content.
#[test]
fn missing_snapshot_is_recreated_from_equal_content() {
    let confrev = running();
    each_kind(|kind| {
        let world = World::new("made-again");
        let web = Workload::new(kind, "web", &["demo"]);
        rolled(&world, &web);
        let present = world.resolved(&web, "demo").expect("the reference is resolved");
        thread::sleep(REMEMBERED);
        let before = take_away(&world, &present);
        wait_made_again(&world, &present, &before, "B");
        wait_told(&world, "SnapshotRestored", ("ConfigMap", "demo"), std::slice::from_ref(&present));

        // A snapshot of another source has the content of the old revision.
        let twin = Workload::new(kind, "twin", &["other"]).replicas(0);
        world.set_config("other", "A");
        world.apply(&twin.manifest()).ok();
        world.wait_resolved(&twin, "other", "A");
        let old = world.snapshot_name("demo", "A");
        let before = take_away(&world, &old);
        wait_made_again(&world, &old, &before, "A");
        world.wait_at_rest();
        world.undo(&web);
        world.wait_reads(&web, "demo", &["A"]);
    });
    assert!(confrev.metric("confrev_snapshots_restored_total") >= 4.0);
}

/// The Event names the revision that cannot start pods.
#[test]
fn event_and_gauge_report_unrecoverable_snapshot() {
    let confrev = running();
    each_kind(|kind| {
        let world = World::new("lost");
        let web = Workload::new(kind, "web", &["demo"]);
        rolled(&world, &web);
        let old = world.snapshot_name("demo", "A");
        let sets = world.replica_sets(&web);
        let names_it = |set: &&Value| set["spec"]["template"].to_string().contains(&old);
        let revision = name_of(sets.iter().find(names_it).expect("the old revision exists"));
        thread::sleep(REMEMBERED);
        take_away(&world, &old);
        wait_for("the gauge", LIMIT, || lost(&confrev));
        wait_told(&world, "SnapshotLost", ("ConfigMap", "demo"), &[old.clone(), revision.clone()]);
        wait_told(&world, "SnapshotLost", ("ReplicaSet", &revision), std::slice::from_ref(&old));
        // The running pods read the other snapshot.
        world.reads_for(2, &web, "demo", &["B"]);
        // When the source has the content again, the snapshot is recreated, and the revision can start pods.
        world.set_config("demo", "A");
        world.wait_reads(&web, "demo", &["A"]);
        assert_eq!(world.snapshot_name("demo", "A"), old);
    });
    wait_for("the gauge to return to 0", LIMIT, || match lost(&confrev) {
        Ok(()) => Err("snapshots are lost"),
        Err(_) => Ok(()),
    });
}

/// Whether the gauge reports a lost snapshot.
fn lost(confrev: &Running) -> Result<(), String> {
    let count = confrev.metric("confrev_lost_snapshots");
    if count > 0.0 { Ok(()) } else { Err(format!("{count}")) }
}

/// Argo CD deletes like this. The garbage collector deletes the snapshots while the workload and its ReplicaSet still
/// wait for a pod.
#[test]
fn foreground_deletion_restores_and_reports_nothing() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("foreground");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        world.wait_at_rest();
        let snapshot = world.snapshot_name("demo", "A");
        let pod = name_of(&world.cluster.list("pods", world.name(), "app=web")[0]);
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", world.name());
        let finalizers = |finalizers: Value| {
            let change = json!({"metadata": {"finalizers": finalizers}});
            let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
            assert!(code < 300, "{code} {answer}");
        };
        // The finalizer keeps the pod until the end of the test.
        finalizers(json!(["example.com/stay"]));
        let delete = |what: &str| {
            world.kubectl(&["delete", what, "--cascade=foreground", "--wait=false"]).ok();
        };
        delete(&web.reference());
        wait_for("the deletion of the ReplicaSet to begin", LIMIT, || {
            let sets = world.replica_sets(&web);
            let leaves = sets.iter().all(|set| !set["metadata"]["deletionTimestamp"].is_null());
            if leaves { Ok(()) } else { Err(format!("{sets:?}")) }
        });
        delete("configmap/demo");
        wait_for("the snapshot to be deleted", LIMIT, || {
            let left = world.cluster.get("configmap", world.name(), &snapshot);
            left.map_or(Ok(()), |snapshot| Err(snapshot["metadata"].to_string()))
        });
        assert!(
            !world.live(&web)["metadata"]["deletionTimestamp"].is_null(),
            "the workload is being deleted"
        );
        holds_for("that nothing is restored or reported", Duration::from_secs(8), || {
            let events = crate::events::told(&world);
            let told = events.keys().any(|what| what.starts_with("Snapshot"));
            let is_there = world.cluster.get("configmap", world.name(), &snapshot).is_some();
            if told || is_there { Err(format!("{is_there} {events:?}")) } else { Ok(()) }
        });
        finalizers(json!(null));
    });
}
