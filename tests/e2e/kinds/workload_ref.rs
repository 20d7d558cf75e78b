//! Rollouts with a `workloadRef`, to every kind that Argo Rollouts supports.

use std::collections::BTreeSet;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{Load, wait_owner};
use crate::shared::running;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, expect, name_of, text};

/// The kinds that a `workloadRef` may name. The last two are not built-in workloads; confrev knows them if they are
/// configured.
const TARGETS: [&str; 3] = ["deployments", "replicasets", "podtemplates"];

/// Runs the body for each kind in parallel.
fn each(body: impl Fn(&World, Load) + Sync) {
    let load = |resource: &'static str| {
        let load = Load::new(resource, "web", &["demo"]);
        let load = if resource == "deployments" { load.spec(json!({"replicas": 0})) } else { load };
        (resource.to_owned(), load)
    };
    in_threads(TARGETS.map(load), |load| body(&World::new("reference"), load));
}

/// A Rollout that takes the template of this workload.
fn rollout(name: &str, of: &Load) -> Load {
    let (version, kind) = (&of.manifest["apiVersion"], &of.manifest["kind"]);
    let mut rollout = Load::new("rollouts", name, &[]).spec(json!({
        "replicas": 1,
        "selector": {"matchLabels": {"app": of.name}},
        "workloadRef": {"apiVersion": version, "kind": kind, "name": of.name},
    }));
    rollout.manifest["spec"].as_object_mut().unwrap().remove("template");
    rollout
}

/// The ReplicaSets of the Rollout, not those of its target.
fn replica_sets(world: &World) -> Vec<Value> {
    let mut all = world.cluster.list("replicaset", world.name(), "app=web");
    all.retain(|set| set["metadata"]["ownerReferences"][0]["kind"] == "Rollout");
    all
}

/// Waits until the Rollout's own ready pods read this text.
fn wait_reads(world: &World, wanted: &str) {
    wait_for(&format!("the Rollout's pod to read {wanted}"), LIMIT, || {
        let sets: BTreeSet<_> = replica_sets(world).iter().map(name_of).collect();
        let mut pods = world.cluster.ready_pods(world.name(), "app=web");
        pods.retain(|pod| sets.contains(&text(&pod["metadata"]["ownerReferences"][0]["name"])));
        expect(&pods.iter().map(|pod| world.pod_reads(pod, "demo")).collect::<Vec<_>>(), &[wanted])
    });
}

/// ReplicaSets of the Rollout own the snapshots.
#[test]
fn rollout_rolls_once_with_its_workload_ref() {
    let _confrev = running();
    each(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        let by_reference = rollout("shop", &web).unlabelled();
        by_reference.apply(world).ok();
        wait_reads(world, "A");
        let first = replica_sets(world).first().map(name_of).expect("a ReplicaSet exists");

        world.set_config("demo", "B");
        wait_reads(world, "B");
        let sets = replica_sets(world);
        let second = sets
            .iter()
            .map(name_of)
            .find(|name| *name != first)
            .expect("the Rollout has a second ReplicaSet");
        for set in &sets {
            let revision = text(&set["metadata"]["labels"]["confrev.dev/revision"]);
            assert_eq!(revision.len(), 10, "{} has the revision {revision:?}", name_of(set));
        }
        for (wanted, set) in [("A", first), ("B", second)] {
            let owner = format!("ReplicaSet/{set}");
            wait_for(&format!("{owner} to own {wanted}"), LIMIT, || {
                let name = world.snapshot_name("demo", wanted);
                let snapshot =
                    world.cluster.get("configmap", world.name(), &name).expect("the object exists");
                let owners = crate::any_kind::owners(&snapshot);
                if owners.contains(&owner) { Ok(()) } else { Err(format!("{owners:?}")) }
            });
        }
        wait_owner(world, "demo", "B", web.kind().name);
        web.apply(world).ok();
        by_reference.apply(world).ok();
        holds_for("two ReplicaSets", Duration::from_secs(3), || expect(&replica_sets(world).len(), &2));

        // After longer than unowned snapshots are kept, a new pod still reads the snapshot of its ReplicaSet.
        world.delete("configmap", "demo");
        let pod = name_of(&world.cluster.ready_pods(world.name(), "app=web")[0]);
        world.delete("pod", &pod);
        holds_for("the snapshots in use", Duration::from_secs(7), || {
            expect(&world.snapshot_texts("demo"), &["A", "B"])
        });
        wait_reads(world, "B");
    });
}

