//! The limits of one review and of all reviews together. A request beyond a limit gets a clear answer; others are served.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody as _},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use super::{
    DECISION_LIMIT,
    fair::{Client, Fair, Permit},
};
use crate::{
    cluster::{Call, Meter},
    resolve::parse_duration,
    telemetry::{Metrics, metrics::Limit},
};

/// The unit in which memory is handed out.
const KIB: usize = 1024;
/// The memory that a review takes in addition to its body.
const BESIDE: usize = 16 * KIB;
/// The memory that a JSON value takes once it is parsed: a container, a volume, a map's entry. Measured over the structures that
/// reviews are parsed into, whose largest take 184 bytes for the two values of `{},` in a list.
const PER_VALUE: usize = 96;
/// The longest time between the deadline of a review and the API server's timeout.
const MARGIN: Duration = Duration::from_secs(1);

/// The limits of reviews. Those of connections are [`super::server::Limits`]. Each limit of all reviews together is
/// divided fairly by source address and namespace ([`super::fair`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one body. An AdmissionReview contains the object twice, and etcd accepts 1.5 MiB of each. The same as
    /// controller-runtime's limit.
    pub body: usize,
    /// Bytes of all bodies that are read, decided on or answered at once, except for one body, so that half-read bodies
    /// do not wait for each other. Further reviews wait. As much again is for what the bodies are parsed into, of which one
    /// review may take half.
    pub bodies: usize,
    /// Reviews that are decided on at once. Further reviews wait.
    pub decisions: usize,
    /// Calls to the API server at once for all reviews. Further calls wait.
    pub calls: usize,
    /// Objects that are read for one decision: two for each source, in the usual case.
    pub reads: usize,
    /// Bytes of all objects that are read for all decisions at once, counted while they arrive. One decision may read half
    /// of it.
    pub read_bytes: usize,
    /// Snapshots of a source. At this limit none is created in advance, before a workload references the content.
    pub snapshots: usize,
    /// The longest time for one review, whatever timeout the API server states.
    pub review: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 7 << 20,
            bodies: 64 << 20,
            decisions: 200,
            calls: 64,
            reads: 2000,
            read_bytes: 64 << 20,
            snapshots: 2000,
            review: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Bytes of all objects that are read for one decision. Less than the share of a namespace that is alone.
    pub(super) fn bytes_of_one(&self) -> usize {
        self.read_bytes / 2
    }

    /// The time until which a review that began at `start` must be answered: before the timeout that the API server
    /// states in the query (`timeout=5s`).
    pub(super) fn deadline(&self, uri: &Uri, start: Instant) -> Instant {
        let query = uri.query().unwrap_or_default();
        let stated = query.split('&').find_map(|pair| parse_duration(pair.strip_prefix("timeout=")?));
        let time = stated.map_or(DECISION_LIMIT, |timeout| timeout.saturating_sub((timeout / 5).min(MARGIN)));
        start + time.min(self.review)
    }
}

/// Grants memory for bodies, and turns to decide.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    places: Fair,
    /// For one body beyond the memory of `places`.
    beyond: Fair,
    /// For what bodies are parsed into.
    parsed: Fair,
    turns: Fair,
    body: usize,
    metrics: Metrics,
}

/// A body and the memory that it takes.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) bytes: Vec<u8>,
    pub(super) held: Held,
}

/// The memory of a review, until its answer is sent.
#[derive(Debug)]
pub(super) struct Held {
    places: Permit,
    _beyond: Option<Permit>,
    /// The JSON values in the body.
    values: usize,
    parsed: Option<Permit>,
}

impl Budget {
    pub(super) fn new(limits: &Limits, metrics: Metrics) -> Self {
        // There is always room for one body.
        let places = limits.bodies.max(limits.body + BESIDE).div_ceil(KIB);
        let [places, beyond, parsed, turns] = [places, 1, places, limits.decisions].map(Fair::new);
        Self { places, beyond, parsed, turns, body: limits.body, metrics }
    }

