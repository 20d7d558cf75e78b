//! Asks clients to disconnect before the server stops.

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, Version, header::CONNECTION},
    middleware::{self, Next},
};
use tokio::sync::watch;

/// Answers with `connection: close` while one of `reasons` is true. A server that stops closes idle connections, and loses a request
/// that a client sends on one at that moment: clients do not repeat a POST. A client that was asked to disconnect sends
/// nothing more. HTTP/2 has a frame for that, which the server sends when it stops.
pub fn ask_to_leave<const N: usize>(router: Router, reasons: [watch::Receiver<bool>; N]) -> Router {
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let reasons = reasons.clone();
        async move {
            let has_frame = request.version() == Version::HTTP_2;
            let mut answer = next.run(request).await;
            if !has_frame && reasons.iter().any(|reason| *reason.borrow()) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    }))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn only_leaving_server_asks_clients_to_disconnect() {
        let (leave, leaving) = watch::channel(false);
        let (_stay, staying) = watch::channel(false);
        let router = ask_to_leave(Router::new().fallback(|| async { "answer" }), [staying, leaving]);
        let is_asked = async |version| {
            let request = Request::builder().version(version).body(Body::empty()).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            answer.headers().get(CONNECTION).is_some_and(|value| value == "close")
        };
        assert!(!is_asked(Version::HTTP_11).await);
        leave.send_replace(true);
        assert!(is_asked(Version::HTTP_11).await);
        assert!(!is_asked(Version::HTTP_2).await);
    }
}
