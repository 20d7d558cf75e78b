//! Settings that workloads and sources inherit from their namespace or from the installation.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::commands::Commands as _;
use crate::manifests::config_map;
use crate::shared::{exclusive, running};
use crate::world::{LIMIT, World, expect, snapshot_of, text};

fn deployment(name: &str, sources: &[&str]) -> Load {
    Load::new("deployments", name, sources).spec(json!({"replicas": 0}))
}

/// The reason that `status` gives for the only source.
fn reason(world: &World) -> String {
    text(&world.confrev_json(&["status"])[0]["sources"][0]["reason"])
}

fn is_resolved(world: &World, web: &Load, source: &str) -> bool {
    snapshot_of(&web.stored(world), source).is_some()
}

/// It applies to workloads that exist already, and to sources with a label.
#[test]
fn namespace_excludes_sources_of_its_workloads() {
    let _confrev = running();
    let world = World::new("defaults-exclude");
    let sources = ["demo", "team-rules", "dash"];
    for source in sources {
        world.set_config(source, "A");
    }
    world.kubectl(&["label", "configmap", "dash", "grafana_dashboard=1"]).ok();
    let web = deployment("web", &sources);
    web.apply(&world).ok();
    let resolved = |wanted: [bool; 3]| {
        wait_for("the references", LIMIT, || {
            expect(&sources.map(|source| is_resolved(&world, &web, source)), &wanted)
        });
    };
    resolved([true; 3]);
    world.annotate_namespace("confrev.dev/exclude=*-rules, grafana_dashboard=*");
    resolved([true, false, false]);
    let changes = web.changes(&world);
    for source in ["team-rules", "dash"] {
        world.set_config(source, "B");
    }
    world.kubectl(&["label", "configmap", "dash", "grafana_dashboard=1"]).ok();
    holds_for("no roll", Duration::from_secs(3), || expect(&web.changes(&world), &changes));
    for source in ["team-rules", "dash"] {
        assert_eq!(world.snapshot_texts(source).len(), 1, "{source}: its new content has no snapshot");
    }
    // The label is the source's own: without it, its changes roll again.
    world.kubectl(&["label", "configmap", "dash", "grafana_dashboard-"]).ok();
    web.wait_resolved(&world, "dash", "B");
    resolved([true, false, true]);
    world.annotate_namespace("confrev.dev/exclude-");
    web.wait_resolved(&world, "team-rules", "B");
}

#[test]
fn workloads_inherit_from_their_namespace() {
    let _confrev = running();
    let world = World::new("defaults");
    for setting in ["min-interval=1h", "missing=deny", "on-undo=hold"] {
        world.annotate_namespace(&format!("confrev.dev/{setting}"));
    }
    let mut web = deployment("web", &["demo"]);
    web.manifest["metadata"]["annotations"] = json!({});
    wait_for("the refusal of a missing source", LIMIT, || {
        let answer = world.with_file(&["apply", "--dry-run=server"], &web.manifest);
        (!answer.status.success() && answer.stderr.contains("\"deny\"")).then_some(()).ok_or(answer)
    });
    world.set_config("demo", "A");
    web.apply(&world).ok();
    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");

    // The interval counts from the last roll, and an own annotation of the workload comes first.
    world.set_config("demo", "C");
    wait_for("the reason", LIMIT, || {
        let told = reason(&world);
        told.contains("min-interval").then_some(()).ok_or(told)
    });
    holds_for("no roll", Duration::from_secs(3), || web.resolves_to(&world, "demo", "B"));
    web.annotate(&world, "min-interval", Some("0s"));
    web.wait_resolved(&world, "demo", "C");

    let undone = |own: Option<&str>, is_held: bool| {
        web.annotate(&world, "on-undo", own);
        world.kubectl(&["rollout", "undo", &web.reference()]).ok();
        let metadata = web.live(&world)["metadata"].clone();
        assert_eq!(metadata["annotations"]["confrev.dev/hold"].is_string(), is_held, "{own:?}: {metadata}");
    };
    wait_for("three ReplicaSets", LIMIT, || expect(&web.changes(&world), &3));
    undone(None, true);
    web.annotate(&world, "hold", None);
    web.annotate(&world, "roll", Some("now"));
    web.wait_resolved(&world, "demo", "C");
    undone(Some("none"), false);
}

/// A Namespace has no webhook, so nothing moves until it is corrected.
#[test]
fn invalid_default_of_namespace_holds_its_workloads() {
    let _confrev = running();
    let world = World::new("defaults-invalid");
    world.set_config("demo", "A");
    let web = deployment("web", &["demo"]);
    web.apply(&world).ok();
    world.annotate_namespace("confrev.dev/missing=dney");
    wait_for("the reason to be known", LIMIT, || {
        world.apply(&config_map("demo", "B")).ok();
        let told = reason(&world);
        told.contains("confrev.dev/missing: \"dney\" is not allowed").then_some(()).ok_or(told)
    });
    wait_for("an Event", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        let told = events.iter().find(|event| event["reason"] == "SettingInvalid").ok_or("no Event")?;
        text(&told["message"]).contains("dney").then_some(()).ok_or("another Event")
    });
    world.annotate_namespace("confrev.dev/missing=warn");
    web.wait_resolved(&world, "demo", "B");
}

/// Namespaces, workloads and sources override it.
#[test]
fn all_objects_inherit_from_the_installation() {
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&[r#"--defaults={"missing": "deny", "max-in-flight": 1, "exclude": "*-rules"}"#]);
    let world = World::new("defaults-installation");
    for source in ["demo", "team-rules"] {
        world.set_config(source, "A");
    }
    let web = deployment("web", &["demo", "team-rules"]);
    web.apply(&world).ok();
    assert_eq!(["demo", "team-rules"].map(|source| is_resolved(&world, &web, source)), [true, false]);
    let refused = deployment("other", &["gone"]).apply(&world).refused();
    assert!(refused.contains("ConfigMap \"gone\""), "{refused}");
    world.annotate_namespace("confrev.dev/missing=allow");
    wait_for("the choice of the namespace", LIMIT, || {
        let answer =
            world.with_file(&["apply", "--dry-run=server"], &deployment("other", &["gone"]).manifest);
        answer.status.success().then_some(()).ok_or(answer)
    });
    // No pod becomes ready, so that the second workload waits for the first one.
    let loads = ["one", "two"].map(|name| {
        let mut load = Load::new("deployments", name, &["demo"]).spec(json!({"replicas": 1}));
        load.manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/wait"}]);
        load
    });
    for load in &loads {
        load.apply(&world).ok();
    }
    world.set_config("demo", "B");
    let waiting = || {
        let moved = loads.iter().filter(|load| load.resolves_to(&world, "demo", "B").is_ok()).count();
        expect(&moved, &1)
    };
    wait_for("one workload to move", LIMIT, waiting);
    holds_for("the other one", Duration::from_secs(3), waiting);
    confrev.stop();
    confrev.start();
    for load in &loads {
        load.wait_resolved(&world, "demo", "B");
    }
}
