//! A Rollout whose template is another object's: of every kind that Argo takes templates from.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::load::{Load, wait_owner};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};

/// The kinds that Argo Rollouts resolves. The last two are no workloads by themselves, and known to confrev where they
/// are configured.
const TARGETS: [&str; 3] = ["deployments", "replicasets", "podtemplates"];

/// Does the same for each, at the same time.
fn each(body: impl Fn(&World, Load) + Sync) {
    thread::scope(|scope| {
        for resource in TARGETS {
            let body = &body;
            let mut load = Load::new(resource, "web", &["demo"]);
            if resource == "deployments" {
                load = load.spec(json!({"replicas": 0}));
            }
            let named = thread::Builder::new().name(resource.to_owned());
            named.spawn_scoped(scope, move || body(&World::new("reference"), load)).expect("a thread");
        }
    });
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

/// The Rollout's, not those of the object with the template.
fn replica_sets(world: &World) -> Vec<Value> {
    let mut all = world.cluster.list("replicaset", world.name(), "app=web");
    all.retain(|set| set["metadata"]["ownerReferences"][0]["kind"] == "Rollout");
    all
}

/// What the Rollout's own ready pods read.
fn wait_reads(world: &World, wanted: &str) {
    wait_for(&format!("the Rollout's pod to read {wanted}"), LIMIT, || {
        let sets: BTreeSet<_> = replica_sets(world).iter().map(name_of).collect();
        let mut pods = world.cluster.ready_pods(world.name(), "app=web");
        pods.retain(|pod| sets.contains(&text(&pod["metadata"]["ownerReferences"][0]["name"])));
        expect(&pods.iter().map(|pod| world.pod_reads(pod, "demo")).collect::<Vec<_>>(), &[wanted])
    });
}

#[test]
fn a_rollout_with_a_workload_ref_rolls_once_with_its_target_and_its_replica_sets_own_the_snapshots() {
    let _confrev = running();
    each(|world, web| {
        world.set_config("demo", "A");
        web.apply(world).ok();
        let by_reference = rollout("shop", &web).unlabelled();
        by_reference.apply(world).ok();
        wait_reads(world, "A");
        let first = replica_sets(world).first().map(name_of).expect("it has a ReplicaSet");

        world.set_config("demo", "B");
        wait_reads(world, "B");
        let sets = replica_sets(world);
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
        wait_owner(world, "demo", "B", web.kind().name);
        web.apply(world).ok();
        by_reference.apply(world).ok();
        holds_for("two ReplicaSets", Duration::from_secs(3), || expect(&replica_sets(world).len(), &2));

        // Beyond the time after which unowned snapshots are swept, a restart reads what its ReplicaSet was made with.
        world.delete("configmap", "demo");
        let pod = name_of(&world.cluster.ready_pods(world.name(), "app=web")[0]);
        world.delete("pod", &pod);
        holds_for("what is in use", Duration::from_secs(7), || {
            expect(&world.snapshot_texts("demo"), &["A", "B"])
        });
        wait_reads(world, "B");
    });
}

/// The Rollouts are not opted in. Each waits at a step until it is promoted; the Deployments have no pods and are settled.
#[test]
fn a_rollout_with_a_workload_ref_holds_the_next_workload() {
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
        wait_for("the next workload to take the change", LIMIT, || expect(&on_b().len(), &count));
        let taken = on_b();
        let next = taken.difference(&promoted).next().expect("another workload took the change").clone();
        phase(&next, "Paused");
        holds_for("the other workloads", Duration::from_secs(3), || expect(&on_b(), &taken));
        world.argo(&["promote", &next]).ok();
        phase(&next, "Healthy");
        promoted.insert(next);
    }
}

/// Pods of the first workload never start. The pods are a Deployment's, or those of a Rollout that takes its template.
#[test]
fn workload_that_failed_before_a_change_holds_nobody() {
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
        let marked = web.live(&world)["metadata"]["annotations"]["confrev.dev/unhealthy"].clone();
        assert!(text(&marked).contains("demo"), "{marked}");
        // From now on the other workload follows changes.
        other.patch(&world, &json!({"metadata": {"annotations": {"confrev.dev/track": "true"}}}));
        other.wait_reads(&world, "demo", &["B"]);
    }
}

#[test]
fn a_rollout_opted_in_says_so_where_the_object_with_its_template_is_not() {
    let _confrev = running();
    each(|world, web| {
        world.set_config("demo", "A");
        let shop = rollout("shop", &web);
        // Neither one that is not there, nor one that is not opted in.
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

#[test]
fn a_replica_set_that_has_a_controller_is_a_revision_and_stays_as_it_was_made_in_a_namespace_that_opts_in() {
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
    let first = set().next().expect("it has a ReplicaSet");
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
