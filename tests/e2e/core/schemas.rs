//! Sources with a JSON Schema: bad content is refused when it is written, and else at the roll.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::events::told;
use crate::manifests::{Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, text};

/// A ConfigMap with a schema that allows numbers up to this one.
fn schemas(maximum: u32) -> Value {
    let mut object = config_map("schemas", "");
    object["data"] = json!({"number": json!({"type": "integer", "maximum": maximum}).to_string()});
    object
}

/// The source: its key `text` must match the schema.
fn source(content: &str) -> Value {
    let mut object = config_map("demo", content);
    object["metadata"]["annotations"] =
        json!({"confrev.dev/schema": "schemas/number", "confrev.dev/schema-keys": "te*"});
    object
}

#[test]
fn failing_content_is_refused_when_written() {
    let _confrev = running();
    let world = World::new("schema-written");
    let early = world.apply(&source("1")).refused();
    assert!(early.contains("ConfigMap \"schemas\" does not exist"), "{early}");
    world.apply(&schemas(5)).ok();
    world.apply(&source("1")).ok();
    for dry_run in ["none", "server"] {
        let flag = format!("--dry-run={dry_run}");
        let refused = world.with_file(&["apply", &flag], &source("6")).refused();
        let expected = "ConfigMap \"demo\": it fails the schema schemas/number (annotation confrev.dev/schema): \
                        key \"text\": the whole content must be at most 5";
        assert!(refused.contains(expected), "{refused}");
    }
    let live = world.cluster.get("configmap", world.name(), "demo").expect("the object exists");
    assert_eq!(live["data"]["text"], "1");
    world.apply(&source("5")).ok();
}

/// The content is stored without a check, as while the webhook is down: the schema becomes stricter later.
#[test]
fn roll_to_failing_content_is_refused() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("schema-roll");
        world.apply(&schemas(9)).ok();
        world.apply(&source("1")).ok();
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("track", "false");
        world.apply(&web.manifest()).ok();
        world.resolves_to(&web, "demo", "1").unwrap();
        world.apply(&source("6")).ok();
        world.apply(&schemas(5)).ok();
        let track = |value: Value| json!({"metadata": {"annotations": {"confrev.dev/track": value}}});
        world.patch(&web, &track(json!("true")));
        let kind = text(&world.live(&web)["kind"]);
        for about in [format!("RollRefused {kind}/web"), "RollRefused ConfigMap/demo".to_owned()] {
            let said = wait_for(&format!("the Event {about}"), LIMIT, || {
                let events = told(&world);
                events.get(&about).cloned().ok_or_else(|| format!("{events:?}"))
            });
            assert!(said[0].contains("must be at most 5"), "{said:?}");
        }
        world.resolves_to(&web, "demo", "1").unwrap();
        // A deployment keeps the snapshot, with a warning.
        let warned = world.set_image(&web, "registry.example/other:1");
        assert!(warned.stderr.contains("must be at most 5"), "{}", warned.stderr);
        world.resolves_to(&web, "demo", "1").unwrap();
        world.apply(&source("2")).ok();
        wait_for("the roll to the corrected content", LIMIT, || world.resolves_to(&web, "demo", "2"));
    });
}
