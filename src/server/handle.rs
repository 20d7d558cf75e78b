//! One connection: its handshake, its requests, and the limits that end it.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tower::ServiceExt;

use super::connections::{Connection, Connections};
use super::fair::{Client, FairSemaphore};
use super::limits::ServerLimits;
use super::until_sent::keep_until_sent;
use super::watched::Watched;
use crate::telemetry::{Metrics, metrics::Limit};

/// Bytes that a client may send ahead on one HTTP/2 stream, and on all streams of a connection. What was sent ahead stays
/// in memory while the request waits for its turn.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;

/// How long an evicted connection may take to close before another one is evicted.
pub(super) const EVICTION_TIME: Duration = Duration::from_secs(1);

/// How long a new connection is served at least before it is asked to disconnect.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

/// The shortest time between two warnings about clients without a valid certificate.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// How clients speak to a server.
#[derive(Clone)]
pub enum Transport {
    /// TLS with HTTP/2 or HTTP/1.1.
    Tls(TlsAcceptor),
    /// Plain HTTP/1.1.
    Plain,
}

impl From<Arc<ServerConfig>> for Transport {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self::Tls(config.into())
    }
}

/// Where a request comes from, and when it began: an extension of each request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The source address of the connection.
    pub address: IpAddr,
    /// Whether the client proved in the handshake that it has a certificate of `--client-ca`.
    pub is_verified: bool,
    /// When the first byte of the request's head arrived.
    pub start: tokio::time::Instant,
}

/// What the handshake of a connection found out.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    is_http2: bool,
    is_verified: bool,
}

/// Everything that each connection needs.
pub(super) struct ConnectionContext {
    pub(super) router: Router,
    pub(super) transport: Transport,
    pub(super) limits: ServerLimits,
    pub(super) requests: FairSemaphore,
    pub(super) http: Builder<TokioExecutor>,
    pub(super) connections: Connections,
    /// Becomes true when the server stops.
    pub(super) stop: watch::Receiver<bool>,
    /// Is true while clients are asked to disconnect.
    pub(super) sends_away: watch::Receiver<bool>,
    /// When a client without a valid certificate was last reported.
    pub(super) last_warning: Mutex<Option<Instant>>,
    pub(super) metrics: Metrics,
}

/// The settings of every connection's HTTP.
pub(super) fn http_builder(limits: ServerLimits) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        // Idle connections and slow heads have limits of their own.
        .header_read_timeout(None)
        .max_buf_size(usize::try_from(limits.headers).unwrap_or(usize::MAX).max(8192));
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.headers)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(limits.ping * 2)
        .keep_alive_timeout(limits.ping);
    http
}

/// Handles one connection, from the handshake to its end. Its errors affect no other connection.
pub(super) async fn handle(server: Arc<ConnectionContext>, this: Arc<Connection>, stream: TcpStream) {
    let mut stop = server.stop.clone();
    // Answers are small, and a client waits for each.
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!(%error, "connection failed");
    }
    let Transport::Tls(tls) = &server.transport else {
        return serve_requests(&server, &this, stream, Peer::default(), &mut stop).await;
    };
    let stream = tokio::select! {
        shaken = tokio::time::timeout(server.limits.handshake, tls.accept(stream)) => match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return handshake_failed(&server, &error),
            Err(_) => {
                server.metrics.limit_reached(Limit::Handshake, 1);
                return tracing::debug!("TLS handshake too slow");
            }
        },
        () = this.evicted() => return,
        _ = stop.wait_for(|stop| *stop) => return,
    };
    // The protocol was agreed on in the handshake: detecting it from the first bytes would have no time limit.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    // A client is asked for a certificate only with `--client-ca`, and the handshake fails unless it is valid.
    let is_verified = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
    serve_requests(&server, &this, stream, Peer { is_http2, is_verified }, &mut stop).await;
}

/// Reports a client without a valid certificate, but not each: anyone can connect repeatedly.
fn handshake_failed(server: &ConnectionContext, error: &io::Error) {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if matches!(cause, Some(NoCertificatesPresented | InvalidCertificate(_))) {
        let mut last_warning = server.last_warning.lock();
        if last_warning.is_none_or(|at| at.elapsed() > WARNING_INTERVAL) {
            *last_warning = Some(Instant::now());
            return tracing::warn!(%error, "client refused: a certificate of the CA of --client-ca is required");
        }
    }
    tracing::debug!(%error, "TLS handshake failed");
}

