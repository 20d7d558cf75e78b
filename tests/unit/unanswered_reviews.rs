//! Reviews without a decision. Where the policy `confrev-carry` marks each write, they get no answer either: the API server then stores the
//! write as the policy has left it.

use std::{convert::Infallible, sync::Arc};

use axum::body::Body as ReviewBody;
use confrev::{
    admission::{Context, MARKED_WORKLOADS, ReviewLimits, router},
    annotations,
    cluster::KubeApi,
    kinds::Kinds,
    schema::Schemas,
    telemetry::{Metrics, Readiness},
};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{controller::Desk, world::deployment};

/// The answer to the creation of a Deployment while the API server answers each call of confrev with an error.
async fn answer(path: &str, object: &Value, metrics: &Metrics) -> (StatusCode, Value) {
    let service = tower::service_fn(|_: Request<Body>| {
        let mut response = Response::new(Body::from(b"{}".to_vec()));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let kinds = Arc::new(Kinds::default());
    let context = Context {
        api: KubeApi::new(kube::Client::new(service, "ns"), Arc::clone(&kinds), metrics.clone()),
        kinds,
        secrets: true,
        limits: ReviewLimits::default(),
        shared: confrev::controller::Shared::new(Desk::new().state, Readiness::new().register("caches")),
        metrics: metrics.clone(),
        schemas: Schemas::default(),
        users: None,
    };
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "name": "web", "namespace": "ns", "operation": "CREATE", "object": object,
        "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
    }});
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(ReviewBody::from(review.to_string()))
        .unwrap();
    let response = router(context).oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn undecided_review_is_left_to_the_policy() {
    let (metrics, mut object) = (Metrics::new(), deployment(&["demo"]));
    let (status, body) = answer("/mutate/workloads", &object, &metrics).await;
    assert_eq!((status, &body["response"]["status"]["code"]), (StatusCode::OK, &json!(503)), "{body}");
    object["metadata"]["labels"][annotations::CARRIED] = json!("true");
    let (status, body) = answer(MARKED_WORKLOADS, &object, &metrics).await;
    assert_eq!((status, body), (StatusCode::SERVICE_UNAVAILABLE, Value::Null));
    // A refusal is an answer.
    object["metadata"]["annotations"] = json!({annotations::TRACK: "maybe"});
    let (status, body) = answer(MARKED_WORKLOADS, &object, &metrics).await;
    assert_eq!((status, &body["response"]["status"]["code"]), (StatusCode::OK, &json!(403)), "{body}");
}

/// The policy is not in force then, and an outage would admit everything.
#[tokio::test]
async fn review_without_expected_mark_is_counted() {
    let metrics = Metrics::new();
    let counted =
        |count: u8| metrics.encode().contains(&format!("confrev_uncarried_reviews_total {count}\n"));
    let mut object = deployment(&["demo"]);
    answer("/mutate/workloads", &object, &metrics).await;
    assert!(counted(0));
    answer(MARKED_WORKLOADS, &object, &metrics).await;
    assert!(counted(1));
    object["metadata"]["labels"][annotations::CARRIED] = json!("true");
    answer(MARKED_WORKLOADS, &object, &metrics).await;
    assert!(counted(1));
}
