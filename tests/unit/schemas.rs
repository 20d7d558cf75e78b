//! Sources with a JSON Schema, through the admission of sources and the child process of a check.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::annotations;
use serde_json::{Value, json};

use super::site::{self, PROGRAM, Site, Stored, write_of};

/// A ConfigMap with schemas.
fn schemas(schema: &Value, annotations: &Value) -> Value {
    let metadata = json!({"name": "schemas", "annotations": annotations});
    json!({"metadata": metadata, "data": {"app": schema.to_string(), "text": "{", "list": "[]"}})
}

/// The same as a Secret.
fn secret(object: &Value) -> Value {
    let mut object = object.clone();
    for value in object["data"].as_object_mut().unwrap().values_mut() {
        *value = json!(BASE64_STANDARD.encode(value.as_str().unwrap()));
    }
    object
}

/// The schema that most tests use.
fn port() -> Value {
    let port = json!({"type": "integer", "maximum": 65535});
    json!({"type": "object", "properties": {"port": port}, "required": ["port"], "additionalProperties": false})
}

fn stored(schema: &Value) -> Stored {
    let given = |to: &str| schemas(schema, &json!({annotations::SCHEMA_FOR: to}));
    let all = [
        ("shop/configmaps/schemas", given("own")),
        ("shop/configmaps/unshared", schemas(schema, &json!({}))),
        ("shop/configmaps/foreign", given("other")),
        ("shop/secrets/schemas", secret(&given("own"))),
        ("shop/secrets/unshared", secret(&schemas(schema, &json!({})))),
        ("platform/configmaps/schemas", given("other, sh*")),
        ("private/configmaps/schemas", given("own, other")),
    ];
    all.map(|(path, object)| (path.to_owned(), object)).into()
}

/// A source in namespace `shop`.
fn source(schema: &str, keys: Option<&str>, data: &Value) -> Value {
    let mut annotations = json!({annotations::SCHEMA: schema});
    if let Some(keys) = keys {
        annotations[annotations::SCHEMA_KEYS] = json!(keys);
    }
    json!({"metadata": {"name": "demo", "namespace": "shop", "annotations": annotations}, "data": data})
}

/// The answer of the webhook to a review. `is_verified`: its client has a certificate.
async fn answer(stored: &Stored, path: &str, is_verified: bool, request: &Value) -> Value {
    Site::new(stored.clone(), PROGRAM).answer(path, is_verified, request).await
}

/// Why the webhook refuses a write of a source; `None` if it does not.
async fn refusal(stored: &Stored, kind: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    let response = answer(stored, &format!("/mutate/{kind}"), false, &write_of(kind, new, old)).await;
    assert!(response.get("warnings").is_none_or(|warnings| warnings == &json!([])), "{response}");
    site::message(&response)
}

