//! Sources in bind mode that are deleted while revisions use them, and names that other objects take.

use std::sync::Arc;

use axum::body::Body as ReviewBody;
use confrev::{
    admission::{Context, ReviewLimits, router},
    annotations,
    cluster::ApiError,
    controller::{Action, ObjectStep, Outcome, Shared, Task, execute},
    kinds::{Kinds, REVISION_KINDS},
    resolve::Use,
    schema::Schemas,
    snapshot::{ObjectName, SourceKind},
    telemetry::{Metrics, Readiness},
    world::{BoundRecord, Name, Owner, Revision, RevisionKey, Version},
};
use http::Request;
use jiff::Timestamp;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{
    api_server::Server,
    controller::{BLUE, Desk, name},
    world::{World, deployment},
};

/// An installation with one replica.
struct Stage {
    server: Server,
    shared: Shared,
    now: Timestamp,
}

impl Stage {
    fn new() -> Self {
        let desk = Desk::new();
        let shared = Shared::new(desk.state, Readiness::new().register("caches"));
        Self { server: Server::default(), shared, now: desk.now }
    }

    /// Sends a review to the replica.
    async fn review(&self, path: &str, request: Value) -> Value {
        let context = Context {
            api: self.server.api(),
            kinds: Arc::new(Kinds::default()),
            secrets: true,
            limits: ReviewLimits::default(),
            shared: self.shared.clone(),
            metrics: Metrics::new(),
            schemas: Schemas::default(),
            users: None,
        };
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(ReviewBody::from(review.to_string()))
            .unwrap();
        let response = router(context).oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let mut answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
        answer["response"].take()
    }

    /// Deletes an object as the API server does: a review, then a watch. With `by_collection`, the request states no name.
    async fn delete(&self, object: &str, by_collection: bool) {
        self.review_deletion(object, by_collection).await;
        self.report_deletion(object);
    }

    fn report_deletion(&self, object: &str) {
        assert!(self.server.remove(&format!("ns/configmaps/{object}")).is_some());
        self.shared.lock().apply_bound(&name(object), None, self.now);
    }

    async fn review_deletion(&self, object: &str, by_collection: bool) {
        let old = self.server.get(&format!("ns/configmaps/{object}")).unwrap();
        let request = json!({
            "uid": "u",
            "resource": {"group": "", "version": "v1", "resource": "configmaps"},
            "name": if by_collection { "" } else { object },
            "namespace": "ns",
            "operation": "DELETE",
            "object": null,
            "oldObject": old,
        });
        self.review("/mutate/configmaps", request).await;
    }

    /// Creates a bound object, which the watch reports with its owners.
    fn bound(&self, object: &str, owners: &[Owner]) {
        let entered: serde_json::Map<_, _> =
            owners.iter().map(|owner| (format!("k:{{\"uid\":\"{}\"}}", owner.uid), json!({}))).collect();
        self.server.put(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": object, "namespace": "ns", "uid": format!("uid-{object}"), "resourceVersion": "1",
                "labels": {annotations::ENABLED: "bind"},
                "ownerReferences": owners.iter().map(Owner::to_json).collect::<Vec<_>>(),
                "managedFields": [{"manager": annotations::MANAGER, "operation": "Update",
                    "fieldsV1": {"f:metadata": {"f:ownerReferences": entered}}}],
            },
            "data": {"text": object},
        }));
        let version = Version { uid: format!("uid-{object}"), resource_version: "1".to_owned() };
        let record = BoundRecord { version, owners: owners.iter().cloned().collect() };
        self.shared.lock().apply_bound(&name(object), Some(record), self.now);
    }

    /// Creates a ReplicaSet that uses the object, and returns it as an owner. The watch reports it if it has its label.
    fn replica_set(&self, set: &str, object: &str, is_labelled: bool) -> Owner {
        let mut stored = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": set, "namespace": "ns", "uid": format!("uid-{set}"), "resourceVersion": "1"},
            "spec": deployment(&[object])["spec"],
        });
        if is_labelled {
            stored["metadata"]["labels"] = json!({annotations::REVISION: "1"});
            let kind = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
            let key = RevisionKey { kind, namespace: "ns".into(), name: set.into() };
            let revision = Revision { uid: format!("uid-{set}").into(), uses: vec![use_of(object)] };
            self.shared.lock().apply_revision(&key, Some(revision), self.now);
        }
        self.server.put(stored);
        Owner::new("apps/v1", "ReplicaSet", set, format!("uid-{set}"))
    }

    /// Creates a bound object that a ReplicaSet uses.
    fn bound_in_use(&self, object: &str) {
        self.bound(object, &[]);
        self.replica_set(&format!("set-{object}"), object, true);
    }

    /// Runs everything that is due two seconds after a deletion, and returns the restored names.
    async fn act(&self) -> Vec<Name> {
        let now = self.now + jiff::SignedDuration::from_secs(2);
        let mut restored = Vec::new();
        loop {
            let Some((task, action)) = self.shared.lock().next_action(now) else { return restored };
            let outcome = match action {
                Action::Restore { .. } => execute(&self.server.api(), action, now).await,
                _ => Ok(Outcome::Done),
            };
            if let (Task::Object(name, ObjectStep::Restore), Ok(Outcome::Restored)) = (&task, &outcome) {
                restored.push(name.clone());
            }
            self.shared.lock().finish(&task, outcome, now);
        }
    }
}

