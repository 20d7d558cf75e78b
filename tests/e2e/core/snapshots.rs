//! Snapshot names that are already taken, dry-runs, and unused snapshots.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, snapshot_of};

/// The output of `confrev digest` for a ConfigMap: its name, its digest, and the name of the snapshot.
pub(crate) fn digest_line(manifest: &Value) -> [String; 3] {
    let mut command = Command::new(env!("CARGO_BIN_EXE_confrev"));
    command.args(["digest", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifest.to_string().as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let words: Vec<_> = output.split_whitespace().map(str::to_owned).collect();
    words.try_into().expect("three words for the ConfigMap")
}

fn wanted_name(manifest: &Value) -> String {
    let [.., name] = digest_line(manifest);
    name
}

/// The foreign object stays as it is.
#[test]
fn snapshot_gets_longer_name_if_name_is_taken() {
    let _confrev = running();
    // A mutable object is not a snapshot, even if it has the same content.
    for (case, foreign) in [("other", "theirs"), ("same", "A")] {
        each_kind(|kind| {
            let world = World::new(&format!("taken-{case}"));
            let name = wanted_name(&config_map("demo", "A"));
            world.apply(&config_map(&name, foreign)).ok();
            let theirs = || world.cluster.get("configmap", world.name(), &name);
            let before = theirs();

            let web = Workload::new(kind, "web", &["demo"]);
            world.set_config("demo", "A");
            world.apply(&web.manifest()).ok();
            let taken = world.resolved(&web, "demo").expect("the reference is resolved");
            assert!(taken.starts_with(&name) && taken.len() > name.len(), "{taken}");
            world.wait_reads(&web, "demo", &["A"]);
            world.set_config("demo", "B");
            world.wait_reads(&web, "demo", &["B"]);
            world.set_config("demo", "A");
            world.wait_reads(&web, "demo", &["A"]);
            assert_eq!(world.resolved(&web, "demo"), Some(taken));
            assert_eq!(theirs(), before);
        });
    }
}

#[test]
fn dry_run_returns_same_names_and_writes_nothing() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("dry");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let attempt = |object: &Value| -> (Value, String) {
            let output = world.with_file(&["apply", "--dry-run=server", "--output=json"], object);
            let warnings = output.stderr.clone();
            (serde_json::from_str(&output.ok()).expect("kubectl writes JSON"), warnings)
        };
        world.set_config("demo", "A");
        let (answer, _) = attempt(&web.manifest());
        let name = snapshot_of(&answer["spec"]["template"], "demo");
        assert_eq!(name, Some(wanted_name(&config_map("demo", "A"))));
        assert_eq!(world.snapshots(), [] as [Value; 0]);
        world.apply(&web.manifest()).ok();
        // Argo Rollouts writes the rest of the template in its own notation.
        let (tried, live) = (&answer["spec"]["template"], &world.live(&web)["spec"]["template"]);
        assert_eq!(live["metadata"], tried["metadata"]);
        assert_eq!(live["spec"]["volumes"], tried["spec"]["volumes"]);
        world.wait_at_rest();

        let before = world.versions();
        let (_, warnings) = attempt(&config_map("demo", "B"));
        assert!(!warnings.contains("confrev"), "an ordinary change needs no attention: {warnings}");
        let announced = wanted_name(&config_map("demo", "B"));
        holds_for("that nothing is written", Duration::from_secs(3), || expect(&world.versions(), &before));
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        assert_eq!(world.resolved(&web, "demo"), Some(announced));
    });
}

#[test]
fn snapshot_of_refused_write_is_deleted_after_grace() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("orphan");
        // Otherwise the source itself would own the snapshot.
        let metadata = json!({"name": "demo", "annotations": {"confrev.dev/keep": "0"}});
        let source =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": "A"}});
        world.apply(&source).ok();
        let mut invalid = Workload::new(kind, "web", &["demo"]).manifest();
        // The API server refuses the write after admission.
        match kind {
            Kind::Deployment => invalid["spec"]["selector"]["matchLabels"]["app"] = json!("other"),
            Kind::Rollout => invalid["spec"]["minReadySeconds"] = json!("ten"),
        }
        let path = kind.path(world.name());
        assert_eq!(world.cluster.api().post(&path, &invalid).0, 422);
        assert_eq!(world.snapshot_texts("demo"), ["A"]);
        holds_for("the snapshot, during the grace", Duration::from_secs(3), || {
            expect(&world.snapshot_texts("demo"), &["A"])
        });
        world.wait_snapshot_texts("demo", &[]);
    });
}

#[test]
fn objects_resembling_snapshots_are_never_deleted() {
    let _confrev = running();
    let world = World::new("lookalike");
    let [_, digest, _] = digest_line(&config_map("demo", "mine"));
    let lookalikes = [
        json!({"labels": {"app.kubernetes.io/managed-by": "confrev"}}),
        // An administrator may create these. Their digest does not match the content.
        json!({
            "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
            "annotations": {
                "confrev.dev/source-name": "demo",
                "confrev.dev/digest": format!("sha256:{}", "0".repeat(64)),
            },
        }),
        json!({"labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"}}),
        // A copy of a snapshot under another name. Its digest matches the content.
        json!({
            "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
            "annotations": {"confrev.dev/source-name": "demo", "confrev.dev/digest": digest},
        }),
    ];
    world.set_config("demo", "A");
    let mut uids = Vec::new();
    for (number, mut metadata) in lookalikes.into_iter().enumerate() {
        metadata["name"] = json!(format!("demo-{number}"));
        let object = json!({"metadata": metadata, "immutable": true, "data": {"text": "mine"}});
        uids.push(world.cluster.create("configmap", world.name(), &object)["metadata"]["uid"].clone());
    }
    // While the source has no real snapshot, these seem to be its only ones.
    world.wait_at_rest();
    // A real snapshot is deleted meanwhile, which proves that the sweep has run.
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    world.apply(&web.manifest()).ok();
    world.wait_replica_sets(&web, 1);
    world.delete("deployment", "web");
    world.delete("configmap", "demo");
    wait_for("the real snapshot to be deleted", LIMIT, || {
        let real = |s: &Value| s["data"]["text"] == "A";
        if world.snapshots().iter().any(real) { Err("it still exists") } else { Ok(()) }
    });
    holds_for("the other objects", Duration::from_secs(8), || {
        let live: Vec<_> = (0..uids.len())
            .filter_map(|number| world.cluster.get("configmap", world.name(), &format!("demo-{number}")))
            .filter(|object| object["metadata"]["deletionTimestamp"].is_null())
            .filter(|object| object["metadata"]["ownerReferences"].is_null())
            .map(|object| object["metadata"]["uid"].clone())
            .collect();
        expect(&live, &uids)
    });
}
