//! Secrets, for those that ask.

use std::time::Duration;

use base64::Engine as _;
use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::load::{Load, owners};
use crate::setup::logs;
use crate::shared::running;
use crate::world::{LIMIT, SNAPSHOTS, World, expect, text};

/// Found in a log, they are no chance.
const VALUES: [&str; 2] = ["kAhyS7cFw2", "mEbrZ9xQt4"];

fn secret(name: &str, kind: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name},
           "stringData": {"username": "shop", "password": value}})
}

/// A Deployment that refers to the Secret `keys` in each form there is, and to one that is never snapshotted.
fn every_form() -> Load {
    let mut load = Load::new("deployments", "web", &[]);
    load.manifest["spec"]["template"]["spec"] = json!({
        "volumes": [
            {"name": "plain", "secret": {"secretName": "keys"}},
            {"name": "projected", "projected": {"sources": [{"secret": {"name": "keys"}}]}},
            {"name": "release", "secret": {"secretName": "release"}},
        ],
        "containers": [{
            "name": "app",
            "image": "app:1",
            "env": [{"name": "ONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}}],
            "envFrom": [{"prefix": "ALL_", "secretRef": {"name": "keys"}}],
        }],
    });
    load
}

fn snapshots(world: &World) -> Vec<Value> {
    world.cluster.list("secrets", world.name(), SNAPSHOTS)
}

/// What the one pod reads by each form is the same; the value.
fn read(world: &World, web: &Load) -> Result<String, String> {
    let pods = web.pods(world);
    let [pod] = &pods[..] else { return Err(format!("{} pods are ready", pods.len())) };
    let config = world.cluster.pod_config(pod)?;
    let [plain, projected] =
        ["plain", "projected"].map(|volume| &config.files[&format!("{volume}/password")]);
    let [one, all] = ["ONE", "ALL_password"].map(|variable| &config.env[&format!("app/{variable}")]);
    assert!([projected, one, all].iter().all(|other| *other == plain), "the forms differ");
    assert!(config.objects.contains("Secret/release"), "{:?}", config.objects);
    Ok(plain.clone())
}

fn wait_reads(world: &World, web: &Load, value: &str) {
    wait_for("the pod to read the Secret", LIMIT, || expect(&read(world, web)?, value));
}

/// Rolls a Deployment from the first value to the second.
fn roll(world: &World, web: &Load) {
    world.apply(&secret("release", "helm.sh/release.v1", "fixed")).ok();
    world.apply(&secret("keys", "kubernetes.io/basic-auth", VALUES[0])).ok();
    web.apply(world).ok();
    wait_reads(world, web, VALUES[0]);
    world.apply(&secret("keys", "kubernetes.io/basic-auth", VALUES[1])).ok();
    wait_reads(world, web, VALUES[1]);
}

#[test]
fn a_workload_that_asks_for_it_has_its_secrets_frozen_in_every_form_and_no_value_is_logged() {
    let _confrev = running();
    let world = World::new("secrets");
    let web = every_form().annotation("secrets", "true");
    roll(&world, &web);
    wait_for("ReplicaSets to own both snapshots", LIMIT, || {
        let of_replica_sets =
            |snapshot: &Value| owners(snapshot).iter().any(|o| o.starts_with("ReplicaSet/"));
        let count = snapshots(&world).iter().filter(|snapshot| of_replica_sets(snapshot)).count();
        expect(&count, &2)
    });
    for snapshot in snapshots(&world) {
        assert_eq!(snapshot["type"], "kubernetes.io/basic-auth");
        assert_eq!(snapshot["immutable"], true);
        assert_eq!(snapshot["metadata"]["labels"]["confrev.dev/source"], "keys");
    }
    let sets = world.cluster.list("replicasets", world.name(), "app=web");
    assert_eq!(sets.len(), 2);

    world.kubectl(&["rollout", "undo", "deployment/web"]).ok();
    wait_reads(&world, &web, VALUES[0]);
    let told = world.cluster.list("events", world.name(), "");
    let told = format!("{told:?}{}", logs());
    for value in VALUES {
        assert!(!told.contains(value), "a value of a Secret is in the log or in an Event");
    }
}

#[test]
fn a_namespace_that_opts_in_asks_for_the_secrets_of_all_its_workloads_and_one_may_decline() {
    let _confrev = running();
    let world = World::labelled("secrets-all", &[("confrev.dev/enabled", "true")]);
    world.kubectl(&["annotate", "namespace", world.name(), "confrev.dev/secrets=true"]).ok();
    roll(&world, &every_form().unlabelled());
    assert_eq!(snapshots(&world).len(), 2);

    let mut other = every_form().annotation("secrets", "false");
    other.name = "other".to_owned();
    other.manifest["metadata"]["name"] = json!("other");
    other.apply(&world).ok();
    assert_eq!(volume(&world, &other, 0), "keys");
}

#[test]
fn secrets_stay_as_written_where_nobody_asks_and_where_their_type_is_never_snapshotted() {
    let _confrev = running();
    let world = World::new("secrets-not");
    let web = every_form();
    world.apply(&secret("keys", "Opaque", VALUES[0])).ok();
    world.apply(&secret("release", "helm.sh/release.v1", "fixed")).ok();
    web.apply(&world).ok();
    assert_eq!(volume(&world, &web, 0), "keys");
    world.apply(&secret("keys", "Opaque", VALUES[1])).ok();
    holds_for("no roll", Duration::from_secs(3), || {
        expect(&snapshots(&world).len(), &0)?;
        expect(&world.cluster.list("replicasets", world.name(), "").len(), &1)
    });

    world.kubectl(&["annotate", "deployment/web", "confrev.dev/secrets=true"]).ok();
    wait_for("the Secret to be taken up", LIMIT, || {
        let name = volume(&world, &web, 0);
        if name.starts_with("keys-") { Ok(()) } else { Err(name) }
    });
    assert_eq!(volume(&world, &web, 2), "release");
    for kind in ["bootstrap.kubernetes.io/token", "kubernetes.io/service-account-token"] {
        let mut token = secret("release", kind, "fixed");
        token["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
        world.delete("secret", "release");
        world.apply(&token).ok();
        web.clone().annotation("secrets", "true").annotation("roll", kind).apply(&world).ok();
        assert_eq!(volume(&world, &web, 2), "release", "{kind}");
    }
}

/// The name in a volume of a Secret.
fn volume(world: &World, web: &Load, index: usize) -> String {
    let live = web.live(world);
    text(&live["spec"]["template"]["spec"]["volumes"][index]["secret"]["secretName"])
}

/// Somebody who may look at everything but Secrets: the role `view`, and RBAC that goes with it.
#[test]
fn who_may_not_read_secrets_finds_no_value_of_one_in_anything_that_confrev_writes() {
    let _confrev = running();
    let world = World::new("secrets-view");
    let binding = ["create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer"];
    world.kubectl(&binding).ok();
    let kubeconfig = world.cluster.kubeconfig_for_user("viewer", &[]).expect("the tests' own cluster");
    let viewer = world.cluster.api_as(&kubeconfig);
    let web = every_form().annotation("secrets", "true").annotation("missing", "warn");
    roll(&world, &web);
    wait_for("the rights to count", LIMIT, || {
        let (code, answer) = viewer.get(&format!("/api/v1/namespaces/{}/configmaps", world.name()));
        if code == 200 { Ok(()) } else { Err(answer) }
    });

    let [older, newer] = VALUES.map(|value| base64::prelude::BASE64_STANDARD.encode(value));
    let [core, apps] = ["/api/v1", "/apis/apps/v1"].map(|root| format!("{root}/namespaces/{}", world.name()));
    let mut seen = 0;
    for path in [
        format!("{core}/configmaps"),
        format!("{core}/pods"),
        format!("{core}/events"),
        format!("{apps}/deployments"),
        format!("{apps}/replicasets"),
        format!("{apps}/controllerrevisions"),
    ] {
        let (code, list) = viewer.get(&path);
        assert_eq!(code, 200, "{path}: {list}");
        let text = list.to_string();
        seen += usize::from(text.contains("keys-"));
        for value in VALUES.iter().copied().chain([older.as_str(), newer.as_str()]) {
            assert!(!text.contains(value), "{path} has a value of a Secret");
        }
    }
    assert!(seen > 1, "the snapshots' names were there to be seen");
    for name in [String::new(), text(&snapshots(&world)[0]["metadata"]["name"])] {
        let (code, answer) = viewer.get(&format!("{core}/secrets/{name}"));
        assert_eq!(code, 403, "{answer}");
    }
    // What is missing is told by name only, and only to who changes the workload.
    let denied = every_form().annotation("secrets", "true").annotation("missing", "deny");
    world.delete("secret", "release");
    let told = denied.apply(&world).stderr + &logs();
    for value in VALUES {
        assert!(!told.contains(value), "a value of a Secret is in an answer or in the log");
    }
}
