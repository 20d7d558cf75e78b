//! How often admission waits for the API server. It reads the objects that it is likely to need at once; its guesses change
//! nothing else.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use confrev::{
    admission::ReviewLimits,
    annotations,
    cluster::{Api as _, Call, KubeApi, Meter},
    kinds::{Kinds, REVISION_KINDS},
    resolve::{
        Carried, Decision, Facts, NamespaceOptIn, Need, Pass, Request, RevisionsOf, Workload, resolve,
    },
    server::Client,
    snapshot::{ObjectName, SourceKind},
    telemetry::Metrics,
    world::{Name, SnapshotRecord},
};
use futures::{StreamExt as _, future::BoxFuture, stream};
use http::{Method, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};

use super::{
    controller::{BLUE, Desk, digest},
    reviewer::Reviewer,
    world::{NAMESPACE, World, annotate, configmap, deployment, kind, volume},
};

/// An API server over a world. It responds once all concurrent requests have arrived.
#[derive(Clone, Default)]
struct Server {
    world: Arc<Mutex<World>>,
    open: Arc<AtomicUsize>,
    rounds: Arc<AtomicUsize>,
    reads: Arc<AtomicUsize>,
}

impl Server {
    async fn answer(self, request: http::Request<Body>) -> Result<Response<Body>, Infallible> {
        if request.method() != Method::GET {
            // A snapshot is created; the patch shows its name.
            return Ok(Response::new(Body::from(b"{}".to_vec())));
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.open.fetch_add(1, Ordering::SeqCst) == 0 {
            self.rounds.fetch_add(1, Ordering::SeqCst);
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let object = if request.uri().path() == format!("/api/v1/namespaces/{NAMESPACE}") {
            let is_in = self.world.lock().unwrap().namespace.opt_in.is_in();
            let enabled = is_in.to_string();
            Some(json!({"metadata": {"name": NAMESPACE, "labels": {annotations::ENABLED: enabled}}}))
        } else {
            self.world.lock().unwrap().objects.get(&configmap(name)).cloned()
        };
        let (status, body) = match object {
            Some(object) => (StatusCode::OK, object),
            None => (StatusCode::NOT_FOUND, json!({"kind": "Status", "reason": "NotFound"})),
        };
        let mut response = Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = status;
        Ok(response)
    }
}

/// A snapshot as a watch reports it.
fn told(color: &str, created: i64) -> (Name, SnapshotRecord) {
    let name = Name::new(NAMESPACE, ObjectName::new(SourceKind::ConfigMap, snapshot_of(color)));
    let record = SnapshotRecord {
        created: Timestamp::from_second(created).unwrap(),
        ..super::controller::snapshot(color, "1", &[])
    };
    (name, record)
}

fn snapshot_of(color: &str) -> String {
    format!("demo-{}", digest(color).hex(10))
}

/// The same workload, reading only one key, which no content here has.
fn reading_one_key(workload: &Value) -> Value {
    let mut one_key = workload.clone();
    one_key["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
        json!([{"key": "none", "path": "none"}]);
    one_key["spec"]["template"]["spec"]["volumes"][0]["configMap"]["optional"] = json!(true);
    one_key
}

/// The result of an admission.
struct Admission {
    rounds: usize,
    reads: usize,
    decision: Decision,
    facts: Facts,
}

/// An admission over this world with this limit of reads. The watches have reported these snapshots.
async fn admission(
    world: &World,
    told_of: &[(&str, i64)],
    limit: usize,
    new: &Value,
    old: Option<&Value>,
) -> Admission {
    let mut desk = Desk::new();
    for (color, created) in told_of {
        let (name, record) = told(color, *created);
        desk.state.apply_snapshot(&name, Some(record), desk.now);
    }
    let server = Server { world: Arc::new(Mutex::new(world.clone())), ..Server::default() };
    let served = server.clone();
    let service = tower::service_fn(move |request| served.clone().answer(request));
    let client = kube::Client::new(service, NAMESPACE);
    let kind = kind("Deployment");
    let (new_text, old_text) = (new.to_string(), old.map(Value::to_string));
    let request = Request {
        namespace: NAMESPACE,
        secrets: true,
        new: Workload::parse(&kind, &new_text).unwrap(),
        old: old_text.as_ref().map(|text| Workload::parse(&kind, text).unwrap()),
        carried: Carried::default(),
    };
    let limits = ReviewLimits { reads: limit, ..ReviewLimits::default() };
    let reviewer = Reviewer::new(client, desk.state, limits);
    let mut facts = Facts::default();
    let decision = reviewer.decider(false).admit(&request, None, &mut facts).await.unwrap();
    let (rounds, reads) = (&server.rounds, &server.reads);
    Admission { rounds: rounds.load(Ordering::SeqCst), reads: reads.load(Ordering::SeqCst), decision, facts }
}

/// A wrong guess does not change the decision.
#[tokio::test]
async fn admission_reads_likely_objects_in_one_round() {
    let (blue, green) = (json!({"color": "blue"}), json!({"color": "green"}));
    let mut world = World::default();
    world.set("demo", blue);
    let written = deployment(&["demo"]);
    let stored = world.create(&written);
    let mut image = stored.clone();
    image["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let mut poked = stored.clone();
    annotate(&mut poked, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
    let mut changed = world.clone();
    changed.set("demo", green);
    // The snapshot of the new content exists, too.
    changed.create(&written);

    let known: &[(&str, i64)] = &[("blue", 1)];
    let both: &[(&str, i64)] = &[("blue", 1), ("green", 2)];
    for (what, world, told, new, old, rounds, reads) in [
        ("a creation", &world, known, &written, None, 1, 2),
        ("a creation, no snapshot reported", &world, &[], &written, None, 2, 2),
        ("a creation, an older snapshot reported", &changed, known, &written, None, 2, 3),
        ("an apply that changes nothing", &world, known, &written, Some(&stored), 1, 2),
        ("an apply after a change", &changed, both, &written, Some(&stored), 1, 2),
        ("another image", &world, known, &image, Some(&stored), 1, 1),
        ("another image, with an unused newer snapshot", &world, both, &image, Some(&stored), 1, 1),
        ("a poke after a change", &changed, both, &poked, Some(&stored), 1, 2),
        ("a poke after an unreported change", &changed, known, &poked, Some(&stored), 2, 2),
        ("a poke without a change", &world, known, &poked, Some(&stored), 1, 1),
    ] {
        let found = admission(world, told, 1000, new, old).await;
        assert_eq!((found.rounds, found.reads), (rounds, reads), "{what}");
        assert_eq!(found.decision.denial, None, "{what}");
        let mut object = new.clone();
        json_patch::patch(&mut object, &found.decision.patch).unwrap();
        let wrong = found.facts.snapshots().filter(|(name, _)| *name.name != *volume(&object, 0)).count();
        assert_eq!(wrong, 0, "a wrong guess leaves facts behind: {what}");
        let without_guess = world.clone().admit(new, old).object;
        assert_eq!(object, without_guess, "{what}");
    }
}

/// A decision neither exceeds the limit nor stays within it because of a guess.
#[tokio::test]
async fn guesses_do_not_affect_read_limit() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let written = deployment(&["demo"]);
    world.create(&written);
    // It reads only one key, in which its snapshot and the present content do not differ.
    let one_key = reading_one_key(&written);
    let stored = world.create(&one_key);
    world.set("demo", json!({"color": "green"}));
    world.create(&written);
    for (what, new, old, reads) in
        [("a creation", &written, None, 2), ("an apply that reads one key", &one_key, Some(&stored), 2)]
    {
        for limit in [reads - 1, reads] {
            for told in [&[][..], &[("blue", 1), ("green", 2)]] {
                let found = admission(&world, told, limit, new, old).await;
                let denied = found.decision.denial.is_some();
                assert_eq!(denied, limit < reads, "{what}, {limit} reads, {} snapshots reported", told.len());
                assert!(found.reads <= limit.max(reads), "{what}: {} reads", found.reads);
            }
        }
    }
}

#[tokio::test]
async fn namespace_is_read_beside_sources() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.create(&deployment(&["demo"]));
    let mut written = deployment(&["demo"]);
    written["metadata"]["labels"] = json!({});
    // The last one exceeds its limit with the sources, which it does not need.
    for (enabled, limit, rounds, reads) in
        [(true, 1000, 1, 3), (true, 2, 2, 3), (false, 1000, 1, 3), (false, 2, 1, 2), (false, 1, 1, 1)]
    {
        world.namespace.opt_in = if enabled { NamespaceOptIn::Now } else { NamespaceOptIn::Out };
        let found = admission(&world, &[("blue", 1)], limit, &written, None).await;
        assert_eq!((found.rounds, found.reads), (rounds, reads), "{enabled}, {limit} reads at most");
        assert_eq!(found.decision.denial, None);
        let mut object = written.clone();
        json_patch::patch(&mut object, &found.decision.patch).unwrap();
        assert_eq!(volume(&object, 0), if enabled { BLUE } else { "demo" });
    }
}

#[tokio::test]
async fn no_secret_snapshot_is_guessed_without_opt_in() {
    for takes in ["true", "false"] {
        let mut written = deployment(&[]);
        written["spec"]["template"]["spec"]["volumes"] =
            json!([{"name": "s", "secret": {"secretName": "demo"}}]);
        annotate(&mut written, annotations::SECRETS, takes);
        let kind = kind("Deployment");
        let text = written.to_string();
        let new = Workload::parse(&kind, &text).unwrap();
        let request =
            Request { namespace: NAMESPACE, secrets: true, new, old: None, carried: Carried::default() };
        let Pass::Needs(needs) = resolve(&request, &Facts::default()) else { panic!("decided") };
        let guessed = needs.iter().any(|need| matches!(need, Need::Newest { .. }));
        assert_eq!(guessed, takes == "true");
    }
}

/// Bytes count against the limit while they arrive. An answer that never ends could otherwise hold any amount of memory.
#[tokio::test(start_paused = true)]
async fn answers_count_while_they_arrive() {
    const FRAME: usize = 64 << 10;
    const FRAMES: usize = 16;
    const SOURCES: usize = 30;
    let delivered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&delivered);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let counted = Arc::clone(&counted);
        let frames = stream::iter(0..FRAMES).map(move |_| {
            counted.fetch_add(FRAME, Ordering::SeqCst);
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; FRAME])))
        });
        let body = StreamBody::new(frames.chain(stream::pending()));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let names: Vec<_> = (0..SOURCES).map(|number| format!("demo-{number}")).collect();
    let text = deployment(&names.iter().map(String::as_str).collect::<Vec<_>>()).to_string();
    let kind = kind("Deployment");
    let new = Workload::parse(&kind, &text).unwrap();
    let request =
        Request { namespace: NAMESPACE, secrets: true, new, old: None, carried: Carried::default() };
    let limits = ReviewLimits { read_bytes: 8 << 20, ..ReviewLimits::default() };
    let reviewer = Reviewer::new(kube::Client::new(service, NAMESPACE), Desk::new().state, limits);
    let (metrics, decider) = (&reviewer.metrics, reviewer.decider(true));
    let mut facts = Facts::default();
    let decision = tokio::time::timeout_at(reviewer.by, decider.admit(&request, None, &mut facts)).await;
    let refusal = decision.expect("the answers stall").unwrap_err().to_string();
    assert!(refusal.contains("--max-read-bytes"), "{refusal}");
    assert!(metrics.encode().contains("{limit=\"max-read-bytes\"} 1\n"), "{}", metrics.encode());
    let delivered = delivered.load(Ordering::SeqCst);
    assert!(delivered <= limits.read_bytes + SOURCES * FRAME, "{delivered} bytes");
    drop(decider);
    let share = reviewer.budget.share(Client::default(), reviewer.by);
    assert!(share.set(limits.read_bytes), "all bytes are free again");
}