    /// Reads a body as it arrives, until `by`. Only the bytes that have arrived take memory, so a slow client delays no
    /// other.
    pub(super) async fn admit(&self, body: Body, client: &Client, by: Instant) -> Result<Admitted, Response> {
        // A stated length is known before the first byte arrives.
        if body.size_hint().lower() > self.body as u64 {
            return Err(self.too_large(body, 0, by).await);
        }
        let (mut body, mut bytes) = (body, Vec::new());
        let mut places = self.wait(&self.places, client, BESIDE / KIB, by, Limit::Bodies).await?;
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
                return Err(self.too_large(body, read, by).await);
            }
            if bytes.len() + data.len() > room {
                // Doubles, as the vector does.
                let more = (bytes.len() + data.len() - room).max(room).min(self.body - room);
                if beyond.is_none() {
                    let amount = more.div_ceil(KIB);
                    tokio::select! {
                        biased;
                        taken = self.wait(&self.places, client, amount, by, Limit::Bodies) => places.merge(taken?),
                        Some(one) = self.beyond.acquire(client, 1, by) => beyond = Some(one),
                    }
                }
                room += more;
                bytes.reserve_exact(room - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        let held = Held { places, _beyond: beyond, values: values(&bytes), parsed: None };
        Ok(Admitted { bytes, held })
    }

    /// Counts the memory for the namespace, which is now known, and waits for the memory that the body takes once it is
    /// parsed, and for a turn to decide.
    pub(super) async fn turn(
        &self,
        held: &mut Held,
        client: &Client,
        by: Instant,
    ) -> Result<Permit, Response> {
        if let Some(namespace) = &client.namespace
            && !held.places.assign(namespace)
        {
            self.metrics.limit_reached(Limit::Bodies, 1);
            let message = "too many bytes of reviews of this namespace at once (--max-bodies): try again\n";
            return Err((StatusCode::SERVICE_UNAVAILABLE, message).into_response());
        }
        let values = held.values;
        let amount = (values * PER_VALUE).div_ceil(KIB);
        if amount > self.parsed.units() / 2 {
            self.metrics.limit_reached(Limit::Bodies, 1);
            let most = self.parsed.units() / 2 * KIB / PER_VALUE;
            let message =
                format!("the review holds {values} JSON values, and may hold {most} (--max-bodies)\n");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, message).into_response());
        }
        held.parsed = Some(self.wait(&self.parsed, client, amount, by, Limit::Bodies).await?);
        self.wait(&self.turns, client, 1, by, Limit::Decisions).await
    }

    /// Waits for that many KiB of memory, or for a turn.
    async fn wait(
        &self,
        of: &Fair,
        client: &Client,
        amount: usize,
        by: Instant,
        limit: Limit,
    ) -> Result<Permit, Response> {
        if let Some(permit) = of.acquire(client, amount, by).await {
            return Ok(permit);
        }
        self.metrics.limit_reached(limit, 1);
        let message = format!("too many reviews at once (--{}): try again\n", limit.text());
        Err((StatusCode::SERVICE_UNAVAILABLE, message).into_response())
    }

    /// Refuses a body of which `read` bytes were read. Up to twice the limit is read to the end and discarded: a client
    /// that writes everything before it reads would otherwise see a broken connection.
    async fn too_large(&self, mut body: Body, read: usize, by: Instant) -> Response {
        self.metrics.limit_reached(Limit::Body, 1);
        let mut left = (2 * self.body).saturating_sub(read);
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

/// The number of JSON values in a body, or a few more: every opening of a list or map, and every comma outside of strings. A
/// body of a few megabytes may hold millions of them, each of which takes many times its text once it is parsed.
fn values(body: &[u8]) -> usize {
    let (mut count, mut rest) = (1, body.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => rest = after_string(rest.as_slice()).iter(),
            b'{' | b'[' | b',' => count += 1,
            _ => {}
        }
    }
    count
}

