//! Holds under tools that apply repeatedly: the workload stays, and no tool sees drift.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::drift::drift;
use crate::manifests::{Workload, config_map, list};
use crate::shared::running;
use crate::tools::{Tool, complete};
use crate::world::{LIMIT, World, each_kind, expect};

const HOLD: &str = "confrev.dev/hold";

/// A workload that rolled from A to B and is held at A. The tool deployed it.
fn held(world: &World, tool: Tool, web: &Workload) -> String {
    for (text, revisions) in [("A", 1), ("B", 2)] {
        tool.deploy(world, &[config_map("demo", text), complete(web)]).ok();
        world.wait_resolved(web, "demo", text);
        world.wait_replica_sets(web, revisions);
    }
    let snapshot = world.snapshot_name("demo", "A");
    hold(world, web, &snapshot);
    world.resolves_to(web, "demo", "A").unwrap();
    world.wait_at_rest();
    snapshot
}

fn hold(world: &World, web: &Workload, snapshot: &str) {
    world.kubectl(&["annotate", &web.reference(), "--overwrite", &format!("{HOLD}={snapshot}")]).ok();
}

/// The parts of a workload that no apply changes during a hold. (The record of kubectl's own applies does change.)
fn state(world: &World, web: &Workload) -> Value {
    let mut live = world.live(web);
    let annotations = live["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    json!([live["metadata"]["annotations"], live["spec"]["template"]])
}

/// A sync of a GitOps tool: a server-side apply with force.
fn sync(world: &World, objects: &[Value]) {
    let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"];
    world.with_file(&apply, &list(objects)).ok();
}

fn still_held(world: &World, web: &Workload, snapshot: &str, revisions: usize) {
    world.resolves_to(web, "demo", "A").unwrap();
    expect(&world.live(web)["metadata"]["annotations"][HOLD], &json!(snapshot)).unwrap();
    assert_eq!(world.replica_sets(web).len(), revisions, "no new revision");
    assert_eq!(drift(world, web, &complete(web)), [""; 0], "drift");
}

#[test]
fn hold_outlives_applies_of_every_tool() {
    let _confrev = running();
    each_kind(|kind| {
        for tool in [Tool::ClientSide, Tool::ServerSide, Tool::Kustomize, Tool::Helm] {
            let world = World::new("hold-tools");
            let web = Workload::new(kind, "web", &["demo"]).replicas(0);
            let snapshot = held(&world, tool, &web);
            assert_eq!(drift(&world, &web, &complete(&web)), [""; 0], "{tool:?}: drift");
            for text in ["B", "C", "A", "B"] {
                tool.deploy(&world, &[config_map("demo", text), complete(&web)]).ok();
                world.wait_at_rest();
                still_held(&world, &web, &snapshot, 2);
            }
            // A change of the image is a deployment, with the config of the hold.
            let web = web.image("app:2");
            tool.deploy(&world, &[config_map("demo", "C"), complete(&web)]).ok();
            world.wait_replica_sets(&web, 3);
            world.wait_at_rest();
            still_held(&world, &web, &snapshot, 3);
            // Without the annotation, the workload rolls to the present content.
            world.kubectl(&["annotate", &web.reference(), &format!("{HOLD}-")]).ok();
            world.resolves_to(&web, "demo", "C").unwrap();
        }
    });
}

/// As a self-healing tool does it: one apply after the other, client-side and server-side in turn, while the source changes.
#[test]
fn hold_outlives_a_minute_of_applies() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("hold-minute");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let snapshot = held(&world, Tool::ServerSide, &web);
        let before = state(&world, &web);
        for round in 0..60 {
            let objects = [config_map("demo", &format!("{}", round / 10)), complete(&web)];
            if round % 2 == 0 {
                sync(&world, &objects);
            } else {
                Tool::ClientSide.deploy(&world, &objects).ok();
            }
            world.resolves_to(&web, "demo", "A").unwrap();
        }
        world.wait_at_rest();
        still_held(&world, &web, &snapshot, 2);
        assert_eq!(state(&world, &web), before);
    });
}

