//! Secrets of workloads and namespaces that opt in.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{Load, owners};
use crate::chart_setup::logs;
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, SNAPSHOTS, World, expect, text};

/// Values that do not occur in a log by chance.
const VALUES: [&str; 2] = ["kAhyS7cFw2", "mEbrZ9xQt4"];

fn secret(name: &str, kind: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name},
           "stringData": {"username": "shop", "password": value}})
}

/// A Deployment that refers to the Secret `keys` in every form, and to a Secret that is never snapshotted.
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

/// The value that the only pod reads, which must be the same by every form of reference.
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
fn secrets_resolve_in_every_form_and_stay_unlogged() {
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
fn namespace_opts_in_secrets_unless_workload_declines() {
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

/// So do Secrets of types that are never snapshotted.
#[test]
fn secrets_stay_as_written_without_opt_in() {
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
    wait_for("the workload to roll to a snapshot of the Secret", LIMIT, || {
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

/// The name of the Secret in a volume.
fn volume(world: &World, web: &Load, index: usize) -> String {
    let live = web.live(world);
    text(&live["spec"]["template"]["spec"]["volumes"][index]["secret"]["secretName"])
}

/// A user with the role `view`, which may read everything but Secrets.
#[test]
fn users_without_secret_access_see_no_values() {
    let _confrev = running();
    let world = World::new("secrets-view");
    let binding = ["create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer"];
    world.kubectl(&binding).ok();
    let kubeconfig = world.cluster.kubeconfig_for_user("viewer", &[]).expect("the tests' own cluster");
    let viewer = world.cluster.api_as(&kubeconfig);
    let web = every_form().annotation("secrets", "true").annotation("missing", "warn");
    roll(&world, &web);
    wait_for("the rights to take effect", LIMIT, || {
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
    assert!(seen > 1, "some objects show the snapshots' names");
    for name in [String::new(), text(&snapshots(&world)[0]["metadata"]["name"])] {
        let (code, answer) = viewer.get(&format!("{core}/secrets/{name}"));
        assert_eq!(code, 403, "{answer}");
    }
    // A message about a missing Secret or key has its name only.
    let denied = every_form().annotation("secrets", "true").annotation("missing", "deny");
    world.delete("secret", "release");
    let told = denied.apply(&world).stderr + &logs();
    for value in VALUES {
        assert!(!told.contains(value), "a value of a Secret is in an answer or in the log");
    }
}

/// The Secret of the key, in confrev's namespace.
const KEY: &str = "confrev-digest-key";

/// A test holds this lock while it deletes the key, or tries to.
static KEY_TURN: Mutex<()> = Mutex::new(());

fn key(world: &World) -> Option<String> {
    Some(text(&world.cluster.get("secret", "confrev", KEY)?["data"]["key"]))
}

/// The names and versions of the objects that a write of confrev would change.
fn versions(world: &World) -> Vec<String> {
    let all = ["deployments", "replicasets", "secrets"];
    let objects = all.iter().flat_map(|kind| world.cluster.list(kind, world.name(), ""));
    objects
        .map(|object| {
            text(&object["metadata"]["name"])
                + " "
                + &text(&object["metadata"]["uid"])
                + &text(&object["metadata"]["generation"])
                + &text(&object["metadata"]["annotations"]["confrev.dev/state"])
        })
        .collect()
}

fn replica_sets(world: &World) -> usize {
    world.cluster.list("replicasets", world.name(), "app=web").len()
}

fn wait_at_rest(world: &World) {
    let mut before = Vec::new();
    wait_for("the workload to be at rest", LIMIT, || {
        std::thread::sleep(Duration::from_secs(2));
        let now = world.cluster.list("deployments", world.name(), "")[0].clone();
        let all = [versions(world), vec![text(&now["metadata"]["resourceVersion"])]].concat();
        let same = before == all;
        before = all;
        if same { Ok(()) } else { Err("it still changes".to_owned()) }
    });
}

/// Pins the workload to its first snapshot. The present content has no snapshot any more: only the record shows that it was rejected.
fn pin_without_snapshot_of_present(world: &World, web: &Load) {
    world.kubectl(&["annotate", "secret/keys", "confrev.dev/keep=0"]).ok();
    let second = volume(world, web, 0);
    let first = snapshots(world)
        .iter()
        .map(|snapshot| text(&snapshot["metadata"]["name"]))
        .find(|name| *name != second);
    let plan = format!("confrev.dev/roll=plan-1 secret/keys={}", first.expect("the first one exists"));
    world.kubectl(&["annotate", "--overwrite", "deployment/web", &plan]).ok();
    wait_reads(world, web, VALUES[0]);
    for set in world.cluster.list("replicasets", world.name(), "app=web") {
        if set["spec"]["replicas"] == 0 {
            world.delete("replicaset", &text(&set["metadata"]["name"]));
        }
    }
    wait_for("the snapshot of the present content to be deleted", LIMIT, || {
        expect(&snapshots(world).len(), &1)
    });
}

#[test]
fn lost_key_writes_nothing_and_next_change_rolls() {
    let confrev = running();
    let [world, undone, pinned, live] =
        ["key-lost", "key-lost-undone", "key-lost-pinned", "key-lost-live"].map(World::new);
    let web = every_form().annotation("secrets", "true");
    for world in [&world, &undone, &pinned] {
        roll(world, &web);
    }
    pin_without_snapshot_of_present(&pinned, &web);
    undone.kubectl(&["rollout", "undo", "deployment/web"]).ok();
    wait_reads(&undone, &web, VALUES[0]);
    live.apply(&secret("release", "helm.sh/release.v1", "fixed")).ok();
    live.apply(&with_mode(secret("keys", "Opaque", VALUES[0]), "live")).ok();
    web.apply(&live).ok();
    for world in [&world, &undone, &pinned, &live] {
        wait_at_rest(world);
    }
    drop(confrev);

    let mut confrev = exclusive();
    let before = [versions(&world), versions(&undone)];
    let template = |world: &World| web.live(world)["spec"]["template"].clone();
    let (templates, first) = ([&live, &pinned].map(template), key(&world).expect("the key exists"));
    confrev.stop();
    world.cluster.kubectl(&["delete", "secret", KEY, "--namespace", "confrev"]).run().ok();
    confrev.start();
    let confrev = confrev.downgrade();
    assert_ne!(key(&world).expect("another key exists"), first);
    wait_for("the metric to count the unverifiable snapshots", LIMIT, || {
        let count = confrev.metric("confrev_unverifiable_snapshots");
        if count >= 4.0 { Ok(()) } else { Err(format!("{count} snapshots")) }
    });
    holds_for("that nothing is written", Duration::from_secs(8), || {
        expect(&[versions(&world), versions(&undone)], &before)?;
        // Its record may name the new key: nothing else shows which content was rejected.
        expect(&[&live, &pinned].map(template), &templates)
    });
    // The snapshots keep their owners, so an undo finds a snapshot whose digest cannot be computed any more.
    world.kubectl(&["rollout", "undo", "deployment/web"]).ok();
    wait_reads(&world, &web, VALUES[0]);

    for world in [&world, &undone, &pinned] {
        world.apply(&secret("keys", "kubernetes.io/basic-auth", "third")).ok();
        wait_reads(world, &web, "third");
    }
    live.apply(&with_mode(secret("keys", "Opaque", VALUES[1]), "live")).ok();
    wait_for("the live Secret to roll", LIMIT, || {
        if template(&live) == templates[0] { Err("it has not rolled".to_owned()) } else { Ok(()) }
    });
    assert_eq!(replica_sets(&undone), 3);
}

#[test]
fn deleted_key_is_restored() {
    let _confrev = running();
    let _turn = KEY_TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new("key-deleted");
    let before = key(&world).expect("the key exists");
    world.cluster.kubectl(&["delete", "secret", KEY, "--namespace", "confrev"]).run().ok();
    wait_for("the key to be restored", Duration::from_mins(1), || match key(&world) {
        Some(now) => expect(&now, &before),
        None => Err("the key does not exist".to_owned()),
    });
}

fn with_mode(mut source: Value, mode: &str) -> Value {
    source["metadata"]["labels"] = json!({"confrev.dev/enabled": mode});
    source
}

#[test]
fn live_secret_rolls_once_and_undo_holds() {
    let _confrev = running();
    let world = World::new("secrets-live");
    let web = every_form().annotation("secrets", "true");
    let live = |value: &str| with_mode(secret("keys", "Opaque", value), "live");
    let digest =
        || text(&web.live(&world)["spec"]["template"]["metadata"]["annotations"]["confrev.dev/live"]);
    world.apply(&secret("release", "helm.sh/release.v1", "fixed")).ok();
    world.apply(&live(VALUES[0])).ok();
    web.apply(&world).ok();
    wait_reads(&world, &web, VALUES[0]);
    assert_eq!(volume(&world, &web, 0), "keys");
    let first = digest();
    assert!(first.contains("hmac-sha256:"), "{first}");

    world.apply(&live(VALUES[1])).ok();
    wait_for("the change to roll", LIMIT, || {
        if digest() == first { Err("it has not rolled".to_owned()) } else { Ok(()) }
    });
    wait_reads(&world, &web, VALUES[1]);
    let second = digest();
    wait_at_rest(&world);
    assert_eq!((replica_sets(&world), snapshots(&world).len()), (2, 0));

    world.kubectl(&["set", "image", "deployment/web", "app=app:2"]).ok();
    world.kubectl(&["rollout", "undo", "deployment/web"]).ok();
    wait_at_rest(&world);
    assert_eq!(digest(), second, "pods read the present content");
    let count = replica_sets(&world);
    holds_for("that nothing rolls again", Duration::from_secs(4), || {
        expect(&replica_sets(&world), &count)?;
        expect(&digest(), &second)
    });
    wait_reads(&world, &web, VALUES[1]);

    // A change of the mode takes effect with one roll.
    world.apply(&with_mode(secret("keys", "Opaque", VALUES[1]), "true")).ok();
    wait_for("the Secret to be snapshotted", LIMIT, || {
        let name = volume(&world, &web, 0);
        if name.starts_with("keys-") { Ok(()) } else { Err(name) }
    });
    wait_at_rest(&world);
    assert_eq!(replica_sets(&world), count + 1);
    world.apply(&live(VALUES[1])).ok();
    wait_for("the reference to name the source again", LIMIT, || expect(&volume(&world, &web, 0), "keys"));
    wait_at_rest(&world);
    assert_eq!((digest(), replica_sets(&world)), (second.clone(), count + 1), "the previous template");
}

#[test]
fn snapshot_has_label_that_excludes_it_from_backups() {
    let _confrev = running();
    let world = World::new("secrets-labels");
    let mut source = secret("keys", "Opaque", VALUES[0]);
    source["metadata"]["labels"] =
        json!({"velero.io/exclude-from-backup": "true", "app.kubernetes.io/instance": "shop"});
    world.apply(&secret("release", "helm.sh/release.v1", "fixed")).ok();
    world.apply(&source).ok();
    every_form().annotation("secrets", "true").apply(&world).ok();
    let labels = snapshots(&world)[0]["metadata"]["labels"].clone();
    assert_eq!(labels["velero.io/exclude-from-backup"], "true");
    assert_eq!(labels["app.kubernetes.io/instance"], Value::Null);
}

/// RBAC allows both with the role `edit`, so the guard refuses them.
#[test]
fn editor_can_neither_delete_nor_change_the_key() {
    let _confrev = running();
    let _turn = KEY_TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World::new("key-guarded");
    let before = key(&world).expect("the key exists");
    let kubectl = |arguments: &[&str]| world.cluster.kubectl(arguments).run();
    let binding =
        ["create", "rolebinding", "key-editor", "--clusterrole=edit", "--user=key-editor", "-n", "confrev"];
    kubectl(&binding).ok();
    let kubeconfig = world.cluster.kubeconfig_for_user("key-editor", &[]).expect("the tests' own cluster");
    let as_editor = |arguments: &[&str]| {
        world.cluster.kubectl(arguments).arg("--namespace=confrev").kubeconfig(&kubeconfig).run()
    };
    wait_for("the rights to take effect", LIMIT, || {
        let allowed = as_editor(&["auth", "can-i", "delete", "secrets"]);
        if allowed.status.success() { Ok(()) } else { Err(allowed.stdout) }
    });
    let change = r#"{"data": {"key": "AAAA"}}"#;
    for arguments in [
        &["delete", "secret", KEY][..],
        &["delete", "secrets", "--field-selector", &format!("metadata.name={KEY}")],
        &["patch", "secret", KEY, "--type=merge", "--patch", change],
        &["patch", "secret", KEY, "--type=merge", "--patch", r#"{"data": null}"#],
    ] {
        let refused = as_editor(arguments);
        assert!(
            !refused.status.success() && refused.stderr.contains("digestkeys.confrev.dev"),
            "{}",
            refused.stderr
        );
    }
    as_editor(&["annotate", "secret", KEY, "note=kept", "--overwrite"]).ok();
    kubectl(&["delete", "rolebinding", "key-editor", "-n", "confrev"]).ok();
    assert_eq!(key(&world), Some(before));
}

/// It gets its type back, and no value is printed.
#[test]
fn restore_creates_deleted_secret() {
    let _confrev = running();
    let world = World::new("secrets-restore");
    let web = every_form().annotation("secrets", "true");
    roll(&world, &web);
    let keys = || world.cluster.get("secret", world.name(), "keys");
    let before = keys().expect("the object exists");
    // Until then the source is the only owner of the newest snapshot, which is deleted with it and created again.
    let newest = volume(&world, &web, 0);
    wait_for("the workload to own the newest snapshot", LIMIT, || {
        let owners = owners(&world.cluster.get("secret", world.name(), &newest).ok_or("it does not exist")?);
        if owners.contains("Deployment/web") { Ok(()) } else { Err(format!("{owners:?}")) }
    });
    world.delete("secret", "keys");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(["restore", "secret/keys", "--yes", "--namespace", world.name()]);
    let output = command.env("KUBECONFIG", world.cluster.kubeconfig()).output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("\nchanged\n"), "{output:?}");
    assert!(!said.contains(VALUES[1]) && !said.contains("password"), "{said}");
    let after = keys().expect("the object exists again");
    assert_eq!((&after["data"], &after["type"]), (&before["data"], &before["type"]));
    wait_reads(&world, &web, VALUES[1]);
}
