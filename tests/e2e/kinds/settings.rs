//! The settings in labels and annotations, also when users add, change or remove them later.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests::config_map;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, snapshot_of, text};

/// A Deployment without pods.
fn deployment(name: &str, sources: &[&str]) -> Load {
    Load::new("deployments", name, sources).spec(json!({"replicas": 0}))
}

/// The name in the volume of a source.
fn named(world: &World, web: &Load, source: &str) -> String {
    let template = web.stored(world);
    let volumes = template["spec"]["volumes"].as_array().expect("the template has volumes");
    let volume =
        volumes.iter().find(|volume| volume["name"] == source).expect("the template has that volume");
    text(&volume["configMap"]["name"])
}

fn wait_named(world: &World, web: &Load, source: &str, wanted: &str) {
    wait_for(&format!("the template to name {wanted}"), LIMIT, || expect(&named(world, web, source), wanted));
}

#[test]
fn excluded_reference_stays_as_written_while_excluded() {
    let _confrev = running();
    let world = World::new("exclude");
    let web = deployment("web", &["demo", "other"]).annotation("exclude", "other");
    for source in ["demo", "other"] {
        world.set_config(source, "A");
    }
    web.apply(&world).ok();
    web.resolves_to(&world, "demo", "A").unwrap();
    assert_eq!(named(&world, &web, "other"), "other");
    let changes = || web.changes(&world);
    wait_for("the first ReplicaSet", LIMIT, || expect(&changes(), &1));
    world.set_config("other", "B");
    holds_for("no roll", Duration::from_secs(3), || expect(&changes(), &1));
    assert!(world.snapshot_texts("other").is_empty());

    web.annotate(&world, "exclude", Some("demo, secret/other"));
    web.wait_resolved(&world, "other", "B");
    wait_named(&world, &web, "demo", "demo");
    assert_eq!(snapshot_of(&web.stored(&world), "demo"), None);
    web.annotate(&world, "exclude", None);
    web.wait_resolved(&world, "demo", "A");
    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");
}

