//! A blue-green Rollout: the preview has the new content, and the active pods keep the old.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::manifests;
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

const HASH: &str = "rollouts-pod-template-hash";

/// The texts that the pods behind a Service read.
fn behind(world: &World, service: &str) -> Vec<String> {
    let object = world.cluster.get("service", world.name(), service).expect("the object exists");
    let Some(hash) = object["spec"]["selector"][HASH].as_str() else { return Vec::new() };
    let pods = world.cluster.ready_pods(world.name(), &format!("app=web,{HASH}={hash}"));
    pods.iter().map(|pod| world.pod_reads(pod, "demo")).collect()
}

/// After the promotion, the active pods have it too.
#[test]
fn blue_green_preview_alone_has_new_content() {
    let _confrev = running();
    let world = World::new("blue-green");
    for name in ["active", "preview"] {
        world.apply(&manifests::service(name, "web")).ok();
    }
    let web = Load::new("rollouts", "web", &["demo"]).spec(json!({
        "replicas": 1,
        "strategy": {"blueGreen": {
            "activeService": "active", "previewService": "preview", "autoPromotionEnabled": false,
            "scaleDownDelaySeconds": 1,
        }},
    }));
    let both = || [behind(&world, "active"), behind(&world, "preview")];
    world.set_config("demo", "A");
    web.apply(&world).ok();
    wait_for("both Services to have A", LIMIT, || expect(&both(), &[["A"], ["A"]]));

    world.set_config("demo", "B");
    wait_for("the preview to have B", LIMIT, || expect(&both(), &[["A"], ["B"]]));
    holds_for("the preview", Duration::from_secs(4), || expect(&both(), &[["A"], ["B"]]));
    world.argo(&["promote", "web"]).ok();
    wait_for("both Services to have B", LIMIT, || expect(&both(), &[["B"], ["B"]]));
    web.wait_reads(&world, "demo", &["B"]);
    assert_eq!(world.cluster.list("replicasets", world.name(), "app=web").len(), 2);
}
