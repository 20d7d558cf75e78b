//! The HTTP request of a review: its body, its deadline, and its trace.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::time::Instant;

use super::{
    bodies::ReceivedBody,
    context::{Caller, HandlerState},
};
use crate::{
    cluster::Api,
    server::{Arrival, Client},
    telemetry::traces,
};

/// A request with a JSON body, within the limits.
pub(super) struct ReviewRequest {
    pub(super) body: ReceivedBody,
    pub(super) call: Caller,
    /// The trace that the request belongs to.
    pub(super) parent: Option<opentelemetry::Context>,
}

impl<A: Api> FromRequest<Arc<HandlerState<A>>> for ReviewRequest {
    type Rejection = Response;

    async fn from_request(request: Request, state: &Arc<HandlerState<A>>) -> Result<Self, Response> {
        if !is_json(request.headers()) {
            let message = "the body must be an AdmissionReview, with the content type application/json\n";
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into_response());
        }
        let parent = traces::parent(request.headers());
        let arrival = request.extensions().get::<Arrival>();
        let start = arrival.map_or_else(Instant::now, |arrival| arrival.start);
        let is_verified = arrival.is_some_and(|arrival| arrival.is_verified);
        let client = arrival.map(|arrival| Client::new(arrival.address)).unwrap_or_default();
        let deadline = state.limits.deadline(request.uri(), start);
        let body = state.bodies.receive(request.into_body(), &client, deadline).await?;
        Ok(Self { body, call: Caller { client, is_verified, deadline }, parent })
    }
}

/// Whether the content type is JSON; parameters, such as a charset, do not matter.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