/// Warnings and refusals name the object and the key.
#[test]
fn missing_annotation_selects_warning_refusal_or_silence() {
    let _confrev = running();
    let world = World::new("missing");
    world.set_config("demo", "A");
    let variable = |source: &str, key: &str, optional: bool| {
        let mut web = deployment("web", &["demo"]);
        let reference = json!({"name": source, "key": key, "optional": optional});
        web.manifest["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "ONE", "valueFrom": {"configMapKeyRef": reference}}]);
        web
    };
    for (source, key, told) in [("gone", "text", &["gone"][..]), ("demo", "port", &["demo", "port"])] {
        let told_of = |text: &str| told.iter().all(|word| text.contains(&format!("{word:?}")));
        let web = variable(source, key, false);
        let refusal = web.clone().annotation("missing", "deny").apply(&world).refused();
        assert!(told_of(&refusal) && refusal.contains("\"deny\""), "{refusal}");
        assert!(world.cluster.get("deployments", world.name(), "web").is_none());
        let optional = variable(source, key, true).annotation("missing", "deny").apply(&world);
        assert_eq!(optional.stderr, "", "{key}");
        optional.ok();
        // An annotation that changes later applies to the next write of the template.
        web.annotate(&world, "missing", None);
        let warned = web.apply(&world);
        assert!(told_of(&warned.stderr) && warned.stderr.contains("Warning"), "{warned}");
        warned.ok();
        let allowed = web.clone().annotation("missing", "allow").apply(&world);
        assert_eq!(allowed.stderr, "", "{key}");
        allowed.ok();
        let mut again = web.clone().annotation("missing", "deny");
        again.manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        let refusal = again.apply(&world).refused();
        assert!(told_of(&refusal), "{refusal}");
        world.delete("deployment", "web");
    }
}

/// A later apply makes no revision either.
#[test]
fn change_of_unused_keys_rolls_nothing() {
    let _confrev = running();
    let world = World::new("keys");
    let mut web = deployment("web", &["demo"]);
    let spec = &mut web.manifest["spec"]["template"]["spec"];
    spec["volumes"][0]["configMap"]["items"] = json!([{"key": "text", "path": "text"}]);
    spec["containers"][0]["env"] =
        json!([{"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "one"}}}]);
    let whole = deployment("whole", &["demo"]);
    let set = |text: &str, one: &str, more: &str| {
        let mut object = config_map("demo", text);
        object["data"] = json!({"text": text, "one": one, "more": more});
        world.apply(&object).ok();
    };
    set("A", "1", "x");
    for load in [&web, &whole] {
        load.apply(&world).ok();
        wait_for("the first ReplicaSet", LIMIT, || expect(&load.changes(&world), &1));
    }
    let first = web.decided(&world);

    set("A", "1", "y");
    wait_for("the workload that reads the whole source to roll", LIMIT, || {
        expect(&whole.changes(&world), &2)
    });
    let same = || {
        expect(&web.decided(&world), &first)?;
        expect(&web.changes(&world), &1)
    };
    holds_for("the workload that reads other keys", Duration::from_secs(3), same);
    web.apply(&world).ok();
    world.with_file(&["replace"], &web.manifest).ok();
    holds_for("the workload after another apply", Duration::from_secs(2), same);

    for (text, one, changes) in [("A", "2", 2), ("B", "2", 3)] {
        set(text, one, "y");
        wait_for("a roll for a key that is read", LIMIT, || expect(&web.changes(&world), &changes));
    }
    web.resolves_to(&world, "demo", "B").unwrap();
}

/// The workload's label overrides its namespace's, and the source's label overrides both, also when labels change.
#[test]
fn most_specific_enabled_label_wins() {
    let _confrev = running();
    for (namespace, workload, source, wanted) in [
        (None, None, None, false),
        (None, Some("true"), None, true),
        (None, Some("true"), Some("false"), false),
        (Some("true"), None, None, true),
        (Some("true"), Some("false"), None, false),
        (Some("true"), Some("false"), Some("true"), false),
        (Some("true"), None, Some("false"), false),
        (Some("false"), None, None, false),
        (Some("false"), Some("true"), Some("true"), true),
        (Some("false"), None, Some("true"), false),
    ] {
        let world = World::new("labels");
        let label = |reference: &str, value: Option<&str>| {
            let label =
                value.map_or("confrev.dev/enabled-".to_owned(), |v| format!("confrev.dev/enabled={v}"));
            world.kubectl(&["label", "--overwrite", reference, &label]).ok();
        };
        let label_namespace = |value: Option<&str>| label(&format!("namespace/{}", world.name()), value);
        let case = format!("{namespace:?} {workload:?} {source:?}");
        world.set_config("demo", "A");
        let web = deployment("web", &["demo"]).unlabelled();
        web.apply(&world).ok();
        // Each label is added after the objects exist.
        let look = |wanted: bool| {
            wait_for(&format!("{case}: resolved is {wanted}"), LIMIT, || {
                expect(&(named(&world, &web, "demo") != "demo"), &wanted)
            });
        };
        if let Some(value) = workload {
            label("deployment/web", Some(value));
        }
        if source.is_some() {
            label("configmap/demo", source);
        }
        if namespace.is_some() {
            label_namespace(namespace);
        }
        look(wanted);
        // Then each label is removed.
        label_namespace(None);
        label("configmap/demo", None);
        look(workload == Some("true"));
        label("deployment/web", None);
        look(false);
    }
}

/// Snapshots are created even if no workload uses the source.
#[test]
fn enabled_source_is_snapshotted_at_every_change() {
    let _confrev = running();
    let world = World::new("source-in");
    world.set_config("demo", "A");
    holds_for("no snapshot", Duration::from_secs(2), || expect(&world.snapshots().len(), &0));
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=3"]).ok();
    world.kubectl(&["label", "configmap/demo", "confrev.dev/enabled=true"]).ok();
    world.wait_snapshot_texts("demo", &["A"]);
    world.set_config("demo", "B");
    world.wait_snapshot_texts("demo", &["A", "B"]);
    // The number is lowered later.
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=1", "--overwrite"]).ok();
    world.wait_snapshot_texts("demo", &["B"]);
    world.kubectl(&["label", "configmap/demo", "confrev.dev/enabled=false", "--overwrite"]).ok();
    world.set_config("demo", "C");
    holds_for("no further snapshot", Duration::from_secs(3), || {
        let texts = world.snapshot_texts("demo");
        if texts.contains(&"C".to_owned()) { Err(format!("{texts:?}")) } else { Ok(()) }
    });
}

#[test]
fn later_min_interval_applies_from_then_on() {
    let _confrev = running();
    let world = World::new("interval");
    let web = deployment("web", &["demo"]);
    world.set_config("demo", "A");
    web.apply(&world).ok();
    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");
    web.annotate(&world, "min-interval", Some("1h"));
    world.set_config("demo", "C");
    holds_for("the interval", Duration::from_secs(4), || web.resolves_to(&world, "demo", "B"));
    web.annotate(&world, "min-interval", Some("1s"));
    web.wait_resolved(&world, "demo", "C");
}

/// The refusal names the value.
#[test]
fn invalid_setting_is_refused_and_stored_state_stays() {
    let _confrev = running();
    let world = World::new("malformed");
    world.set_config("demo", "A");
    let web = deployment("web", &["demo"]);
    web.apply(&world).ok();
    let refused = |key: &str, change: &Value| {
        let patch = change.to_string();
        let refusal =
            world.kubectl(&["patch", "deployment/web", "--type=merge", "--patch", &patch]).refused();
        assert!(refusal.contains(&format!("confrev.dev/{key}")) && refusal.contains("\"no!\""), "{refusal}");
    };
    for key in ["secrets", "exclude", "track", "missing", "min-interval", "mount"] {
        refused(key, &json!({"metadata": {"annotations": {format!("confrev.dev/{key}"): "no!"}}}));
    }
    let label = web.live(&world)["metadata"]["labels"].clone();
    assert_eq!(label, json!({"confrev.dev/enabled": "true"}));
    web.resolves_to(&world, "demo", "A").unwrap();
}

/// So does removing the annotation.
#[test]
fn raising_max_in_flight_rolls_held_workloads() {
    let _confrev = running();
    let world = World::new("limit");
    // The pods never start, so a workload that rolls never finishes.
    let loads = ["web-0", "web-1", "web-2"].map(|name| {
        let mut load =
            Load::new("deployments", name, &["demo"]).spec(json!({"progressDeadlineSeconds": 3600}));
        load.manifest["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "test/never"}]);
        load
    });
    let limit = |value: &str| {
        world
            .kubectl(&[
                "annotate",
                "--overwrite",
                "configmap/demo",
                &format!("confrev.dev/max-in-flight{value}"),
            ])
            .ok();
    };
    world.set_config("demo", "A");
    limit("=1");
    for load in &loads {
        load.apply(&world).ok();
    }
    let on =
        |wanted: &str| loads.iter().filter(|load| load.resolves_to(&world, "demo", wanted).is_ok()).count();
    world.set_config("demo", "B");
    for (value, count) in [("=1", 1), ("=2", 2), ("-", 3)] {
        limit(value);
        wait_for("as many workloads as allowed to roll", LIMIT, || expect(&on("B"), &count));
        holds_for("the other workloads", Duration::from_secs(3), || expect(&on("B"), &count));
    }
    // The annotation is added again, and limits the next change.
    limit("=1");
    world.set_config("demo", "C");
    wait_for("one workload to roll to the next change", LIMIT, || expect(&on("C"), &1));
    holds_for("the other workloads", Duration::from_secs(3), || expect(&on("C"), &1));
}
