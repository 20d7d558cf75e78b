//! Nodes that are drained or restart.

use std::collections::BTreeSet;

use confrev_controlplane::{Nodes, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::printing::{all_printed, canary, delete_source, keep_printed, wait_printed};
use crate::shared::{LIMIT, cluster, confrev_pods, exclusive, scale_confrev};
use crate::world::{World, expect, text};
use crate::writer::Writer;

/// The drain evicts one replica of confrev at a time, and the pods of the canary within their PodDisruptionBudget. No
/// write is refused meanwhile.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn drain_keeps_configs_and_admission() {
    let _alone = exclusive();
    let world = World::new("drain");
    let web = canary("web");
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue"; 4]);
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    world.apply(&budget).ok();
    world.set_config("demo", "green");
    let both = ["blue", "blue", "blue", "green"];
    wait_printed(&world, &web, &both);

    delete_source(&world, "configmap");
    let writer = Writer::start(&world);
    let drain = ["drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"];
    cluster().kubectl(&drain).run().ok();
    wait_for("all pods to run on the other node", LIMIT, || {
        let moved = |pod: &serde_json::Value| pod["spec"]["nodeName"] == "node-1";
        expect(&web.pods(&world).iter().filter(|pod| moved(pod)).count(), &4)?;
        expect(&confrev_pods().iter().filter(|pod| moved(pod)).count(), &2)
    });
    wait_printed(&world, &web, &both);
    cluster().kubectl(&["uncordon", "node-2"]).run().ok();
    let writes = writer.stop();
    assert!(writes.refused.is_empty(), "{writes}");
    keep_printed(&world, &web, &both);
}

/// The containers of the ready pods of a workload on a node.
fn containers(world: &World, load: &Load, node: &str) -> BTreeSet<String> {
    let pods = load.pods(world);
    let on_node = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node);
    on_node.map(|pod| text(&pod["status"]["containerStatuses"][0]["containerID"])).collect()
}

/// Both replicas of confrev are down when the node restarts, and the source has changed again.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn restarted_node_reads_same_configs_without_confrev() {
    let _alone = exclusive();
    let nodes = Nodes::shared();
    let world = World::new("reboot");
    let web = canary("web");
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue"; 4]);
    world.set_config("demo", "green");
    let both = ["blue", "blue", "blue", "green"];
    wait_printed(&world, &web, &both);

    scale_confrev(0);
    world.set_config("demo", "red");
    let before = containers(&world, &web, "node-2");
    nodes.restart("node-2");
    wait_for("the pods to run again", LIMIT, || {
        let now = containers(&world, &web, "node-2");
        expect(&now.len(), &before.len())?;
        // At first, the API server shows the pods as they were before the restart.
        expect(&now.is_disjoint(&before), &true)?;
        expect(&web.pods(&world).len(), &4)?;
        expect(&all_printed(&world, &web), &both)
    });
    keep_printed(&world, &web, &both);

    scale_confrev(2);
    wait_printed(&world, &web, &["blue", "blue", "blue", "red"]);
}
