//! What one review may take, and all together: past it there is a clear answer, and the others are still served.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, HttpBody as _},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::DECISION_LIMIT;
use crate::telemetry::{Metrics, metrics::Limit};

/// The unit in which memory is handed out.
const KIB: usize = 1024;
/// What a review takes beside its body.
const BESIDE: usize = 16 * KIB;

/// How long the rest of a body that is too large is waited for. It takes neither memory nor a turn, and the time for the
/// whole request holds as well.
const PATIENCE: Duration = Duration::from_secs(20);

/// The limits of reviews. Those of connections are [`super::server::Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one body. An AdmissionReview carries the object twice, and etcd takes 1.5 MiB of each. The same as
    /// controller-runtime's limit.
    pub body: usize,
    /// Bytes of all bodies that are read, or decided on, at once, but for one, so that those which are half read do not wait
    /// for each other. Further reviews wait for their turn.
    pub bodies: usize,
    /// Reviews that are decided on at once. Further ones wait for their turn.
    pub decisions: usize,
    /// Objects that are read for one decision: two for each source, in the usual case.
    pub reads: usize,
    /// Bytes of all objects that are read for one decision, and for all that are under way.
    pub read_bytes: usize,
    /// Snapshots of a source, beyond which none is taken of a version that nothing uses yet.
    pub snapshots: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 7 << 20,
            bodies: 64 << 20,
            decisions: 200,
            reads: 2000,
            read_bytes: 64 << 20,
            snapshots: 2000,
        }
    }
}

/// Hands out the memory for bodies, and turns.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    places: Arc<Semaphore>,
    /// For the one that may take more than there is.
    beyond: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    body: usize,
    metrics: Metrics,
}

/// A body, the memory that it takes, and the turn to decide on it.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) bytes: Vec<u8>,
    _places: OwnedSemaphorePermit,
    _beyond: Option<OwnedSemaphorePermit>,
    _turn: OwnedSemaphorePermit,
}

impl Budget {
    pub(super) fn new(limits: &Limits, metrics: Metrics) -> Self {
        // One body always finds its place.
        let places = limits.bodies.max(limits.body + BESIDE).div_ceil(KIB);
        let [places, beyond, turns] = [places, 1, limits.decisions].map(Semaphore::new).map(Arc::new);
        Self { places, beyond, turns, body: limits.body, metrics }
    }

