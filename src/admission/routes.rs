//! The webhook's routes, and the way of a review through them.

use std::{pin::pin, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use http_body_util::Full;
use tracing::Instrument as _;

use super::{
    bodies::ReceivedBody,
    context::{Caller, Context, HandlerState},
    request::ReviewRequest,
    review::{Answer, MAX_QUOTE, Review},
    sources, workloads,
};
use crate::{
    cluster::Api,
    server::keep_until_sent,
    snapshot::SourceKind,
    telemetry::{metrics, traces},
    text,
};

/// The path of the webhooks of workloads where the policy `confrev-carry` is in force. Only there, a mark is believed.
pub const MARKED_WORKLOADS: &str = "/mutate/marked-workloads";

/// The paths of the webhook, and what decides on each.
#[derive(Clone, Copy)]
enum Route {
    Workloads,
    MarkedWorkloads,
    Sources(SourceKind),
    ValidatedWorkloads,
}

impl Route {
    const ALL: [Self; 5] = [
        Self::Workloads,
        Self::MarkedWorkloads,
        Self::Sources(SourceKind::ConfigMap),
        Self::Sources(SourceKind::Secret),
        Self::ValidatedWorkloads,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Workloads => "/mutate/workloads",
            Self::MarkedWorkloads => MARKED_WORKLOADS,
            Self::Sources(SourceKind::ConfigMap) => "/mutate/configmaps",
            Self::Sources(SourceKind::Secret) => "/mutate/secrets",
            Self::ValidatedWorkloads => "/validate/workloads",
        }
    }

    async fn decide<A: Api>(self, state: &HandlerState<A>, call: &Caller, review: &Review<'_>) -> Answer {
        match self {
            Self::Workloads => workloads::mutate(state, call, review, false).await,
            Self::MarkedWorkloads => workloads::mutate(state, call, review, true).await,
            Self::Sources(kind) => sources::mutate(state, call, kind, review).await,
            Self::ValidatedWorkloads => workloads::validate(state, call, review).await,
        }
    }
}

/// The webhook's routes.
pub fn router<A: Api>(context: Context<A>) -> Router {
    let routes = Route::ALL.into_iter().fold(Router::new(), |router, route| {
        let answer = async move |State(state): State<Arc<HandlerState<A>>>, request: ReviewRequest| {
            answer_review(&state, route, request).await
        };
        router.route(route.path(), post(answer))
    });
    routes
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such webhook\n") })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use POST\n")
        })
        .with_state(Arc::new(HandlerState::new(context)))
}

/// Parses the review, decides it, counts it, and writes the answer.
async fn answer_review<A: Api>(state: &HandlerState<A>, route: Route, request: ReviewRequest) -> Response {
    let (start, path) = (std::time::Instant::now(), route.path());
    let span = traces::admission(path, request.parent.as_ref());
    let ReviewRequest { body: ReceivedBody { bytes, mut memory }, mut call, .. } = request;
    let (outcome, answer) = match Review::parse(&bytes) {
        Err(error) => {
            let refusal = (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
            (metrics::ReviewOutcome::Failed, Err(refusal))
        }
        Ok(review) => {
            if let Some(refusal) = review
                .refusal(|namespace| !namespace.is_empty() && !state.shared.served().contains(namespace))
            {
                let answer = Answer::denied(refusal);
                (answer.outcome(), Ok(answer.to_json(review.uid())))
            } else {
                if !span.is_disabled() {
                    span.record("k8s.namespace.name", review.namespace());
                    let resource = text::short(review.resource().1, MAX_QUOTE);
                    span.record("confrev.object", format!("{resource} {}", review.name()));
                    span.record("confrev.dry_run", review.dry_run());
                }
                call.client = call.client.of_namespace(review.namespace());
                let decided = async {
                    let _turn = state.turns.begin(&mut memory, &call.client, call.deadline).await?;
                    // In place: the future is large, and would be copied on its way into the timeout.
                    let decided = pin!(route.decide(state, &call, &review).instrument(span.clone()));
                    tokio::time::timeout_at(call.deadline, decided).await.map_err(|_| {
                        let message = "the review was not answered before the timeout of the webhook\n";
                        (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
                    })
                };
                let answer = match decided.await {
                    Ok(answer) => {
                        let operations = answer.operations();
                        let room = state.turns.answer(&mut memory, &call.client, operations, call.deadline);
                        room.await.map(|()| answer)
                    }
                    Err(refusal) => Err(refusal),
                };
                match answer {
                    Err(refusal) => (metrics::ReviewOutcome::Failed, Err(refusal)),
                    // An answer would refuse the write. Without one, the API server stores it as the policy has left it.
                    Ok(answer) if matches!(route, Route::MarkedWorkloads) && answer.is_unavailable() => {
                        let message = "the review could not be decided: the log has the reason\n";
                        let refusal = (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
                        (metrics::ReviewOutcome::Failed, Err(refusal))
                    }
                    Ok(answer) => (answer.outcome(), Ok(answer.to_json(review.uid()))),
                }
            }
        }
    };
    span.record("confrev.outcome", tracing::field::debug(outcome));
    if matches!(outcome, metrics::ReviewOutcome::Failed) {
        span.record("otel.status_code", "ERROR");
    }
    state.metrics.review(path, outcome, start.elapsed());
    match answer {
        Ok(json) => {
            let body = keep_until_sent(Full::<Bytes>::from(json), memory);
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(refusal) => refusal.map(|body| keep_until_sent(body, memory)),
    }
}