/// What follows a string, whose opening quote was read. Most bytes of a body are in strings.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let length = if rest.get(at) == Some(&b'"') { 1 } else { 2 };
        rest = rest.get(at + length..).unwrap_or_default();
        if length == 1 {
            return rest;
        }
    }
    &[]
}

/// The bytes that all decisions have read, and their calls to the API server.
#[derive(Clone, Debug)]
pub struct Reading {
    bytes: Fair,
    calls: Fair,
}

/// The share of one decision, released when dropped.
#[derive(Clone, Debug)]
pub struct Share(Arc<Account>);

/// What one decision uses.
#[derive(Debug)]
struct Account {
    calls: Fair,
    bytes: Fair,
    client: Client,
    /// When the decision ends at the latest.
    by: Instant,
    amounts: Mutex<Amounts>,
}

/// The bytes of one decision, and the permit for their sum.
#[derive(Debug, Default)]
struct Amounts {
    /// The bytes of objects that the decision has read.
    kept: usize,
    /// The bytes of answers that are being read.
    arriving: usize,
    permit: Option<Permit>,
}

/// Counts calls, and not their answers.
#[derive(Debug)]
struct CallsOnly(Arc<Account>);

impl Default for Reading {
    fn default() -> Self {
        Self::new(&Limits::default())
    }
}

impl Reading {
    /// Creates the shared counts, with nothing read yet.
    pub fn new(limits: &Limits) -> Self {
        Self { bytes: Fair::new(limits.read_bytes.div_ceil(KIB)), calls: Fair::new(limits.calls) }
    }

    /// The share of a new decision, which ends at `by` at the latest.
    pub fn share(&self, client: Client, by: Instant) -> Share {
        let (bytes, calls) = (self.bytes.clone(), self.calls.clone());
        Share(Arc::new(Account { calls, bytes, client, by, amounts: Mutex::default() }))
    }
}

impl Share {
    /// Records how many bytes the decision has read so far. Returns false if its namespace would exceed its share.
    pub fn set(&self, bytes: usize) -> bool {
        self.0.change(|amounts| amounts.kept = bytes)
    }

    /// Counts calls against the share, and their answers while they arrive.
    pub fn meter(&self) -> Arc<dyn Meter> {
        Arc::<Account>::clone(&self.0)
    }

    /// Counts calls against the share, and not their answers.
    pub fn meter_of_calls(&self) -> Arc<dyn Meter> {
        Arc::new(CallsOnly(Arc::clone(&self.0)))
    }
}

impl Account {
    fn amounts(&self) -> MutexGuard<'_, Amounts> {
        self.amounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the amounts. Returns false and changes nothing if their sum would exceed the namespace's share.
    fn change(&self, change: impl FnOnce(&mut Amounts)) -> bool {
        let mut amounts = self.amounts();
        let (kept, arriving) = (amounts.kept, amounts.arriving);
        change(&mut amounts);
        let wanted = (amounts.kept + amounts.arriving).div_ceil(KIB);
        let before = amounts.permit.as_ref().map_or(0, Permit::amount);
        if wanted <= before {
            amounts.permit.iter_mut().for_each(|permit| permit.shrink(wanted));
            return true;
        }
        let Some(more) = self.bytes.try_acquire(&self.client, wanted - before) else {
            (amounts.kept, amounts.arriving) = (kept, arriving);
            return false;
        };
        match &mut amounts.permit {
            Some(permit) => permit.merge(more),
            None => amounts.permit = Some(more),
        }
        true
    }
}

impl Meter for Account {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        let begun = async { Some(Box::new(self.calls.acquire(&self.client, 1, self.by).await?) as Call) };
        Box::pin(begun)
    }

    fn take(&self, bytes: usize) -> bool {
        self.change(|amounts| amounts.arriving += bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.change(|amounts| amounts.arriving -= bytes);
    }
}

