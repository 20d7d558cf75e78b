//! The HTTPS server in front of the admission routes: its own accept loop, with a limit on everything a client can
//! hold on to.
//!
//! When as many connections are open as may be, a new one takes the place of the idle one that matters least: one
//! that never sent a request, else the one that has been idle longest. Only when none is idle, the new one waits. So
//! thousands of idle connections keep nobody out.

mod connections;

use std::convert::Infallible;
use std::io;
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;

use connections::{Connection, Connections};

use crate::telemetry::{Metrics, metrics::Limit};

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
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, counted from the moment when it could begin; with HTTP/1.1 thus also how long a
    /// connection may be idle.
    pub header: Duration,
    /// For a request, from its head to the head of its answer; after that it is answered with 503.
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
            connections: 2048,
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(15),
            request: Duration::from_secs(30), // the longest timeout that a webhook configuration can set
            idle: Duration::from_mins(5),
            drain: Duration::from_secs(20),
            streams: 250,
            headers: 16 * 1024,
            ping: Duration::from_secs(20),
        }
    }
}

/// Everything that each connection needs.
struct Server {
    router: Router,
    tls: TlsAcceptor,
    limits: Limits,
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
    tls: Arc<ServerConfig>,
    limits: Limits,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (stopping, stop) = watch::channel(false);
    let connections = Connections::default();
    let (tls, http, told) = (tls.into(), http(limits), Mutex::new(None));
    let server = Arc::new(Server { router, tls, limits, http, connections, stop, told, metrics });
    let mut tasks = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // Ended tasks are taken out as they come, or the set would grow for ever.
        while tasks.try_join_next().is_some() {}
        let (stream, place) = tokio::select! {
            () = &mut shutdown => break,
            taken = take(&listener, &server, &places) => taken,
        };
        // Entered here and not in its task, which may run only after the next one looks for whom to send away.
        let this = server.connections.enter();
        tasks.spawn(connection(server.clone(), this, stream, place));
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
        .header_read_timeout(limits.header)
        .max_buf_size(usize::try_from(limits.headers).unwrap_or(usize::MAX).max(8192));
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.headers)
        .keep_alive_interval(limits.ping * 2)
        .keep_alive_timeout(limits.ping);
    http
}

/// The next connection, and a place for it.
async fn take(
    listener: &TcpListener,
    server: &Server,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                refused(&error, server).await;
                continue;
            }
        };
        return (stream, place(server, places).await);
    }
}

/// A place for one connection more, made by sending an idle one away where there is none.
async fn place(server: &Server, places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    if let Ok(place) = places.clone().try_acquire_owned() {
        return place;
    }
    server.metrics.limit_reached(Limit::Connections, 1);
    loop {
        let evicted = server.connections.evict();
        if !evicted {
            tracing::warn!(
                connections = server.limits.connections,
                "every connection is busy; a new one waits"
            );
        }
        tokio::select! {
            // The semaphore is never closed.
            Ok(place) = places.clone().acquire_owned() => return place,
            () = server.connections.calmed(), if !evicted => {}
            // Who was asked to go does not; the next one is asked.
            () = tokio::time::sleep(EVICTION), if evicted => {}
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
async fn connection(
    server: Arc<Server>,
    this: Arc<Connection>,
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
) {
    let mut stop = server.stop.clone();
    let handshake = async {
        // Answers are small, and a client waits for each.
        stream.set_nodelay(true)?;
        server.tls.accept(stream).await
    };
    let stream = tokio::select! {
        shaken = tokio::time::timeout(server.limits.handshake, handshake) => match shaken {
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
    talk(&server, &this, stream, &mut stop).await;
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
async fn talk(
    server: &Server,
    this: &Arc<Connection>,
    stream: TlsStream<TcpStream>,
    stop: &mut watch::Receiver<bool>,
) {
    // The protocol that was agreed on in the handshake: to find out by the first bytes has no time limit.
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let http = if http2 { server.http.clone().http2_only() } else { server.http.clone().http1_only() };
    let (router, busy, limit) = (server.router.clone(), this.clone(), server.limits.request);
    let metrics = server.metrics.clone();
    let late = move || metrics.limit_reached(Limit::Request, 1);
    let service = service_fn(move |request| {
        let answered = answer(router.clone(), busy.clone(), limit, request);
        let late = late.clone();
        async move {
            let answer = answered.await;
            answer.or_else(|_elapsed| {
                late();
                Ok::<_, Infallible>(
                    (StatusCode::SERVICE_UNAVAILABLE, "the request took too long\n").into_response(),
                )
            })
        }
    });
    let mut talk = pin!(http.serve_connection(TokioIo::new(stream), service));
    let end = tokio::select! {
        end = talk.as_mut() => return ended(server, end),
        _ = stop.wait_for(|stop| *stop) => None,
        () = this.evicted() => Some(!this.served()),
        () = this.idle(server.limits.idle) => None,
    };
    if end == Some(true) {
        return; // it never asked for anything, and somebody waits for its place
    }
    talk.as_mut().graceful_shutdown();
    // A client that does not go by itself is cut. When the server stops, its own limit is the same.
    if let Ok(end) = tokio::time::timeout(server.limits.drain, talk).await {
        ended(server, end);
    } else {
        tracing::debug!("connection cut");
    }
}

fn ended(server: &Server, end: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = end {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout) {
            server.metrics.limit_reached(Limit::Header, 1);
        }
        tracing::debug!(%error, "connection failed");
    }
}

/// The answer, where it comes in time.
async fn answer(
    router: Router,
    connection: Arc<Connection>,
    limit: Duration,
    request: Request<Incoming>,
) -> Result<Response, Elapsed> {
    let _busy = connection.busy();
    // A router's own error is none.
    tokio::time::timeout(limit, router.oneshot(request.map(Body::new))).await.map(|Ok(answer)| answer)
}
