//! A tenant's ReplicaSets that refer to more names than confrev keeps of one namespace: others notice nothing, and nothing that
//! the tenant uses is deleted.

use std::time::Duration;

use confrev_controlplane::{Api, holds_for, wait_for};
use serde_json::{Map, Value, json};

use super::MOST;
use crate::commands::Commands as _;
use crate::events::told;
use crate::manifests::{Kind, Workload};
use crate::shared::exclusive;
use crate::world::{LIMIT, World};

/// ReplicaSets of the tenant: 45 MB of JSON in total.
const SETS: usize = 260;
/// Snapshots in each of them.
const NAMES: usize = 1900;
/// Longer than confrev needs to delete an unused snapshot.
const KEPT: Duration = Duration::from_secs(30);
/// Everything is listed again after a pause, and what is left out is a lot.
const KNOWN_AGAIN: Duration = Duration::from_mins(3);

/// A client of a user with the role `edit` in the namespace.
fn tenant(world: &World) -> Api {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "names-tenant"}],
    });
    world.cluster.create("rolebinding", world.name(), &binding);
    let kubeconfig = world.cluster.kubeconfig_for_user("names-tenant", &[]).expect("the tests' own cluster");
    let api = world.cluster.api_as(&kubeconfig);
    wait_for("the rights to take effect", LIMIT, || {
        let (code, answer) = api.get(&replica_sets(world));
        if code == 200 { Ok(()) } else { Err(answer) }
    });
    api
}

fn replica_sets(world: &World) -> String {
    format!("/apis/apps/v1/namespaces/{}/replicasets", world.name())
}

/// A ReplicaSet without pods, whose template refers to these snapshots.
fn replica_set(name: &str, snapshots: &[(String, String)]) -> Value {
    let sources: Map<_, _> = snapshots.iter().map(|(source, name)| (source.clone(), json!(name))).collect();
    let env: Vec<_> = snapshots.iter().map(|(_, name)| json!({"configMapRef": {"name": name}})).collect();
    let labels = json!({"app": name, "confrev.dev/revision": "0123456789"});
    let sources = json!({"configmaps": sources}).to_string();
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": labels, "annotations": {"confrev.dev/sources": sources}},
            "spec": {"containers": [{"name": "c", "image": "x", "envFrom": env}]},
        }},
    })
}

/// A ReplicaSet that refers to snapshots which do not exist.
fn full(number: usize) -> Value {
    let named = |each: usize| {
        let source = format!("s{number:03}x{each:04}");
        let snapshot = format!("{source}-0123456789");
        (source, snapshot)
    };
    replica_set(&format!("full-{number}"), &(0..NAMES).map(named).collect::<Vec<_>>())
}

#[test]
fn names_of_one_tenant_stay_within_its_share() {
    let mut confrev = exclusive();
    let (other, world) = (World::new("others"), World::new("names"));
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    for world in [&other, &world] {
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "A");
    }
    let snapshot = world.snapshot_name("demo", "A");
    let api = tenant(&world);
    let create = |object: &Value| {
        let (code, answer) = api.post(&replica_sets(&world), object);
        assert!(code == 201, "{code} {answer}");
    };
    (0..SETS).for_each(|number| create(&full(number)));
    let partly_known = |count: f64| {
        let known = confrev.metric("confrev_partly_known_namespaces");
        #[expect(clippy::float_cmp, reason = "a count")]
        if known == count { Ok(()) } else { Err(format!("{known} namespaces are partly known")) }
    };
    wait_for("the namespace to be partly known", LIMIT, || partly_known(1.0));
    let bytes = confrev.metric("confrev_index_bytes");
    println!(
        "{SETS} ReplicaSets with {NAMES} names: {bytes} bytes are counted, {} MiB at most",
        confrev.status("VmHWM") / 1024
    );
    create(&replica_set("late", &[("demo".to_owned(), snapshot.clone())]));
    let event = format!("NamespacePartlyKnown Namespace/{}", world.name());
    wait_for("an Event about the namespace", LIMIT, || {
        let events = told(&world);
        if events.contains_key(&event) { Ok(()) } else { Err(format!("{:?}", events.keys())) }
    });

    // After a start, too.
    confrev.kill();
    confrev.start();
    let partly_known = |count: f64| {
        let known = confrev.metric("confrev_partly_known_namespaces");
        #[expect(clippy::float_cmp, reason = "a count")]
        if known == count { Ok(()) } else { Err(format!("{known} namespaces are partly known")) }
    };
    wait_for("the namespace to be partly known after a start", LIMIT, || partly_known(1.0));
    for world in [&other, &world] {
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
    }
    wait_for("check to name the namespace", LIMIT, || {
        let said = other.confrev(&["check"]).stdout;
        let line = said.lines().find(|line| line.contains("  namespaces ")).unwrap_or_default().to_owned();
        if line.starts_with("warning") && line.contains(world.name()) { Ok(()) } else { Err(said) }
    });

    // A ReplicaSet that confrev does not know uses the snapshot, when its source and all known users are deleted.
    world.delete("configmap", "demo");
    world.delete("deployment", "web");
    let exists = || world.cluster.get("configmap", world.name(), &snapshot).ok_or("the snapshot is deleted");
    holds_for("that the snapshot is kept", KEPT, exists);
    println!("{} MiB at most after a start", confrev.status("VmHWM") / 1024);
    assert!(confrev.status("VmHWM") / 1024 < MOST, "confrev used {} KiB", confrev.status("VmHWM"));

    let (code, answer) = api.delete(&replica_sets(&world));
    assert!(code == 200, "{code} {answer}");
    wait_for("the namespace to be known again", KNOWN_AGAIN, || partly_known(0.0));
    assert!(confrev.metric("confrev_index_bytes") < bytes);
    wait_for("the unused snapshot to be deleted", KNOWN_AGAIN, || {
        let gone = world.cluster.get("configmap", world.name(), &snapshot).is_none();
        gone.then_some(())
    });
}