/// A tool prunes the ConfigMap, and later objects with its labels: the snapshot of the hold is not among them.
#[test]
fn hold_outlives_prune_of_its_source() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("hold-prune");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let labelled = |mut object: Value| {
            object["metadata"]["labels"]["part-of"] = json!("shop");
            object
        };
        let prune = ["apply", "--prune", "--selector=part-of=shop", "--prune-allowlist=core/v1/ConfigMap"];
        let deploy = |objects: &[Value]| {
            world.with_file(&prune, &list(&objects.iter().cloned().map(labelled).collect::<Vec<_>>())).ok();
        };
        deploy(&[config_map("demo", "A"), complete(&web)]);
        world.wait_replica_sets(&web, 1);
        deploy(&[config_map("demo", "B"), complete(&web)]);
        world.wait_resolved(&web, "demo", "B");
        let snapshot = world.snapshot_name("demo", "A");
        hold(&world, &web, &snapshot);
        world.resolves_to(&web, "demo", "A").unwrap();
        for _ in 0..3 {
            deploy(&[complete(&web)]);
            assert!(world.cluster.get("configmap", world.name(), "demo").is_none(), "the source is pruned");
            world.wait_at_rest();
            world.resolves_to(&web, "demo", "A").unwrap();
        }
        deploy(&[config_map("demo", "C"), complete(&web)]);
        world.wait_at_rest();
        world.resolves_to(&web, "demo", "A").unwrap();
    });
}

/// Waits until the garbage collector has dealt with everything that this owner had: it deletes an object that comes later.
fn wait_collected(world: &World, owner: &Value) {
    let mut marker = config_map("marker", "A");
    marker["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }]);
    world.with_file(&["create"], &marker).ok();
    wait_for("the garbage collector", LIMIT, || {
        world.cluster.get("configmap", world.name(), "marker").is_none().then_some(())
    });
}

/// The workload is created from its own export. Its snapshot stays for a while, and may be made again for equal content.
#[test]
fn replaced_workload_is_created_whatever_it_holds() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("hold-replaced");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let snapshot = held(&world, Tool::ServerSide, &web);
        let export = world.live(&web);
        let replace = || world.with_file(&["replace", "--force"], &export);
        let remove = |rest: &[&str]| {
            let (kind, name) = web
                .reference()
                .split_once('/')
                .map(|(kind, name)| (kind.to_owned(), name.to_owned()))
                .unwrap();
            world.delete(&kind, &name);
            world.wait_snapshot_texts("demo", rest);
        };
        world.with_file(&["delete"], &export).ok();
        world.wait_replica_sets(&web, 0);
        wait_collected(&world, &export);
        let warned = replace();
        assert!(!warned.stderr.contains(HOLD), "{}", warned.stderr);
        warned.ok();
        world.resolves_to(&web, "demo", "A").unwrap();
        remove(&["B"]);
        let warned = replace();
        let why = format!("{snapshot:?} does not exist");
        assert!(warned.stderr.contains(&why), "{}", warned.stderr);
        warned.ok();
        world.wait_resolved(&web, "demo", "B");
        wait_for("the Event about the hold", LIMIT, || {
            let events = world.cluster.list("events", world.name(), "");
            let is_it = |event: &Value| {
                event["reason"] == "SettingInvalid" && event["message"].to_string().contains(&snapshot)
            };
            if events.iter().any(is_it) { Ok(()) } else { Err(format!("{} other Events", events.len())) }
        });
        remove(&["B"]);
        world.set_config("demo", "A");
        let warned = replace();
        assert!(!warned.stderr.contains(HOLD), "{}", warned.stderr);
        warned.ok();
        world.set_config("demo", "C");
        world.wait_at_rest();
        world.resolves_to(&web, "demo", "A").unwrap();
    });
}

/// Without the annotation `on-undo`, the next sync ends an undo (`undo_is_drift_until_the_next_sync`).
#[test]
fn undo_outlives_applies_if_workload_holds_undos() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("on-undo");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("on-undo", "hold");
        for (text, revisions) in [("A", 1), ("B", 2)] {
            sync(&world, &[config_map("demo", text), complete(&web)]);
            world.wait_resolved(&web, "demo", text);
            world.wait_replica_sets(&web, revisions);
        }
        world.undo(&web);
        let snapshot = world.snapshot_name("demo", "A");
        world.wait_resolved(&web, "demo", "A");
        world.wait_at_rest();
        for text in ["B", "C", "B"] {
            sync(&world, &[config_map("demo", text), complete(&web)]);
            world.wait_at_rest();
            still_held(&world, &web, &snapshot, 2);
        }
        // An undo to the present content ends the hold: the workload follows changes again.
        world.undo(&web);
        world.wait_resolved(&web, "demo", "B");
        expect(&world.live(&web)["metadata"]["annotations"][HOLD], &Value::Null).unwrap();
        world.set_config("demo", "C");
        world.wait_resolved(&web, "demo", "C");
    });
}
