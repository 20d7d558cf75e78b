//! Checks of schemas that reach a limit: the write is refused, and the refusal and the log say which limit it was.

use serde_json::{Value, json};

use crate::manifests::config_map;
use crate::shared::running;
use crate::world::World;

/// References that double at each step: the check takes time and no memory.
fn endless() -> Value {
    let mut doubling = json!({"$ref": "#/$defs/d0", "$defs": {"d40": {"type": "integer"}}});
    for i in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        doubling["$defs"][format!("d{i}")] = json!({"allOf": [next, next]});
    }
    doubling
}

#[test]
fn check_without_result_says_why() {
    let confrev = running();
    let world = World::new("schema-limits");
    let mut schemas = config_map("schemas", "");
    schemas["metadata"]["annotations"] = json!({"confrev.dev/schema-for": world.name()});
    schemas["data"] = json!({"endless": endless().to_string(), "any": "true"});
    world.apply(&schemas).ok();
    let source = |schema: &str, data: Value| {
        let mut object = config_map("demo", "");
        object["metadata"]["annotations"] = json!({"confrev.dev/schema": schema});
        object["data"] = data;
        object
    };
    let element = "{\"\":0},";
    let large = format!("[{}0]", element.repeat(1_000_000 / element.len()));
    let cases = [
        ("schemas/endless", json!({"a.json": "1"}), "was ended after "),
        ("schemas/any", json!({"a.json": large}), "was ended after "),
        ("schemas/any", json!({"a.json": "x".repeat((1 << 20) + 1)}), "1048576"),
    ];
    for (schema, data, expected) in cases {
        let refused = world.with_file(&["create"], &source(schema, data)).refused();
        assert!(refused.contains(expected), "{schema}: {refused}");
        assert!(!refused.contains("does not answer"), "{schema}: {refused}");
    }
    let log = confrev.log();
    let of_namespace = |line: &&str| line.contains(world.name());
    let lines: Vec<_> = log.lines().filter(of_namespace).filter(|line| line.contains("schema")).collect();
    assert!(
        lines.iter().any(|line| line.contains("has no result") && line.contains("was ended after")),
        "{lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains("does not answer")), "{lines:?}");
}