/// A meter with a limit, and the most bytes that it held.
#[derive(Debug)]
struct Counted {
    limit: usize,
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Meter for Counted {
    fn begin(&self) -> BoxFuture<'_, Option<Call>> {
        Box::pin(std::future::ready(Some(Box::new(()) as Call)))
    }

    fn take(&self, bytes: usize) -> bool {
        let held = self.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if held > self.limit {
            self.held.fetch_sub(bytes, Ordering::SeqCst);
            return false;
        }
        self.peak.fetch_max(held, Ordering::SeqCst);
        true
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// Only one page is held at a time, and of each revision only digests remain.
#[tokio::test]
async fn pages_of_revisions_count_while_they_are_read() {
    const REVISIONS: usize = 40;
    const BYTES: usize = 250_000;
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let number = |key: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(key)).unwrap_or_default();
            value.parse::<usize>().unwrap_or(0)
        };
        let (limit, from) = (number("limit="), number("continue="));
        let to = (from + limit).min(REVISIONS);
        let annotations = json!({"confrev.dev/note": "x".repeat(BYTES)});
        let item = json!({"metadata": {"annotations": annotations}, "spec": {"template": {"spec": {}}}});
        let next = if to < REVISIONS { to.to_string() } else { String::new() };
        let list = json!({"metadata": {"continue": next}, "items": vec![item; to - from]});
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
    });
    let client = kube::Client::new(service, NAMESPACE);
    let api = KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new());
    let kind = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
    let of = RevisionsOf { kind, labels: vec![("app".to_owned(), "web".to_owned())] };
    let meter = |limit| Arc::new(Counted { limit, held: AtomicUsize::new(0), peak: AtomicUsize::new(0) });
    for (limit, is_enough) in [(2 << 20, true), (BYTES / 2, false)] {
        let meter = meter(limit);
        let found = api.metered(Arc::<Counted>::clone(&meter)).revisions(NAMESPACE, &of).await;
        match found {
            Ok(found) => assert!(is_enough && found.len() == REVISIONS),
            Err(error) => assert!(!is_enough && error.to_string().contains("--max-read-bytes"), "{error}"),
        }
        let (held, peak) = (meter.held.load(Ordering::SeqCst), meter.peak.load(Ordering::SeqCst));
        assert_eq!((held, peak > BYTES), (0, is_enough), "{peak}");
    }
}

