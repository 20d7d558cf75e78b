//! Contents that fail the schema of their source, and contents that lack a key.

use confrev::{
    annotations,
    resolve::{Observed, SchemaReference, invalid_schema, invalid_schema_for},
    snapshot::SourceKind,
};
use serde_json::{Value, json};

use super::{
    story::{poke, poked},
    world::{World, annotate, configmap, deployment, kind, volume},
};

/// Sets the content of a ConfigMap with a schema, and whether it fails.
fn set(world: &mut World, data: &Value, failure: Option<&str>) {
    let annotations = json!({annotations::SCHEMA: "schemas/app"});
    let metadata = json!({"name": "demo", "uid": "uid-demo", "annotations": annotations});
    world.set_object("demo", json!({"metadata": metadata, "data": data}));
    match failure {
        Some(failure) => world.schema_failures.insert(configmap("demo"), failure.to_owned()),
        None => world.schema_failures.remove(&configmap("demo")),
    };
}

fn denial(world: &mut World, new: &Value, old: Option<&Value>) -> String {
    world.review(&kind("Deployment"), new, old).decision.denial.unwrap()
}

#[test]
fn roll_to_failing_content_is_refused() {
    let mut world = World::default();
    set(&mut world, &json!({"app.json": "1"}), None);
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, &json!({"app.json": "2"}), Some("it fails"));
    let refused = denial(&mut world, &poked(&stored, 1), Some(&stored));
    for part in ["Deployment \"web\"", "ConfigMap \"demo\" is refused: it fails", annotations::SCHEMA] {
        assert!(refused.contains(part), "{refused}");
    }
    let created = denial(&mut world, &deployment(&["demo"]), None);
    assert!(created.contains("it fails"), "{created}");
    // The roll is still pending once the content is correct.
    set(&mut world, &json!({"app.json": "3"}), None);
    let moved = poke(&mut world, &stored, 2);
    assert_eq!(world.data(volume(&moved, 0)), &json!({"app.json": "3"}));
}

/// A deployment must be possible whatever the content is.
#[test]
fn apply_keeps_snapshot_beside_failing_content() {
    let mut world = World::default();
    set(&mut world, &json!({"app.json": "1"}), None);
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, &json!({"app.json": "2"}), Some("it fails"));
    let mut new = deployment(&["demo"]);
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    let admitted = world.admit(&new, Some(&stored));
    assert_eq!(volume(&admitted.object, 0), volume(&stored, 0));
    let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
    assert!(warning.contains("it fails") && warning.contains("keeps"), "{warning}");
    set(&mut world, &json!({"app.json": "2"}), None);
    let moved = poke(&mut world, &admitted.object, 1);
    assert_eq!(world.data(volume(&moved, 0)), &json!({"app.json": "2"}), "the change was pending");
}

/// The controller checks the content before it rolls a workload, so such a write moves nothing by itself. The decision is the same
/// for every content.
#[test]
fn client_without_verdict_moves_no_reference_in_place() {
    let mut world = World::default();
    set(&mut world, &json!({"app.json": "1"}), None);
    let stored = world.create(&deployment(&["demo"]));
    world.withholds_verdicts = true;
    let mut other = stored.clone();
    other["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    for failure in [None, Some("it fails")] {
        set(&mut world, &json!({"app.json": "2"}), failure);
        let kept = world.admit(&other, Some(&stored));
        assert_eq!(volume(&kept.object, 0), volume(&stored, 0), "{failure:?}");
        let [warning] = &kept.decision.warnings[..] else { panic!("{:?}", kept.decision.warnings) };
        assert!(warning.contains("which the controller checks") && warning.contains("keeps"), "{warning}");
        // The controller rolls it, and a deployment takes the newest content.
        let rolled = poke(&mut world, &kept.object, 1);
        assert_eq!(world.data(volume(&rolled, 0)), &json!({"app.json": "2"}), "{failure:?}");
        let applied = world.update(&deployment(&["demo"]), &stored);
        assert_eq!(volume(&applied, 0), volume(&rolled, 0), "{failure:?}");
        assert_eq!(volume(&world.create(&deployment(&["demo"])), 0), volume(&rolled, 0), "{failure:?}");
    }
}

/// A schema that became stricter later.
#[test]
fn workload_keeps_failing_content_that_it_runs() {
    let mut world = World::default();
    set(&mut world, &json!({"app.json": "1"}), None);
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, &json!({"app.json": "1"}), Some("it fails"));
    assert_eq!(world.update(&deployment(&["demo"]), &stored), stored);
}

#[test]
fn live_source_that_fails_rolls_nothing() {
    let mut world = World::default();
    set(&mut world, &json!({"app.json": "1"}), None);
    world.labelled("demo", "live");
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, &json!({"app.json": "2"}), Some("it fails"));
    world.labelled("demo", "live");
    assert!(denial(&mut world, &poked(&stored, 1), Some(&stored)).contains("it fails"));
    let live =
        |object: &Value| object["spec"]["template"]["metadata"]["annotations"][annotations::LIVE].clone();
    let kept = world.admit(&deployment(&["demo"]), Some(&stored)).object;
    assert_eq!(live(&kept), live(&stored));
    world.schema_failures.clear();
    assert_ne!(live(&poke(&mut world, &kept, 2)), live(&stored), "the change was pending");
}

