//! The drift that GitOps tools see, and the effect of their settings. These tests show everything that `docs/gitops.md`
//! states.

use serde_json::{Value, json};

use crate::drift::{differences, drift};
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::tools::complete;
use crate::world::{World, each_kind};

/// The fields in which the workload of these tests names its ConfigMap.
const NAMES: [&str; 2] = [
    "/spec/template/spec/containers/0/envFrom/0/configMapRef/name",
    "/spec/template/spec/volumes/0/configMap/name",
];

/// A workload that reads A, applied as GitOps tools do.
fn deployed(world: &World, kind: Kind) -> Workload {
    let web = Workload::new(kind, "web", &["demo"]).replicas(0);
    applied(world, &[config_map("demo", "A"), complete(&web)]);
    world.wait_replica_sets(&web, 1);
    world.wait_at_rest();
    web
}

fn applied(world: &World, objects: &[Value]) {
    let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"];
    world.with_file(&apply, &list(objects)).ok();
}

/// The fields of the manifest that the live object lacks or has with another value: a diff without the API server.
fn client_side_diff(manifest: &Value, live: &Value) -> Vec<String> {
    let all = differences(manifest, live);
    all.into_iter().filter(|at| manifest.pointer(at).is_some_and(|stated| !stated.is_null())).collect()
}

/// The manifest with the names of the live object, which `RespectIgnoreDifferences` applies.
fn with_live_names(world: &World, web: &Workload, mut manifest: Value) -> Value {
    let live = world.live(web);
    for at in NAMES {
        *manifest.pointer_mut(at).expect("a name") = live.pointer(at).expect("a name").clone();
    }
    manifest
}

#[test]
fn client_side_diff_shows_only_reference_names() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("client-diff");
        let web = deployed(&world, kind);
        let mut seen = client_side_diff(&complete(&web), &world.live(&web));
        seen.sort();
        assert_eq!(seen, NAMES);
    });
}

#[test]
fn sync_with_ignored_names_rolls_once_per_change() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("respect");
        let web = deployed(&world, kind);
        let sync = |text: &str, web: &Workload| {
            applied(&world, &[config_map("demo", text), with_live_names(&world, web, complete(web))]);
        };
        sync("A", &web);
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 1, "a repeated sync makes no revision");
        // The ConfigMap alone.
        sync("B", &web);
        world.wait_resolved(&web, "demo", "B");
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 2);
        // The ConfigMap and the workload.
        let web = web.image("app:2");
        sync("C", &web);
        world.wait_resolved(&web, "demo", "C");
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 3);
        // The workload alone.
        let web = web.image("app:3");
        sync("C", &web);
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 4);
        world.resolves_to(&web, "demo", "C").unwrap();
    });
}

/// The drift is in the names, and in confrev's label and annotation of the template.
#[test]
fn undo_is_drift_until_the_next_sync() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("undo-drift");
        let web = deployed(&world, kind);
        applied(&world, &[config_map("demo", "B")]);
        world.wait_resolved(&web, "demo", "B");
        world.wait_replica_sets(&web, 2);
        world.wait_at_rest();
        assert_eq!(drift(&world, &web, &complete(&web)), [""; 0], "a roll is not drift");

        world.undo(&web);
        world.wait_resolved(&web, "demo", "A");
        world.wait_at_rest();
        let mut seen = drift(&world, &web, &complete(&web));
        seen.sort();
        let noted = ["annotations/confrev.dev/sources", "labels/confrev.dev/revision"];
        let noted = noted.map(|key| format!("/spec/template/metadata/{key}"));
        assert_eq!(seen, [noted.as_slice(), &NAMES.map(str::to_owned)].concat());

        applied(&world, &[complete(&web)]);
        world.wait_resolved(&web, "demo", "B");
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 2, "B's ReplicaSet is used again");
    });
}

#[test]
fn new_config_is_drift_while_tracking_is_off() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("untracked");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("track", "false");
        applied(&world, &[config_map("demo", "A"), complete(&web)]);
        world.wait_replica_sets(&web, 1);
        applied(&world, &[config_map("demo", "B")]);
        world.wait_at_rest();
        world.resolves_to(&web, "demo", "A").unwrap();
        assert!(!drift(&world, &web, &complete(&web)).is_empty());
        applied(&world, &[complete(&web)]);
        world.wait_resolved(&web, "demo", "B");
        world.wait_at_rest();
        assert_eq!(drift(&world, &web, &complete(&web)), [""; 0]);
    });
}

/// Tools prune objects that have their labels and are no longer in Git.
#[test]
fn snapshots_have_no_tool_labels_and_survive_pruning() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("marks");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let mut config = config_map("demo", "A");
        config["metadata"]["labels"] = json!({
            "app.kubernetes.io/instance": "shop",
            "kustomize.toolkit.fluxcd.io/name": "shop",
            "part-of": "shop",
        });
        config["metadata"]["annotations"] =
            json!({"argocd.argoproj.io/tracking-id": format!("shop:/ConfigMap:{}/demo", world.name())});
        let mut manifest = complete(&web);
        manifest["metadata"]["labels"]["part-of"] = json!("shop");
        let prune = ["apply", "--prune", "--selector=part-of=shop", "--prune-allowlist=core/v1/ConfigMap"];
        world.with_file(&prune, &list(&[config, manifest.clone()])).ok();
        world.wait_replica_sets(&web, 1);
        let snapshots = world.snapshots();
        let text = serde_json::to_string(&snapshots).expect("JSON");
        assert_eq!(snapshots.len(), 1);
        assert!(!text.contains("shop:") && !text.contains("\"shop\""), "{text}");
        // Now without the ConfigMap: it is deleted, and the snapshot stays.
        world.with_file(&prune, &list(&[manifest])).ok();
        assert!(world.cluster.get("configmap", world.name(), "demo").is_none());
        assert_eq!(world.snapshot_texts("demo"), ["A"]);
    });
}
