//! A Rollout whose template is another object's.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::load::{Load, wait_owner};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

/// A Rollout that takes the template of the Deployment `web`.
fn rollout(name: &str) -> Load {
    let mut rollout = Load::new("rollouts", name, &[]).spec(json!({
        "replicas": 1,
        "strategy": {"canary": {}},
        "selector": {"matchLabels": {"app": "web"}},
        "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    }));
    rollout.manifest["spec"].as_object_mut().unwrap().remove("template");
    rollout
}

/// The Rollout's, not those of the Deployment.
fn replica_sets(world: &World) -> Vec<Value> {
    let mut all = world.cluster.list("replicaset", world.name(), "app=web");
    all.retain(|set| set["metadata"]["ownerReferences"][0]["kind"] == "Rollout");
    all
}

#[test]
fn a_rollout_with_a_workload_ref_rolls_once_with_the_deployment_and_its_replica_sets_own_the_snapshots() {
    let _confrev = running();
    let world = World::new("reference");
    let web = Load::new("deployments", "web", &["demo"]).spec(json!({"replicas": 0}));
    world.set_config("demo", "A");
    web.apply(&world).ok();
    let by_reference = rollout("shop").unlabelled();
    by_reference.apply(&world).ok();
    web.wait_reads(&world, "demo", &["A"]);
    let first = replica_sets(&world).first().map(name_of).expect("it has a ReplicaSet");

    world.set_config("demo", "B");
    web.wait_reads(&world, "demo", &["B"]);
    let sets = replica_sets(&world);
    let second = sets.iter().map(name_of).find(|name| *name != first).expect("it has a second one");
    for set in &sets {
        let revision = text(&set["metadata"]["labels"]["confrev.dev/revision"]);
        assert_eq!(revision.len(), 10, "{} has the revision {revision:?}", name_of(set));
    }
    for (wanted, set) in [("A", first), ("B", second)] {
        let owner = format!("ReplicaSet/{set}");
        wait_for(&format!("{owner} to own {wanted}"), LIMIT, || {
            let name = world.snapshot_name("demo", wanted);
            let snapshot = world.cluster.get("configmap", world.name(), &name).expect("it is there");
            let owners = crate::load::owners(&snapshot);
            if owners.contains(&owner) { Ok(()) } else { Err(format!("{owners:?}")) }
        });
    }
    wait_owner(&world, "demo", "B", "Deployment");
    web.apply(&world).ok();
    by_reference.apply(&world).ok();
    holds_for("two ReplicaSets", Duration::from_secs(3), || expect(&replica_sets(&world).len(), &2));
}

#[test]
fn a_rollout_opted_in_says_so_where_the_object_with_its_template_is_not() {
    let _confrev = running();
    let world = World::new("not-target");
    let web = Load::new("deployments", "web", &["demo"]).spec(json!({"replicas": 0}));
    world.set_config("demo", "A");
    web.clone().unlabelled().apply(&world).ok();
    let applied = rollout("shop").apply(&world);
    assert!(applied.stderr.contains("Warning:") && applied.stderr.contains("web"), "{applied}");
    applied.ok();

    web.apply(&world).ok();
    world.delete("rollout", "shop");
    let applied = rollout("second").apply(&world);
    assert!(!applied.stderr.contains("Warning:"), "{applied}");
    applied.ok();
}
