//! The kubelet refreshes mounted content in place, except that of snapshots.

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;
use std::time::Duration;

use crate::printing::{SECONDS, log, printing, wait_printed};
use crate::shared::{LIMIT, running};
use crate::world::{World, expect};

/// Beside an opted-in workload that does not roll, one that is not opted in shows that the kubelet does refresh.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn mounted_snapshot_is_never_refreshed() {
    let _confrev = running();
    let world = World::new("refresh");
    let kept = printing("deployments", "kept").annotation("track", "false");
    let plain = printing("deployments", "plain").unlabelled();
    world.set_config("demo", "blue");
    for load in [&kept, &plain] {
        load.apply(&world).ok();
        wait_printed(&world, load, &["blue"]);
    }
    world.set_config("demo", "green");
    let logs = |load| -> Vec<String> {
        crate::any_kind::Load::pods(load, &world).iter().map(|pod| log(&world, pod, "app")).collect()
    };
    wait_for("the kubelet to refresh the file, and not the variable", LIMIT * 2, || {
        expect(&logs(&plain), &["blue blue\ngreen blue\n"])
    });
    holds_for("that the snapshot is as before", Duration::from_secs(SECONDS), || {
        expect(&logs(&kept), &["blue blue\n"])
    });

    // No user can change the snapshot: the API server itself refuses it.
    let snapshot = world.snapshot_name("demo", "blue");
    let change = json!({"data": {"text": "green"}}).to_string();
    let refusal =
        world.kubectl(&["patch", "configmap", &snapshot, "--type=merge", "--patch", &change]).refused();
    assert!(refusal.contains("field is immutable when `immutable` is set"), "{refusal}");
    assert_eq!(logs(&kept), ["blue blue\n"]);
}
