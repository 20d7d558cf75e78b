//! Sources with a JSON Schema: bad content is refused when it is written, and else at the roll. Those of Secrets are tested in
//! `tests/e2e/kinds`, and reviews of a client with a certificate in `tests/e2e/tls`.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::events::told;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::webhook_requests::Client;
use crate::world::{LIMIT, World, each_kind, text};

/// A ConfigMap with a schema that allows numbers up to this one.
fn schemas(maximum: u32) -> Value {
    let mut object = config_map("schemas", "");
    object["metadata"]["annotations"] = json!({"confrev.dev/schema-for": "own"});
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
    assert!(early.contains("has no ConfigMap \"schemas\""), "{early}");
    let mut unshared = schemas(5);
    unshared["metadata"]["annotations"] = json!({});
    world.apply(&unshared).ok();
    assert_eq!(world.apply(&source("1")).refused(), early, "its author does not consent");
    world.apply(&schemas(5)).ok();
    world.apply(&source("1")).ok();
    for dry_run in ["none", "server"] {
        let flag = format!("--dry-run={dry_run}");
        let refused = world.with_file(&["apply", &flag], &source("6")).refused();
        let expected = "ConfigMap \"demo\": it fails the schema schemas/number (annotation confrev.dev/schema): \
                        key \"text\": the whole content fails the rule \"maximum\"";
        assert!(refused.contains(expected), "{refused}");
    }
    let mut generated = source("6");
    generated["metadata"]["generateName"] = json!("demo-");
    generated["metadata"].as_object_mut().unwrap().remove("name");
    let refused = world.with_file(&["create"], &generated).refused();
    // The webhook sees the object as it would be stored.
    assert!(refused.contains("ConfigMap \"demo-"), "{refused}");
    assert!(
        !refused.contains("demo-*") && refused.contains("it fails the schema schemas/number"),
        "{refused}"
    );
    generated["data"]["text"] = json!("5");
    world.with_file(&["create"], &generated).ok();
    let live = world.cluster.get("configmap", world.name(), "demo").expect("the object exists");
    assert_eq!(live["data"]["text"], "1");
    world.apply(&source("5")).ok();
}

/// Each is tried on a new source and on a stored one. Nothing is written, and a correct annotation is accepted afterwards.
#[test]
fn unsound_schema_is_refused_with_annotation_name() {
    let _confrev = running();
    let world = World::new("schema-unsound");
    let mut invalid = schemas(5);
    let data = json!({"list": "[]", "text": "{", "type": json!({"type": "nonsense"}).to_string(),
                      "pattern": json!({"pattern": "("}).to_string(),
                      "far": json!({"$ref": "https://127.0.0.1:1/x"}).to_string()});
    invalid["data"].as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
    world.apply(&invalid).ok();
    let other = World::new("schema-private");
    other.apply(&schemas(5)).ok();
    let private = format!("{}/schemas/number", other.name());
    world.apply(&config_map("stored", "1")).ok();
    let before = world.cluster.get("configmap", world.name(), "stored");
    for (key, value, expected) in [
        ("schema", "", "names no schema"),
        ("schema", "schemas", "names no schema"),
        ("schema", "Schemas/number", "names no schema"),
        (
            "schema",
            "none/number",
            "has no ConfigMap \"none\" whose annotation confrev.dev/schema-for contains \"own\"",
        ),
        ("schema", "schemas/none", "ConfigMap \"schemas\" has no key \"none\""),
        ("schema", "schemas/text", "is no schema: it is not JSON"),
        ("schema", "schemas/list", "is no schema: it is neither an object"),
        ("schema", "schemas/type", "it is no valid JSON Schema"),
        ("schema", "schemas/pattern", "is no schema"),
        ("schema", "schemas/far", "and nothing is fetched"),
        ("schema", &private, "whose annotation confrev.dev/schema-for"),
        ("schema-keys", "te*,,", "confrev.dev/schema-keys"),
        ("schema-keys", "other", "no key matches \"other\""),
    ] {
        for name in ["stored", "new"] {
            let mut object = source("1");
            object["metadata"]["name"] = json!(name);
            object["metadata"]["annotations"][format!("confrev.dev/{key}")] = json!(value);
            let refused = world.apply(&object).refused();
            assert!(refused.contains("confrev.dev/schema"), "{key}={value}: {refused}");
            assert!(refused.contains(expected), "{key}={value}: {refused}");
        }
    }
    assert_eq!(world.cluster.get("configmap", world.name(), "stored"), before);
    assert!(world.cluster.get("configmap", world.name(), "new").is_none());
    world.apply(&source("1")).ok();
}

/// The content is stored without a check, as while the webhook is down: the schema becomes stricter later.
#[test]
fn roll_to_failing_content_is_refused() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("schema-roll");
        world.apply(&schemas(9)).ok();
        world.apply(&source("1")).ok();
        world.set_config("other", "A");
        let web = Workload::new(kind, "web", &["demo", "other"]).replicas(0).annotation("track", "false");
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
            assert!(said[0].contains("fails the rule \"maximum\""), "{said:?}");
        }
        let status = world.confrev_json(&["status", &web.reference()]);
        let of_demo = &status[0]["sources"][0];
        assert_eq!(
            (text(&of_demo["state"]), text(&of_demo["gate"])),
            ("refused".into(), "schema".into()),
            "{status}"
        );
        // Its other sources do not wait.
        world.set_config("other", "B");
        world.wait_resolved(&web, "other", "B");
        world.resolves_to(&web, "demo", "1").unwrap();
        // Without a client certificate, admission leaves the reference to the controller.
        let deployed = world.set_image(&web, "registry.example/other:1");
        let warning = "has a schema (annotation confrev.dev/schema), which the controller checks";
        assert!(deployed.stderr.contains(warning), "{}", deployed.stderr);
        assert!(!deployed.stderr.contains("maximum"), "{}", deployed.stderr);
        world.resolves_to(&web, "demo", "1").unwrap();
        world.apply(&source("2")).ok();
        wait_for("the roll to the corrected content", LIMIT, || world.resolves_to(&web, "demo", "2"));
    });
}

/// A person who may edit the schema, and reaches the port, learns nothing about the content: the answer is always the same.
#[test]
fn forged_review_gets_no_verdict() {
    let client = Client::new();
    let world = World::new("schema-forged");
    world.apply(&schemas(9)).ok();
    world.apply(&source("6")).ok();
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).annotation("missing", "deny").manifest();
    let mut old = web.clone();
    old["spec"]["template"]["spec"]["containers"][0]["image"] = json!("old");
    let ask = || {
        let mut answers = Vec::new();
        for path in ["/mutate/workloads", "/validate/workloads"] {
            for (operation, old) in [("CREATE", &Value::Null), ("UPDATE", &old)] {
                let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                    "uid": "1", "name": "web", "namespace": world.name(), "operation": operation, "dryRun": true,
                    "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
                    "object": web, "oldObject": old,
                }});
                let (code, answer) = client.post(path, review.to_string().as_bytes());
                assert_eq!(code, 200, "{answer}");
                answers.push(answer);
            }
        }
        answers
    };
    let passes = ask();
    assert!(passes.iter().all(|answer| answer.contains("\"allowed\":true")), "{passes:?}");
    world.apply(&schemas(5)).ok();
    assert_eq!(ask(), passes, "the content fails");
    world.delete("configmap", "schemas");
    assert_eq!(ask(), passes, "there is no schema");
}
