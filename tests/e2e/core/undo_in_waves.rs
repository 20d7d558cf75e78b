//! Undos of workloads that the waves of a change have not reached.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

/// The source, whose waves take some seconds.
fn source(content: &str) -> Value {
    let annotations = json!({"confrev.dev/waves": "1", "confrev.dev/bake": "8s"});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": content},
        "metadata": {"name": "demo", "annotations": annotations},
    })
}

/// It returns to its former image. That is no verdict on content that it never had: it stays behind, and the waves go on.
#[test]
fn undo_of_image_holds_no_waves() {
    let _confrev = running();
    let world = World::new("undo-waves");
    let loads =
        ["one", "two", "three"].map(|name| Workload::new(Kind::Deployment, name, &["demo"]).replicas(1));
    world.apply(&source("A")).ok();
    for load in &loads {
        world.apply(&load.manifest()).ok();
        world.wait_replica_sets(load, 1);
        world.set_image(load, "app:2").ok();
        world.wait_replica_sets(load, 2);
        world.wait_reads(load, "demo", &["A"]);
    }
    world.wait_at_rest();
    world.apply(&source("B")).ok();
    let has_moved = |load: &&Workload| world.resolves_to(load, "demo", "B").is_ok();
    wait_for("the first wave", LIMIT, || expect(&loads.iter().filter(has_moved).count(), &1));
    let behind = loads.iter().find(|load| !has_moved(load)).expect("one that waits");
    world.undo(behind);
    world.resolves_to(behind, "demo", "A").expect("it keeps its content");
    wait_for("all waves", LIMIT, || expect(&loads.iter().filter(has_moved).count(), &3));
    let image = &world.live(behind)["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "app:1", "the undo stays");
}
