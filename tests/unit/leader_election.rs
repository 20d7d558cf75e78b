//! Leader election over an API server in memory that is slow or unreachable, or whose responses are lost. The time is simulated.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use confrev::{
    cluster::{Lease, Reach, lease},
    controller::{Leadership, lead},
    telemetry::{Metrics, Readiness},
};
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The interval between two reads of the Lease by a replica.
const TURN: Duration = Duration::from_secs(2);

/// The API server's only object.
#[derive(Default)]
struct Store {
    lease: Option<Value>,
    version: u64,
}

impl Store {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
        let status = |code: StatusCode, reason: &str| {
            let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
                "reason": reason, "code": code.as_u16()});
            (code, text)
        };
        let stored = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
        let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method, stored) {
            (&Method::GET, Some(_)) => return (StatusCode::OK, self.lease.clone().unwrap()),
            (&Method::GET, None) => return status(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::POST, Some(_)) => return status(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::PUT, stored) if stored.as_ref() != Some(&sent["metadata"]["resourceVersion"]) => {
                return status(StatusCode::CONFLICT, "Conflict");
            }
            _ => {}
        }
        self.version += 1;
        sent["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(sent.clone());
        (StatusCode::OK, sent)
    }
}

/// The connection between a replica and the API server.
#[derive(Default)]
struct Link {
    down: AtomicBool,
    /// Milliseconds until a request arrives, and until its response does.
    there: AtomicU64,
    back: AtomicU64,
    /// How many requests were sent.
    sent: AtomicU64,
}

/// One replica.
struct Replica {
    leadership: Leadership,
    fit: Arc<AtomicBool>,
    link: Arc<Link>,
    reach: Reach,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(store: &Arc<Mutex<Store>>, name: &str) -> Self {
        let replica = Self::unfit(store, name);
        replica.fit.store(true, Ordering::Relaxed);
        replica
    }

    /// A replica that cannot act, as before its watches have listed all objects.
    fn unfit(store: &Arc<Mutex<Store>>, name: &str) -> Self {
        let (leadership, link) = (Leadership::default(), Arc::new(Link::default()));
        let fit = Arc::new(AtomicBool::new(false));
        let is_fit = Arc::clone(&fit);
        let unfit = move || (!is_fit.load(Ordering::Relaxed)).then_some("not synced");
        let (stop, stopping) = watch::channel(false);
        let lease = Lease::new(client(store, &link), "confrev", name.to_owned());
        let changed = Arc::new(Notify::new());
        let reach = Reach::new(Readiness::new().register("API server"));
        let lead = lead(lease, leadership.clone(), changed, Metrics::new(), unfit, reach.clone(), stopping);
        let task = tokio::spawn(lead);
        Self { leadership, fit, link, reach, stop, task }
    }

    fn leads(&self) -> bool {
        self.leadership.holds()
    }
}

fn client(store: &Arc<Mutex<Store>>, link: &Arc<Link>) -> Client {
    let (store, link) = (Arc::clone(store), Arc::clone(link));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (store, link) = (Arc::clone(&store), Arc::clone(&link));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            link.sent.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(link.there.load(Ordering::Relaxed))).await;
            if link.down.load(Ordering::Relaxed) {
                // There is no response.
                std::future::pending::<()>().await;
            }
            let (code, answer) = store.lock().unwrap().answer(&head.method, &body);
            sleep(Duration::from_millis(link.back.load(Ordering::Relaxed))).await;
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    Client::new(service, "confrev")
}

/// Waits until the condition holds, in simulated time. Panics after `limit`.
async fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
    start.elapsed()
}

fn store() -> Arc<Mutex<Store>> {
    Arc::default()
}

/// A replica that leads, and one that has found the Lease taken.
async fn leader_and_follower(store: &Arc<Mutex<Store>>) -> (Replica, Replica) {
    let first = Replica::start(store, "first");
    within(TURN, "the first leads", || first.leads()).await;
    let second = Replica::start(store, "second");
    sleep(TURN).await;
    (first, second)
}

