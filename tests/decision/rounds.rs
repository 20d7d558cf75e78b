//! How often admission waits for the API server: what it is likely to need is read at once, and what it guessed changes
//! nothing but that.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use confrev::{
    admission::{Decider, Limits, Reading},
    cluster::KubeApi,
    controller::{Name, Shared, SnapshotRecord},
    kinds::Kinds,
    names,
    resolve::{Facts, Request, Workload},
    snapshot::{ObjectName, SourceKind},
    telemetry::{Metrics, Readiness},
};
use http::{Method, Response, StatusCode};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};

use super::{
    controller::{Desk, digest},
    world::{NAMESPACE, World, annotate, configmap, deployment, kind, volume},
};

/// An API server over a world; it answers once all that is asked at the same time has been asked.
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
            // A snapshot is made; what it is called is seen from the patch.
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
        let object = self.world.lock().unwrap().objects.get(&configmap(name)).cloned();
        let (status, body) = match object {
            Some(object) => (StatusCode::OK, object),
            None => (StatusCode::NOT_FOUND, json!({"kind": "Status", "reason": "NotFound"})),
        };
        let mut response = Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = status;
        Ok(response)
    }
}

/// A snapshot as a watch tells of it.
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

/// Rounds, reads, and the stored object, of one admission over that world, of which the watches have told these snapshots.
async fn admitted(
    world: &World,
    told_of: &[(&str, i64)],
    new: &Value,
    old: Option<&Value>,
) -> (usize, usize, Value) {
    let mut desk = Desk::new();
    for (color, created) in told_of {
        let (name, record) = told(color, *created);
        desk.state.apply_snapshot(&name, Some(record), desk.now);
    }
    let shared = Shared::new(desk.state, Readiness::new().register("caches"));
    let server = Server { world: Arc::new(Mutex::new(world.clone())), ..Server::default() };
    let served = server.clone();
    let service = tower::service_fn(move |request| served.clone().answer(request));
    let metrics = Metrics::new();
    let client = kube::Client::new(service, NAMESPACE);
    let api = KubeApi::new(client, Arc::new(Kinds::default()), metrics.clone());
    let (kind, reading) = (kind("Deployment"), Reading::default());
    let (new_text, old_text) = (new.to_string(), old.map(Value::to_string));
    let request = Request {
        namespace: NAMESPACE,
        secrets: false,
        new: Workload::parse(&kind, &new_text).unwrap(),
        old: old_text.as_ref().map(|text| Workload::parse(&kind, text).unwrap()),
    };
    let (limits, share) = (Limits::default(), reading.share());
    let decider = Decider { api: &api, limits, dry_run: false, share, metrics: &metrics, shared: &shared };
    let mut facts = Facts::default();
    let decision = decider.decide(&request, None, &mut facts).await.unwrap();
    assert_eq!(decision.denial, None);
    let mut object = new.clone();
    json_patch::patch(&mut object, &decision.patch).unwrap();
    let wrong = facts.snapshots().filter(|(name, _)| name.name != volume(&object, 0)).count();
    assert_eq!(wrong, 0, "a wrong guess leaves nothing behind");
    (server.rounds.load(Ordering::SeqCst), server.reads.load(Ordering::SeqCst), object)
}

#[tokio::test]
async fn what_is_likely_to_be_needed_is_read_at_once_and_a_wrong_guess_changes_nothing() {
    let (blue, green) = (json!({"color": "blue"}), json!({"color": "green"}));
    let mut world = World::default();
    world.set("demo", blue);
    let written = deployment(&["demo"]);
    let stored = world.create(&written);
    let mut image = stored.clone();
    image["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let mut poked = stored.clone();
    annotate(&mut poked, names::ROLL, "auto-2026-01-02T03:04:05.678Z");
    let mut changed = world.clone();
    changed.set("demo", green);
    // The snapshot of the new content is there too.
    changed.create(&written);

    let known: &[(&str, i64)] = &[("blue", 1)];
    let both: &[(&str, i64)] = &[("blue", 1), ("green", 2)];
    for (what, world, told, new, old, rounds, reads) in [
        ("a creation", &world, known, &written, None, 1, 2),
        ("one whose snapshot nobody told of", &world, &[], &written, None, 2, 2),
        ("one whose snapshot is newer than was told", &changed, known, &written, None, 2, 3),
        ("an apply that changes nothing", &world, known, &written, Some(&stored), 1, 2),
        ("an apply after a change", &changed, both, &written, Some(&stored), 1, 2),
        ("another image", &world, known, &image, Some(&stored), 1, 1),
        ("another image, with a snapshot that was not taken up", &world, both, &image, Some(&stored), 1, 1),
        ("a poke after a change", &changed, both, &poked, Some(&stored), 1, 2),
        ("a poke after a change that was not told", &changed, known, &poked, Some(&stored), 2, 2),
        ("a poke for nothing", &world, known, &poked, Some(&stored), 1, 1),
    ] {
        let (found_rounds, found_reads, object) = admitted(world, told, new, old).await;
        assert_eq!((found_rounds, found_reads), (rounds, reads), "{what}");
        let without_guess = world.clone().admit(new, old).object;
        assert_eq!(object, without_guess, "{what}");
    }
}
