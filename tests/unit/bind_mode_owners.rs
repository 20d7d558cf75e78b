//! Sources in bind mode: the owners that confrev sets, and the owners that other tools set.

use std::sync::{Arc, Mutex};

use confrev::{
    annotations,
    cluster::{ApiError, KubeApi},
    controller::{Action, ObjectStep, Outcome, Task, execute},
    kinds::Kinds,
    resolve::Use,
    snapshot::{ObjectName, SourceKind},
    telemetry::Metrics,
    world::{BoundRecord, Owner, Revision, RevisionKey, Verified, Version},
};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use serde_json::{Value, json};

use super::controller::{BLUE, Desk, name, observed, snapshot, web_on_blue};

/// An API server with one ConfigMap, and no revision that refers to it. Returns the bodies of all writes, too.
fn server(object: Value) -> (KubeApi, Arc<Mutex<Vec<String>>>) {
    let writes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&writes);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (object, seen) = (object.clone(), Arc::clone(&seen));
        async move {
            let body = if request.uri().path().contains("/configmaps/") {
                object.to_string()
            } else {
                json!({"kind": "List", "metadata": {}, "items": []}).to_string()
            };
            if request.method() != http::Method::GET {
                let sent = request.into_body().collect_bytes().await.unwrap();
                seen.lock().unwrap().push(String::from_utf8_lossy(&sent).into_owned());
            }
            Ok::<_, std::io::Error>(http::Response::new(Body::from(body.into_bytes())))
        }
    });
    let client = kube::Client::new(service, "default");
    (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), writes)
}

/// The operator set the workload as its owner before the workload uses it.
#[tokio::test]
async fn unused_bound_source_of_operator_is_kept() {
    let (_, _, mut desk) = web_on_blue();
    // An operator creates the next ConfigMap of a workload with an ownerReference, and changes the workload's reference half a
    // minute later.
    let workload = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let object = json!({
        "metadata": {
            "name": "next", "namespace": "ns", "uid": "n", "resourceVersion": "1",
            "labels": {annotations::ENABLED: "bind"},
            "ownerReferences": [workload.to_json()],
            "managedFields": [{"manager": "operator", "operation": "Update", "fieldsV1": {"f:metadata": {
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"uid-web\"}": {}}}}}],
        },
        "data": {"color": "next"},
    });
    let version = Version { uid: "n".to_owned(), resource_version: "1".to_owned() };
    let bound = BoundRecord { version, owners: [workload].into_iter().collect() };
    desk.state.apply_bound(&name("next"), Some(bound), desk.now);
    let (api, writes) = server(object);
    for _ in 0..30 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Release { .. } => execute(&api, action, desk.now).await,
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    assert_eq!(*writes.lock().unwrap(), [""; 0], "the object belongs to the operator, and its owner exists");
}

#[test]
fn bound_source_never_exceeds_owner_limit() {
    let source = ObjectName::new(SourceKind::ConfigMap, "next");
    let snapshot = Some(source.name.clone());
    let used = Use::new(source, snapshot);
    let mut desk = Desk::new();
    for number in 0..20_000 {
        let set = RevisionKey { kind: 0, namespace: "ns".into(), name: format!("set-{number}").into() };
        let revision = Revision { uid: format!("uid-{number}").into(), uses: vec![used.clone()] };
        desk.state.apply_revision(&set, Some(revision), desk.now);
    }
    let version = Version { uid: "n".to_owned(), resource_version: "1".to_owned() };
    let bound = BoundRecord { version, owners: std::iter::empty().collect() };
    desk.state.apply_bound(&name("next"), Some(bound), desk.now);
    desk.pass(60);
    let set = desk.actions().into_iter().find_map(|(_, action)| match action {
        Action::SetOwners { owners, .. } => Some(owners.len()),
        _ => None,
    });
    assert!(set.is_some_and(|owners| owners <= 2048), "{set:?} owners, of about 170 bytes each in 1.5 MiB");
}

