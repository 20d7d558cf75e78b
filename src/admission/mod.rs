//! Admission over HTTP: from the body of a request to the body of an answer. Nothing outlives either.

mod decision;
mod fair;
mod limits;
mod review;
pub mod server;
mod sources;
mod workloads;

use std::{ops::Deref, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};

use tokio::time::Instant;
use tracing::Instrument as _;

pub use decision::{Decided, Decider};
pub use fair::Client;
pub use limits::{Limits, Reading, Share};
pub use review::{Answer, Review};

use crate::{
    cluster::Api,
    controller::Shared,
    kinds::Kinds,
    snapshot::SourceKind,
    telemetry::{Metrics, metrics, traces},
};

/// How long a review may take where the API server states no timeout. It ends before the timeout of the webhook
/// configurations (`timeoutSeconds: 5`), so that the answer can say why.
pub const DECISION_LIMIT: Duration = Duration::from_secs(4);

/// The dependencies of the handlers.
pub struct Context<A> {
    /// Calls to the API server.
    pub api: A,
    /// The known kinds of workloads.
    pub kinds: Arc<Kinds>,
    /// Whether Secrets get snapshots.
    pub secrets: bool,
    /// The limits of reviews.
    pub limits: Limits,
    /// The state that the controller maintains.
    pub shared: Shared,
    /// Counters.
    pub metrics: Metrics,
}

/// The context, with what all handlers share.
struct Site<A> {
    context: Context<A>,
    budget: limits::Budget,
    reading: Reading,
}

impl<A> Deref for Site<A> {
    type Target = Context<A>;

    fn deref(&self) -> &Context<A> {
        &self.context
    }
}

/// The webhook's routes.
pub fn router<A: Api>(context: Context<A>) -> Router {
    let budget = limits::Budget::new(&context.limits, context.metrics.clone());
    let reading = Reading::new(&context.limits);
    Router::new()
        .route("/mutate/workloads", post(mutate_workloads::<A>))
        .route("/mutate/configmaps", post(mutate_configmaps::<A>))
        .route("/mutate/secrets", post(mutate_secrets::<A>))
        .route("/validate/workloads", post(validate_workloads::<A>))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such webhook\n") })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use POST\n")
        })
        .with_state(Arc::new(Site { context, budget, reading }))
}

async fn mutate_workloads<A: Api>(State(site): State<Arc<Site<A>>>, body: Body) -> Response {
    let decide = async |call: &Call, review: &Review<'_>| workloads::mutate(&site, call, review).await;
    answer(&site, "/mutate/workloads", body, decide).await
}

async fn mutate_configmaps<A: Api>(State(site): State<Arc<Site<A>>>, body: Body) -> Response {
    let decide = async |call: &Call, review: &Review<'_>| {
        sources::mutate(&site, call, SourceKind::ConfigMap, review).await
    };
    answer(&site, "/mutate/configmaps", body, decide).await
}

async fn mutate_secrets<A: Api>(State(site): State<Arc<Site<A>>>, body: Body) -> Response {
    let decide = async |call: &Call, review: &Review<'_>| {
        sources::mutate(&site, call, SourceKind::Secret, review).await
    };
    answer(&site, "/mutate/secrets", body, decide).await
}

async fn validate_workloads<A: Api>(State(site): State<Arc<Site<A>>>, body: Body) -> Response {
    let decide = async |call: &Call, review: &Review<'_>| workloads::validate(&site, call, review).await;
    answer(&site, "/validate/workloads", body, decide).await
}

/// Parses the review, decides it, counts it, and writes the answer.
async fn answer<A: Api>(
    site: &Site<A>,
    path: &'static str,
    body: Body,
    decide: impl AsyncFnOnce(&Call, &Review<'_>) -> Answer,
) -> Response {
    let start = std::time::Instant::now();
    let span = traces::admission(path, body.parent.as_ref());
    let Body { admitted: limits::Admitted { bytes, mut held }, mut call, .. } = body;
    let (outcome, response) = match Review::parse(&bytes) {
        Err(error) => {
            (metrics::Review::Failed, (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response())
        }
        Ok(review) => {
            if !span.is_disabled() {
                span.record("k8s.namespace.name", review.namespace());
                span.record("confrev.object", format!("{} {}", review.resource().1, review.name()));
                span.record("confrev.dry_run", review.dry_run());
            }
            let body = |answer: &Answer| {
                let body = answer.to_json(review.uid());
                ([(header::CONTENT_TYPE, "application/json")], body).into_response()
            };
            if let Some(refusal) =
                review.refusal(|namespace| !namespace.is_empty() && !site.shared.served().contains(namespace))
            {
                let answer = Answer::denied(refusal);
                (answer.outcome(), body(&answer))
            } else {
                call.client = call.client.of_namespace(review.namespace());
                let decided = async {
                    let _turn = site.budget.turn(&mut held, &call.client, call.deadline).await?;
                    let decided = decide(&call, &review).instrument(span.clone());
                    tokio::time::timeout_at(call.deadline, decided).await.map_err(|_| {
                        let message = "the review was not answered before the timeout of the webhook\n";
                        (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
                    })
                };
                match decided.await {
                    Err(refusal) => (metrics::Review::Failed, refusal),
                    Ok(answer) => (answer.outcome(), body(&answer)),
                }
            }
        }
    };
    span.record("confrev.outcome", tracing::field::debug(outcome));
    if matches!(outcome, metrics::Review::Failed) {
        span.record("otel.status_code", "ERROR");
    }
    site.metrics.review(path, outcome, start.elapsed());
    response.map(|body| server::hold(body, held))
}

/// The client that a review comes from, and the deadline for the answer.
struct Call {
    client: Client,
    deadline: Instant,
}

/// A JSON body, within the limits.
struct Body {
    admitted: limits::Admitted,
    call: Call,
    /// The trace that the request belongs to.
    parent: Option<opentelemetry::Context>,
}

impl<A: Api> FromRequest<Arc<Site<A>>> for Body {
    type Rejection = Response;

    async fn from_request(request: Request, site: &Arc<Site<A>>) -> Result<Self, Response> {
        if !is_json(request.headers()) {
            let message = "the body must be an AdmissionReview, with the content type application/json\n";
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response());
        }
        let parent = traces::parent(request.headers());
        let arrival = request.extensions().get::<server::Arrival>();
        let start = arrival.map_or_else(Instant::now, |arrival| arrival.start);
        let client = arrival.map(|arrival| Client::new(arrival.address)).unwrap_or_default();
        let deadline = site.limits.deadline(request.uri(), start);
        let admitted = site.budget.admit(request.into_body(), &client, deadline).await?;
        Ok(Self { admitted, call: Call { client, deadline }, parent })
    }
}

/// Whether the content type is JSON; parameters, such as a charset, do not matter.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
