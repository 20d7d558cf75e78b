//! The HTTP server of the admission routes and of the admin endpoints: its own accept loop, with a limit on everything
//! that a client can hold.
//!
//! A connection is cheap until a request is complete: small windows, small buffers, and a time limit for a head that has
//! begun. One source address may hold only a part of the connections, and a fair share of the requests. At the limit, a new
//! connection replaces an idle connection of the address that holds most: one that never sent a request, else the one that
//! has been idle longest. A new connection waits only if none is idle. So thousands of idle connections keep nobody out.

mod connections;
mod held;
mod watched;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tower::ServiceExt;

use connections::{Connection, Connections, Entry};
pub(super) use held::hold;
use watched::Watched;

use super::fair::{Client, Fair};
use crate::telemetry::{Metrics, metrics::Limit};

/// Bytes that a client may send ahead on one HTTP/2 stream, and on all streams of a connection. What was sent ahead stays
/// in memory while the request waits for its turn.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;

/// The pause after an accept that failed for lack of descriptors or memory, in which a connection may end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an evicted connection may take to close before another one is evicted.
const EVICTION: Duration = Duration::from_secs(1);

/// The shortest time between two warnings about clients without a valid certificate.
const TELL: Duration = Duration::from_secs(30);

/// The limits of connections and requests. A request's body is limited by the router.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once.
    pub connections: usize,
    /// Connections open at once from one source address.
    pub connections_per_address: usize,
    /// Requests in progress at once, divided fairly by source address.
    pub requests: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time for a request's head, from its first byte.
    pub header: Duration,
    /// Time for a request, from the first byte of its head to the head of its answer. After that, the answer is 503.
    pub request: Duration,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
    /// How long requests in flight may continue when the server stops, or when a connection reaches the idle limit.
    pub drain: Duration,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of all headers of a request.
    pub headers: u32,
    /// With HTTP/2, a client that does not answer a ping within this time is disconnected. A ping is sent after twice this
    /// time of silence.
    pub ping: Duration,
}

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open at the end of the drain time, and were cut.
    pub cut: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            // An API server has a few connections; this is enough for many of them behind one address.
            connections_per_address: 128,
            requests: 1024,
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(5),
            request: Duration::from_secs(10),
            idle: Duration::from_mins(5),
            drain: Duration::from_secs(20),
            streams: 100, // RFC 9113 recommends no fewer; Go's client opens a further connection
            headers: 16 * 1024,
            ping: Duration::from_secs(20),
        }
    }
}

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
    /// When the first byte of the request's head arrived.
    pub start: tokio::time::Instant,
}

/// Everything that each connection needs.
struct Server {
    router: Router,
    transport: Transport,
    limits: Limits,
    requests: Fair,
    http: Builder<TokioExecutor>,
    connections: Connections,
    stop: watch::Receiver<bool>,
    /// When a client without a valid certificate was last reported.
    told: Mutex<Option<Instant>>,
    metrics: Metrics,
}

/// Serves `router` on `listener` until `shutdown` is done. Then it accepts no more connections, answers the requests in
/// flight, asks clients to disconnect, and returns when the last is closed or `limits.drain` is over.
///
/// Let readiness fail, and wait until clients have noticed, before `shutdown` is done.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    transport: impl Into<Transport>,
    limits: Limits,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (stopping, stop) = watch::channel(false);
    let connections = Connections::new(limits.connections, limits.connections_per_address);
    let (transport, http, told) = (transport.into(), http(limits), Mutex::new(None));
    let requests = Fair::new(limits.requests);
    let server =
        Arc::new(Server { router, transport, limits, requests, http, connections, stop, told, metrics });
    let mut tasks = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // Remove tasks that have ended, or the set would grow forever.
        while tasks.try_join_next().is_some() {}
        let (stream, this) = tokio::select! {
            () = &mut shutdown => break,
            taken = take(&listener, &server) => taken,
        };
        tasks.spawn(connection(server.clone(), this, stream));
    }
    drop(listener);
    stopping.send_replace(true);
    let ended =
        tokio::time::timeout(limits.drain, async { while tasks.join_next().await.is_some() {} }).await;
    while tasks.try_join_next().is_some() {}
    let cut = if ended.is_ok() { 0 } else { tasks.len() };
    tasks.shutdown().await;
    Drained { cut }
}

fn http(limits: Limits) -> Builder<TokioExecutor> {
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

/// Accepts the next connection that gets a place.
async fn take(listener: &TcpListener, server: &Server) -> (TcpStream, Arc<Connection>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(this) = enter(server, peer.ip().to_canonical()).await {
                    return (stream, this);
                }
            }
            Err(error) => refused(&error, server).await,
        }
    }
}

