//! Workloads and revisions that refer to more names than confrev keeps: they are skipped and reported, and nothing is restored
//! for them.

use std::convert::Infallible;

use confrev::{
    admission::ReviewLimits,
    annotations,
    cluster::{Api as _, KubeApi},
    controller::{Action, RawObject, RevisionsSubject, Subject, WorkloadsSubject, take},
    kinds::{Kinds, REVISION_KINDS},
    resolve::NamespaceOptIn,
    telemetry::{Metrics, metrics::Reason},
};
use http::{Request, Response};
use kube::{client::Body, runtime::watcher::Event};
use serde_json::{Map, Value, json};

use super::{
    controller::{Desk, key},
    world::state_of,
};

/// An object whose template refers to that many snapshots. `sources` lists `listed` of them.
fn referring(references: usize, listed: usize) -> Value {
    let volumes: Vec<_> = (0..references)
        .map(|number| json!({"name": format!("v{number}"), "configMap": {"name": format!("s{number}-0123456789")}}))
        .collect();
    let sources: Map<_, _> =
        (0..listed).map(|number| (format!("s{number}"), json!(format!("s{number}-0123456789")))).collect();
    let annotations = json!({(annotations::SOURCES): json!({"configmaps": sources}).to_string()});
    json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "uid-web", "resourceVersion": "1",
            "labels": {(annotations::REVISION): "x", (annotations::ENABLED): "true"},
        },
        "spec": {"replicas": 0, "template": {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "app", "image": "app:1"}], "volumes": volumes},
        }},
    })
}

/// What follows within a minute: how many snapshots are restored, and the objects that Events report as unreadable.
fn follows<S: Subject<Object = RawObject>>(subject: &S, object: &Value) -> (usize, Vec<String>) {
    let mut desk = Desk::new();
    see(&mut desk, subject, object);
    let (restored, told) = within_a_minute(&mut desk);
    assert_eq!(desk.state.counts(true).unreadable, told.len());
    (restored, told)
}

fn see<S: Subject<Object = RawObject>>(desk: &mut Desk, subject: &S, object: &Value) {
    let partial: RawObject = serde_json::from_value(object.clone()).unwrap();
    take(subject, &mut desk.state, Event::Apply(partial), &mut None, desk.now);
}

fn within_a_minute(desk: &mut Desk) -> (usize, Vec<String>) {
    let (mut restored, mut told) = (0, Vec::new());
    for _ in 0..60 {
        desk.pass(1);
        for action in desk.act(&json!({}), &json!({}), "1") {
            match action {
                Action::Restore { .. } => restored += 1,
                Action::WriteEvent(event) if event.reason == Reason::ObjectUnreadable => {
                    told.push(event.note);
                }
                _ => {}
            }
        }
    }
    (restored, told)
}

/// The replica had seen the object before it led.
#[test]
fn leader_reports_objects_that_cannot_be_read() {
    let mut desk = Desk::new();
    see(&mut desk, &WorkloadsSubject(key("web").kind), &referring(5000, 5000));
    desk.state.leave_to_the_leader();
    assert_eq!(within_a_minute(&mut desk).1.len(), 0, "the leader reports it");
    for reports in [1, 0] {
        desk.state.leave_to_the_leader();
        desk.state.reconcile_all(desk.now);
        assert_eq!(within_a_minute(&mut desk).1.len(), reports, "once in ten minutes");
    }
}

/// More than the Events that may wait.
#[test]
fn every_unreadable_object_is_reported() {
    let mut desk = Desk::new();
    let mut object = referring(2001, 0);
    for number in 0..300 {
        object["metadata"]["name"] = json!(format!("web-{number}"));
        object["metadata"]["uid"] = json!(format!("uid-{number}"));
        see(&mut desk, &WorkloadsSubject(key("web").kind), &object);
    }
    desk.state.reconcile_all(desk.now);
    let (mut told, mut named) = (0, std::collections::BTreeSet::new());
    for _ in 0..600 {
        for action in desk.act(&json!({}), &json!({}), "1") {
            let Action::WriteEvent(event) = action else { panic!("{action:?}") };
            told += 1;
            named.insert(event.regarding.name);
        }
        desk.now += jiff::SignedDuration::from_millis(100);
    }
    assert_eq!((told, named.len()), (300, 300));
}

#[test]
fn objects_with_too_many_names_are_skipped() {
    let limit = ReviewLimits::default().reads;
    let sets = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
    let (sets, workloads) = (RevisionsSubject(sets), WorkloadsSubject(key("web").kind));
    for (references, listed, is_skipped) in
        [(limit, limit, false), (limit + 1, limit + 1, true), (5000, 5000, true), (1, limit + 1, true)]
    {
        let object = referring(references, listed);
        for (what, (restored, told)) in
            [("ReplicaSet", follows(&sets, &object)), ("Deployment", follows(&workloads, &object))]
        {
            assert_eq!(restored == 0, is_skipped, "{what} with {references} references: {restored} restores");
            assert_eq!(told.len(), usize::from(is_skipped), "{what} with {references} references");
            assert!(told.iter().all(|note| note.contains("more than 2000 names")), "{told:?}");
        }
    }
    // Many references to few names are no more than those names.
    let mut object = referring(3, 3);
    let volume = object["spec"]["template"]["spec"]["volumes"][0].clone();
    object["spec"]["template"]["spec"]["volumes"] = json!(vec![volume; 3 * limit]);
    assert_eq!(follows(&sets, &object), (1, Vec::new()));
}

/// A workload's annotation `state` may list more sources than its template refers to.
#[test]
fn workload_that_has_seen_too_much_is_skipped() {
    let mut object = referring(1, 1);
    let digest = super::controller::digest("blue").to_string();
    let seen: Map<_, _> = (0..2600).map(|number| (format!("s{number}"), json!(digest))).collect();
    object["metadata"]["annotations"] =
        json!({(annotations::STATE): state_of("seen", &json!({"configmaps": seen}))});
    let (restored, told) = follows(&WorkloadsSubject(key("web").kind), &object);
    assert_eq!((restored, told.len()), (0, 1));
}

#[tokio::test]
async fn namespace_ignores_workload_with_too_many_names() {
    let items = [ReviewLimits::default().reads, ReviewLimits::default().reads + 1].map(|references| {
        let mut object = referring(references, 0);
        object["metadata"]["name"] = json!(format!("web-{references}"));
        object["metadata"]["labels"] = json!({});
        object
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let items = if request.uri().path().ends_with("/deployments") { json!(items) } else { json!([]) };
        let list = json!({"metadata": {}, "items": items}).to_string();
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.into_bytes()))))
    });
    let client = kube::Client::new(service, "ns");
    let api = KubeApi::new(client, std::sync::Arc::new(Kinds::default()), Metrics::new());
    let found = api.unlabelled("ns", NamespaceOptIn::Now).await.unwrap();
    let found: Vec<_> = found.iter().map(|(key, _)| &*key.name).collect();
    assert_eq!(found, ["web-2000"]);
}
