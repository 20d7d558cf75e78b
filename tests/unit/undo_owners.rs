//! The owner that admission adds to a snapshot when an undo refers to it.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use confrev::{
    admission::ReviewLimits,
    resolve::{Carried, Facts, Request, Workload},
    world::workload_owner,
};
use http::{Method, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::{
    controller::Desk,
    reviewer::Reviewer,
    story::{BLUE, poke, undo, world},
    world::{NAMESPACE, World, configmap, deployment, kind},
};

/// Requests that write: their method and body.
type Written = Vec<(Method, Value)>;

/// The objects, the writes, and whether the garbage collector deletes the snapshot after it was read.
type Server = (World, Arc<Mutex<Written>>, bool);

/// Answers reads from the world, and records every other request.
async fn answer(
    (world, written, is_collected): Server,
    request: http::Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let method = request.method().clone();
    if method != Method::GET {
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut response = Response::new(Body::from(b"{}".to_vec()));
        if method == Method::PATCH && is_collected {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        written.lock().unwrap().push((method, serde_json::from_slice(&body).unwrap()));
        return Ok(response);
    }
    let object = world.objects.get(&configmap(&name));
    let body = object.map_or_else(|| json!({"kind": "Status"}), Value::clone).to_string();
    let mut response = Response::new(Body::from(body.into_bytes()));
    if object.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

/// The owners that an undo to blue adds to the snapshot of blue, which already has `owners` and `more`.
async fn entered(owners: usize, more: Option<Value>) -> Vec<Value> {
    let written = written(owners, more, false).await;
    let bodies = written.iter().map(|(_, body)| body);
    bodies.flat_map(|body| body["metadata"]["ownerReferences"].as_array().unwrap().clone()).collect()
}

/// What the admission of this undo writes.
async fn written(owners: usize, more: Option<Value>, is_collected: bool) -> Written {
    let mut world = world("blue");
    let mut manifest = deployment(&["demo"]);
    manifest["metadata"]["uid"] = json!("uid-web");
    let first = world.create(&manifest);
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    world.set_object("web", second.clone());
    let owner = |i: usize| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("r-{i}"), "uid": format!("u-{i}")});
    let present: Vec<_> = more.into_iter().chain((0..owners).map(owner)).collect();
    world.objects.get_mut(&configmap(BLUE)).unwrap()["metadata"]["ownerReferences"] = json!(present);
    let written = Arc::new(Mutex::new(Vec::new()));
    let server = (world, Arc::clone(&written), is_collected);
    let service = tower::service_fn(move |request| answer(server.clone(), request));
    let client = kube::Client::new(service, NAMESPACE);
    let kind = kind("Deployment");
    let (new, old) = (undo(&second, &first).to_string(), second.to_string());
    let request = Request {
        namespace: NAMESPACE,
        secrets: true,
        new: Workload::parse(&kind, &new).unwrap(),
        old: Some(Workload::parse(&kind, &old).unwrap()),
        carried: Carried::default(),
    };
    let reviewer = Reviewer::new(client, Desk::new().state, ReviewLimits::default());
    let owner = workload_owner(&kind, "web", "uid-web");
    reviewer.decider(false).admit(&request, Some(&owner), &mut Facts::default()).await.unwrap();
    std::mem::take(&mut *written.lock().unwrap())
}

/// The garbage collector may have decided before the undo that nothing uses the snapshot.
#[tokio::test]
async fn undo_recreates_snapshot_deleted_meanwhile() {
    let written = written(0, None, true).await;
    let [(first, _), (second, created)] = &written[..] else { panic!("{written:?}") };
    assert_eq!((first, second), (&Method::PATCH, &Method::POST));
    assert_eq!(created["metadata"]["name"], BLUE);
    assert_eq!((&created["data"]["color"], &created["immutable"]), (&json!("blue"), &json!(true)));
    let owners = created["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.iter().map(|owner| owner["uid"].clone()).collect::<Vec<_>>(), ["uid-web"]);
}

#[tokio::test]
async fn undo_never_exceeds_limit_of_owners() {
    let uids = |owners: &[Value]| owners.iter().map(|owner| owner["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&entered(1, None).await), ["uid-web"]);
    assert_eq!(uids(&entered(1500, None).await), ["uid-web"]);
    // If the snapshot has nearly as many owners as the limit, admission adds its source instead.
    for owners in [1800, 2046, 2047] {
        let entered = entered(owners, None).await;
        assert_eq!((uids(&entered), &entered[0]["kind"]), (vec![json!("uid-demo")], &json!("ConfigMap")));
    }
    let source = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": "uid-demo"});
    assert_eq!(uids(&entered(2047, Some(source)).await), [""; 0]);
}
