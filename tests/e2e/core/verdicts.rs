//! The verdict on a snapshot: what people decided about a content, and that a workload failed with it, outlive the annotations of the
//! source and the workload.

use std::{slice::from_ref, time::Duration};

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::gates::{close_gates, with_open_gates};
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text, verdict};

/// The source, as its file in git has it.
fn source(content: &str, waves: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": content},
        "metadata": {"name": "demo", "labels": labels, "annotations": {"confrev.dev/waves": waves}},
    })
}

/// Three workloads on the content A, whose rollouts pause: so no wave proves healthy by itself.
fn paused(world: &World) -> [Workload; 3] {
    world.apply(&source("A", "1, 2", &json!({}))).ok();
    let loads = ["one", "two", "three"]
        .map(|name| Workload::new(Kind::Rollout, name, &["demo"]).replicas(2).pausing());
    for load in &loads {
        world.apply(&load.manifest()).ok();
    }
    for load in &loads {
        world.wait_reads(load, "demo", &["A", "A"]);
    }
    world.wait_at_rest();
    loads
}

fn moved(world: &World, loads: &[Workload], content: &str) -> usize {
    loads.iter().filter(|load| world.resolves_to(load, "demo", content).is_ok()).count()
}

fn decision(world: &World) -> String {
    let live = world.cluster.get("configmap", world.name(), "demo").expect("the source");
    text(&live["metadata"]["annotations"]["confrev.dev/decision"])
}

/// Argo CD with `Replace=true` writes the manifest without the annotations of others. A label changes with `kubectl apply`.
#[test]
fn replaced_source_ends_no_decision() {
    let _confrev = running();
    let world = World::new("verdicts");
    let loads = paused(&world);
    let replace = |manifest: &Value| {
        let replace =
            world.cluster.kubectl(&["replace", "--filename=-"]).arg("--namespace").arg(world.name());
        replace.stdin(manifest).run().ok();
    };
    let b = source("B", "1, 2", &json!({}));
    replace(&b);
    wait_for("the first wave", LIMIT, || expect(&moved(&world, &loads, "B"), &1));
    world.confrev(&["waves", "abort", "demo"]).ok();
    assert_eq!(decision(&world), "", "the snapshot has the decision");
    let user = world.kubectl(&["auth", "whoami", "--output=jsonpath={.status.userInfo.username}"]).ok();
    wait_for("an Event with the user", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        let notes: Vec<_> = events.iter().map(|event| text(&event["message"])).collect();
        let is_it = |note: &String| note.contains(&format!("was aborted by {user}"));
        if notes.iter().any(is_it) { Ok(()) } else { Err(notes.join("\n")) }
    });
    replace(&b);
    // Without the abort, the promotion would move the second workload.
    let stopped = world.confrev(&["waves", "promote", "demo"]).failed(1);
    assert!(stopped.contains("is aborted"), "{stopped}");
    holds_for("the aborted change", Duration::from_secs(3), || expect(&moved(&world, &loads, "B"), &1));

    world.confrev(&["waves", "retry", "demo"]).ok();
    world.confrev(&["waves", "promote", "demo"]).ok();
    wait_for("the second wave", LIMIT, || expect(&moved(&world, &loads, "B"), &2));
    world.confrev(&["waves", "promote", "--all", "demo"]).ok();
    let of = |world: &World| {
        let b = world.snapshot_name("demo", "B");
        world.snapshots().iter().find(|snapshot| name_of(snapshot) == b).map(verdict).unwrap_or_default()
    };
    assert_eq!(of(&world)["promoted"], "all");
    world.apply(&source("B", "1, 2", &json!({"team": "shop"}))).ok();
    wait_for("the rest", LIMIT, || expect(&moved(&world, &loads, "B"), &3));
    holds_for("the promotion", Duration::from_secs(3), || expect(&of(&world)["promoted"], &json!("all")));

    replace(&source("C", "1, 2", &json!({})));
    wait_for("the first wave of the next change", LIMIT, || expect(&moved(&world, &loads, "C"), &1));
    wait_for("the end of the promotion", LIMIT, || expect(&of(&world)["promoted"], &Value::Null));
}

/// The first workload of a wave fails, and is deleted. The others stay, until a person ends the failure.
#[test]
fn failure_outlives_its_workload() {
    let _confrev = running();
    let world = World::new("verdict-failure");
    let loads =
        ["one", "two", "three"].map(|name| Workload::new(Kind::Deployment, name, &["demo"]).replicas(1));
    let manifest = |load: &Workload| {
        let mut manifest = load.manifest();
        // The first one fails by itself: after a write of its spec, its failure would count as that write's.
        let is_first = load.name == "one";
        manifest["metadata"]["annotations"]["confrev.dev/order"] = json!(if is_first { "-1" } else { "0" });
        manifest["spec"]["progressDeadlineSeconds"] = json!(if is_first { 6 } else { 3600 });
        close_gates(&mut manifest);
        manifest
    };
    with_open_gates(
        from_ref(&world),
        |world, pod| world.pod_reads(pod, "demo"),
        || {
            world.apply(&source("good", "1", &json!({}))).ok();
            for load in &loads {
                world.apply(&manifest(load)).ok();
            }
            for load in &loads {
                world.wait_reads(load, "demo", &["good"]);
            }
            world.wait_at_rest();
            world.apply(&source("bad", "1", &json!({}))).ok();
            let bad = world.snapshot_name("demo", "bad");
            let failed = || {
                let snapshots = world.snapshots();
                let found = snapshots.iter().find(|snapshot| name_of(snapshot) == bad).map(verdict);
                text(&found.unwrap_or_default()["failed"]["reason"])
            };
            let first = wait_for("the first workload to move", LIMIT, || {
                let first = loads.iter().find(|load| world.resolves_to(load, "demo", "bad").is_ok());
                first.ok_or("no workload has moved")
            });
            wait_for("the failure in the verdict", LIMIT, || {
                if failed().contains("failed: ") { Ok(()) } else { Err(failed()) }
            });
            world.kubectl(&["delete", &first.reference()]).ok();
            let rest: Vec<_> = loads.iter().filter(|load| load.name != first.name).cloned().collect();
            holds_for("the failure", Duration::from_secs(6), || expect(&moved(&world, &rest, "bad"), &0));
            let reason = text(&world.confrev_json(&["waves", "demo"])["reason"]);
            assert!(reason.contains(&failed()) && reason.contains("waves retry configmap/demo"), "{reason}");
            world.confrev(&["waves", "retry", "demo"]).ok();
            wait_for("another first workload", LIMIT, || expect(&moved(&world, &rest, "bad"), &1));
            world.apply(&source("better", "1", &json!({}))).ok();
            for load in &rest {
                world.wait_reads(load, "demo", &["better"]);
            }
        },
    );
}
