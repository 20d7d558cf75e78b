//! A ConfigMap and the workloads that use it, changed in one apply.

use std::time::Duration;

use confrev_controlplane::holds_for;
use serde_json::Value;

use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::world::{World, applied_at, expect};

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
    let mut in_time = 0;
    for number in 0..TIMES {
        let (source, workloads) = pair(number, "app:1");
        for workload in &workloads {
            world.wait_resolved(workload, &source, "B");
        }
        if number % 5 == 0 || is_one_change(&world, &source, &workloads) {
            in_time += 1;
            for workload in &workloads {
                world.wait_replica_sets(workload, 2);
            }
        }
    }
    assert!(in_time > TIMES / 4, "only {in_time} of {TIMES} applies took less than a second");
    let count = || world.cluster.list("replicaset", world.name(), "").len();
    // Any further roll would have happened by then: a change settles in a second.
    let before = count();
    holds_for("that there is no other ReplicaSet", Duration::from_secs(3), || expect(&count(), &before));
}

/// Whether kubectl wrote the source and the workloads in the same second. On a busy machine one apply may take longer than
/// a change settles, and is then two changes.
fn is_one_change(world: &World, source: &str, workloads: &[Workload]) -> bool {
    let source = world.cluster.get("configmap", world.name(), source).expect("the source exists");
    let at = applied_at(&source);
    workloads.iter().all(|workload| applied_at(&world.live(workload)) == at)
}

/// The apply takes longer than one change settles: the sources of Grafana's dashboards, for example.
#[test]
fn one_apply_of_many_sources_rolls_once() {
    const SOURCES: usize = 8;
    const APPLIES: usize = 5;
    let _confrev = running();
    let world = World::new("many-sources");
    let names: Vec<_> = (0..SOURCES).map(|number| format!("config-{number}")).collect();
    let references: Vec<_> = names.iter().map(String::as_str).collect();
    let web = |number: usize| {
        let web = Workload::new(Kind::Deployment, "web", &references).replicas(0);
        web.image(&format!("app:{number}"))
    };
    let mut in_time = 0;
    for number in 0..=APPLIES {
        let before = world.replica_sets(&web(number)).len();
        for name in &names {
            world.set_config(name, &number.to_string());
            // The time between changes is part of the scenario; nothing is waited for.
            std::thread::sleep(Duration::from_millis(200));
        }
        world.apply(&web(number).manifest()).ok();
        world.wait_resolved(&web(number), references[SOURCES - 1], &number.to_string());
        world.wait_at_rest();
        let more = world.replica_sets(&web(number)).len() - before;
        in_time += usize::from(number > 0 && more == 1);
    }
    // On a busy machine, a write may take longer than a change settles.
    assert!(in_time > 0, "each of {APPLIES} applies made several revisions");
}