    /// Reads a body as it comes, and waits for a turn. Only what has come takes memory, and it must have come in the time
    /// for a decision: who is slow keeps nobody waiting.
    pub(super) async fn admit(&self, body: Body) -> Result<Admitted, Response> {
        let by = Instant::now() + DECISION_LIMIT;
        // A length that is stated is known before a byte has come.
        if body.size_hint().lower() > self.body as u64 {
            return Err(self.too_large(body, 0).await);
        }
        let (mut body, mut bytes) = (body, Vec::new());
        let mut places = self.wait(&self.places, BESIDE, by, Limit::Bodies).await?;
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
            if bytes.len() + data.len() > self.body {
                let read = bytes.len() + data.len();
                drop((bytes, places, beyond));
                return Err(self.too_large(body, read).await);
            }
            if bytes.len() + data.len() > room {
                // As the vector grows.
                let more = (bytes.len() + data.len() - room).max(room).min(self.body - room);
                if beyond.is_none() {
                    tokio::select! {
                        biased;
                        taken = self.wait(&self.places, more, by, Limit::Bodies) => places.merge(taken?),
                        // The semaphore is never closed.
                        Ok(one) = Arc::clone(&self.beyond).acquire_owned() => beyond = Some(one),
                    }
                }
                room += more;
                bytes.reserve_exact(room - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        let turn = self.wait(&self.turns, 1, by, Limit::Decisions).await?;
        Ok(Admitted { bytes, _places: places, _beyond: beyond, _turn: turn })
    }

    /// So many bytes of memory, or a turn.
    async fn wait(
        &self,
        of: &Arc<Semaphore>,
        amount: usize,
        by: Instant,
        limit: Limit,
    ) -> Result<OwnedSemaphorePermit, Response> {
        let amount = u32::try_from(amount.div_ceil(KIB)).unwrap_or(u32::MAX);
        // In nearly all cases, and then no clock is asked. Who waits already comes first all the same.
        if let Ok(permit) = Arc::clone(of).try_acquire_many_owned(amount) {
            return Ok(permit);
        }
        if let Ok(Ok(permit)) = tokio::time::timeout_at(by, Arc::clone(of).acquire_many_owned(amount)).await {
            return Ok(permit);
        }
        self.metrics.limit_reached(limit, 1);
        let message = format!("too many reviews at once (--{}): try again\n", limit.text());
        Err((StatusCode::SERVICE_UNAVAILABLE, message).into_response())
    }

    /// A body of up to twice what may be read is taken to its end and thrown away, with what was `read` of it: to a client
    /// that writes to the end before it reads, the answer would else be a broken connection.
    async fn too_large(&self, mut body: Body, read: usize) -> Response {
        self.metrics.limit_reached(Limit::Body, 1);
        let by = Instant::now() + PATIENCE;
        let mut left = (2 * self.body).saturating_sub(read);
        while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(by, body.frame()).await {
            let length = frame.into_data().map_or(0, |data| data.len());
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
        }
        let message = "the body is larger than confrev reads (--max-body)\n";
        (StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
    }

    fn too_slow(&self) -> Response {
        self.metrics.limit_reached(Limit::Request, 1);
        let message = format!("the body did not come within {} s\n", DECISION_LIMIT.as_secs());
        (StatusCode::REQUEST_TIMEOUT, message).into_response()
    }
}

/// What all decisions that are under way have read.
#[derive(Clone, Debug, Default)]
pub struct Reading(Arc<AtomicUsize>);

/// The part of it that is one decision's; given back when dropped.
#[derive(Debug)]
pub struct Share<'r> {
    all: &'r Reading,
    own: AtomicUsize,
}

impl Reading {
    /// Of a decision that begins.
    pub fn share(&self) -> Share<'_> {
        Share { all: self, own: AtomicUsize::new(0) }
    }
}

impl Share<'_> {
    /// This decision has read so many bytes by now. Whether all together are within `most`.
    pub fn set(&self, bytes: usize, most: usize) -> bool {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        let others = self.all.0.fetch_sub(before, Ordering::Relaxed) - before;
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        others + bytes <= most
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.all.0.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use futures::{StreamExt as _, stream};
    use hyper::body::{Frame, SizeHint};

    use super::*;

    /// A body that comes in these parts, and then no more, without an end.
    fn unfinished(parts: Vec<Vec<u8>>) -> Body {
        let parts = parts.into_iter().map(Ok::<_, std::io::Error>);
        Body::from_stream(stream::iter(parts).chain(stream::pending()))
    }

    fn status(admitted: Result<Admitted, Response>) -> StatusCode {
        admitted.map_or_else(|response| response.status(), |_| StatusCode::OK)
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_the_memory_for_bodies_wait_for_their_turn_and_are_told_when_it_does_not_come() {
        let metrics = Metrics::new();
        let limits = Limits { body: 1 << 20, bodies: 3 << 20, ..Limits::default() };
        let budget = Budget::new(&limits, metrics.clone());
        let body = |length| Body::from(vec![b'x'; length]);
        // The third one goes beyond.
        let large = async || budget.admit(body(1 << 20)).await.unwrap();
        let large = [large().await, large().await, large().await];
        let small = budget.admit(body(1000)).await.unwrap();
        assert_eq!(small.bytes.len(), 1000);
        assert_eq!(status(budget.admit(body(1 << 20)).await), StatusCode::SERVICE_UNAVAILABLE);
        drop(large);
        assert_eq!(status(budget.admit(body(1 << 20)).await), StatusCode::OK, "the room is given back");
        assert_eq!(status(budget.admit(body((1 << 20) + 1)).await), StatusCode::PAYLOAD_TOO_LARGE);
        let stream = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 1 << 10])));
        assert_eq!(status(budget.admit(stream).await), StatusCode::PAYLOAD_TOO_LARGE, "no length is stated");
        let text = metrics.encode();
        assert!(text.contains("{limit=\"max-body\"} 2\n"), "{text}");
        assert!(text.contains("{limit=\"max-bodies\"} 1\n"), "{text}");
    }

    /// A body of so many KiB, with the length stated or not. It tells how much of it is left.
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

    #[tokio::test]
    async fn what_is_too_large_is_taken_to_its_end_unless_it_is_out_of_all_measure() {
        let budget = Budget::new(&Limits { body: 64 * KIB, ..Limits::default() }, Metrics::new());
        for stated in [true, false] {
            for (kib, rest) in [(65, 0), (96, 0), (128, 0), (1000, 1000 - 129)] {
                let left = Arc::new(AtomicUsize::new(kib));
                let body = Body::new(Counted { left: Arc::clone(&left), stated });
                assert_eq!(status(budget.admit(body).await), StatusCode::PAYLOAD_TOO_LARGE);
                assert_eq!(left.load(Ordering::Relaxed), rest, "of {kib} KiB; length stated: {stated}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_slowly_takes_what_has_come_and_is_not_waited_for() {
        let limits = Limits { body: 1 << 20, bodies: 2 << 20, decisions: 1, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let slow: Vec<_> = (0..100)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(async move { status(budget.admit(unfinished(vec![vec![b'{']])).await) })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(status(budget.admit(Body::from("{}")).await), StatusCode::OK, "others go on");
        for slow in slow {
            assert_eq!(slow.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_the_turns_wait_for_theirs() {
        let limits = Limits { decisions: 1, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let first = budget.admit(Body::from("1")).await.unwrap();
        assert_eq!(status(budget.admit(Body::from("2")).await), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert_eq!(status(budget.admit(Body::from("3")).await), StatusCode::OK, "the turn is given back");
    }

    /// Eight bodies of 2 MiB, each in two halves, where there is memory for four.
    #[tokio::test(start_paused = true)]
    async fn bodies_that_come_at_once_do_not_wait_for_what_each_other_has() {
        let limits = Limits { body: 2 << 20, bodies: 8 << 20, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let each = || {
            let halves = stream::iter([(1 << 20) - BESIDE / 2, 1 << 20]).then(async |half| {
                tokio::task::yield_now().await;
                Ok::<_, std::io::Error>(vec![b'x'; half])
            });
            let (body, budget) = (Body::from_stream(Box::pin(halves)), budget.clone());
            tokio::spawn(async move { status(budget.admit(body).await) })
        };
        for each in [(); 8].map(|()| each()) {
            assert_eq!(each.await.unwrap(), StatusCode::OK);
        }
    }

    #[test]
    fn what_all_decisions_read_is_counted_until_they_end() {
        let reading = Reading::default();
        let (one, two) = (reading.share(), reading.share());
        assert!(one.set(3, 10) && one.set(6, 10) && two.set(4, 10));
        assert!(!two.set(5, 10), "eleven");
        drop(one);
        assert!(two.set(10, 10));
        drop(two);
        assert_eq!(reading.0.load(Ordering::Relaxed), 0);
    }
}