/// Only one of two replicas leads.
#[tokio::test(start_paused = true)]
async fn stopped_leader_is_replaced_at_once() {
    let store = store();
    let first = Replica::start(&store, "first");
    within(TURN, "the first leads", || first.leads()).await;
    let second = Replica::start(&store, "second");
    sleep(lease::DURATION * 3).await;
    assert!(first.leads() && !second.leads());
    first.stop.send(true).unwrap();
    within(TURN * 2, "the second leads", || second.leads()).await;
    assert!(!first.leads());
    first.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unsynced_replica_does_not_take_the_lease() {
    let store = store();
    let unfit = Replica::unfit(&store, "unfit");
    sleep(lease::DURATION * 3).await;
    assert!(!unfit.leads() && store.lock().unwrap().lease.is_none());
    let fit = Replica::start(&store, "fit");
    within(TURN, "the other replica leads", || fit.leads()).await;
    fit.stop.send(true).unwrap();
    unfit.fit.store(true, Ordering::Relaxed);
    within(TURN * 2, "the synced replica leads", || unfit.leads()).await;
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_act_releases_the_lease() {
    let store = store();
    let (first, second) = leader_and_follower(&store).await;
    first.fit.store(false, Ordering::Relaxed);
    // Well before the Lease expires.
    within(TURN * 3, "the second leads", || {
        assert!(!(first.leads() && second.leads()), "both lead");
        second.leads()
    })
    .await;
    first.fit.store(true, Ordering::Relaxed);
    sleep(lease::DURATION * 2).await;
    assert!(second.leads() && !first.leads(), "the Lease is not taken back");
}

/// A release that does not arrive is repeated, so that the others need not wait until the Lease expires.
#[tokio::test(start_paused = true)]
async fn failed_release_is_repeated() {
    let store = store();
    let (first, second) = leader_and_follower(&store).await;
    first.link.down.store(true, Ordering::Relaxed);
    first.fit.store(false, Ordering::Relaxed);
    within(TURN * 2, "the first stops", || !first.leads()).await;
    // The first request has no response within its time limit.
    sleep(TURN).await;
    first.link.down.store(false, Ordering::Relaxed);
    let released = || store.lock().unwrap().lease.as_ref().unwrap()["spec"]["holderIdentity"] != "first";
    let waited = within(TURN * 3, "the Lease is released", released).await;
    assert!(TURN * 3 + waited < lease::DURATION, "the Lease would have expired");
    within(TURN, "the second leads", || second.leads()).await;
}

/// Replicas that do not lead read the Lease once in each interval. Those that cannot lead do not read it.
#[tokio::test(start_paused = true)]
async fn waiting_replicas_send_few_requests() {
    let store = store();
    let first = Replica::start(&store, "first");
    within(TURN, "the first leads", || first.leads()).await;
    let (second, unfit) = (Replica::start(&store, "second"), Replica::unfit(&store, "unfit"));
    sleep(TURN * 20).await;
    let sent = |replica: &Replica| replica.link.sent.load(Ordering::Relaxed);
    assert!((19..=21).contains(&sent(&second)), "{}", sent(&second));
    assert_eq!(sent(&unfit), 0);
}

/// The leader is killed or suspended. When it wakes up, it knows that it no longer leads.
#[tokio::test(start_paused = true)]
async fn stalled_leader_stops_before_another_leads() {
    let store = store();
    let (first, second) = (Replica::start(&store, "first"), {
        sleep(TURN).await;
        Replica::start(&store, "second")
    });
    within(TURN, "the first leads", || first.leads()).await;
    first.task.abort();
    let mut gap = false;
    within(lease::DURATION + TURN * 2, "the second leads", || {
        assert!(!(first.leads() && second.leads()), "both lead");
        gap |= !first.leads() && !second.leads();
        second.leads()
    })
    .await;
    assert!(gap, "the first stops well before the second begins");
    // It wakes up with its old state.
    assert!(!first.leads());
    let awake = Replica::start(&store, "first");
    sleep(lease::DURATION * 2).await;
    assert!(second.leads() && !awake.leads());
}

/// Leadership counts from the write of the Lease, not from the response. So it ends before another replica leads.
#[tokio::test(start_paused = true)]
async fn leader_with_late_responses_stops_in_time() {
    for turn in 0..30 {
        let store = store();
        let first = Replica::start(&store, "first");
        within(TURN, "the first leads", || first.leads()).await;
        first.link.back.store(1400, Ordering::Relaxed);
        let second = Replica::start(&store, "second");
        sleep(lease::DURATION + Duration::from_secs(turn * 2)).await;
        first.link.down.store(true, Ordering::Relaxed);
        within(lease::DURATION + TURN * 4, "the second leads", || {
            assert!(!(first.leads() && second.leads()), "both lead");
            second.leads()
        })
        .await;
    }
}

/// The replica leads again when it reaches the API server.
#[tokio::test(start_paused = true)]
async fn unreachable_api_server_suspends_leadership() {
    let store = store();
    let only = Replica::start(&store, "only");
    within(TURN, "it leads", || only.leads()).await;
    only.link.down.store(true, Ordering::Relaxed);
    let held = within(lease::DURATION, "it stops leading", || !only.leads()).await;
    assert!(held < lease::DURATION, "not before its Lease expires");
    only.link.down.store(false, Ordering::Relaxed);
    within(TURN * 3, "it leads again", || only.leads()).await;
}

/// It no longer leads, though its hold has not ended, and its clients are sent away.
#[tokio::test(start_paused = true)]
async fn replica_without_answers_is_cut_off() {
    let store = store();
    let (first, second) = leader_and_follower(&store).await;
    let cut_off = |replica: &Replica| *replica.reach.cut_off().borrow();
    assert!(!cut_off(&first) && !cut_off(&second));
    for replica in [&first, &second] {
        let (reach, client) = (replica.reach.clone(), client(&store, &replica.link));
        tokio::spawn(async move { reach.keep(client, "confrev").await });
    }
    first.link.down.store(true, Ordering::Relaxed);
    sleep(TURN * 3).await;
    first.reach.called();
    second.reach.called();
    let start = Instant::now();
    within(Duration::from_secs(8), "the first is cut off", || cut_off(&first)).await;
    assert!(!first.leads());
    within(Duration::from_secs(10).saturating_sub(start.elapsed()), "the second leads", || second.leads())
        .await;
    assert!(!cut_off(&second));
    first.link.down.store(false, Ordering::Relaxed);
    within(TURN * 3, "the first is back", || !cut_off(&first)).await;
}

/// The times in the Lease come from other clocks. A holder that renews the Lease leads, whatever its times. If it stops, the Lease
/// expires by the replica's own clock.
#[tokio::test(start_paused = true)]
async fn leader_election_ignores_clock_differences() {
    for time in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let store = store();
        let renew = || {
            let mut store = store.lock().unwrap();
            store.version += 1;
            let version = store.version.to_string();
            store.lease = Some(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "confrev", "resourceVersion": version},
                "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": time, "acquireTime": time}}));
        };
        renew();
        let replica = Replica::start(&store, "replica");
        for _ in 0..20 {
            sleep(TURN).await;
            assert!(!replica.leads(), "{time}: the other replica renews the Lease");
            renew();
        }
        let waited = within(lease::DURATION + TURN * 3, "it takes over", || replica.leads()).await;
        assert!(waited + TURN >= lease::DURATION, "{time}: before the Lease expired: {waited:?}");
    }
}