/// Answers the requests of a connection.
async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    server: &Arc<ConnectionContext>,
    this: &Arc<Connection>,
    stream: S,
    Peer { is_http2, is_verified }: Peer,
    stop: &mut watch::Receiver<bool>,
) {
    let http = if is_http2 { server.http.clone().http2_only() } else { server.http.clone().http1_only() };
    let (serving, connection) = (server.clone(), this.clone());
    let service = service_fn(move |request| {
        // The request is in progress from now on, not from when its task first runs.
        let answered = answer_request(serving.clone(), &connection, is_verified, request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let stream = Watched::new(stream, this.clone(), is_http2);
    let mut requests = pin!(http.serve_connection(TokioIo::new(stream), service));
    let limits = &server.limits;
    let patience = tokio::select! {
        // First, because it updates the state that the limits below check.
        biased;
        end = requests.as_mut() => return ended(end),
        () = this.head_overdue(limits.header) => {
            server.metrics.limit_reached(Limit::Header, 1);
            return tracing::debug!("request headers not received in time");
        }
        () = this.stalled(limits.request * 3 / 2) => {
            server.metrics.limit_reached(Limit::Request, 1);
            return tracing::debug!("client did not read the answer in time");
        }
        () = this.refused_too_often() => return tracing::debug!("connection closed: too many requests (--max-requests)"),
        () = this.evicted() => {
            if !this.has_sent_request() {
                return; // it never sent a request, and another client waits for its place
            }
            EVICTION_TIME
        }
        _ = stop.wait_for(|stop| *stop) => limits.drain,
        () = this.idle(limits.idle) => limits.drain,
        // HTTP/1.1 has no frame to say so: a client that is just sending a request would lose it. Its answer says so instead.
        () = asked_to_leave(server.sends_away.clone()), if is_http2 => limits.drain.max(limits.request),
        () = tokio::time::sleep(lifetime(limits.age)), if is_http2 => limits.drain.max(limits.request),
    };
    requests.as_mut().graceful_shutdown();
    // A client that does not disconnect is cut. When the server stops, its own limit is the same.
    if let Ok(end) = tokio::time::timeout(patience, requests).await {
        ended(end);
    } else {
        tracing::debug!("connection closed: the client did not disconnect in time");
    }
}

/// Ends once clients are asked to disconnect, but not before a new connection could send a request: a client that finds no other
/// replica would connect repeatedly.
async fn asked_to_leave(mut sends_away: watch::Receiver<bool>) {
    tokio::time::sleep(SHORTEST_LIFE).await;
    if sends_away.wait_for(|sends_away| *sends_away).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How long a connection lives: this time, a tenth earlier or later at random, so that many do not end at once.
fn lifetime(age: Duration) -> Duration {
    let share = u8::try_from(RandomState::new().hash_one(()) % 21).unwrap_or_default();
    age * (90 + u32::from(share)) / 100
}

fn ended(end: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = end {
        tracing::debug!(%error, "connection failed");
    }
}

/// Answers a request: with 503 if there is no answer in time, or if the address has too many requests in progress. The
/// request is in progress until its answer is sent.
fn answer_request(
    server: Arc<ConnectionContext>,
    connection: &Arc<Connection>,
    is_verified: bool,
    mut request: Request<Incoming>,
) -> impl Future<Output = Response> + use<> {
    let address = connection.address();
    // A refusal costs little: it is decided before any work on the request.
    let turn = server.requests.try_acquire(&Client::new(address), 1);
    let begun = if let Some(turn) = turn {
        Some((connection.begin_request(), turn))
    } else {
        connection.refuse_request();
        None
    };
    async move {
        let Some((in_progress, turn)) = begun else {
            server.metrics.limit_reached(Limit::Requests, 1);
            let message = "too many requests at once from this address (--max-requests): try again\n";
            return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
        };
        let start = in_progress.start;
        request.extensions_mut().insert(Arrival { address, is_verified, start });
        let answer = server.router.clone().oneshot(request.map(Body::new));
        let answer = match tokio::time::timeout_at(start + server.limits.request, answer).await {
            // The router's error type is `Infallible`.
            Ok(Ok(answer)) => answer,
            Err(_) => {
                server.metrics.limit_reached(Limit::Request, 1);
                (StatusCode::SERVICE_UNAVAILABLE, "the request took too long (--request-timeout)\n")
                    .into_response()
            }
        };
        answer.map(|body| keep_until_sent(body, (in_progress, turn)))
    }
}