/// The use of an object under its own name.
fn use_of(object: &str) -> Use {
    let source = ObjectName::new(SourceKind::ConfigMap, object);
    let snapshot = Some(source.name.clone());
    Use::new(source, snapshot)
}

/// A GitOps tool prunes more objects than any count of contents that a replica might remember.
#[tokio::test]
async fn restores_every_pruned_bound_object() {
    let stage = Stage::new();
    let all: Vec<_> = (0..200).map(|number| format!("demo-{number:03}")).collect();
    for object in &all {
        stage.bound_in_use(object);
    }
    for object in &all {
        stage.delete(object, false).await;
    }
    stage.act().await;
    for object in &all {
        let again = stage.server.get(&format!("ns/configmaps/{object}")).unwrap_or_default();
        assert_eq!(again["data"]["text"], **object, "{object} is restored");
    }
}

#[tokio::test]
async fn workload_reviews_displace_no_bound_object() {
    let stage = Stage::new();
    stage.bound_in_use("demo-1");
    stage.review_deletion("demo-1", false).await;
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.create(&deployment(&["demo"]));
    for number in 0..100 {
        let namespace = format!("other-{number}");
        for object in world.objects.values() {
            let mut object = object.clone();
            object["kind"] = json!("ConfigMap");
            object["metadata"]["namespace"] = json!(namespace);
            stage.server.put(object);
        }
        let mut workload = deployment(&["demo"]);
        workload["metadata"]["namespace"] = json!(namespace);
        let request = json!({
            "uid": "u",
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "name": "web", "namespace": namespace, "operation": "CREATE", "object": workload,
        });
        let answer = stage.review("/mutate/workloads", request).await;
        assert!(answer["patch"].is_string(), "{answer}");
    }
    stage.report_deletion("demo-1");
    assert_eq!(stage.act().await, [name("demo-1")]);
}

/// Reviews of other deletions in the same namespace follow, and the watch lags behind them.
#[tokio::test]
async fn content_is_remembered_until_deletion_is_reported() {
    let stage = Stage::new();
    stage.bound_in_use("demo-1");
    stage.review_deletion("demo-1", false).await;
    for number in 0..100 {
        let other = format!("other-{number}");
        stage.bound_in_use(&other);
        stage.review_deletion(&other, false).await;
    }
    stage.report_deletion("demo-1");
    assert_eq!(stage.act().await, [name("demo-1")]);
}

/// `deletecollection` sends one review for each object, without a name.
#[tokio::test]
async fn restores_bound_objects_deleted_as_collection() {
    let stage = Stage::new();
    stage.bound_in_use("demo-1");
    stage.delete("demo-1", true).await;
    assert_eq!(stage.act().await, [name("demo-1")]);
}

#[tokio::test]
async fn refuses_invalid_name_of_object_in_collection() {
    let stage = Stage::new();
    let context = |name: &str| {
        json!({
            "uid": "u", "resource": {"group": "", "version": "v1", "resource": "configmaps"},
            "name": "", "namespace": "ns", "operation": "DELETE", "oldObject": {"metadata": {"name": name}},
        })
    };
    stage.review("/mutate/configmaps", context("")).await;
    let text = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": context("../secrets/x")})
    .to_string();
    let review = confrev::admission::Review::parse(text.as_bytes()).unwrap();
    let refusal = review.refusal(|_| false).unwrap_or_default();
    assert!(refusal.contains("../secrets/x"), "{refusal}");
}

