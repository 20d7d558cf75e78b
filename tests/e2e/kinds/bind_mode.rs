//! ConfigMaps and Secrets to which a tool gives a new name at each change, and which it may delete at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{Load, owners};
use crate::shared::running;
use crate::threads::in_threads;
use crate::world::{LIMIT, SNAPSHOTS, World, expect, name_of, text};

/// A kind of bound object.
#[derive(Clone, Copy)]
struct BoundKind {
    kind: &'static str,
    /// The field of the volume, and the field of the name in it.
    volume: [&'static str; 2],
}

const SOURCES: [BoundKind; 2] = [
    BoundKind { kind: "ConfigMap", volume: ["configMap", "name"] },
    BoundKind { kind: "Secret", volume: ["secret", "secretName"] },
];

impl BoundKind {
    fn bound(self, name: &str, text: &str) -> Value {
        let metadata = json!({"name": name, "labels": {"confrev.dev/enabled": "bind"}});
        let field = if self.kind == "Secret" { "stringData" } else { "data" };
        json!({"apiVersion": "v1", "kind": self.kind, "metadata": metadata, field: {"text": text}})
    }

    /// Applies a Deployment that mounts the object as its volume `demo`. A roll pauses when half of the pods are replaced.
    fn deployed(self, world: &World, name: &str) -> Load {
        let [field, key] = self.volume;
        let mut load = Load::new("deployments", "web", &["demo"]).annotation("secrets", "true").spec(json!({
            "replicas": 2,
            "minReadySeconds": 3600,
            "progressDeadlineSeconds": 7200,
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        }));
        let volume = json!({"name": "demo", field: {key: name}});
        load.manifest["spec"]["template"]["spec"]["volumes"] = json!([volume]);
        load.apply(world).ok();
        load
    }

    fn named_in(self, object: &Value) -> String {
        let [field, key] = self.volume;
        text(&object["spec"]["template"]["spec"]["volumes"][0][field][key])
    }

    fn get(self, world: &World, name: &str) -> Option<Value> {
        world.cluster.get(self.kind, world.name(), name)
    }

