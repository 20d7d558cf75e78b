//! The story of the README on real nodes, with the loss of a whole node in the middle.

use confrev_controlplane::{Nodes, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::manifests;
use crate::printing::{
    all_printed, canary, delete_pod, delete_source, keep_printed, kill_container, pod_that_printed, printing,
    wait_printed,
};
use crate::shared::{LIMIT, exclusive, running};
use crate::world::{World, expect};

/// The pods of the lost node are replaced on the other one, and read the content of their own revision.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn canary_keeps_configs_after_node_loss() {
    let _alone = exclusive();
    let nodes = Nodes::shared();
    let world = World::new("canary");
    let web = canary("web");
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue"; 4]);

    world.set_config("demo", "green");
    wait_printed(&world, &web, &["blue", "blue", "blue", "green"]);
    assert_eq!(nodes_of(&world, &web).len(), 2, "the pods are on both nodes");
    kill_container(&world, &pod_that_printed(&world, &web, "blue"));
    kill_container(&world, &pod_that_printed(&world, &web, "green"));
    keep_printed(&world, &web, &["blue", "blue", "blue", "green"]);

    delete_source(&world, "configmap");
    nodes.lose("node-2");
    nodes.wait_lost("node-2");
    wait_for("all pods to run on the other node", LIMIT, || {
        expect(&nodes_of(&world, &web), &["node-1"])?;
        expect(&all_printed(&world, &web), &["blue", "blue", "blue", "green"])
    });
    keep_printed(&world, &web, &["blue", "blue", "blue", "green"]);

    world.argo(&["promote", "web"]).ok();
    wait_printed(&world, &web, &["green"; 4]);
    nodes.recover("node-2");
    keep_printed(&world, &web, &["green"; 4]);
}

/// The nodes on which ready pods of a workload run.
fn nodes_of(world: &World, load: &Load) -> Vec<String> {
    let pods = load.pods(world);
    let mut nodes: Vec<_> =
        pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

#[test]
#[ignore = "it needs real nodes: make test-node"]
fn undo_restores_printed_config() {
    let _confrev = running();
    let world = World::new("undo");
    let web = printing("deployments", "web").spec(json!({"replicas": 2}));
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
    world.set_config("demo", "green");
    wait_printed(&world, &web, &["green", "green"]);

    delete_source(&world, "configmap");
    world.kubectl(&["rollout", "undo", "deployment/web"]).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
    delete_pod(&world, &web.pods(&world)[0]);
    wait_printed(&world, &web, &["blue", "blue"]);
    keep_printed(&world, &web, &["blue", "blue"]);
}

/// Both colors run at the same time, each with its own content.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn blue_green_keeps_both_configs() {
    let _confrev = running();
    let world = World::new("blue-green");
    for name in ["active", "preview"] {
        world.apply(&manifests::service(name, "web")).ok();
    }
    let strategy = json!({"blueGreen": {
        "activeService": "active", "previewService": "preview", "autoPromotionEnabled": false,
        "scaleDownDelaySeconds": 1,
    }});
    let web = printing("rollouts", "web").spec(json!({"replicas": 2, "strategy": strategy}));
    world.set_config("demo", "blue");
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);
    world.set_config("demo", "green");
    wait_printed(&world, &web, &["blue", "blue", "green", "green"]);
    delete_source(&world, "configmap");
    delete_pod(&world, &pod_that_printed(&world, &web, "blue"));
    delete_pod(&world, &pod_that_printed(&world, &web, "green"));
    wait_printed(&world, &web, &["blue", "blue", "green", "green"]);

    world.argo(&["promote", "web"]).ok();
    wait_printed(&world, &web, &["green", "green"]);
}
