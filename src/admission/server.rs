//! The HTTP server of the admission routes and of the admin endpoints: its own accept loop, with a limit on everything
//! that a client can hold.
//!
//! A connection is cheap until a request is complete: small windows, small buffers, and a time limit for a head that has
//! begun. One source address holds a part of the connections at most, and of the requests a fair share. When as many
//! connections are open as may be, a new connection takes the place of an idle connection of the address that holds most:
//! one that never sent a request, else the one that has been idle longest. Only when none is idle, the new connection
//! waits. So thousands of idle connections keep nobody out.

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

/// After an accept that failed for want of descriptors or memory: time for a connection to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that was asked to go may take before another one is asked.
const EVICTION: Duration = Duration::from_secs(1);

/// How often, at most, it is told that clients without a good certificate come.
const TELL: Duration = Duration::from_secs(30);

/// What a client may hold on to. A request's body is limited by the router.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at once.
    pub connections: usize,
    /// Connections open at once from one source address.
    pub connections_per_address: usize,
    /// Requests under way at once, divided fairly by source address.
    pub requests: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, counted from its first byte.
    pub header: Duration,
    /// For a request, from the first byte of its head to the head of its answer; after that it is answered with 503.
    pub request: Duration,
    /// A connection without a request for so long is closed.
    pub idle: Duration,
    /// How long requests in flight may go on when the server stops, or when an idle connection is asked to go.
    pub drain: Duration,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of all headers of a request.
    pub headers: u32,
    /// With HTTP/2, a client that does not answer a ping in this time is gone. A ping is sent after twice this time
    /// without a word.
    pub ping: Duration,
}

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open when the time to drain was over, and were cut.
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
    /// When the first byte of its head came.
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
    /// When a client without a good certificate was last told of.
    told: Mutex<Option<Instant>>,
    metrics: Metrics,
}

/// Serves `router` on `listener` until `shutdown` is done; then takes no more connections, answers the requests in
/// flight, tells clients to go elsewhere, and returns when the last is gone or `limits.drain` is over.
///
/// Let readiness fall, and wait until clients have heard of it, before `shutdown` is done.
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
        // Ended tasks are taken out as they come, or the set would grow for ever.
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

/// The next connection, which has found its place.
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

/// A place for one more connection. An idle connection is sent away where there is none. `None`: its address has as many
/// connections as it may, and none of them is idle.
async fn enter(server: &Server, address: IpAddr) -> Option<Arc<Connection>> {
    if !server.requests.has_room(&Client::new(address)) {
        // All that it could bring are requests that are refused.
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
        // A connection that was asked to go takes a moment: another is asked only if it does not go at all.
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

/// A failed accept ends neither the server nor, by being tried again at once, its patience: a client that was gone
/// already is no matter, while want of descriptors stays for a moment.
/// For want of them, an idle connection has to go.
async fn refused(error: &io::Error, server: &Server) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        server.metrics.limit_reached(Limit::Descriptors, 1);
        server.connections.evict();
        tracing::error!(%error, "cannot accept connections; trying again");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// One connection, from the handshake to its end. What goes wrong on it concerns nobody else.
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
    // The protocol that was agreed on in the handshake: to find out by the first bytes has no time limit.
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    talk(&server, &this, stream, is_http2, &mut stop).await;
}

/// A client without a good certificate is told of, though not each: anybody can come again and again.
fn no_handshake(server: &Server, error: &io::Error) {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    if matches!(cause, Some(NoCertificatesPresented | InvalidCertificate(_))) {
        let mut told = server.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() > TELL) {
            *told = Some(Instant::now());
            return tracing::warn!(%error, "client refused; it needs a certificate of the authority of --client-ca");
        }
    }
    tracing::debug!(%error, "no TLS handshake");
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
        // The request is under way from now on, not from when its task first runs.
        let answered = answer(serving.clone(), &connection, request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let stream = Watched::new(stream, this.clone(), is_http2);
    let mut talk = pin!(http.serve_connection(TokioIo::new(stream), service));
    let limits = &server.limits;
    let patience = tokio::select! {
        // First, since it finds out what the limits below look at.
        biased;
        end = talk.as_mut() => return ended(end),
        () = this.head_overdue(limits.header) => {
            server.metrics.limit_reached(Limit::Header, 1);
            return tracing::debug!("head of a request too slow");
        }
        () = this.stalled(limits.request * 3 / 2) => {
            server.metrics.limit_reached(Limit::Request, 1);
            return tracing::debug!("answer not taken in time");
        }
        () = this.refused() => return tracing::debug!("connection cut: too many requests (--max-requests)"),
        () = this.evicted() => {
            if !this.served() {
                return; // it never asked for anything, and another client waits for its place
            }
            EVICTION
        }
        _ = stop.wait_for(|stop| *stop) => limits.drain,
        () = this.idle(limits.idle) => limits.drain,
    };
    talk.as_mut().graceful_shutdown();
    // A client that does not go by itself is cut. When the server stops, its own limit is the same.
    if let Ok(end) = tokio::time::timeout(patience, talk).await {
        ended(end);
    } else {
        tracing::debug!("connection cut");
    }
}

fn ended(end: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = end {
        tracing::debug!(%error, "connection failed");
    }
}

/// The answer to a request; 503 where there is none in time, or where the address has too many requests under way. The
/// request is under way until its answer is sent.
fn answer(
    server: Arc<Server>,
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Response> + use<> {
    let address = connection.address();
    // A refusal costs little: it is found before anything is done for the request.
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
            // A router's own error is none.
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