/// Random states of the connections of both replicas, and how long each lasts, in milliseconds.
fn trouble() -> impl Strategy<Value = Vec<(usize, bool, u64, u64, u64)>> {
    let millis = prop_oneof![3 => 0..200_u64, 1 => 0..6000_u64];
    prop::collection::vec(
        (0..2_usize, prop::bool::weighted(0.3), millis.clone(), millis, 500..20_000_u64),
        1..25,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_replicas_never_lead_at_once(trouble in trouble()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = store();
            let replicas = [Replica::start(&store, "one"), Replica::start(&store, "two")];
            let watch = async |time: Duration| {
                let end = Instant::now() + time;
                while Instant::now() < end {
                    assert!(!replicas.iter().all(Replica::leads), "both lead");
                    sleep(Duration::from_millis(100)).await;
                }
            };
            for (which, down, there, back, time) in trouble {
                let link = &replicas[which].link;
                link.down.store(down, Ordering::Relaxed);
                link.there.store(there, Ordering::Relaxed);
                link.back.store(back, Ordering::Relaxed);
                watch(Duration::from_millis(time)).await;
            }
            for replica in &replicas {
                replica.link.down.store(false, Ordering::Relaxed);
                replica.link.there.store(0, Ordering::Relaxed);
                replica.link.back.store(0, Ordering::Relaxed);
            }
            watch(lease::DURATION + TURN * 4).await;
            assert!(replicas.iter().any(Replica::leads), "no replica leads");
        });
    }
}
