//! Traces from admissions and rolls to their calls, sent as OTLP to a collector of the test. They hold no content of
//! objects.

use confrev_controlplane::wait_for;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};

use crate::manifests::{Kind, Workload};
use crate::shared::exclusive;
use crate::world::{LIMIT, World};
use confrev_test_support::trace_collector::{Collector, attribute};

/// Too long to occur in a span by chance.
const VALUE: &str = "kAhyS7cFw2mEbrZ9xQt4";

/// The admission of an object in a namespace, and the calls below it, as `verb path code`.
fn admission(spans: &[Span], path: &str, namespace: &str, object: &str) -> Option<(Span, Vec<String>)> {
    let root = spans.iter().find(|span| {
        span.name == format!("POST {path}")
            && attribute(span, "k8s.namespace.name") == namespace
            && attribute(span, "confrev.object") == object
    })?;
    let below = spans.iter().filter(|span| span.parent_span_id == root.span_id);
    let calls = below.map(|span| {
        assert_eq!(span.trace_id, root.trace_id, "one trace");
        assert_eq!(span.kind(), SpanKind::Client);
        let path = attribute(span, "url.path").replace(namespace, "NS");
        format!("{} {path} {}", span.name, attribute(span, "http.response.status_code"))
    });
    Some((root.clone(), calls.collect()))
}

/// No span holds the content of an object.
#[test]
fn traces_link_admissions_and_rolls_to_calls() {
    let collector = Collector::start();
    let mut confrev = exclusive();
    confrev.stop();
    confrev.start_with(&["--otlp-endpoint", &collector.url]);
    let world = World::new("traces");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", VALUE);
    world.apply(&web.manifest()).ok();
    world.wait_resolved(&web, "demo", VALUE);
    wait_for("confrev to lead", LIMIT, || confrev.leads().then_some(()));
    world.set_config("demo", &VALUE.to_lowercase());
    world.wait_resolved(&web, "demo", &VALUE.to_lowercase());
    // confrev sends the remaining spans when it stops.
    confrev.stop();
    confrev.start();
    drop(confrev);

    let spans = collector.spans();
    let snapshot = world.snapshot_name("demo", VALUE);
    let (root, calls) =
        admission(&spans, "/mutate/workloads", world.name(), "deployments web").expect("an admission");
    assert_eq!(root.kind(), SpanKind::Server);
    // `tests/e2e/tls/traces.rs` has the other case.
    assert_eq!(root.parent_span_id, [0; 0], "the API server does not trace here");
    assert_eq!(
        (attribute(&root, "confrev.outcome"), attribute(&root, "confrev.dry_run")),
        ("Patched".into(), "false".into())
    );
    let configs = "/api/v1/namespaces/NS/configmaps";
    for call in [format!("get {configs}/demo 200"), format!("create {configs} 201")] {
        assert!(calls.contains(&call), "{call} is not in {calls:?}");
    }
    let (_, calls) =
        admission(&spans, "/mutate/configmaps", world.name(), "configmaps demo").expect("an admission");
    assert!(calls.iter().all(|call| call.contains("/namespaces/NS/")), "{calls:?}");

    let rolls = spans
        .iter()
        .filter(|span| span.name == "roll" && attribute(span, "confrev.task").contains(world.name()));
    let pokes = rolls.flat_map(|roll| spans.iter().filter(|span| span.parent_span_id == roll.span_id));
    let pokes: Vec<_> = pokes.map(|span| attribute(span, "url.path").replace(world.name(), "NS")).collect();
    assert!(pokes.contains(&"/apis/apps/v1/namespaces/NS/deployments/web".to_owned()), "{pokes:?}");

    let got = collector.got.lock().unwrap();
    assert!(got.resource.contains(&"service.name=confrev".to_owned()), "{:?}", got.resource);
    let text = String::from_utf8_lossy(&got.bytes);
    assert!(text.contains(&snapshot) || text.contains("web"), "spans have names of objects");
    for content in [VALUE, &VALUE.to_lowercase(), "labelSelector"] {
        assert!(!text.contains(content), "{content} is in a span");
    }
}