impl Meter for CallsOnly {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        self.0.begin()
    }

    fn take(&self, _bytes: usize) -> bool {
        true
    }

    fn give_back(&self, _bytes: usize) {}
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

    use super::*;

    #[test]
    fn counts_values_outside_of_strings() {
        for (body, count) in [
            ("1", 1),
            (r#"{"a":[1,2,3],"b":{}}"#, 7),
            (r#"["a,{[","\"[,","\\",{}]"#, 6),
            ("[{},{},{}]", 7),
            (r#"[",,\"#, 2),
        ] {
            assert_eq!(values(body.as_bytes()), count, "{body}");
        }
    }

    /// A body that delivers these parts and never ends.
    fn unfinished(parts: Vec<Vec<u8>>) -> Body {
        let parts = parts.into_iter().map(Ok::<_, std::io::Error>);
        Body::from_stream(stream::iter(parts).chain(stream::pending()))
    }

    fn status(admitted: Result<Admitted, Response>) -> StatusCode {
        admitted.map_or_else(|response| response.status(), |_| StatusCode::OK)
    }

    /// Admits a body of a client, within the time for a decision.
    async fn admit(budget: &Budget, body: Body) -> Result<Admitted, Response> {
        budget.admit(body, &Client::default(), Instant::now() + DECISION_LIMIT).await
    }

    /// A review that exceeds the memory for bodies is answered with 503 if no memory is freed in time. A body over the
    /// limit is answered with 413.
    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_body_memory_wait_or_fail() {
        let metrics = Metrics::new();
        let limits = Limits { body: 1 << 20, bodies: 3 << 20, ..Limits::default() };
        let budget = Budget::new(&limits, metrics.clone());
        let body = |length| Body::from(vec![b'x'; length]);
        // The third body exceeds the memory.
        let large = async || admit(&budget, body(1 << 20)).await.unwrap();
        let large = [large().await, large().await, large().await];
        let small = admit(&budget, body(1000)).await.unwrap();
        assert_eq!(small.bytes.len(), 1000);
        assert_eq!(status(admit(&budget, body(1 << 20)).await), StatusCode::SERVICE_UNAVAILABLE);
        drop(large);
        assert_eq!(status(admit(&budget, body(1 << 20)).await), StatusCode::OK, "the memory is free again");
        assert_eq!(status(admit(&budget, body((1 << 20) + 1)).await), StatusCode::PAYLOAD_TOO_LARGE);
        let stream = Body::from_stream(stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 1 << 10])));
        assert_eq!(
            status(admit(&budget, stream).await),
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
        let budget = Budget::new(&Limits { body: 64 * KIB, ..Limits::default() }, Metrics::new());
        for stated in [true, false] {
            for (kib, rest) in [(65, 0), (96, 0), (128, 0), (1000, 1000 - 129)] {
                let left = Arc::new(AtomicUsize::new(kib));
                let body = Body::new(Counted { left: Arc::clone(&left), stated });
                assert_eq!(status(admit(&budget, body).await), StatusCode::PAYLOAD_TOO_LARGE);
                assert_eq!(left.load(Ordering::Relaxed), rest, "of {kib} KiB; length stated: {stated}");
            }
        }
    }

    /// Other clients are served meanwhile. The slow requests end with 408.
    #[tokio::test(start_paused = true)]
    async fn slow_bodies_hold_only_their_received_bytes() {
        let limits = Limits { body: 1 << 20, bodies: 2 << 20, decisions: 1, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let slow: Vec<_> = (0..100)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(async move { status(admit(&budget, unfinished(vec![vec![b'{']])).await) })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(status(admit(&budget, Body::from("{}")).await), StatusCode::OK, "others are served");
        for slow in slow {
            assert_eq!(slow.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reviews_beyond_max_decisions_wait() {
        let limits = Limits { decisions: 1, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let turn = async |namespace: &str| {
            let mut held = admit(&budget, Body::from("{}")).await.unwrap().held;
            let client = Client::default().of_namespace(namespace);
            let turn = budget.turn(&mut held, &client, Instant::now() + DECISION_LIMIT).await;
            turn.map_err(|refusal| refusal.status())
        };
        let first = turn("one").await.unwrap();
        assert_eq!(turn("two").await.unwrap_err(), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        assert!(turn("three").await.is_ok(), "the turn is free again");
    }

    #[tokio::test]
    async fn bodies_of_one_namespace_leave_room() {
        let limits = Limits { body: 1 << 20, bodies: 16 << 20, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let (mut held, mut refused) = (Vec::new(), 0);
        let by = Instant::now() + DECISION_LIMIT;
        for _ in 0..20 {
            let mut one = admit(&budget, Body::from(vec![b'x'; 1 << 20])).await.unwrap().held;
            match budget.turn(&mut one, &Client::default().of_namespace("one"), by).await {
                Ok(turn) => held.push((one, turn)),
                Err(refusal) => {
                    assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
                    refused += 1;
                }
            }
        }
        assert!(held.len() >= 8 && refused > 0, "{} and {refused}", held.len());
        let mut other = admit(&budget, Body::from(vec![b'x'; 1 << 20])).await.unwrap().held;
        let turn = budget.turn(&mut other, &Client::default().of_namespace("two"), by).await;
        assert!(turn.is_ok(), "another namespace is served");
    }

    #[test]
    fn deadline_ends_before_the_stated_timeout() {
        let (limits, start) = (Limits::default(), Instant::now());
        for (query, millis) in [
            ("", 4000),
            ("?timeout=5s", 4000),
            ("?timeout=3s", 2400),
            ("?x=1&timeout=1s", 800),
            ("?timeout=30s", 10_000),
            ("?timeout=soon", 4000),
            ("?timeout=", 4000),
        ] {
            let uri = format!("/mutate/workloads{query}").parse().unwrap();
            assert_eq!(limits.deadline(&uri, start) - start, Duration::from_millis(millis), "{query}");
        }
    }

    /// Eight bodies of 2 MiB, each in two halves, where there is memory for four.
    #[tokio::test(start_paused = true)]
    async fn simultaneous_bodies_do_not_deadlock() {
        let limits = Limits { body: 2 << 20, bodies: 8 << 20, ..Limits::default() };
        let budget = Budget::new(&limits, Metrics::new());
        let each = || {
            let halves = stream::iter([(1 << 20) - BESIDE / 2, 1 << 20]).then(async |half| {
                tokio::task::yield_now().await;
                Ok::<_, std::io::Error>(vec![b'x'; half])
            });
            let (body, budget) = (Body::from_stream(Box::pin(halves)), budget.clone());
            tokio::spawn(async move { status(admit(&budget, body).await) })
        };
        for each in [(); 8].map(|()| each()) {
            assert_eq!(each.await.unwrap(), StatusCode::OK);
        }
    }

    #[test]
    fn read_bytes_are_counted_until_decisions_end() {
        let reading = Reading::new(&Limits { read_bytes: 100 * KIB, ..Limits::default() });
        let share = |namespace| reading.share(Client::default().of_namespace(namespace), Instant::now());
        let (one, two) = (share("one"), share("two"));
        assert!(one.set(3 * KIB) && one.set(50 * KIB) && two.set(4 * KIB));
        assert!(!one.set(60 * KIB), "more than its share");
        assert!(two.set(8 * KIB), "another namespace can read");
        drop(one);
        assert!(two.set(50 * KIB));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_namespace_leave_room() {
        let reading = Reading::new(&Limits { calls: 16, ..Limits::default() });
        let by = Instant::now() + DECISION_LIMIT;
        let meter = |namespace| reading.share(Client::default().of_namespace(namespace), by).meter();
        let mut held = Vec::new();
        let one = meter("one");
        // The last call waits until the deadline.
        while let Some(call) = one.begin().await {
            held.push(call);
            assert!(held.len() < 16, "one namespace holds all calls");
        }
        assert!(meter("two").begin().await.is_some());
    }
}
