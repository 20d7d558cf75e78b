//! A ConfigMap and the workloads that use it, changed in one apply.

use std::time::Duration;

use confrev_controlplane::holds_for;
use serde_json::Value;

use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::world::{World, expect};

const TIMES: usize = 50;

/// A Rollout and a Deployment that share a ConfigMap.
fn pair(number: usize, image: &str) -> (String, [Workload; 2]) {
    let source = format!("config-{number}");
    let workload = |kind: Kind| {
        let name = format!("{}-{number}", kind.name());
        Workload::new(kind, &name, &[&source]).replicas(0).image(image)
    };
    let workloads = Kind::ALL.map(workload);
    (source, workloads)
}

fn file(number: usize, image: &str, text: &str) -> Vec<Value> {
    let (source, [rollout, deployment]) = pair(number, image);
    vec![config_map(&source, text), rollout.manifest(), deployment.manifest()]
}

/// The test repeats it 50 times, with two workloads each.
#[test]
fn one_apply_of_source_and_workloads_rolls_once() {
    let _confrev = running();
    let world = World::new("together");
    let all: Vec<_> = (0..TIMES).flat_map(|number| file(number, "app:1", "A")).collect();
    world.apply(&list(&all)).ok();
    world.wait_at_rest();

    for number in 0..TIMES {
        // Every fifth time only the ConfigMap changes, so kubectl sends no request for the workloads.
        let image = if number % 5 == 0 { "app:1" } else { "app:2" };
        world.apply(&list(&file(number, image, "B"))).ok();
    }
    let workloads: Vec<_> = (0..TIMES).flat_map(|number| pair(number, "app:1").1).collect();
    for workload in &workloads {
        let source = workload.name.replace(workload.kind.name(), "config");
        world.wait_resolved(workload, &source, "B");
        world.wait_replica_sets(workload, 2);
    }
    // Any further roll would have happened by then: a change settles in a second.
    holds_for("that there are two ReplicaSets for each", Duration::from_secs(3), || {
        expect(&world.cluster.list("replicaset", world.name(), "").len(), &(2 * workloads.len()))
    });
}
