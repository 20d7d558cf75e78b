//! The admission of sources over objects in memory, with the child processes of real checks.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::body::Body as ReviewBody;
use confrev::{
    admission::{Context, ReviewLimits, router},
    cluster::KubeApi,
    controller::Shared,
    kinds::Kinds,
    schema::Schemas,
    server::Arrival,
    telemetry::{Metrics, Readiness},
};
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::controller::Desk;

/// The program that checks a content.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_confrev");

/// Objects by `NAMESPACE/RESOURCE/NAME`: what the API server has.
pub(crate) type Stored = BTreeMap<String, Value>;

/// A server of reviews.
#[derive(Clone)]
pub(crate) struct Site {
    stored: Arc<Stored>,
    pub(crate) schemas: Schemas,
    reads: Arc<AtomicUsize>,
}

impl Site {
    /// `program`: what a check starts.
    pub(crate) fn new(stored: Stored, program: &str) -> Self {
        Self { stored: Arc::new(stored), schemas: Schemas::of(program.into()), reads: Arc::default() }
    }

    /// How many objects it has read.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// The response to a request. `is_verified`: its client has a certificate.
    pub(crate) async fn answer(&self, path: &str, is_verified: bool, request: &Value) -> Value {
        let site = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            site.reads.fetch_add(1, Ordering::SeqCst);
            let path = request.uri().path().split("/namespaces/").nth(1).unwrap_or_default();
            let found = site.stored.get(path);
            let missing = || json!({"kind": "Status", "reason": "NotFound"});
            let object = found.cloned().unwrap_or_else(missing).to_string();
            let mut response = Response::new(Body::from(object.into_bytes()));
            *response.status_mut() = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let kinds = Arc::new(Kinds::default());
        let context = Context {
            api: KubeApi::new(kube::Client::new(service, "shop"), kinds.clone(), Metrics::new()),
            kinds,
            secrets: true,
            limits: ReviewLimits::default(),
            shared: Shared::new(Desk::new().state, Readiness::new().register("caches")),
            metrics: Metrics::new(),
            schemas: self.schemas.clone(),
            users: None,
        };
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let request = Request::post(path)
            .header("content-type", "application/json")
            .extension(Arrival { address: Ipv4Addr::LOCALHOST.into(), is_verified, start: Instant::now() })
            .body(ReviewBody::from(review.to_string()))
            .unwrap();
        let response = router(context).oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let answer = serde_json::from_slice::<Value>(&body);
        answer.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&body)))["response"].take()
    }
}

/// The request of a write of a source in namespace `shop`.
pub(crate) fn write_of(kind: &str, new: &Value, old: Option<&Value>) -> Value {
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    json!({
        "uid": "u", "name": name, "namespace": "shop", "object": new, "oldObject": old,
        "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
        "resource": {"group": "", "version": "v1", "resource": kind},
    })
}

/// The message of a response that refuses a write.
pub(crate) fn message(response: &Value) -> Option<String> {
    (response["allowed"] == false).then(|| response["status"]["message"].as_str().unwrap().to_owned())
}