/// The Rollouts are not opted in. Each waits at a step until it is promoted; the Deployments have no pods and are settled.
#[test]
fn rollout_with_workload_ref_holds_next_workload() {
    let _confrev = running();
    let world = World::new("limited-reference");
    world.set_config("demo", "A");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
    let loads = ["one", "two", "three"].map(|name| {
        let load = Load::new("deployments", name, &["demo"]).spec(json!({"replicas": 0}));
        load.apply(&world).ok();
        let steps = json!({"canary": {"steps": [{"setWeight": 50}, {"pause": {}}]}});
        rollout(name, &load).unlabelled().spec(json!({"strategy": steps})).apply(&world).ok();
        load
    });
    let phase = |name: &str, wanted: &str| {
        wait_for(&format!("the Rollout {name} to be {wanted}"), LIMIT, || {
            let rollout = world.cluster.get("rollout", world.name(), name).ok_or_else(String::new)?;
            expect(&text(&rollout["status"]["phase"]), &wanted.to_owned())
        });
    };
    for load in &loads {
        phase(&load.name, "Healthy");
    }
    let on_b = || {
        let on = loads.iter().filter(|load| load.resolves_to(&world, "demo", "B").is_ok());
        on.map(|load| load.name.clone()).collect::<BTreeSet<_>>()
    };

    world.set_config("demo", "B");
    let mut promoted = BTreeSet::new();
    for count in 1..=loads.len() {
        wait_for("the next workload to roll", LIMIT, || expect(&on_b().len(), &count));
        let taken = on_b();
        let next = taken.difference(&promoted).next().expect("another workload has rolled").clone();
        phase(&next, "Paused");
        holds_for("the other workloads", Duration::from_secs(3), || expect(&on_b(), &taken));
        world.argo(&["promote", &next]).ok();
        phase(&next, "Healthy");
        promoted.insert(next);
    }
}

/// Pods of the first workload never start. They belong to a Deployment, or to a Rollout that refers to it.
#[test]
fn workload_failed_before_change_holds_no_other() {
    let _confrev = running();
    for by_reference in [false, true] {
        let world = World::new("failed-before");
        world.set_config("demo", "A");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
        let spec = json!({"replicas": 1, "progressDeadlineSeconds": 1});
        let mut web = Load::new("deployments", "web", &["demo"]).spec(spec.clone());
        web.manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/never"}]);
        let mut failing = web.clone();
        if by_reference {
            web = web.spec(json!({"replicas": 0}));
            failing = rollout("web", &web).unlabelled().spec(spec);
            failing.apply(&world).ok();
        }
        web.apply(&world).ok();
        let other = Load::new("deployments", "other", &["demo"]).annotation("track", "false");
        other.apply(&world).ok();
        other.wait_reads(&world, "demo", &["A"]);
        let resource = failing.kind().resource;
        let fails_with = |wanted: &str| {
            wait_for(&format!("the workload to fail with {wanted}"), LIMIT, || {
                web.resolves_to(&world, "demo", wanted)?;
                let live = world.cluster.get(resource, world.name(), "web").ok_or_else(String::new)?;
                let status = &live["status"];
                let observed = if by_reference {
                    let deployment = world.cluster.get("deployments", world.name(), "web");
                    let deployment = deployment.ok_or_else(String::new)?;
                    let generation = deployment["metadata"]["generation"].to_string();
                    status["workloadObservedGeneration"] == generation && status["phase"] == "Degraded"
                } else {
                    status["observedGeneration"] == live["metadata"]["generation"]
                        && status["conditions"].to_string().contains("ProgressDeadlineExceeded")
                };
                if observed { Ok(()) } else { Err(status.to_string()) }
            });
        };
        fails_with("A");
        world.set_config("demo", "B");
        fails_with("B");
        let marked = web.live(&world)["metadata"]["annotations"]["confrev.dev/state"].clone();
        assert!(text(&marked).contains("unhealthy"), "{marked}");
        // From now on, the other workload tracks changes.
        other.patch(&world, &json!({"metadata": {"annotations": {"confrev.dev/track": "true"}}}));
        other.wait_reads(&world, "demo", &["B"]);
    }
}

#[test]
fn opted_in_rollout_warns_if_target_is_not() {
    let _confrev = running();
    each(|world, web| {
        world.set_config("demo", "A");
        let shop = rollout("shop", &web);
        // The target does not exist, or is not opted in.
        for target in [None, Some(web.clone().unlabelled())] {
            if let Some(target) = target {
                target.apply(world).ok();
            }
            let applied = shop.apply(world);
            assert!(applied.stderr.contains("Warning:") && applied.stderr.contains("\"web\""), "{applied}");
            applied.ok();
            world.delete("rollout", "shop");
        }
        web.apply(world).ok();
        let applied = rollout("second", &web).apply(world);
        assert!(!applied.stderr.contains("Warning:"), "{applied}");
        applied.ok();
    });
}

/// A ReplicaSet with a controller is a revision, not a workload.
#[test]
fn namespace_opt_in_never_changes_owned_replica_sets() {
    let _confrev = running();
    let world = World::labelled("revision", &[("confrev.dev/enabled", "true")]);
    world.set_config("demo", "A");
    let web = Load::new("deployments", "web", &["demo"]).unlabelled();
    web.apply(&world).ok();
    web.wait_reads(&world, "demo", &["A"]);
    let set = || {
        world
            .cluster
            .list("replicasets", world.name(), "app=web")
            .into_iter()
            .map(|set| spec_and_labels(&set))
    };
    let first = set().next().expect("a ReplicaSet exists");
    world.set_config("demo", "B");
    web.wait_reads(&world, "demo", &["B"]);
    holds_for("the first ReplicaSet", Duration::from_secs(3), || {
        if set().any(|set| set == first) { Ok(()) } else { Err("it has changed") }
    });
    assert!(!first.to_string().contains("confrev.dev/enabled"), "{first}");
}

fn spec_and_labels(set: &Value) -> Value {
    json!([set["spec"]["template"], set["metadata"]["labels"], set["metadata"]["name"]])
}
