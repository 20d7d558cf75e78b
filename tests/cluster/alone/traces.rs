//! Traces: one from an admission to the calls that it makes, in OTLP, at a collector of the test's own. Nothing of the
//! contents of objects is in it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use confrev_controlplane::wait_for;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message as _;

use crate::manifests::{Kind, Workload};
use crate::shared::exclusive;
use crate::world::{LIMIT, World};

/// Found in a span, it is no chance.
const VALUE: &str = "kAhyS7cFw2mEbrZ9xQt4";

/// Takes spans as any OTLP collector does.
struct Collector {
    url: String,
    got: Arc<Mutex<Got>>,
}

#[derive(Default)]
struct Got {
    spans: Vec<Span>,
    /// What the resource says of itself.
    resource: Vec<String>,
    /// The bytes of all requests.
    bytes: Vec<u8>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let got = Arc::new(Mutex::new(Got::default()));
        let shared = Arc::clone(&got);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || while Self::take(&stream, &shared).is_some() {});
            }
        });
        Self { url, got }
    }

    /// One request; `None` where the connection has ended.
    fn take(mut stream: &TcpStream, shared: &Mutex<Got>) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        assert!(line.starts_with("POST /v1/traces "), "{line}");
        let (mut length, mut kind) = (0, String::new());
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let header = line.trim().to_lowercase();
            match header.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(("content-type", value)) => value.clone_into(&mut kind),
                _ if header.is_empty() => break,
                _ => {}
            }
        }
        assert_eq!(kind, "application/x-protobuf");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let request = ExportTraceServiceRequest::decode(&body[..]).expect("it is OTLP");
        let mut got = shared.lock().unwrap_or_else(PoisonError::into_inner);
        got.bytes.extend(body);
        for of_resource in request.resource_spans {
            let attributes = of_resource.resource.into_iter().flat_map(|resource| resource.attributes);
            got.resource
                .extend(attributes.map(|a| format!("{}={}", a.key, shown(a.value.and_then(|v| v.value)))));
            got.spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        drop(got);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
    }

    fn spans(&self) -> Vec<Span> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).spans.clone()
    }
}

fn shown(value: Option<Any>) -> String {
    match value {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        Some(Any::BoolValue(yes)) => yes.to_string(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    found.map_or_else(String::new, |found| shown(found.value.clone().and_then(|value| value.value)))
}

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

#[test]
fn a_trace_leads_from_an_admission_and_from_a_roll_to_their_calls_and_holds_no_content() {
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
    // What is left is sent when it ends.
    confrev.stop();
    confrev.start();
    drop(confrev);

    let spans = collector.spans();
    let snapshot = world.snapshot_name("demo", VALUE);
    let (root, calls) =
        admission(&spans, "/mutate/workloads", world.name(), "deployments web").expect("an admission");
    assert_eq!(root.kind(), SpanKind::Server);
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
    assert!(text.contains(&snapshot) || text.contains("web"), "names are told");
    for content in [VALUE, &VALUE.to_lowercase(), "labelSelector"] {
        assert!(!text.contains(content), "{content} is in a span");
    }
}