/// Finds a place for a new connection, and evicts an idle one if there is none. `None` if its address has too many
/// requests, or as many connections as allowed with none of them idle.
async fn enter(server: &Server, address: IpAddr) -> Option<Arc<Connection>> {
    if !server.requests.has_room(&Client::new(address)) {
        // Any request that it sends would be refused.
        server.metrics.limit_reached(Limit::Requests, 1);
        tracing::debug!(%address, "connection refused: too many requests from one address (--max-requests)");
        return None;
    }
    let (mut is_counted, mut asked) = (false, None);
    loop {
        match server.connections.enter(address) {
            Entry::Open(this) => return Some(this),
            Entry::Replaces(this) => {
                server.metrics.limit_reached(Limit::ConnectionsPerAddress, 1);
                return Some(this);
            }
            Entry::Refused => {
                server.metrics.limit_reached(Limit::ConnectionsPerAddress, 1);
                tracing::debug!(%address, "connection refused: too many from one address (--max-connections-per-address)");
                return None;
            }
            Entry::Full => {}
        }
        if !std::mem::replace(&mut is_counted, true) {
            server.metrics.limit_reached(Limit::Connections, 1);
        }
        // An evicted connection takes a moment to close: another is evicted only if it does not close in time.
        if asked.is_none_or(|at: Instant| at.elapsed() >= EVICTION) {
            let is_evicted = server.connections.evict() || server.connections.cut(address);
            asked = is_evicted.then(Instant::now);
            if !is_evicted {
                tracing::warn!(
                    connections = server.limits.connections,
                    "every connection is busy; a new connection waits (--max-connections)"
                );
            }
        }
        let patience = asked.map(|at| EVICTION.saturating_sub(at.elapsed()));
        tokio::select! {
            () = server.connections.changed() => {}
            () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => {}
        }
    }
}

/// Handles a failed accept, which does not end the server. A client that has already disconnected does not matter. A lack
/// of descriptors lasts for a moment: an idle connection is evicted, and the next accept waits.
async fn refused(error: &io::Error, server: &Server) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        server.metrics.limit_reached(Limit::Descriptors, 1);
        server.connections.evict();
        tracing::error!(%error, "cannot accept connections; trying again");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Handles one connection, from the handshake to its end. Its errors affect no other connection.
async fn connection(server: Arc<Server>, this: Arc<Connection>, stream: TcpStream) {
    let mut stop = server.stop.clone();
    // Answers are small, and a client waits for each.
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!(%error, "connection failed");
    }
    let Transport::Tls(tls) = &server.transport else {
        return talk(&server, &this, stream, false, &mut stop).await;
    };
    let stream = tokio::select! {
        shaken = tokio::time::timeout(server.limits.handshake, tls.accept(stream)) => match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return no_handshake(&server, &error),
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
    talk(&server, &this, stream, is_http2, &mut stop).await;
}

/// Reports a client without a valid certificate, but not each: anyone can connect again and again.
fn no_handshake(server: &Server, error: &io::Error) {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if matches!(cause, Some(NoCertificatesPresented | InvalidCertificate(_))) {
        let mut told = server.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() > TELL) {
            *told = Some(Instant::now());
            return tracing::warn!(%error, "client refused: a certificate of the CA of --client-ca is required");
        }
    }
    tracing::debug!(%error, "TLS handshake failed");
}

/// Answers the requests of a connection.
async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    server: &Arc<Server>,
    this: &Arc<Connection>,
    stream: S,
    is_http2: bool,
    stop: &mut watch::Receiver<bool>,
) {
    let http = if is_http2 { server.http.clone().http2_only() } else { server.http.clone().http1_only() };
    let (serving, connection) = (server.clone(), this.clone());
    let service = service_fn(move |request| {
        // The request is in progress from now on, not from when its task first runs.
        let answered = answer(serving.clone(), &connection, request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let stream = Watched::new(stream, this.clone(), is_http2);
    let mut talk = pin!(http.serve_connection(TokioIo::new(stream), service));
    let limits = &server.limits;
    let patience = tokio::select! {
        // First, because it updates the state that the limits below check.
        biased;
        end = talk.as_mut() => return ended(end),
        () = this.head_overdue(limits.header) => {
            server.metrics.limit_reached(Limit::Header, 1);
            return tracing::debug!("request headers not received in time");
        }
        () = this.stalled(limits.request * 3 / 2) => {
            server.metrics.limit_reached(Limit::Request, 1);
            return tracing::debug!("client did not read the answer in time");
        }
        () = this.refused() => return tracing::debug!("connection closed: too many requests (--max-requests)"),
        () = this.evicted() => {
            if !this.served() {
                return; // it never sent a request, and another client waits for its place
            }
            EVICTION
        }
        _ = stop.wait_for(|stop| *stop) => limits.drain,
        () = this.idle(limits.idle) => limits.drain,
    };
    talk.as_mut().graceful_shutdown();
    // A client that does not disconnect is cut. When the server stops, its own limit is the same.
    if let Ok(end) = tokio::time::timeout(patience, talk).await {
        ended(end);
    } else {
        tracing::debug!("connection closed: the client did not disconnect in time");
    }
}

fn ended(end: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = end {
        tracing::debug!(%error, "connection failed");
    }
}

/// Answers a request: with 503 if there is no answer in time, or if the address has too many requests in progress. The
/// request is in progress until its answer is sent.
fn answer(
    server: Arc<Server>,
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Response> + use<> {
    let address = connection.address();
    // A refusal costs little: it is decided before any work on the request.
    let turn = server.requests.try_acquire(&Client::new(address), 1);
    let begun = if let Some(turn) = turn {
        Some((connection.busy(), turn))
    } else {
        connection.refuse();
        None
    };
    async move {
        let Some((busy, turn)) = begun else {
            server.metrics.limit_reached(Limit::Requests, 1);
            let message = "too many requests at once from this address (--max-requests): try again\n";
            return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
        };
        let start = busy.start;
        request.extensions_mut().insert(Arrival { address, start });
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
        answer.map(|body| hold(body, (busy, turn)))
    }
}
