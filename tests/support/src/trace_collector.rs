//! A collector of traces for the tests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// Accepts spans as any OTLP collector does.
pub struct Collector {
    /// The address that confrev sends spans to.
    pub url: String,
    /// The received data.
    pub got: Arc<Mutex<Got>>,
}

/// The data of all requests.
#[derive(Default)]
pub struct Got {
    spans: Vec<Span>,
    /// The attributes of the resource.
    pub resource: Vec<String>,
    /// The bytes of all requests.
    pub bytes: Vec<u8>,
}

impl Collector {
    /// Listens on a free port of loopback.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let url = format!("http://{}", listener.local_addr().expect("the listener has an address"));
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

    /// Reads and answers one request; `None` if the connection has ended.
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
        let request = ExportTraceServiceRequest::decode(&body[..]).expect("the body is OTLP");
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

    /// The spans received so far.
    pub fn spans(&self) -> Vec<Span> {
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

/// An attribute of a span, as text.
pub fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    found.map_or_else(String::new, |found| shown(found.value.clone().and_then(|value| value.value)))
}
