//! Objects under deletion: no snapshot is restored for them, and no snapshot is swept that they use.

use std::convert::Infallible;

use confrev::{
    annotations,
    cluster::{ApiError, KubeApi},
    controller::{Action, Outcome, RawObject, RevisionsSubject, Task, WorkloadsSubject, execute, take},
    kinds::{Kinds, REVISION_KINDS},
    telemetry::Metrics,
    world::{Name, Owner},
};
use http::{Request, Response, StatusCode};
use kube::{client::Body, runtime::watcher::Event};
use serde_json::{Value, json};

use super::controller::{BLUE, Desk, key, name, snapshot, web_on_blue};

/// A workload on blue and its ReplicaSet, as a watch reports them. Each may be under deletion.
struct Foreground {
    desk: Desk,
    web: Value,
    set: Value,
}

fn replica_sets() -> usize {
    REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap()
}

fn leave(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
}

impl Foreground {
    fn new() -> Self {
        let (_, mut web, mut desk) = web_on_blue();
        web["metadata"]["namespace"] = json!("ns");
        let set = json!({
            "metadata": {"name": "web-1", "namespace": "ns", "uid": "set", "resourceVersion": "1",
                "labels": {(annotations::REVISION): "1"}},
            "spec": {"template": web["spec"]["template"]},
        });
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
        let mut new = Self { desk, web, set };
        new.report();
        new.desk.act(&json!({"color": "blue"}), &json!({}), "1");
        new
    }

    fn report(&mut self) {
        let partial = |object: &Value| serde_json::from_value::<RawObject>(object.clone()).unwrap();
        let (state, now) = (&mut self.desk.state, self.desk.now);
        take(&WorkloadsSubject(key("web").kind), state, Event::Apply(partial(&self.web)), &mut None, now);
        take(&RevisionsSubject(replica_sets()), state, Event::Apply(partial(&self.set)), &mut None, now);
    }

    /// The restores in the minute after the snapshot and its source are deleted.
    fn restores(&mut self) -> Vec<(Task, Action)> {
        self.desk.state.apply_snapshot(&name(BLUE), None, self.desk.now);
        self.desk.state.apply_source(&name("demo"), None, self.desk.now);
        let mut restores = Vec::new();
        for _ in 0..60 {
            for (task, action) in self.desk.actions() {
                match action {
                    Action::Restore { .. } => restores.push((task, action)),
                    _ => self.desk.state.finish(&task, Ok(Outcome::Done), self.desk.now),
                }
            }
            self.desk.pass(1);
        }
        restores
    }
}

#[test]
fn objects_under_deletion_cause_no_restore() {
    for (web_leaves, set_leaves, restores) in [(true, true, 0), (true, false, 1), (false, true, 1)] {
        let mut foreground = Foreground::new();
        for (object, leaves) in [(&mut foreground.web, web_leaves), (&mut foreground.set, set_leaves)] {
            if leaves {
                leave(object);
            }
        }
        foreground.report();
        let restored = foreground.restores();
        assert_eq!(restored.len(), restores, "{web_leaves} {set_leaves}: {restored:?}");
        if let Some((task, _)) = restored.first() {
            // The snapshot counts as lost until both objects are under deletion.
            foreground.desk.state.finish(task, Ok(Outcome::Lost), foreground.desk.now);
            foreground.desk.pass(5);
            assert_eq!(foreground.desk.look_in_vain().len(), 1);
            assert_eq!(foreground.desk.state.counts(true).lost, 1);
            leave(&mut foreground.web);
            leave(&mut foreground.set);
            foreground.report();
            assert_eq!(foreground.desk.state.counts(true).lost, 0);
        }
    }
}

#[test]
fn objects_under_deletion_keep_their_snapshot() {
    let mut foreground = Foreground::new();
    leave(&mut foreground.web);
    leave(&mut foreground.set);
    foreground.report();
    foreground.desk.state.apply_source(&name("demo"), None, foreground.desk.now);
    let mut acts = Vec::new();
    for _ in 0..3600 {
        acts.extend(foreground.desk.act(&json!({"color": "blue"}), &json!({}), "1"));
        foreground.desk.pass(1);
    }
    assert!(!acts.iter().any(|action| matches!(action, Action::Sweep { .. })), "{acts:?}");
}

/// An API server with this workload and this ReplicaSet. It refuses every write.
fn server(web: &Value, set: &Value) -> KubeApi {
    let (web, set) = (web.clone(), set.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let name = path.rsplit('/').next().unwrap_or_default();
        let body = match name {
            "web" => Some(web.clone()),
            "web-1" => Some(set.clone()),
            "deployments" => Some(json!({"metadata": {}, "items": [web]})),
            "replicasets" => Some(json!({"metadata": {}, "items": [set]})),
            "ns" => Some(json!({"metadata": {"name": "ns"}})),
            _ => None,
        };
        let is_get = *request.method() == http::Method::GET;
        let status = if !is_get {
            StatusCode::IM_A_TEAPOT
        } else if body.is_some() {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        };
        let body = body.unwrap_or_else(|| json!({"kind": "Status"}));
        let mut response = Response::new(Body::from(body.to_string().into_bytes()));
        *response.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let client = kube::Client::new(service, "ns");
    KubeApi::new(client, std::sync::Arc::new(Kinds::default()), Metrics::new())
}

/// The watches may be late: the live objects decide.
#[tokio::test]
async fn unreported_deletion_causes_no_restore() {
    for (web_leaves, set_leaves) in [(true, true), (true, false), (false, true)] {
        let Foreground { mut web, mut set, desk } = Foreground::new();
        for (object, leaves) in [(&mut web, web_leaves), (&mut set, set_leaves)] {
            if leaves {
                leave(object);
            }
        }
        for known in [Vec::new(), vec![Owner::new("apps/v1", "Deployment", "web", "uid-web")]] {
            let lost = Name::clone(&name(BLUE));
            let action = Action::Restore {
                snapshot: lost,
                source: "demo".to_owned(),
                copies: Vec::new(),
                content: None,
                owners: Vec::new(),
                users: known,
            };
            let outcome = execute(&server(&web, &set), action, desk.now).await;
            match outcome {
                Err(ApiError::Conflict { .. }) => assert!(web_leaves && set_leaves),
                Ok(Outcome::Lost) => assert!(!web_leaves || !set_leaves),
                other => panic!("{web_leaves} {set_leaves}: {other:?}"),
            }
        }
    }
}