/// Its label changed while the controller was down. A later reconciliation of its revision unbinds it.
#[tokio::test]
async fn formerly_bound_source_loses_its_owners() {
    let owner = Owner::new("apps/v1", "ReplicaSet", "web-1", "rs");
    for (label, writes) in [("true", 1), ("bind", 0)] {
        let (api, written) = server(json!({
            "metadata": {
                "name": "old", "namespace": "ns", "uid": "o", "resourceVersion": "1",
                "labels": {annotations::ENABLED: label},
                "ownerReferences": [owner.to_json()],
                "managedFields": [{"manager": annotations::MANAGER, "operation": "Update", "fieldsV1": {"f:metadata": {
                    "f:ownerReferences": {".": {}, "k:{\"uid\":\"rs\"}": {}}}}}],
            },
            "data": {"color": "old"},
        }));
        let restore = Action::Restore {
            snapshot: name("old"),
            source: "old".to_owned(),
            copies: Vec::new(),
            content: None,
            owners: vec![owner.clone()],
            users: Vec::new(),
        };
        execute(&api, restore, Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!(written.lock().unwrap().len(), writes, "labelled {label}");
    }
}

#[tokio::test]
async fn only_own_owners_are_removed_from_bound_source() {
    let owner = |kind: &str, name: &str| Owner::new("apps/v1", kind, name, format!("uid-{name}"));
    let entered = |manager: &str, uid: &str| {
        let keys = json!({".": {}, format!("k:{{\"uid\":\"{uid}\"}}"): {}});
        json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:metadata": {"f:ownerReferences": keys}}})
    };
    let (theirs, gone, kept) =
        (owner("Deployment", "web"), owner("Deployment", "api"), owner("ReplicaSet", "web-1"));
    let (api, written) = server(json!({
        "metadata": {
            "name": "old", "namespace": "ns", "uid": "o", "resourceVersion": "1",
            "labels": {annotations::ENABLED: "bind"},
            "ownerReferences": [theirs.to_json(), gone.to_json(), kept.to_json()],
            "managedFields": [entered("operator", "uid-web"), entered(annotations::MANAGER, "uid-api"), entered(annotations::MANAGER, "uid-web-1")],
        },
        "data": {"color": "old"},
    }));
    for (own, wanted) in [(true, vec![kept.clone(), theirs]), (false, vec![kept.clone()])] {
        written.lock().unwrap().clear();
        let version = Version { uid: "o".to_owned(), resource_version: "1".to_owned() };
        let (snapshot, owners) = (name("old"), vec![kept.clone()]);
        let action = Action::SetOwners { snapshot, version, owners, hazard: false, verify: None, own };
        execute(&api, action, Timestamp::UNIX_EPOCH).await.unwrap();
        let body: Value = serde_json::from_str(&written.lock().unwrap()[0]).unwrap();
        let wanted: Vec<_> = wanted.iter().map(Owner::to_json).collect();
        assert_eq!(body["metadata"]["ownerReferences"], json!(wanted), "only its own: {own}");
    }
}

#[test]
fn stale_owners_are_replaced_by_current_user() {
    let source = ObjectName::new(SourceKind::ConfigMap, "next");
    let snapshot = Some(source.name.clone());
    let used = Use::new(source, snapshot);
    for stale in [2047, 2048] {
        let mut desk = Desk::new();
        let set = |number: usize, uses: Vec<Use>| {
            let key = RevisionKey { kind: 0, namespace: "ns".into(), name: format!("set-{number}").into() };
            (key, Revision { uid: format!("uid-{number}").into(), uses })
        };
        let owner = |i: usize| Owner::new("apps/v1", "ReplicaSet", format!("set-{i}"), format!("uid-{i}"));
        for number in 0..stale {
            let (key, revision) = set(number, Vec::new());
            desk.state.apply_revision(&key, Some(revision), desk.now);
        }
        let (user, revision) = set(90_000, vec![used.clone()]);
        desk.state.apply_revision(&user, Some(revision), desk.now);
        let mut owners: Vec<Owner> = (0..stale).map(owner).collect();
        for turn in 1..100 {
            let version = Version { uid: "n".to_owned(), resource_version: turn.to_string() };
            let bound = BoundRecord { version, owners: owners.iter().cloned().collect() };
            desk.state.apply_bound(&name("next"), Some(bound), desk.now);
            desk.pass(5);
            for (task, action) in desk.actions() {
                if let Action::SetOwners { owners: set, .. } = &action {
                    owners.clone_from(set);
                }
                let outcome = match action {
                    Action::Verify { owners, .. } => {
                        Outcome::Verified(Verified { unused: owners, ..Verified::default() })
                    }
                    _ => Outcome::Done,
                };
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
        }
        assert!(owners.contains(&owner(90_000)), "with {stale} stale owners: {} owners", owners.len());
    }
}

#[test]
fn unverified_snapshot_gets_no_owners() {
    let (_, _, mut desk) = web_on_blue();
    let blue = json!({"color": "blue"});
    let foreign = Owner::new("v1", "Thing", "t", "foreign");
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[foreign])), desk.now);
    desk.act(&blue, &json!({}), "1");
    for _ in 0..100 {
        desk.now += SignedDuration::from_millis(100);
        for (task, action) in desk.actions() {
            let outcome = match (&task, &action) {
                (_, Action::Read(_)) => {
                    Ok(Outcome::Read(Some(Box::new(observed(blue.clone(), json!({}), "1")))))
                }
                // The read before the write fails.
                (Task::Object(_, ObjectStep::Bind), Action::SetOwners { verify: Some(_), .. }) => {
                    Err(ApiError::Answer { what: "read".to_owned(), reason: "500".to_owned() })
                }
                (_, Action::SetOwners { verify, owners, .. }) => {
                    assert!(verify.is_some(), "{task:?} sets {owners:?} on an unverified snapshot");
                    Ok(Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
}