/// Its label was removed, so no watch reports it. It is an owner that confrev added.
#[tokio::test]
async fn restores_bound_object_of_unlabelled_revision() {
    let stage = Stage::new();
    let set = stage.replica_set("set-1", "demo-1", false);
    stage.bound("demo-1", std::slice::from_ref(&set));
    stage.delete("demo-1", false).await;
    assert_eq!(stage.act().await, [name("demo-1")]);
    let again = stage.server.get("ns/configmaps/demo-1").unwrap();
    assert_eq!(
        again["metadata"]["ownerReferences"],
        json!([set.to_json()]),
        "it is deleted with that revision"
    );
}

/// The garbage collector deletes a bound object with its last owner.
#[tokio::test]
async fn bound_object_without_live_user_stays_deleted() {
    let stage = Stage::new();
    let set = Owner::new("apps/v1", "ReplicaSet", "set-1", "uid-set-1");
    stage.bound("demo-1", &[set]);
    stage.delete("demo-1", false).await;
    assert_eq!(stage.act().await, []);
    assert_eq!(
        stage.shared.lock().next_action(stage.now + jiff::SignedDuration::from_mins(10)).map(|_| ()),
        None
    );
    assert_eq!(stage.server.get("ns/configmaps/demo-1"), None);
}

/// The snapshot was deleted, and a tenant created another object under its name.
#[tokio::test]
async fn impostor_does_not_count_as_restored_snapshot() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.create(&deployment(&["demo"]));
    let sound = world.objects[&name(BLUE).object].clone();
    let mut mutable = sound.clone();
    mutable.as_object_mut().unwrap().remove("immutable");
    let mut other = sound.clone();
    other["metadata"]["annotations"][annotations::SOURCE_NAME] = json!("other");
    let plain = json!({"metadata": {"name": BLUE}, "data": {"color": "evil"}});
    let mut leaving = sound.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (found, wanted) in
        [(plain, "taken"), (mutable, "taken"), (other, "taken"), (leaving, "again"), (sound, "done")]
    {
        let stage = Stage::new();
        stage.replica_set("set-1", BLUE, true);
        for mut object in [found, world.objects[&name("demo").object].clone()] {
            object["kind"] = json!("ConfigMap");
            object["metadata"]["namespace"] = json!("ns");
            stage.server.put(object);
        }
        let action = Action::Restore {
            snapshot: name(BLUE),
            source: "demo".to_owned(),
            copies: Vec::new(),
            content: None,
            owners: Vec::new(),
            users: Vec::new(),
        };
        let outcome: Result<_, ApiError> = execute(&stage.server.api(), action, stage.now).await;
        let is_as_wanted = match &outcome {
            Ok(Outcome::Taken) => wanted == "taken",
            Err(ApiError::Conflict { .. }) => wanted == "again",
            Ok(Outcome::Done) => wanted == "done",
            _ => false,
        };
        assert!(is_as_wanted, "{wanted}: {outcome:?}");
    }
}

/// No watch reports that the other object is deleted.
#[test]
fn restore_is_retried_while_name_is_taken() {
    let mut desk = Desk::new();
    let key = RevisionKey { kind: 0, namespace: "ns".into(), name: "set-1".into() };
    let revision = Revision { uid: "uid-set-1".into(), uses: vec![use_of(BLUE)] };
    desk.state.apply_revision(&key, Some(revision), desk.now);
    for turn in 0..10 {
        desk.pass(60);
        let tasks: Vec<_> = desk.actions().into_iter().map(|(task, _)| task).collect();
        assert!(tasks.contains(&Task::Object(name(BLUE), ObjectStep::Restore)), "turn {turn}: {tasks:?}");
        for task in tasks {
            let is_restore = matches!(task, Task::Object(_, ObjectStep::Restore));
            let outcome = if is_restore { Outcome::Taken } else { Outcome::Done };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        assert_eq!(desk.state.counts(true).lost, usize::from(turn > 0));
    }
}
