//! Receives the bodies of reviews, within the memory for all of them.

use axum::{
    body::{Body, HttpBody as _},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::limits::ReviewLimits;
use crate::{
    json_values::{count_values, growth_when_quoted},
    server::{Client, FairSemaphore, Permit, Pool, PoolPermit},
    telemetry::{Metrics, metrics::Limit},
};

/// The unit in which memory is granted.
pub(super) const KIB: usize = 1024;
/// The memory that a review takes in addition to its body.
const BODY_OVERHEAD: usize = 16 * KIB;

/// Grants memory for bodies while they arrive.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget {
    memory: Pool,
    /// For one body beyond `memory`.
    beyond: FairSemaphore,
    max_body: usize,
    metrics: Metrics,
}

/// A body and the memory that it takes.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Vec<u8>,
    pub(super) memory: ReviewMemory,
}

/// The memory of a review, until its answer is sent.
#[derive(Debug)]
pub(super) struct ReviewMemory {
    /// The memory of the body.
    pub(super) body: PoolPermit,
    _beyond: Option<Permit>,
    /// The bytes of the body.
    pub(super) bytes: usize,
    /// The JSON values in the body.
    pub(super) values: usize,
    /// How much longer a message is that quotes the body.
    pub(super) growth: usize,
    /// The memory of what the body is parsed into, once it is granted.
    pub(super) parsed: Option<PoolPermit>,
    /// The memory of a large answer.
    pub(super) answer: Option<PoolPermit>,
}

/// KiB of memory for all bodies: always enough for one.
pub(super) fn body_memory(limits: &ReviewLimits) -> usize {
    limits.bodies.max(limits.body + BODY_OVERHEAD).div_ceil(KIB)
}

/// KiB of memory for all reviews, with their bodies, what those are parsed into, the answers, and the objects that are read:
/// always enough for one body.
pub(super) fn review_memory(limits: &ReviewLimits) -> FairSemaphore {
    FairSemaphore::new(limits.memory.max(limits.body + BODY_OVERHEAD).div_ceil(KIB))
}

impl BodyBudget {
    /// `of_all`: the memory for all reviews.
    pub(super) fn new(limits: &ReviewLimits, of_all: &FairSemaphore, metrics: Metrics) -> Self {
        let (memory, beyond) = (Pool::new(body_memory(limits), of_all), FairSemaphore::new(1));
        Self { memory, beyond, max_body: limits.body, metrics }
    }

