//! The admin port: `/healthz`, `/readyz`, `/metrics`.
use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{StatusCode, header};

use super::{Metrics, Readiness};

/// The media type of `/metrics` (<https://prometheus.io/docs/specs/om/open_metrics_spec/#overall-structure>).
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The routes of the admin endpoints:
/// - `/healthz`: 200 for as long as the process runs (liveness: no condition here is repaired by a restart);
/// - `/readyz`: 200 with a line for each condition, or 503 with the failing ones;
/// - `/metrics`: OpenMetrics text.
///
/// They are served by [`crate::server`], as the webhook is, so its limits apply to them too.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(scrape).with_state(metrics))
}

async fn readyz(State(readiness): State<Readiness>) -> impl IntoResponse {
    let report = readiness.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, TEXT)], report.lines.join("\n") + "\n")
}

async fn scrape(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPENMETRICS)], metrics.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http::{Method, Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    async fn ask(router: &Router, method: Method, path: &str) -> (StatusCode, String, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let kind = answer.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, kind.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readyz_follows_the_conditions_and_healthz_does_not() {
        let readiness = Readiness::new();
        let caches = readiness.register("caches");
        let router = router(readiness.clone(), Metrics::new());
        caches.fail("ReplicaSets are not listed yet");
        let (status, _, body) = ask(&router, Method::GET, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (503, "caches: ReplicaSets are not listed yet\n"));
        caches.meet();
        let (status, _, body) = ask(&router, Method::GET, "/readyz").await;
        assert_eq!((status.as_u16(), body.as_str()), (200, "caches: ok\n"));
        readiness.shut_down();
        assert_eq!(ask(&router, Method::GET, "/readyz").await.0.as_u16(), 503);
        assert_eq!(ask(&router, Method::GET, "/healthz").await.0.as_u16(), 200);
    }

    #[tokio::test]
    async fn metrics_endpoint_serves_openmetrics() {
        let router = router(Readiness::new(), Metrics::new());
        let (status, kind, body) = ask(&router, Method::GET, "/metrics").await;
        assert_eq!((status.as_u16(), kind.as_str()), (200, OPENMETRICS));
        assert!(body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn other_paths_are_404_and_other_methods_405() {
        let router = router(Readiness::new(), Metrics::new());
        assert_eq!(ask(&router, Method::GET, "/").await.0.as_u16(), 404);
        assert_eq!(ask(&router, Method::GET, "/metrics/x").await.0.as_u16(), 404);
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(ask(&router, Method::POST, path).await.0.as_u16(), 405, "{path}");
        }
    }
}