    fn wait_bound(self, world: &World, name: &str) {
        wait_for(&format!("a ReplicaSet to own {name}"), LIMIT, || {
            let owners = owners(&self.get(world, name).ok_or("it does not exist")?);
            let bound = owners.iter().any(|owner| owner.starts_with("ReplicaSet/"));
            if bound { Ok(()) } else { Err(format!("{owners:?}")) }
        });
    }
}

/// Runs the body for both kinds in parallel.
fn each(body: impl Fn(&World, BoundKind) + Sync) {
    let sources = SOURCES.map(|source| (source.kind.to_owned(), source));
    in_threads(sources, |source| body(&World::new("bind"), source));
}

fn lose_pod(world: &World, web: &Load, wanted: &str) {
    let pods = web.pods(world);
    let lost = pods.iter().find(|pod| world.pod_reads(pod, "demo") == wanted).expect("a pod reads the text");
    world.delete("pod", &name_of(lost));
    wait_for("a replacement of the lost pod", LIMIT, || {
        let names: Vec<_> = web.pods(world).iter().map(name_of).collect();
        (names.len() == pods.len() && !names.contains(&name_of(lost))).then_some(())
    });
}

#[test]
fn deleted_bound_object_lives_until_last_replica_set() {
    let _confrev = running();
    each(|world, source| {
        world.apply(&source.bound("demo-1", "old")).ok();
        let web = source.deployed(world, "demo-1");
        web.wait_reads(world, "demo", &["old", "old"]);
        source.wait_bound(world, "demo-1");
        assert!(world.cluster.list(source.kind, world.name(), SNAPSHOTS).is_empty());

        world.apply(&source.bound("demo-2", "new")).ok();
        source.deployed(world, "demo-2");
        // Immediately, like a tool that does not wait for the roll.
        world.delete(source.kind, "demo-1");
        web.wait_reads(world, "demo", &["new", "old"]);
        lose_pod(world, &web, "old");
        holds_for("both", Duration::from_secs(3), || expect(&web.reads(world, "demo"), &["new", "old"]));
        source.wait_bound(world, "demo-1");
        source.wait_bound(world, "demo-2");

        web.patch(world, &json!({"spec": {"minReadySeconds": 0}}));
        web.wait_reads(world, "demo", &["new", "new"]);
        let sets = world.cluster.list("replicasets", world.name(), "app=web");
        let old = sets.iter().find(|set| source.named_in(set) == "demo-1");
        world.delete("replicaset", &name_of(old.expect("the old ReplicaSet is kept for an undo")));
        wait_for("demo-1 to be deleted", LIMIT, || source.get(world, "demo-1").is_none().then_some(()));
        holds_for("the new content", Duration::from_secs(3), || {
            expect(&web.reads(world, "demo"), &["new", "new"])
        });
        assert!(source.get(world, "demo-2").is_some());
    });
}

/// A person who may create and delete Deployments has one that never gets a ReplicaSet. The garbage collector would delete an object with
/// its last owner.
#[test]
fn bound_object_outlives_workload_that_never_ran() {
    let _confrev = running();
    each(|world, source| {
        for name in ["demo-1", "demo-2"] {
            world.apply(&source.bound(name, name)).ok();
        }
        let named = |load: &str, object: &str, paused: bool| {
            let [field, key] = source.volume;
            let load = Load::new("deployments", load, &["demo"]).annotation("secrets", "true");
            let mut load = load.spec(json!({"replicas": 0, "paused": paused}));
            load.manifest["spec"]["template"]["spec"]["volumes"] =
                json!([{"name": "demo", field: {key: object}}]);
            load.apply(world).ok();
        };
        named("idle", "demo-1", true);
        named("web", "demo-2", false);
        source.wait_bound(world, "demo-2");
        let unowned = || {
            let owners = owners(&source.get(world, "demo-1").ok_or("it does not exist")?);
            if owners.is_empty() { Ok(()) } else { Err(format!("{owners:?}")) }
        };
        holds_for("no owner of the unused object", Duration::from_secs(3), unowned);
        world.delete("deployment", "idle");
        holds_for("the unused object", Duration::from_secs(3), unowned);
        // A workload that runs owns what it uses, with its revisions, and the object is deleted with them.
        let both = owners(&source.get(world, "demo-2").expect("it is in use"));
        assert!(both.contains("Deployment/web"), "{both:?}");
        world.delete("deployment", "web");
        wait_for("demo-2 to be deleted", LIMIT, || source.get(world, "demo-2").is_none().then_some(()));
    });
}

/// `deletecollection` sends reviews without a name. More objects are deleted at once than any fixed count.
#[test]
fn collection_of_bound_objects_is_restored() {
    const COUNT: usize = 40;
    let confrev = running();
    each(|world, source| {
        let names: Vec<_> = (0..COUNT).map(|number| format!("demo-{number}")).collect();
        for name in &names {
            world.apply(&source.bound(name, name)).ok();
        }
        let [field, key] = source.volume;
        let volumes = names.iter().map(|name| json!({"name": name, field: {key: name}}));
        let mut load = Load::new("deployments", "web", &[]).annotation("secrets", "true");
        load.manifest["spec"]["replicas"] = json!(0);
        load.manifest["spec"]["template"]["spec"]["volumes"] = volumes.collect();
        load.apply(world).ok();
        for name in &names {
            source.wait_bound(world, name);
        }
        let uids = || -> BTreeMap<String, String> {
            let objects = world.cluster.list(source.kind, world.name(), "confrev.dev/enabled=bind");
            objects.iter().map(|object| (name_of(object), text(&object["metadata"]["uid"]))).collect()
        };
        let before = uids();
        assert_eq!(before.len(), COUNT);
        let collection = format!("/api/v1/namespaces/{}/{}s", world.name(), source.kind.to_lowercase());
        let raw = format!("--raw={collection}?labelSelector=confrev.dev%2Fenabled%3Dbind");
        let ignored_before = ignored_reviews(world, source);
        // The API server ends a request after a minute. On a busy machine, not all are deleted by then.
        let is_whole = world.kubectl(&["delete", &raw]).status.success();
        let mut most_restored = 0;
        // Few objects are restored at a time, so that others wait for less: on a busy machine, only the next one has a limit.
        let mut is_done = false;
        while !is_done {
            let what = format!("more than {most_restored} of {COUNT} objects to be restored");
            wait_for(&what, LIMIT, || {
                let after = uids();
                let restored = after.iter().filter(|(name, uid)| before[*name] != **uid).count();
                let kept = if is_whole { 0 } else { after.len() - restored };
                // On a busy machine, confrev may not read an object in the three seconds of its review. Then the content is lost.
                let log = confrev.log();
                let is_unread =
                    |line: &&str| line.contains("before its deletion") && line.contains(world.name());
                let unread = log.lines().filter(is_unread).count();
                let lost = unread + ignored_reviews(world, source) - ignored_before;
                is_done = restored > 0 && restored + lost + kept >= COUNT;
                if is_done || restored > most_restored {
                    most_restored = restored;
                    Ok(())
                } else {
                    Err(format!("{restored}, {lost} are lost, {kept} were not deleted"))
                }
            });
        }
    });
}

/// How many deletions of this kind the API server has made although confrev did not answer their reviews.
fn ignored_reviews(world: &World, source: BoundKind) -> usize {
    let (_, metrics) = world.cluster.api().get("/metrics");
    let webhook = format!("deleted-{}s.confrev.dev", source.kind.to_lowercase());
    let of_webhook = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_fail_open_count{") && line.contains(&webhook)
    };
    let counts = metrics.as_str().expect("metrics are text").lines().filter(of_webhook);
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

/// When the label is removed, the reference resolves to a snapshot again.
#[test]
fn later_bind_label_restores_name_of_source() {
    let _confrev = running();
    each(|world, source| {
        let mut object = source.bound("demo", "A");
        object["metadata"]["labels"] = json!({});
        world.apply(&object).ok();
        let web = source.deployed(world, "demo");
        let named = || source.named_in(&web.live(world));
        assert_ne!(named(), "demo");

        let label = |value: &str| {
            world.kubectl(&["label", source.kind, "demo", value]).ok();
        };
        label("confrev.dev/enabled=bind");
        wait_for("the template to name the source", LIMIT, || expect(&named(), "demo"));
        source.wait_bound(world, "demo");
        label("confrev.dev/enabled-");
        wait_for("a snapshot", LIMIT, || if named() == "demo" { Err("it names the source") } else { Ok(()) });
    });
}

#[test]
fn unbound_object_loses_owners_and_outlives_workload() {
    let _confrev = running();
    each(|world, source| {
        let web = {
            world.apply(&source.bound("demo-1", "old")).ok();
            source.deployed(world, "demo-1")
        };
        web.wait_reads(world, "demo", &["old", "old"]);
        source.wait_bound(world, "demo-1");
        let mut plain = source.bound("demo-1", "old");
        plain["metadata"].as_object_mut().unwrap().remove("labels");
        world.apply(&plain).ok();
        wait_for("the object to have no owners", LIMIT, || {
            let owners = owners(&source.get(world, "demo-1").ok_or("it does not exist")?);
            if owners.is_empty() { Ok(()) } else { Err(format!("{owners:?}")) }
        });
        world.delete("deployment", "web");
        wait_for("the ReplicaSets to be deleted", LIMIT, || {
            world.cluster.list("replicasets", world.name(), "app=web").is_empty().then_some(())
        });
        holds_for("the object", Duration::from_secs(3), || {
            source.get(world, "demo-1").map(drop).ok_or("it does not exist")
        });
    });
}