/// A Deployment with a variable of this key.
fn reads(key: &str, missing: Option<&str>) -> Value {
    let mut object = deployment(&["demo"]);
    let reference = json!({"configMapKeyRef": {"name": "demo", "key": key}});
    object["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "A", "valueFrom": reference}]);
    if let Some(missing) = missing {
        annotate(&mut object, annotations::MISSING, missing);
    }
    object
}

#[test]
fn roll_that_loses_required_key_is_refused() {
    for (missing, is_refused) in
        [(None, true), (Some("warn"), true), (Some("deny"), true), (Some("allow"), false)]
    {
        let mut world = World::default();
        world.set("demo", json!({"a": "1", "b": "1"}));
        let stored = world.create(&reads("a", missing));
        world.set("demo", json!({"b": "2"}));
        let decision = world.review(&kind("Deployment"), &poked(&stored, 1), Some(&stored)).decision;
        let refused = decision.denial.is_some_and(|denial| denial.contains("has no key \"a\""));
        assert_eq!(refused, is_refused, "{missing:?}");
    }
    // The pods of the present revision do not start, either.
    let mut world = World::default();
    world.set("demo", json!({"b": "1"}));
    let stored = world.create(&reads("a", None));
    world.set("demo", json!({"b": "2"}));
    let moved = poke(&mut world, &stored, 1);
    assert_eq!(world.data(volume(&moved, 0)), &json!({"b": "2"}));
}

#[test]
fn invalid_schema_annotations_are_named() {
    let check_of = |kind: SourceKind, schema: Option<&str>, keys: Option<&str>| {
        invalid_schema(kind, |key| match key {
            annotations::SCHEMA => schema,
            annotations::SCHEMA_KEYS => keys,
            _ => None,
        })
    };
    let check = |schema: Option<&str>, keys: Option<&str>| check_of(SourceKind::ConfigMap, schema, keys);
    for schema in ["a/b", "ns/a/b.json", "ns/a.b/c_d"] {
        assert_eq!(check(Some(schema), None), None, "{schema}");
        assert_eq!(check(Some(schema), Some("*.json, app.*,x?")), None);
    }
    assert_eq!(check_of(SourceKind::Secret, Some("a/b"), None), None);
    let other = check_of(SourceKind::Secret, Some("ns/a/b"), None).unwrap();
    assert!(other.contains("write SECRET/KEY"), "{other}");
    for schema in ["", "a", "a/", "/a", "a/b/c/d", "A/b", "ns/A/b", "a/b c", "n.s/a/b", "../a", "a/*"] {
        let invalid = check(Some(schema), None).unwrap();
        assert!(
            invalid.contains(annotations::SCHEMA) && invalid.contains(&format!("{schema:?}")),
            "{invalid}"
        );
    }
    for keys in ["", ",", "a,,b", "a b", "a/b", "[a]"] {
        let invalid = check(Some("a/b"), Some(keys)).unwrap();
        assert!(invalid.contains(annotations::SCHEMA_KEYS), "{invalid}");
    }
    assert!(check(None, Some("*")).unwrap().contains("without annotation confrev.dev/schema"));
    assert_eq!(check(None, None), None);
    assert_eq!(invalid_schema_for("own, shop, team-*"), None);
    assert!(invalid_schema_for("shop,,x").unwrap().contains(annotations::SCHEMA_FOR));
}

#[test]
fn schema_applies_to_named_keys() {
    let object = json!({
        "metadata": {"name": "demo", "annotations": {annotations::SCHEMA: "a/b"}},
        "data": {"app.json": "{}", "app.yaml": "a: 1", "notes": "text"},
        "binaryData": {"logo.json": "/w=="},
    });
    let observe =
        |object: &Value| Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).unwrap();
    let entries = |object: &Value| {
        let observed = observe(object);
        observed
            .schema()
            .unwrap()
            .unwrap()
            .entries(observed.entry_texts())
            .map(|entries| entries.into_keys().collect::<Vec<_>>())
    };
    assert_eq!(entries(&object).unwrap_err(), "key \"logo.json\": not text");
    let mut some = object.clone();
    some["metadata"]["annotations"][annotations::SCHEMA_KEYS] = json!("app.*");
    assert_eq!(entries(&some).unwrap(), ["app.json", "app.yaml"]);
    some["metadata"]["annotations"][annotations::SCHEMA_KEYS] = json!("other");
    assert!(entries(&some).unwrap_err().contains("no key matches \"other\""));
}

/// The author of an object with a schema says who may use it, its own namespace included.
#[test]
fn object_of_schema_allows_its_use() {
    for (at, allowed, expected) in [
        ("platform", None, false),
        ("shop", None, false),
        ("shop", Some("own"), true),
        ("shop", Some("other, own"), true),
        ("shop", Some("other"), false),
        ("shop", Some("shop"), true),
        ("shop", Some("*"), true),
        ("platform", Some("own"), false),
        ("platform", Some("team-*, sh?p"), true),
        ("platform", Some("shop-*"), false),
        ("platform", Some("*"), true),
        ("platform", Some("shop,,"), false),
    ] {
        assert_eq!(SchemaReference::may_be_used(at, allowed, "shop"), expected, "{at} {allowed:?}");
    }
}
