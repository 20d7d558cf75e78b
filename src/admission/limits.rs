//! What one review may take, and all together: past it there is a clear answer, and the others are still served.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use super::DECISION_LIMIT;

/// The unit in which memory is handed out.
const KIB: usize = 1024;
/// What a review takes beside its body.
const BESIDE: usize = 16 * KIB;

/// The limits of reviews. Those of connections are [`super::server::Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one body. An AdmissionReview carries the object twice, and etcd takes 1.5 MiB of each. The same as
    /// controller-runtime's limit.
    pub body: usize,
    /// Bytes of all bodies that are read, or decided on, at once. Further reviews wait for their turn.
    pub bodies: usize,
    /// Objects that are read for one decision: two for each source, in the usual case.
    pub reads: usize,
    /// Bytes of all objects that are read for one decision.
    pub read_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 7 << 20, bodies: 64 << 20, reads: 2000, read_bytes: 64 << 20 }
    }
}

/// Hands out the memory for bodies.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    places: Arc<Semaphore>,
    body: usize,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Self {
        // One body always finds its place.
        let places = limits.bodies.max(limits.body + BESIDE).div_ceil(KIB);
        Self { places: Arc::new(Semaphore::new(places)), body: limits.body }
    }

    /// How many places a request takes: by the length that it states, else by the longest that may be.
    fn wanted(&self, request: &Request) -> u32 {
        let stated = request.headers().get(header::CONTENT_LENGTH);
        let length = stated.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(self.body);
        u32::try_from((length.min(self.body) + BESIDE).div_ceil(KIB)).unwrap_or(u32::MAX)
    }
}

/// Lets a request begin once there is room for its body, and holds the room until it is answered.
pub(super) async fn in_turn(State(budget): State<Budget>, request: Request, next: Next) -> Response {
    let places = budget.places.acquire_many(budget.wanted(&request));
    match tokio::time::timeout(DECISION_LIMIT, places).await {
        Ok(Ok(_places)) => next.run(request).await,
        _ => (StatusCode::SERVICE_UNAVAILABLE, "too many reviews at once: try again\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, routing::post};
    use tower::ServiceExt as _;

    use super::*;

    fn request(length: usize) -> Request {
        Request::post("/").header(header::CONTENT_LENGTH, length).body(Body::empty()).unwrap()
    }

    /// A router that answers once the semaphore says so.
    fn router(limits: &Limits, go: &Arc<Semaphore>) -> Router {
        let go = Arc::clone(go);
        let answer = move || async move { drop(go.acquire().await) };
        let in_turn = axum::middleware::from_fn_with_state(Budget::new(limits), in_turn);
        Router::new().route("/", post(answer)).layer(in_turn)
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_the_memory_for_bodies_wait_for_their_turn_and_are_told_when_it_does_not_come() {
        let limits = Limits { body: 1 << 20, bodies: 3 << 20, ..Limits::default() };
        let go = Arc::new(Semaphore::new(0));
        let router = router(&limits, &go);
        let ask = |length| tokio::spawn(router.clone().oneshot(request(length)));
        let large = [ask(1 << 20), ask(1 << 20)];
        tokio::task::yield_now().await;
        let small = ask(1000);
        let (late, refused) = (ask(1 << 20), ask(usize::MAX));
        assert_eq!(refused.await.unwrap().unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(late.await.unwrap().unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        go.add_permits(100);
        for asked in large.into_iter().chain([small]) {
            assert_eq!(asked.await.unwrap().unwrap().status(), StatusCode::OK, "there was room for it");
        }
        assert_eq!(ask(1 << 20).await.unwrap().unwrap().status(), StatusCode::OK, "the room is given back");
    }
}