/// Snapshots that are being created, and the most at once.
#[derive(Debug, Default)]
struct Creations {
    open: AtomicUsize,
    peak: AtomicUsize,
    done: AtomicUsize,
}

/// A workload with many new sources, and with it any number of workloads, makes no more calls at once than allowed.
#[tokio::test]
async fn snapshots_are_created_few_at_a_time() {
    const SOURCES: usize = 40;
    let names: Vec<_> = (0..SOURCES).map(|number| format!("demo-{number}")).collect();
    let mut world = World::default();
    for name in &names {
        world.set(name, json!({"name": name}));
    }
    let text = deployment(&names.iter().map(String::as_str).collect::<Vec<_>>()).to_string();
    let kind = kind("Deployment");
    for (calls, peaks) in [(1000, SOURCES..=SOURCES), (8, 2..=8)] {
        let creations = Arc::new(Creations::default());
        let server = Server { world: Arc::new(Mutex::new(world.clone())), ..Server::default() };
        let counted = Arc::clone(&creations);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (server, creations) = (server.clone(), Arc::clone(&counted));
            async move {
                if request.method() != Method::POST {
                    return server.answer(request).await;
                }
                let open = creations.open.fetch_add(1, Ordering::SeqCst) + 1;
                creations.peak.fetch_max(open, Ordering::SeqCst);
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                creations.open.fetch_sub(1, Ordering::SeqCst);
                creations.done.fetch_add(1, Ordering::SeqCst);
                Ok(Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let client = kube::Client::new(service, NAMESPACE);
        let new = Workload::parse(&kind, &text).unwrap();
        let request =
            Request { namespace: NAMESPACE, secrets: true, new, old: None, carried: Carried::default() };
        let limits = ReviewLimits { calls, ..ReviewLimits::default() };
        let reviewer = Reviewer::new(client, Desk::new().state, limits);
        let decision = reviewer.decider(false).admit(&request, None, &mut Facts::default()).await.unwrap();
        assert_eq!((decision.denial, decision.ensure.len()), (None, SOURCES));
        let (done, peak) = (creations.done.load(Ordering::SeqCst), creations.peak.load(Ordering::SeqCst));
        assert_eq!(done, SOURCES);
        assert!(peaks.contains(&peak), "{peak} snapshots at once, with {calls} calls");
    }
}
