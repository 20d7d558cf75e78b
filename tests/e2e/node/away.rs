//! confrev is away, with `outage: carry`: its pods are gone, and containers print what they find. And the value changes under load.

use std::time::Duration;

use confrev_controlplane::{holds_for, own_chart, wait_for};
use confrev_core_test_support::world::is_marked;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::printing::{SECONDS, delete_pod, keep_printed, pod_that_printed, printing, wait_printed};
use crate::shared::{LIMIT, VALUES, cluster, confrev_pods, exclusive, scale_confrev, wait_serving};
use crate::world::{World, expect};
use crate::writer::Writer;

/// Applies the chart with this value of `outage`, then deletes what the chart no longer has, as Helm does.
fn choose(outage: &str) {
    let chosen = format!("outage={}", json!(outage));
    let values: Vec<_> = VALUES.iter().copied().filter(|value| !value.starts_with("outage=")).collect();
    cluster().upgrade_chart(&own_chart(), &[&values[..], &[&*chosen]].concat());
    if outage == "carry" {
        return;
    }
    let named =
        |kind: &str, name: &str| cluster().kubectl(&["delete", kind, name, "--ignore-not-found"]).run().ok();
    for (kind, name) in [("mutating", "confrev-carry"), ("validating", "confrev-unresolved")] {
        for binding in ["own", "namespaced"] {
            named(&format!("{kind}admissionpolicybinding"), &format!("{name}-{binding}"));
        }
        named(&format!("{kind}admissionpolicy"), name);
    }
}

/// The ReplicaSets or ControllerRevisions, and whether the workload is marked.
fn state(world: &World, load: &Load) -> (usize, bool) {
    (load.changes(world), is_marked(&load.live(world)))
}

/// Pods that start while confrev is away read what those before them read, whether they are lost or deployed. When it is back,
/// each workload rolls once if its content differs, and not otherwise.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn pods_keep_their_config_while_confrev_is_away() {
    let _alone = exclusive();
    choose("carry");
    wait_serving(2);
    let [world, calm] = ["away", "away-calm"].map(World::new);
    let kinds = ["deployments", "statefulsets", "daemonsets", "rollouts"];
    let loads = kinds.map(|kind| {
        let load = printing(kind, kind);
        if kind == "daemonsets" { load } else { load.spec(json!({"replicas": 2})) }
    });
    let both: Vec<_> =
        [&world, &calm].into_iter().flat_map(|world| loads.iter().map(move |load| (world, load))).collect();
    for world in [&world, &calm] {
        world.set_config("demo", "blue");
    }
    for (world, load) in &both {
        load.apply(world).ok();
    }
    for (world, load) in &both {
        wait_printed(world, load, &["blue"; 2]);
    }
    scale_confrev(0);
    world.set_config("demo", "green");
    for (world, load) in &both {
        delete_pod(world, &pod_that_printed(world, load, "blue"));
        load.patch(world, &json!({"spec": {"template": {"metadata": {"annotations": {"build": "2"}}}}}));
        let what = format!("the deployment of {}", load.reference());
        wait_for(&what, LIMIT, || expect(&state(world, load), &(2, true)));
    }
    for (world, load) in &both {
        wait_printed(world, load, &["blue"; 2]);
    }
    let refusal = printing("deployments", "late").apply(&world).refused();
    assert!(refusal.contains("confrev does not answer"), "{refusal}");

    scale_confrev(2);
    for load in &loads {
        wait_printed(&world, load, &["green"; 2]);
        keep_printed(&calm, load, &["blue"; 2]);
    }
    holds_for("one roll where the content differs", Duration::from_secs(SECONDS), || {
        loads.iter().try_for_each(|load| {
            expect(&state(&world, load), &(3, false))?;
            expect(&state(&calm, load), &(2, false))
        })
    });
}

/// From each value to each other one, while clients write: nothing is refused, and nothing is stored as it was written.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn change_of_outage_value_loses_no_write() {
    let _alone = exclusive();
    let world = World::new("choice");
    let writer = Writer::start(&world);
    for outage in ["carry", "refuse", "admit", "carry", "admit", "refuse"] {
        choose(outage);
        wait_serving(2);
        let policy =
            |webhook: &Value| webhook["failurePolicy"] == if outage == "refuse" { "Fail" } else { "Ignore" };
        let configuration =
            cluster().get("mutatingwebhookconfiguration", "", "confrev").expect("it is installed");
        let webhooks = configuration["webhooks"].as_array().cloned().unwrap_or_default();
        assert!(webhooks.iter().any(policy), "{outage}: {webhooks:?}");
    }
    expect(&confrev_pods().len(), &2).unwrap();
    let writes = writer.stop();
    eprintln!("while the value changed: {writes}");
    assert!(writes.refused.is_empty(), "{writes}");
}
