//! Sources with a JSON Schema, through the admission of sources and the child process of a check.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::body::Body as ReviewBody;
use confrev::{
    admission::{Context, ReviewLimits, router},
    annotations,
    cluster::KubeApi,
    controller::Shared,
    kinds::Kinds,
    schema::Schemas,
    telemetry::{Metrics, Readiness},
};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::controller::Desk;

/// ConfigMaps by namespace and name: what the API server has.
type Stored = BTreeMap<(&'static str, &'static str), Value>;

/// A ConfigMap with schemas.
fn schemas(schema: &Value, annotations: &Value) -> Value {
    let metadata = json!({"name": "schemas", "annotations": annotations});
    json!({"metadata": metadata, "data": {"app": schema.to_string(), "text": "{", "list": "[]"}})
}

/// The schema that most tests use.
fn port() -> Value {
    let port = json!({"type": "integer", "maximum": 65535});
    json!({"type": "object", "properties": {"port": port}, "required": ["port"], "additionalProperties": false})
}

fn stored(schema: &Value) -> Stored {
    Stored::from([
        (("shop", "schemas"), schemas(schema, &json!({}))),
        (("platform", "schemas"), schemas(schema, &json!({annotations::SCHEMA_FOR: "other, sh*"}))),
        (("private", "schemas"), schemas(schema, &json!({annotations::SCHEMA_FOR: "other"}))),
    ])
}

/// A source in namespace `shop`.
fn source(schema: &str, keys: Option<&str>, data: &Value) -> Value {
    let mut annotations = json!({annotations::SCHEMA: schema});
    if let Some(keys) = keys {
        annotations[annotations::SCHEMA_KEYS] = json!(keys);
    }
    json!({"metadata": {"name": "demo", "namespace": "shop", "annotations": annotations}, "data": data})
}

/// Why the webhook refuses a write of a source; `None` if it does not.
async fn refusal(stored: &Stored, kind: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    let stored = Arc::new(stored.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let stored = Arc::clone(&stored);
        async move {
            let path = request.uri().path().split("/namespaces/").nth(1).unwrap_or_default().to_owned();
            let found = path.split_once("/configmaps/").and_then(|key| stored.get(&key).cloned());
            let is_found = found.is_some();
            let object = found.unwrap_or_else(|| json!({"kind": "Status", "reason": "NotFound"}));
            let mut response = Response::new(Body::from(object.to_string().into_bytes()));
            *response.status_mut() = if is_found { StatusCode::OK } else { StatusCode::NOT_FOUND };
            Ok::<_, Infallible>(response)
        }
    });
    let kinds = Arc::new(Kinds::default());
    let context = Context {
        api: KubeApi::new(kube::Client::new(service, "shop"), kinds.clone(), Metrics::new()),
        kinds,
        secrets: true,
        limits: ReviewLimits::default(),
        shared: Shared::new(Desk::new().state, Readiness::new().register("caches")),
        metrics: Metrics::new(),
        schemas: Schemas::of(env!("CARGO_BIN_EXE_confrev").into()),
        users: None,
    };
    let request = json!({
        "uid": "u", "name": "demo", "namespace": "shop", "object": new, "oldObject": old,
        "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
        "resource": {"group": "", "version": "v1", "resource": kind},
    });
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let request = Request::post(format!("/mutate/{kind}"))
        .header("content-type", "application/json")
        .body(ReviewBody::from(review.to_string()))
        .unwrap();
    let response = router(context).oneshot(request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    let response = &answer["response"];
    assert!(response.get("warnings").is_none_or(|warnings| warnings == &json!([])), "{answer}");
    (response["allowed"] == false).then(|| response["status"]["message"].as_str().unwrap().to_owned())
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
        (
            "a.json",
            r#"{"port": "hunter2"}"#,
            "key \"a.json\": /port must be of type integer (rule #/properties/port/type",
        ),
        ("a.yaml", "port: 65536", "key \"a.yaml\": /port must be at most 65535 (rule #/properties/port"),
        ("a.toml", "ports = 1", "key \"a.toml\": the whole content lacks \"port\" (rule #"),
        ("a.properties", "port=hunter2", "key \"a.properties\": /port must be of type integer"),
        ("a.json", "{hunter2", "key \"a.json\": not valid JSON (line 1, column 2)"),
        ("a.txt", "port: 1", "no key ends in .json"),
    ] {
        let source = source("schemas/app", None, &json!({key: text}));
        let refused = refusal(&stored, "configmaps", &source, None).await.unwrap_or_default();
        let start = "ConfigMap \"demo\": it fails the schema schemas/app (annotation confrev.dev/schema): ";
        let found = refused.strip_prefix(start).unwrap_or_else(|| panic!("{refused}"));
        assert!(found.starts_with(expected.split(" (rule").next().unwrap()), "{found}");
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
            "annotation confrev.dev/schema: ConfigMap \"none\" does not exist in namespace \"shop\"",
        ),
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
        (json!({"type": "nonsense"}), "it is no valid JSON Schema"),
        (json!({"pattern": "("}), "pattern"),
        (
            json!({"$ref": "https://127.0.0.1:1/x"}),
            "it refers to https://127.0.0.1:1/x, and nothing is fetched",
        ),
        (json!({"$ref": "file:///etc/passwd"}), "it refers to file:///etc/passwd, and nothing is fetched"),
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
    assert!(refused.contains("must match the pattern"), "{refused}");
    // Aliases that double at each step.
    let bomb: Vec<_> = (0..40).map(|i| format!("a{}: &a{} [*a{i}, *a{i}]", i + 1, i + 1)).collect();
    let data = json!({"a.yaml": format!("a0: &a0 x\n{}\n", bomb.join("\n"))});
    let refused =
        refusal(&stored(&json!(true)), "configmaps", &source("schemas/app", None, &data), None).await;
    assert!(refused.is_some());
}

#[tokio::test]
async fn refusal_of_secret_contains_only_names_of_schema() {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let stored = stored(&port());
    let text = r#"{"hunter2": {"hunter2": "hunter2"}, "port": "hunter2"}"#;
    for (key, text) in [("a.json", text), ("a.yaml", "hunter2: [hunter2"), ("a.toml", "hunter2 hunter2")] {
        let data = json!({key: BASE64_STANDARD.encode(text)});
        let refused = refusal(&stored, "secrets", &source("schemas/app", None, &data), None).await.unwrap();
        assert!(refused.contains(&format!("key {key:?}")) && !refused.contains("hunter2"), "{refused}");
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
