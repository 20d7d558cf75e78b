//! The limits of connections and requests.

use std::time::Duration;

/// The limits of a server. A request's body is limited by the router.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
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
    /// An HTTP/2 connection that is older is asked to disconnect, a tenth earlier or later at random. A client that keeps one connection
    /// sends all its requests to one of several replicas.
    pub age: Duration,
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

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            // An API server sends each review on a connection of its own (HTTP/1.1, k8s.io/apiserver, webhook/client.go), and has at
            // most 600 requests in flight by default (--max-requests-inflight and --max-mutating-requests-inflight).
            connections_per_address: 768,
            requests: 1024,
            handshake: Duration::from_secs(5),
            header: Duration::from_secs(5),
            request: Duration::from_secs(10),
            idle: Duration::from_mins(5),
            age: Duration::from_mins(10),
            drain: Duration::from_secs(20),
            streams: 100, // RFC 9113 recommends no fewer; Go's client opens a further connection
            headers: 16 * 1024,
            ping: Duration::from_secs(20),
        }
    }
}
