//! A server like the program's, and clients that check its certificate.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::routing::{get, post};
use axum::{Extension, Router};
use confrev::server::{Arrival, Drained, ServerLimits, ask_to_leave, serve};
use confrev::telemetry::Metrics;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::LIMIT;

/// A certificate and its key in PEM, self-signed for `localhost`.
pub(crate) struct Made {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Made {
    pub(crate) fn new() -> Self {
        Self::valid(2020, 2120)
    }

    /// A certificate that is valid from one year to another.
    pub(crate) fn valid(from: i32, to: i32) -> Self {
        Self::with(|params| {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
        })
    }

    /// A certificate that has been valid for years, and expires after this duration.
    pub(crate) fn ending(in_: Duration) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Self::with(|params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + in_;
        })
    }

    fn with(validity: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        validity(&mut params);
        Self { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
    }

    /// The files of a Secret with this pair.
    pub(crate) fn files(&self) -> [(&str, &[u8]); 2] {
        [("tls.crt", self.certificate.as_bytes()), ("tls.key", self.key.as_bytes())]
    }
}

/// A running server. `/` answers "ok", `/held` answers after `release`, and `/mutate/configmaps` allows every request.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Fires when a request on `/held` has begun.
    pub(crate) begun: Arc<Notify>,
    pub(crate) release: Arc<Notify>,
    pub(crate) metrics: Metrics,
    /// Asks clients to disconnect while it is true.
    pub(crate) sends_away: watch::Sender<bool>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Drained>,
}

/// 200 if the server knows that the client has a certificate.
async fn verified(Extension(arrival): Extension<Arrival>) -> StatusCode {
    if arrival.is_verified { StatusCode::OK } else { StatusCode::FORBIDDEN }
}

impl Server {
    pub(crate) async fn start(tls: Arc<ServerConfig>, limits: ServerLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, tls, limits)
    }

    pub(crate) fn start_on(listener: TcpListener, tls: Arc<ServerConfig>, limits: ServerLimits) -> Self {
        let address = listener.local_addr().unwrap();
        let (begun, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, kept) = (begun.clone(), release.clone());
        let router = Router::new()
            .route("/", get(async || "ok"))
            .route("/verified", get(verified))
            .route("/mutate/configmaps", post(allow))
            .route(
                "/held",
                get(async move || {
                    tell.notify_one();
                    kept.notified().await;
                    "held"
                }),
            );
        let (stop, stopped) = oneshot::channel();
        let metrics = Metrics::new();
        let counted = metrics.clone();
        let (sends_away, away) = watch::channel(false);
        let router = ask_to_leave(router, [away.clone()]);
        let task = tokio::spawn(serve(listener, router, tls, limits, counted, away, async {
            let _ = stopped.await;
        }));
        Self { address, begun, release, metrics, sends_away, stop: Some(stop), task }
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub(crate) async fn stopped(self) -> Drained {
        tokio::time::timeout(LIMIT, self.task).await.expect("the server ends").unwrap()
    }
}

/// Allows an AdmissionReview.
async fn allow(body: String) -> impl axum::response::IntoResponse {
    let review: Value = serde_json::from_str(&body).unwrap();
    let response = json!({ "uid": review["request"]["uid"], "allowed": true });
    let answer =
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
    ([(http::header::CONTENT_TYPE, "application/json")], answer.to_string())
}

/// A store of the certificates in a PEM text.
pub(crate) fn roots(pem: &[u8]) -> RootCertStore {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        store.add(certificate.unwrap()).unwrap();
    }
    store
}

/// A connection that trusts `pem` and requests `name`; the error is the handshake's.
pub(crate) async fn connect(
    address: SocketAddr,
    pem: &[u8],
    name: &str,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = ClientConfig::builder().with_root_certificates(roots(pem)).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let shake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    tokio::time::timeout(LIMIT, shake).await.expect("the handshake ends")
}

/// Whether the server presents the certificate `pem` on a new connection, by a client that trusts only `pem`.
pub(crate) async fn presents(address: SocketAddr, pem: &str) -> bool {
    match connect(address, pem.as_bytes(), "localhost", b"h2").await {
        Ok(stream) => {
            let presented = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
            presented == CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
        }
        Err(_) => false,
    }
}

/// An open HTTP/2 connection.
pub(crate) struct KeptConnection {
    sender: http2::SendRequest<Body>,
    pub(crate) task: JoinHandle<hyper::Result<()>>,
}

impl KeptConnection {
    pub(crate) async fn new(address: SocketAddr, pem: &str) -> Self {
        let stream = connect(address, pem.as_bytes(), "localhost", b"h2").await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        Self { sender, task: tokio::spawn(connection) }
    }

    pub(crate) async fn get(&self, path: &str) -> hyper::Result<(StatusCode, String)> {
        let request = Request::get(format!("https://localhost{path}")).body(Body::empty()).unwrap();
        read(self.sender.clone().send_request(request)).await
    }

    /// Returns when the server has closed the connection.
    pub(crate) async fn closed(self) {
        let Self { sender, task } = self;
        let _ = tokio::time::timeout(LIMIT, task).await.expect("the server closes the connection");
        drop(sender);
    }
}

/// One request over HTTP/1.1 on a connection of its own.
pub(crate) async fn get_http1(
    address: SocketAddr,
    pem: &str,
    path: &str,
) -> hyper::Result<(StatusCode, String)> {
    let stream = connect(address, pem.as_bytes(), "localhost", b"http/1.1").await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "localhost").body(Body::empty()).unwrap();
    read(sender.send_request(request)).await
}

async fn read(
    answer: impl Future<Output = hyper::Result<http::Response<hyper::body::Incoming>>>,
) -> hyper::Result<(StatusCode, String)> {
    let read = async {
        let (head, body) = answer.await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((head.status, String::from_utf8(body.to_vec()).unwrap()))
    };
    tokio::time::timeout(LIMIT, read).await.expect("an answer arrives")
}

/// Limits that no test reaches by accident.
pub(crate) fn wide() -> ServerLimits {
    ServerLimits {
        handshake: LIMIT,
        header: LIMIT,
        drain: Duration::from_secs(30),
        ..ServerLimits::default()
    }
}