#[tokio::test]
async fn refusal_names_key_path_and_rule() {
    let stored = stored(&port());
    for (key, text) in [
        ("a.json", r#"{"port": 1}"#),
        ("a.yaml", "port: 1"),
        ("a.toml", "port = 1"),
        ("a.json", r#"{"port": 65535}"#),
    ] {
        assert_eq!(
            refusal(&stored, "configmaps", &source("schemas/app", None, &json!({key: text})), None).await,
            None
        );
    }
    for (key, text, expected) in [
        ("a.json", r#"{"port": "hunter2"}"#, "key \"a.json\": /port fails the rule \"type\""),
        ("a.yaml", "port: 65536", "key \"a.yaml\": /port fails the rule \"maximum\""),
        ("a.toml", "port = 1\nports = 1", "key \"a.toml\": /ports fails the rule \"additionalProperties\""),
        ("a.yml", "{}", "key \"a.yml\": the whole content fails the rule \"required\""),
        ("a.properties", "port=hunter2", "key \"a.properties\": /port fails the rule \"type\""),
        ("a.json", "{hunter2", "key \"a.json\": not valid JSON (line 1, column 2)"),
        ("a.txt", "port: 1", "no key ends in .json"),
    ] {
        let source = source("schemas/app", None, &json!({key: text}));
        let refused = refusal(&stored, "configmaps", &source, None).await.unwrap_or_default();
        let start = "ConfigMap \"demo\": it fails the schema schemas/app (annotation confrev.dev/schema): ";
        let found = refused.strip_prefix(start).unwrap_or_else(|| panic!("{refused}"));
        assert!(found.starts_with(expected), "{found}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

#[tokio::test]
async fn unsound_schema_is_refused_where_it_is_named() {
    let stored = stored(&port());
    let data = json!({"a.json": r#"{"port": 1}"#});
    for (schema, expected) in [
        ("schemas", "annotation confrev.dev/schema: \"schemas\" names no schema"),
        (
            "none/app",
            "annotation confrev.dev/schema: namespace \"shop\" has no ConfigMap \"none\" whose annotation \
             confrev.dev/schema-for contains \"own\"",
        ),
        (
            "unshared/app",
            "annotation confrev.dev/schema: namespace \"shop\" has no ConfigMap \"unshared\" whose annotation \
             confrev.dev/schema-for contains \"own\"",
        ),
        ("foreign/app", "namespace \"shop\" has no ConfigMap \"foreign\" whose annotation"),
        ("schemas/none", "annotation confrev.dev/schema: ConfigMap \"schemas\" has no key \"none\""),
        (
            "schemas/text",
            "annotation confrev.dev/schema: schemas/text is no schema: it is not JSON (line 1, column 1)",
        ),
        ("schemas/list", "annotation confrev.dev/schema: schemas/list is no schema: it is neither an object"),
        (
            "private/schemas/app",
            "namespace \"private\" has no ConfigMap \"schemas\" whose annotation confrev.dev/schema-for",
        ),
        (
            "private/none/app",
            "namespace \"private\" has no ConfigMap \"none\" whose annotation confrev.dev/schema-for",
        ),
    ] {
        let refused = refusal(&stored, "configmaps", &source(schema, None, &data), None).await.unwrap();
        assert!(refused.contains(expected), "{refused}");
    }
    assert_eq!(
        refusal(&stored, "configmaps", &source("platform/schemas/app", None, &data), None).await,
        None
    );
    for (schema, expected) in [
        (json!({"type": "nonsense"}), "it is no valid JSON Schema: a keyword \"type\" in it is invalid"),
        (json!({"pattern": "("}), "a keyword \"pattern\" in it is invalid"),
        (json!({"$ref": "https://127.0.0.1:1/x"}), "it refers to another schema"),
        (json!({"$ref": "file:///etc/passwd"}), "it refers to another schema"),
        (json!({"$schema": "https://127.0.0.1:1/x"}), "nothing is fetched"),
    ] {
        let stored = self::stored(&schema);
        let refused = refusal(&stored, "configmaps", &source("schemas/app", None, &data), None).await;
        assert!(refused.as_ref().is_some_and(|refused| refused.contains(expected)), "{schema}: {refused:?}");
    }
}

/// References that double at each step, and an expression that takes long with backtracking.
#[tokio::test]
async fn check_that_takes_too_long_is_cut_off() {
    let mut doubling = json!({"$ref": "#/$defs/d0", "$defs": {"d40": {"type": "string"}}});
    for i in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        doubling["$defs"][format!("d{i}")] = json!({"anyOf": [next, next]});
    }
    let data = json!({"a.json": r#"{"port": 1}"#});
    let refused = refusal(&stored(&doubling), "configmaps", &source("schemas/app", None, &data), None).await;
    let refused = refused.unwrap();
    assert!(refused.contains("schemas/app (annotation confrev.dev/schema) was ended after"), "{refused}");

    let slow = json!({"type": "string", "pattern": "^(a|a)*(a|aa)+$"});
    let data = json!({"a.json": json!("a".repeat(1000) + "!").to_string()});
    let refused =
        refusal(&stored(&slow), "configmaps", &source("schemas/app", None, &data), None).await.unwrap();
    assert!(refused.contains("fails the rule \"pattern\""), "{refused}");
    // Aliases that double at each step.
    let bomb: Vec<_> = (0..40).map(|i| format!("a{}: &a{} [*a{i}, *a{i}]", i + 1, i + 1)).collect();
    let data = json!({"a.yaml": format!("a0: &a0 x\n{}\n", bomb.join("\n"))});
    let refused =
        refusal(&stored(&json!(true)), "configmaps", &source("schemas/app", None, &data), None).await;
    assert!(refused.is_some());
}

/// Whatever the failure: of the content, of its form, or of the schema.
#[tokio::test]
async fn refusal_of_secret_says_only_that_it_fails() {
    let stored = stored(&port());
    let good = json!({"a.json": r#"{"port": 1}"#});
    let of = |schema: &str, data: &Value| secret(&source(schema, None, data));
    assert_eq!(refusal(&stored, "secrets", &of("schemas/app", &good), None).await, None);
    for (schema, data) in [
        ("schemas/app", json!({"a.json": r#"{"hunter2": {"hunter2": "hunter2"}, "port": "hunter2"}"#})),
        ("schemas/app", json!({"a.yaml": "hunter2: [hunter2"})),
        ("schemas/app", json!({"hunter2.toml": "hunter2 hunter2"})),
        ("schemas/app", json!({"hunter2": "{}"})),
        ("schemas/text", good.clone()),
        ("schemas/list", good.clone()),
        ("schemas/hunter2", good.clone()),
    ] {
        let refused = refusal(&stored, "secrets", &of(schema, &data), None).await;
        let expected = "Secret \"demo\": it fails its schema (annotation confrev.dev/schema)";
        assert_eq!(refused.as_deref(), Some(expected), "{schema} {data}");
    }
}

/// A person who may edit ConfigMaps, or objects of another namespace, does not choose what is tested of a Secret.
#[tokio::test]
async fn schema_of_secret_is_secret_of_its_namespace() {
    let all = stored(&port());
    let data = json!({"a.json": r#"{"port": 1}"#});
    let of = |schema: &str| secret(&source(schema, None, &data));
    let mut without = all.clone();
    without.remove("shop/secrets/schemas");
    let missing = "namespace \"shop\" has no Secret \"schemas\" whose annotation confrev.dev/schema-for contains \"own\"";
    assert!(refusal(&without, "secrets", &of("schemas/app"), None).await.unwrap().contains(missing));
    let unshared = refusal(&all, "secrets", &of("unshared/app"), None).await.unwrap();
    assert_eq!(
        unshared.replace("unshared", "schemas"),
        format!("Secret \"demo\": annotation confrev.dev/schema: {missing}")
    );
    for schema in ["shop/schemas/app", "platform/schemas/app"] {
        let refused = refusal(&all, "secrets", &of(schema), None).await.unwrap();
        assert!(refused.contains("names no schema: write SECRET/KEY"), "{refused}");
    }
    // The schema of a ConfigMap is not read from a Secret.
    let mut without = all;
    without.remove("shop/configmaps/schemas");
    assert!(refusal(&without, "configmaps", &source("schemas/app", None, &data), None).await.is_some());
}

/// An answer names the key, the path and the keyword of the rule.
#[tokio::test]
async fn refusal_contains_no_value_of_schema() {
    let failing = [
        (json!({"properties": {"a": {"const": "hunter2"}}}), "const"),
        (json!({"properties": {"a": {"enum": ["hunter2", 271_828]}}}), "enum"),
        (json!({"properties": {"a": {"pattern": "hunter2"}}}), "pattern"),
        (json!({"properties": {"a": {"format": "ipv4"}}}), "format"),
        (json!({"properties": {"a": {"type": ["integer", "null"]}}}), "type"),
        (json!({"properties": {"a": {"minLength": 271_828}}}), "minLength"),
        (json!({"properties": {"n": {"minimum": 271_828}}}), "minimum"),
        (json!({"properties": {"n": {"multipleOf": 271_828}}}), "multipleOf"),
        (json!({"required": ["hunter2"]}), "required"),
        (json!({"dependentRequired": {"a": ["hunter2"]}}), "dependentRequired"),
        (json!({"minProperties": 271_828}), "minProperties"),
        (json!({"patternProperties": {"^(a|hunter2)$": {"not": {}}}}), "not"),
        (json!({"propertyNames": {"enum": ["hunter2"]}}), "propertyNames"),
        (
            json!({"$ref": "#/$defs/hunter2", "$defs": {"hunter2": {"properties": {"a": {"maxLength": 0}}}}}),
            "maxLength",
        ),
        (json!({"anyOf": [{"required": ["hunter2"]}, {"const": "hunter2"}]}), "anyOf"),
    ];
    let broken = [
        json!({"type": "hunter2"}),
        json!({"properties": {"hunter2": {"minimum": "271828"}}}),
        json!({"$ref": "https://hunter2.example/271828"}),
        json!({"$ref": "#/$defs/hunter2"}),
        json!({"$ref": "#hunter2"}),
        json!({"$schema": "https://hunter2.example/271828"}),
        json!({"$id": "http://[hunter2"}),
        json!({"$defs": {"a": {"$id": "x:hunter2"}, "b": {"$id": "x:hunter2"}}}),
        json!({"$defs": {"a": {"$anchor": "hunter2"}, "b": {"$anchor": "hunter2"}}}),
        json!({"pattern": "(hunter2"}),
        json!({"patternProperties": {"(hunter2": {}}}),
    ];
    let data = json!({"a.json": r#"{"a": "x", "n": 1}"#});
    let source = source("schemas/app", None, &data);
    for (schema, rule) in failing {
        let refused = refusal(&stored(&schema), "configmaps", &source, None).await.unwrap_or_default();
        assert!(refused.contains(&format!("fails the rule {rule:?}")), "{schema}: {refused}");
        for value in ["hunter2", "271828", "271_828", "ipv4", "integer", "null", "^"] {
            assert!(!refused.contains(value), "{schema}: {refused}");
        }
    }
    for schema in broken {
        let refused = refusal(&stored(&schema), "configmaps", &source, None).await.unwrap_or_default();
        assert!(refused.contains("schemas/app is no schema: "), "{schema}: {refused}");
        assert!(!refused.contains("hunter2") && !refused.contains("271828"), "{schema}: {refused}");
    }
}

/// Names of the content in a path may hold line breaks and terminal escapes.
#[tokio::test]
async fn path_in_refusal_is_escaped() {
    let stored = stored(&json!({"additionalProperties": false}));
    let data = json!({"a.json": json!({"a\n\u{1b}[2J\u{202e}": 1}).to_string()});
    let refused = refusal(&stored, "configmaps", &source("schemas/app", None, &data), None).await.unwrap();
    assert!(refused.contains("/a\\n\\u{1b}[2J\\u{202e} fails"), "{refused}");
}

/// The API server generates the name after admission.
#[tokio::test]
async fn source_with_generated_name_is_checked() {
    let stored = stored(&port());
    for kind in ["configmaps", "secrets"] {
        let of = |text: &str| {
            let mut object = source("schemas/app", None, &json!({"a.json": text}));
            object["metadata"] = json!({"generateName": "demo-", "namespace": "shop", "annotations": object["metadata"]["annotations"]});
            if kind == "secrets" { secret(&object) } else { object }
        };
        assert_eq!(refusal(&stored, kind, &of(r#"{"port": 1}"#), None).await, None);
        let refused = refusal(&stored, kind, &of("{}"), None).await.unwrap_or_default();
        assert!(refused.contains("\"demo-*\": it fails"), "{refused}");
        let mut odd = of(r#"{"port": 1}"#);
        odd["metadata"]["annotations"][annotations::WAVES] = json!("all");
        let refused = refusal(&stored, kind, &odd, None).await.unwrap_or_default();
        assert!(refused.contains(annotations::WAVES), "{refused}");
    }
}

/// The request of a write of a Deployment that uses the source `demo`.
fn deployment(kind: &str, operation: &str) -> Value {
    let reference = if kind == "secrets" { "secretRef" } else { "configMapRef" };
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web",
            "labels": {annotations::ENABLED: "true"}, "annotations": {annotations::SECRETS: "true"}},
        "spec": {"template": {"spec": {"containers": [{"name": "app", "envFrom": [{reference: {"name": "demo"}}]}]}}},
    });
    let mut old = object.clone();
    old["spec"]["template"]["spec"]["containers"][0]["image"] = json!("old");
    json!({
        "uid": "u", "name": "web", "namespace": "shop", "object": object, "dryRun": true,
        "oldObject": if operation == "UPDATE" { old } else { Value::Null }, "operation": operation,
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
    })
}

/// Anyone who reaches the port can send a review. The answer must not depend on the schema, which another person may edit.
#[tokio::test]
async fn unverified_review_gets_no_verdict() {
    for kind in ["configmaps", "secrets"] {
        let mut demo = source("schemas/app", None, &json!({"a.json": r#"{"password": "hunter2"}"#}));
        demo["metadata"]["uid"] = json!("uid-demo");
        let demo = if kind == "secrets" { secret(&demo) } else { demo };
        let with = |schema: &Value| {
            let mut stored = stored(schema);
            stored.insert(format!("shop/{kind}/demo"), demo.clone());
            stored.insert("shop".to_owned(), json!({"metadata": {"name": "shop"}}));
            stored
        };
        let passes = with(&json!({"properties": {"password": {"pattern": "^h"}}}));
        let fails = with(&json!({"properties": {"password": {"pattern": "^i"}}}));
        let mut broken = passes.clone();
        broken.remove(&format!("shop/{kind}/schemas"));
        for path in ["/mutate/workloads", "/validate/workloads"] {
            for operation in ["CREATE", "UPDATE"] {
                let mut request = deployment(kind, operation);
                request["object"]["metadata"]["annotations"][annotations::MISSING] = json!("deny");
                let known = answer(&passes, path, false, &request).await;
                assert_eq!(known["allowed"], true, "{known}");
                for stored in [&fails, &broken] {
                    assert_eq!(
                        answer(stored, path, false, &request).await,
                        known,
                        "{kind} {path} {operation}"
                    );
                }
                let refused = answer(&fails, path, true, &request).await;
                assert_eq!(refused["allowed"], false, "{kind} {path} {operation}: {refused}");
                let message = refused["status"]["message"].as_str().unwrap();
                assert!(message.contains("is refused: it fails"), "{message}");
                assert_eq!(message.contains("fails the rule"), kind == "configmaps", "{message}");
                assert_eq!(answer(&passes, path, true, &request).await, known);
            }
        }
    }
}

/// A finalizer must be removable, and a label be written, whatever became of the schema.
#[tokio::test]
async fn write_of_other_metadata_is_not_checked() {
    let stored = stored(&port());
    let bad = source("schemas/app", None, &json!({"a.json": "{}"}));
    let mut labelled = bad.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(refusal(&stored, "configmaps", &labelled, Some(&bad)).await, None);
    let mut other = bad.clone();
    other["data"]["b"] = json!("c");
    assert!(refusal(&stored, "configmaps", &other, Some(&bad)).await.is_some());
    let mut without = bad.clone();
    without["metadata"]["annotations"] = json!({});
    assert!(refusal(&stored, "configmaps", &bad, Some(&without)).await.is_some(), "the annotation is new");
    assert_eq!(refusal(&stored, "configmaps", &without, Some(&bad)).await, None, "the annotation is removed");
}
