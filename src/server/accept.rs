//! The accept loop: finds a place for each new connection, and waits for the open ones when the server stops.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connections::{Connection, Connections, Placement};
use super::fair::{Client, FairSemaphore};
use super::handle::{ConnectionContext, EVICTION_TIME, Transport, handle, http_builder};
use super::limits::ServerLimits;
use crate::telemetry::{Metrics, metrics::Limit};

/// The pause after an accept that failed for lack of descriptors or memory, in which a connection may end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open at the end of the drain time, and were cut.
    pub cut: usize,
}

/// Serves `router` on `listener` until `shutdown` is done. Then it accepts no more connections, answers the requests in
/// flight, asks clients to disconnect, and returns when the last is closed or `limits.drain` is over.
///
/// While `sends_away` is true, clients with HTTP/2 are asked to disconnect: another replica can answer them, and this one cannot. For
/// HTTP/1.1, see [`ask_to_leave`](super::ask_to_leave).
///
/// Let readiness fail, and wait until clients have noticed, before `shutdown` is done.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    transport: impl Into<Transport>,
    limits: ServerLimits,
    metrics: Metrics,
    sends_away: watch::Receiver<bool>,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (stopping, stop) = watch::channel(false);
    let connections = Connections::new(limits.connections, limits.connections_per_address);
    let (transport, http) = (transport.into(), http_builder(limits));
    let requests = FairSemaphore::new(limits.requests);
    let last_warning = Mutex::new(None);
    let server = Arc::new(ConnectionContext {
        router,
        transport,
        limits,
        requests,
        http,
        connections,
        stop,
        sends_away,
        last_warning,
        metrics,
    });
    let mut tasks = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // Remove tasks that have ended, or the set would grow forever.
        while tasks.try_join_next().is_some() {}
        let (stream, this) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &server) => accepted,
        };
        tasks.spawn(handle(server.clone(), this, stream));
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

/// Accepts the next connection that gets a place.
async fn accept(listener: &TcpListener, server: &ConnectionContext) -> (TcpStream, Arc<Connection>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(this) = place(server, peer.ip().to_canonical()).await {
                    return (stream, this);
                }
            }
            Err(error) => accept_failed(&error, server).await,
        }
    }
}

/// Finds a place for a new connection, and evicts an idle one if there is none. `None` if its address has too many
/// requests, or as many connections as allowed with none of them idle.
async fn place(server: &ConnectionContext, address: IpAddr) -> Option<Arc<Connection>> {
    if !server.requests.has_room(&Client::new(address)) {
        // Any request that it sends would be refused.
        server.metrics.limit_reached(Limit::Requests, 1);
        tracing::debug!(%address, "connection refused: too many requests from one address (--max-requests)");
        return None;
    }
    let (mut is_counted, mut evicted_at) = (false, None);
    loop {
        match server.connections.open(address) {
            Placement::Open(this) => return Some(this),
            Placement::Replaces(this) => {
                server.metrics.limit_reached(Limit::ConnectionsPerAddress, 1);
                return Some(this);
            }
            Placement::Refused => {
                server.metrics.limit_reached(Limit::ConnectionsPerAddress, 1);
                tracing::debug!(%address, "connection refused: too many from one address (--max-connections-per-address)");
                return None;
            }
            Placement::Full => {}
        }
        if !std::mem::replace(&mut is_counted, true) {
            server.metrics.limit_reached(Limit::Connections, 1);
        }
        // An evicted connection takes a moment to close: another is evicted only if it does not close in time.
        if evicted_at.is_none_or(|at: Instant| at.elapsed() >= EVICTION_TIME) {
            let is_evicted = server.connections.evict() || server.connections.cut(address);
            evicted_at = is_evicted.then(Instant::now);
            if !is_evicted {
                tracing::warn!(
                    connections = server.limits.connections,
                    "every connection is busy; a new connection waits (--max-connections)"
                );
            }
        }
        let patience = evicted_at.map(|at| EVICTION_TIME.saturating_sub(at.elapsed()));
        tokio::select! {
            () = server.connections.changed() => {}
            () = tokio::time::sleep(patience.unwrap_or_default()), if patience.is_some() => {}
        }
    }
}

/// Handles a failed accept, which does not end the server. A client that has already disconnected does not matter. A lack
/// of descriptors lasts for a moment: an idle connection is evicted, and the next accept waits.
async fn accept_failed(error: &io::Error, server: &ConnectionContext) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        server.metrics.limit_reached(Limit::Descriptors, 1);
        server.connections.evict();
        tracing::error!(%error, "cannot accept connections; trying again");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}