    /// Reads a body as it arrives, until `by`. Only the bytes that have arrived take memory, so a slow client delays no
    /// other.
    pub(super) async fn receive(
        &self,
        body: Body,
        client: &Client,
        by: Instant,
    ) -> Result<ReceivedBody, Response> {
        // A stated length is known before the first byte arrives.
        if body.size_hint().lower() > self.max_body as u64 {
            return Err(self.too_large(body, 0, by).await);
        }
        let (mut body, mut bytes) = (body, Vec::new());
        let mut permit = self.acquire(client, BODY_OVERHEAD / KIB, by).await?;
        let (mut room, mut beyond) = (0, None);
        loop {
            let data = match tokio::time::timeout_at(by, body.frame()).await {
                Err(_) => return Err(self.too_slow()),
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    return Err((StatusCode::BAD_REQUEST, format!("{error}\n")).into_response());
                }
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            if bytes.len() + data.len() > self.max_body {
                let read = bytes.len() + data.len();
                drop((bytes, permit, beyond));
                return Err(self.too_large(body, read, by).await);
            }
            if bytes.len() + data.len() > room {
                // Doubles, as the vector does.
                let more = (bytes.len() + data.len() - room).max(room).min(self.max_body - room);
                if beyond.is_none() {
                    let amount = more.div_ceil(KIB);
                    tokio::select! {
                        biased;
                        taken = self.acquire(client, amount, by) => permit.merge(taken?),
                        Some(one) = self.beyond.acquire(client, 1, by) => beyond = Some(one),
                    }
                }
                room += more;
                bytes.reserve_exact(room - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        let memory = ReviewMemory {
            body: permit,
            _beyond: beyond,
            bytes: bytes.len(),
            values: count_values(&bytes),
            growth: growth_when_quoted(&bytes),
            parsed: None,
            answer: None,
        };
        Ok(ReceivedBody { bytes, memory })
    }

    /// Waits for that many KiB of memory.
    async fn acquire(&self, client: &Client, amount: usize, by: Instant) -> Result<PoolPermit, Response> {
        let permit = self.memory.acquire(client, amount, by).await;
        permit.ok_or_else(|| too_many((Limit::Bodies, &self.metrics)))
    }

    /// Refuses a body of which `read` bytes were read. Up to twice the limit is read to the end and discarded: a client
    /// that writes everything before it reads would otherwise see a broken connection.
    async fn too_large(&self, mut body: Body, read: usize, by: Instant) -> Response {
        self.metrics.limit_reached(Limit::Body, 1);
        let mut left = (2 * self.max_body).saturating_sub(read);
        while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(by, body.frame()).await {
            let length = frame.into_data().map_or(0, |data| data.len());
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
        }
        let message = "the body is larger than the limit (--max-body)\n";
        (StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
    }

    fn too_slow(&self) -> Response {
        self.metrics.limit_reached(Limit::Request, 1);
        let message = "the body did not arrive before the timeout of the review\n";
        (StatusCode::REQUEST_TIMEOUT, message).into_response()
    }
}

/// The answer if units were not granted in time. It names the limit.
pub(super) fn too_many((limit, metrics): (Limit, &Metrics)) -> Response {
    metrics.limit_reached(limit, 1);
    let message = format!("too many reviews at once (--{}): try again\n", limit.text());
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll},
    };

    use futures::{StreamExt as _, stream};
    use hyper::body::{Frame, SizeHint};

    use super::{super::limits::DECISION_LIMIT, *};

    /// A body that delivers these parts and never ends.
    fn unfinished(parts: Vec<Vec<u8>>) -> Body {
        let parts = parts.into_iter().map(Ok::<_, std::io::Error>);
        Body::from_stream(stream::iter(parts).chain(stream::pending()))
    }

    fn status(received: Result<ReceivedBody, Response>) -> StatusCode {
        received.map_or_else(|response| response.status(), |_| StatusCode::OK)
    }

    /// Receives a body of a client, within the time for a decision.
    async fn receive(budget: &BodyBudget, body: Body) -> Result<ReceivedBody, Response> {
        budget.receive(body, &Client::default(), Instant::now() + DECISION_LIMIT).await
    }

    /// A review that exceeds the memory for bodies is answered with 503 if no memory is freed in time. A body over the
    /// limit is answered with 413.
    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_body_memory_wait_or_fail() {
        let metrics = Metrics::new();
        let limits = ReviewLimits { body: 1 << 20, bodies: 3 << 20, ..ReviewLimits::default() };
        let budget = BodyBudget::new(&limits, &review_memory(&limits), metrics.clone());
        let body = |length| Body::from(vec![b'x'; length]);
        // The third body exceeds the memory.
        let large = async || receive(&budget, body(1 << 20)).await.unwrap();
        let large = [large().await, large().await, large().await];
        let small = receive(&budget, body(1000)).await.unwrap();
        assert_eq!(small.bytes.len(), 1000);
        assert_eq!(status(receive(&budget, body(1 << 20)).await), StatusCode::SERVICE_UNAVAILABLE);
        drop(large);
        assert_eq!(status(receive(&budget, body(1 << 20)).await), StatusCode::OK, "the memory is free again");
        assert_eq!(status(receive(&budget, body((1 << 20) + 1)).await), StatusCode::PAYLOAD_TOO_LARGE);
        let stream = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 1 << 10])));
        assert_eq!(
            status(receive(&budget, stream).await),
            StatusCode::PAYLOAD_TOO_LARGE,
            "without a stated length"
        );
        let text = metrics.encode();
        assert!(text.contains("{limit=\"max-body\"} 2\n"), "{text}");
        assert!(text.contains("{limit=\"max-bodies\"} 1\n"), "{text}");
    }

    /// A body of that many KiB, with or without a stated length. It records how much is left.
    struct Counted {
        left: Arc<AtomicUsize>,
        stated: bool,
    }

    impl axum::body::HttpBody for Counted {
        type Data = axum::body::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
            let left = self.left.load(Ordering::Relaxed);
            let Some(left) = left.checked_sub(1) else { return Poll::Ready(None) };
            self.left.store(left, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(vec![b'x'; KIB].into()))))
        }

        fn size_hint(&self) -> SizeHint {
            let left = (self.left.load(Ordering::Relaxed) * KIB) as u64;
            if self.stated { SizeHint::with_exact(left) } else { SizeHint::default() }
        }
    }

    /// An oversized body is read to its end, so that the client gets the answer, but to at most twice the limit.
    #[tokio::test]
    async fn oversized_bodies_are_read_up_to_a_limit() {
        let limits = ReviewLimits { body: 64 * KIB, ..ReviewLimits::default() };
        let budget = BodyBudget::new(&limits, &review_memory(&limits), Metrics::new());
        for stated in [true, false] {
            for (kib, rest) in [(65, 0), (96, 0), (128, 0), (1000, 1000 - 129)] {
                let left = Arc::new(AtomicUsize::new(kib));
                let body = Body::new(Counted { left: Arc::clone(&left), stated });
                assert_eq!(status(receive(&budget, body).await), StatusCode::PAYLOAD_TOO_LARGE);
                assert_eq!(left.load(Ordering::Relaxed), rest, "of {kib} KiB; length stated: {stated}");
            }
        }
    }

    /// Other clients are served meanwhile. The slow requests end with 408.
    #[tokio::test(start_paused = true)]
    async fn slow_bodies_hold_only_their_received_bytes() {
        let limits = ReviewLimits { body: 1 << 20, bodies: 2 << 20, decisions: 1, ..ReviewLimits::default() };
        let budget = BodyBudget::new(&limits, &review_memory(&limits), Metrics::new());
        let slow: Vec<_> = (0..100)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(async move { status(receive(&budget, unfinished(vec![vec![b'{']])).await) })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(status(receive(&budget, Body::from("{}")).await), StatusCode::OK, "others are served");
        for slow in slow {
            assert_eq!(slow.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
        }
    }

    /// Eight bodies of 2 MiB, each in two halves, where there is memory for four.
    #[tokio::test(start_paused = true)]
    async fn simultaneous_bodies_do_not_deadlock() {
        let limits = ReviewLimits { body: 2 << 20, bodies: 8 << 20, ..ReviewLimits::default() };
        let budget = BodyBudget::new(&limits, &review_memory(&limits), Metrics::new());
        let each = || {
            let halves = stream::iter([(1 << 20) - BODY_OVERHEAD / 2, 1 << 20]).then(async |half| {
                tokio::task::yield_now().await;
                Ok::<_, std::io::Error>(vec![b'x'; half])
            });
            let (body, budget) = (Body::from_stream(Box::pin(halves)), budget.clone());
            tokio::spawn(async move { status(receive(&budget, body).await) })
        };
        for each in [(); 8].map(|()| each()) {
            assert_eq!(each.await.unwrap(), StatusCode::OK);
        }
    }
}
