//! Traces, as OTLP over HTTP, if an endpoint is configured: one for each admission and one for each task of the
//! controller, with their calls. Spans name objects and never hold their content. Only the values that [`admission`],
//! [`task`] and [`call`] record are sent, and no log lines.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http::HeaderMap;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{TraceContextExt as _, TracerProvider as _},
};
use opentelemetry_http::{Bytes, HeaderExtractor, HeaderInjector, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::{Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    registry::LookupSpan,
};

/// The target of all spans that are sent. Nothing else uses it.
pub const TARGET: &str = "confrev::spans";
/// The time limit for sending spans to the collector.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// The time limit for sending the last spans when the program ends.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// The most bytes that are read of a collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The endpoint does not accept spans.
    #[error(
        "invalid trace endpoint {endpoint:?}: give the collector's address, such as http://collector:4318"
    )]
    Endpoint {
        /// The endpoint that was given.
        endpoint: String,
    },
    /// The exporter could not be created.
    #[error("traces cannot be sent: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// The export of spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// The configured endpoint: from the option, or from OpenTelemetry's own variables.
    pub fn endpoint(option: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let base = |base: &str| format!("{}/v1/traces", base.trim_end_matches('/'));
        option
            .map(base)
            .or_else(|| set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
            .or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT").map(|endpoint| base(&endpoint)))
    }

    /// Sends spans to this endpoint from now on, on the runtime. OpenTelemetry's own variables set the sampling and the
    /// service name (`OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
    pub fn start(endpoint: &str, runtime: &Handle) -> Result<Self, TracesError> {
        let is_address = endpoint.parse::<http::Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http"));
        if !is_address {
            return Err(TracesError::Endpoint { endpoint: endpoint.to_owned() });
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender::new(runtime.clone()))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("confrev");
        }
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.with_attribute(version).build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self { provider })
    }

    /// The layer that collects the spans.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("confrev"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_level(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO))
    }

    /// Sends the remaining spans.
    pub fn shut_down(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_LIMIT) {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

/// The trace in the request's headers, if any: the API server's own.
pub fn parent(headers: &HeaderMap) -> Option<Context> {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    context.span().span_context().is_valid().then_some(context)
}

/// The span of one admission. Facts that become known later are recorded later.
pub fn admission(path: &'static str, parent: Option<&Context>) -> Span {
    let span = info_span!(
        target: TARGET,
        "admission",
        otel.name = format!("POST {path}"),
        otel.kind = "server",
        otel.status_code = Empty,
        url.path = path,
        k8s.namespace.name = Empty,
        confrev.object = Empty,
        confrev.dry_run = Empty,
        confrev.outcome = Empty,
    );
    if let Some(parent) = parent {
        // It fails if spans are not sent at all.
        let _ = span.set_parent(parent.clone());
    }
    span
}

/// The span of one task of the controller.
pub fn task(work: &dyn fmt::Debug, object: &dyn fmt::Debug) -> Span {
    info_span!(
        target: TARGET,
        "task",
        otel.name = format!("{work:?}").to_lowercase(),
        otel.status_code = Empty,
        confrev.task = ?object,
    )
}

/// The span of one call to the API server. The query of the path is left out.
pub fn call(verb: &'static str, path: &str) -> Span {
    let path = path.split('?').next().unwrap_or_default();
    info_span!(
        target: TARGET,
        "call",
        otel.name = verb,
        otel.kind = "client",
        otel.status_code = Empty,
        url.path = path,
        http.response.status_code = Empty,
    )
}

/// Writes the span's trace into the headers of a request.
pub fn inject(span: &Span, headers: &mut HeaderMap) {
    if !span.is_disabled() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut HeaderInjector(headers));
    }
}

/// Sends spans on the runtime, from any thread.
struct Sender {
    runtime: Handle,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Whether the log has reported that the collector refuses spans.
    is_reported: AtomicBool,
}

impl Sender {
    fn new(runtime: Handle) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { runtime, client, is_reported: AtomicBool::new(false) }
    }

    /// Logs once that the collector refuses spans or is unreachable, and again only after a success.
    fn report(&self, result: &Result<Response<Bytes>, HttpError>) {
        let problem = match result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(super::causes::causes(&**error)),
        };
        let is_reported = self.is_reported.swap(problem.is_some(), Ordering::Relaxed);
        if let Some(problem) = problem.filter(|_| !is_reported) {
            tracing::warn!(problem, "the collector does not accept traces");
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl HttpClient for Sender {
    fn send_bytes<'life, 'sent>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'life: 'sent,
        Self: 'sent,
    {
        let client = self.client.clone();
        // The thread that batches spans is not one of the runtime's.
        let task = self.runtime.spawn(async move {
            let answer = async {
                let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
                let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
                Ok::<_, HttpError>(Response::from_parts(head, body))
            };
            tokio::time::timeout(SEND_LIMIT, answer).await
        });
        Box::pin(async move {
            let result = match task.await {
                Ok(Ok(result)) => result,
                Ok(Err(late)) => Err(late.into()),
                Err(ended) => Err(ended.into()),
            };
            self.report(&result);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/v1/traces` is appended, except to the endpoint that is only for traces.
    #[test]
    fn trace_endpoint_option_overrides_the_environment() {
        let endpoint = |option, variables: &[(&str, &str)]| {
            let variables = variables.to_vec();
            Traces::endpoint(option, move |name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:1/path");
        for (option, variables, wanted) in [
            (None, &[][..], None),
            (None, &[base], Some("http://a:4318/v1/traces")),
            (None, &[base, own], Some("http://b:1/path")),
            (Some("http://c:1/"), &[base, own], Some("http://c:1/v1/traces")),
            (Some("http://c:1"), &[("OTEL_SDK_DISABLED", "true")], None),
            (None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], None),
        ] {
            assert_eq!(endpoint(option, variables).as_deref(), wanted, "{option:?} {variables:?}");
        }
    }

    #[test]
    fn rejects_trace_endpoint_without_plain_http() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for endpoint in ["collector:4318", "https://collector:4318/v1/traces", "", "http//x"] {
            let error = Traces::start(endpoint, runtime.handle()).unwrap_err();
            assert!(error.to_string().contains("http://collector:4318"), "{error}");
        }
    }

    #[test]
    fn request_trace_comes_from_its_header() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (value, known) in [(Some(header), true), (Some("00-0-0-00"), false), (None, false)] {
            let mut headers = HeaderMap::new();
            headers.extend(
                value.map(|value| (http::HeaderName::from_static("traceparent"), value.parse().unwrap())),
            );
            let context = parent(&headers);
            assert_eq!(context.is_some(), known, "{value:?}");
            if let Some(context) = context {
                let id = context.span().span_context().trace_id().to_string();
                assert_eq!(id, "0af7651916cd43dd8448eb211c80319c");
            }
        }
    }
}
