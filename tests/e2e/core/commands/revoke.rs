//! `kubectl confrev revoke`: no workload, revision or snapshot holds a content any more.

use std::time::Duration;

use serde_json::{Value, json};

use super::Commands as _;
use crate::manifests::{Kind, Workload, list};
use crate::shared::running;
use crate::world::{LIMIT, World, expect};
use confrev_controlplane::{holds_for, wait_for};

/// The source, which keeps its snapshots.
fn source(password: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "db",
        "annotations": {"confrev.dev/keep": "3"}}, "data": {"password": password}})
}

/// The names of the snapshots.
fn snapshots(world: &World) -> Vec<String> {
    let found = world.cluster.list("configmap", world.name(), "confrev.dev/source=db");
    found.iter().map(|found| found["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn revoke_deletes_content_from_every_revision() {
    let _confrev = running();
    let world = World::new("revoke");
    let reader = |kind, name| Workload::new(kind, name, &["db"]).replicas(1).manifest();
    let readers = [reader(Kind::Deployment, "api"), reader(Kind::Rollout, "web")];
    world.apply(&list(&[source("leaked"), readers[0].clone(), readers[1].clone()])).ok();
    world.wait_at_rest();
    let leaked = snapshots(&world).remove(0);
    let refused = world.confrev(&["revoke", "db", "~0", "--yes"]).failed(1);
    assert!(refused.contains("is the present content of ConfigMap \"db\": change"), "{refused}");
    world.confrev(&["pin", "deployment/api", "db", &leaked, "--hold"]).ok();
    world.apply(&source("changed")).ok();
    wait_for("the Rollout to roll", LIMIT, || expect(&snapshots(&world).len(), &2));
    world.wait_at_rest();

    let listed = world.confrev(&["revoke", "db", "--dry-run"]).ok();
    assert!(listed.contains(&leaked) && listed.contains("Deployment/api"), "{listed}");
    assert!(!listed.contains("leaked"), "{listed}");
    let asked = world.confrev(&["revoke", "db"]).failed(2);
    assert!(asked.contains("give --yes"), "{asked}");
    assert!(snapshots(&world).contains(&leaked));

    let said = world.confrev(&["revoke", "db", "--yes"]).ok();
    assert!(said.ends_with("no snapshot has the content\n"), "{said}");
    assert!(!snapshots(&world).contains(&leaked));
    let revisions = world.cluster.list("replicaset", world.name(), "");
    let uses = |revision: &&Value| revision.to_string().contains(&leaked);
    assert_eq!(revisions.iter().filter(uses).count(), 0);
    holds_for("the content to stay away", Duration::from_secs(3), || {
        expect(&snapshots(&world).contains(&leaked), &false)
    });
    let nothing = world.confrev(&["revoke", "db", "--yes"]);
    assert!(nothing.stderr.contains("no snapshot with another content"), "{nothing:?}");
}
