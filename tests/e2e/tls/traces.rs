//! If the API server traces, it sends the header `traceparent` to webhooks, and confrev continues the trace.
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use crate::control_plane::Stage;
use crate::processes::start;
use crate::trace_collector::{Collector, attribute};

#[tokio::test(flavor = "multi_thread")]
async fn admission_joins_the_trace_of_its_request() {
    let stage = Stage::take().await;
    let namespace = stage.namespace().await;
    let collector = Collector::start();
    let programs = start(&stage, 1, &[], &["--otlp-endpoint", &collector.url]).await;
    let labels = json!({"app": "web"});
    // With a setting of its own, the validating webhook is called too.
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "web", "namespace": namespace.name(), "labels": {"confrev.dev/enabled": "true"},
            "annotations": {"confrev.dev/missing": "deny"},
        },
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{
                "name": "app", "image": "app", "envFrom": [{"configMapRef": {"name": "demo"}}],
            }]},
        }},
    });
    let plane = stage.plane;
    tokio::task::spawn_blocking(move || {
        plane.kubectl(&["create", "--filename", "-"]).stdin(web).run().ok();
        // The program sends the remaining spans when it ends.
        for mut program in programs {
            program.stop();
        }
    })
    .await
    .unwrap();

    let spans = collector.spans();
    let admission = |path: &str| -> &Span {
        let found = spans.iter().find(|span| {
            span.name == format!("POST {path}") && attribute(span, "k8s.namespace.name") == namespace.name()
        });
        found.unwrap_or_else(|| panic!("{path} was not called"))
    };
    let (mutated, validated) = (admission("/mutate/workloads"), admission("/validate/workloads"));
    assert!(
        !mutated.parent_span_id.is_empty() && !validated.parent_span_id.is_empty(),
        "both spans have a parent"
    );
    assert_eq!(mutated.trace_id, validated.trace_id, "both spans belong to one request");
    let calls: Vec<_> = spans.iter().filter(|span| span.parent_span_id == mutated.span_id).collect();
    assert!(!calls.is_empty() && calls.iter().all(|call| call.trace_id == mutated.trace_id), "{calls:?}");
    let other = spans.iter().find(|span| span.trace_id != mutated.trace_id);
    assert!(other.is_some(), "other requests have other traces");
}
