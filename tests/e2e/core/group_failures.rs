//! A failure in one namespace of a group: what it does to the workloads of the others.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::gates::{close_gates, with_open_gates};
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text, verdict};

/// A Deployment whose pods start when their gate is opened, and which gives up a rollout after some seconds if it is named `bad`.
fn load(name: &str) -> Value {
    let mut manifest = Workload::new(Kind::Deployment, name, &["demo"]).replicas(1).manifest();
    manifest["spec"]["progressDeadlineSeconds"] = json!(if name == "bad" { 6 } else { 3600 });
    close_gates(&mut manifest);
    manifest
}

/// Why a namespace refuses contents of the source.
fn refusals(world: &World) -> Vec<String> {
    let reason = |snapshot: &Value| text(&verdict(snapshot)["failed"]["reason"]);
    world.snapshots().iter().map(reason).filter(|reason| !reason.is_empty()).collect()
}

/// The tenant of the second namespace writes content with which its own workload fails. The first one has finished that change.
#[test]
fn failure_leaves_other_namespaces_of_its_group() {
    let _confrev = running();
    let worlds: [World; 2] = World::group("group-failures", 2).try_into().ok().expect("two");
    let [first, second] = &worlds;
    let [payroll, bad] =
        ["payroll", "bad"].map(|name| Workload::new(Kind::Deployment, name, &["demo"]).replicas(1));
    let reads = |world: &World, pod: &Value| {
        let text = world.pod_reads(pod, "demo");
        if world.name() == second.name() && text == "new" { "bad".to_owned() } else { text }
    };
    with_open_gates(&worlds, reads, || {
        for (world, name, workload) in [(first, "payroll", &payroll), (second, "bad", &bad)] {
            world.set_config("demo", "old");
            world.kubectl(&["annotate", "configmap/demo", "confrev.dev/on-failure=revert"]).ok();
            world.apply(&load(name)).ok();
            world.wait_reads(workload, "demo", &["old"]);
        }
        first.set_config("demo", "new");
        first.wait_reads(&payroll, "demo", &["new"]);
        second.set_config("demo", "new");
        let reason = wait_for("the refusal in the namespace that failed", LIMIT, || {
            let refusals = refusals(second);
            refusals.first().cloned().ok_or("none")
        });
        assert!(reason.starts_with("Deployment/bad failed"), "{reason}");
        second.wait_resolved(&bad, "demo", "old");
        holds_for("the finished change of the other namespace", Duration::from_secs(5), || {
            first.resolves_to(&payroll, "demo", "new")?;
            expect(&refusals(first), &[""; 0])
        });
        for event in first.cluster.list("events", first.name(), "") {
            let said = format!("{} {}", text(&event["reason"]), text(&event["message"]));
            assert!(
                !said.contains("efused") && !said.contains("/bad") && !said.contains(second.name()),
                "{said}"
            );
        }
        let mut again = load("payroll");
        again["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        first.apply(&again).ok();
        first.wait_resolved(&payroll, "demo", "new");

        // The first namespace consents.
        let label = ["label", "namespace", first.name(), "confrev.dev/group-revert=true"];
        first.cluster.kubectl(&label).run().ok();
        wait_for("the refusal in both namespaces", LIMIT, || {
            expect(&refusals(first), &["the change failed in another namespace of the group"])
        });
        first.wait_resolved(&payroll, "demo", "old");
    });
}

/// The source of the first namespace has no settings. Its workload has moved, and those of the second one wait for its health.
#[test]
fn waves_count_workloads_of_unlimited_sources() {
    let _confrev = running();
    let worlds: [World; 2] = World::group("group-settings", 2).try_into().ok().expect("two");
    let [first, second] = &worlds;
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(1);
    for world in &worlds {
        world.set_config("demo", "old");
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "old");
    }
    second.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1", "confrev.dev/bake=1h"]).ok();
    first.set_config("demo", "new");
    first.wait_resolved(&web, "demo", "new");
    second.set_config("demo", "new");
    // The change is one, in both namespaces.
    wait_for("the change in the list of each namespace", LIMIT, || {
        let said = worlds.each_ref().map(|world| world.confrev(&["waves"]).ok());
        let is_listed = said.iter().all(|said| said.contains("ConfigMap/demo") && said.contains("1 of 2"));
        if is_listed { Ok(()) } else { Err(said.concat()) }
    });
    let said = first.confrev(&["wait", "demo", "--complete", "--timeout=2s"]).failed(3);
    assert!(said.contains("ConfigMap/demo: "), "{said}");
    second.resolves_to(&web, "demo", "old").expect("the first workload bakes");
    second.kubectl(&["annotate", "configmap/demo", "confrev.dev/bake-"]).ok();
    second.wait_resolved(&web, "demo", "new");
    first.confrev(&["wait", "demo", "--complete", "--timeout=1m"]).ok();
}
