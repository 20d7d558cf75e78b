//! The resources that a client may use, and how the server stops.
use std::sync::Arc;
use std::time::Duration;

use confrev::server::ServerLimits;
use confrev::telemetry::{Metrics, Readiness};
use confrev::tls::CertificateSource;
use confrev_controlplane::raise_descriptors;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;

use crate::client::{KeptConnection, Made, Server, connect, get_http1, wide};
use crate::mounted_secret::Mount;
use crate::{LIMIT, metric, until};

fn tls(pair: &Made) -> Arc<ServerConfig> {
    let condition = Readiness::new().register("serving certificate");
    let mount = Mount::new(&pair.files());
    CertificateSource::files(mount.dir(), Metrics::new(), condition).unwrap().server_config()
}

async fn start(limits: ServerLimits) -> (Made, Server) {
    let pair = Made::new();
    let server = Server::start(tls(&pair), limits).await;
    (pair, server)
}

/// Waits until the metric shows that this limit was reached.
async fn counted(server: &Server, limit: &str) {
    let name = format!("confrev_limits_reached_total{{limit=\"{limit}\"}}");
    until(&name, async || (metric(&server.metrics.encode(), &name) > 0).then_some(())).await;
}

/// Returns when the server has closed the connection, whatever it sent before. The limit is below hyper's own limit of
/// 30 s.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut rest = Vec::new();
    let limit = Duration::from_secs(20);
    let _ = tokio::time::timeout(limit, stream.read_to_end(&mut rest)).await.expect("the server closes");
}

/// So does plain HTTP.
#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let (pair, server) = start(wide()).await;
    let kept = KeptConnection::new(server.address, &pair.certificate).await;
    for bytes in
        [&b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], &[0xff; 4096], &[22, 3, 1, 0, 4, 1, 0, 0, 0]]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        closed(&mut stream).await;
    }
    assert_eq!(kept.get("/").await.unwrap().1, "ok");
    assert_eq!(get_http1(server.address, &pair.certificate, "/").await.unwrap().1, "ok");
}

#[tokio::test]
async fn missing_handshake_or_head_ends_the_connection() {
    let limits = ServerLimits {
        handshake: Duration::from_millis(100),
        header: Duration::from_millis(100),
        drain: Duration::from_millis(100),
        ..wide()
    };
    let (_, server) = start(limits).await;
    closed(&mut TcpStream::connect(server.address).await.unwrap()).await;
    counted(&server, "handshake-timeout").await;

    let (pair, server) = start(ServerLimits { handshake: LIMIT, ..limits }).await;
    let mut stream =
        connect(server.address, pair.certificate.as_bytes(), "localhost", b"http/1.1").await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: loc").await.unwrap();
    closed(&mut stream).await;
    counted(&server, "header-timeout").await;
}

/// The limit closes a connection without a request, and the other one after its answer.
async fn closes_all_but_busy_ones(limits: ServerLimits) {
    let (pair, server) = start(limits).await;
    let busy = KeptConnection::new(server.address, &pair.certificate).await;
    let (answer, ()) = tokio::join!(busy.get("/held"), async {
        server.begun.notified().await;
        // It is younger.
        let idle = KeptConnection::new(server.address, &pair.certificate).await;
        idle.closed().await;
        server.release.notify_one();
    });
    assert_eq!(answer.unwrap().1, "held");
    busy.closed().await;
}

#[tokio::test]
async fn idle_connections_are_closed_but_not_busy_ones() {
    closes_all_but_busy_ones(ServerLimits { idle: Duration::from_millis(200), ..wide() }).await;
}

#[tokio::test]
async fn old_connections_are_closed_after_their_requests() {
    closes_all_but_busy_ones(ServerLimits { age: Duration::from_secs(3), ..wide() }).await;
}

/// A new connection has the time to send a request: a client that finds no other server is answered.
#[tokio::test]
async fn clients_are_asked_to_connect_to_another_server() {
    let (pair, server) = start(wide()).await;
    let old = KeptConnection::new(server.address, &pair.certificate).await;
    assert_eq!(old.get("/").await.unwrap().1, "ok");
    server.sends_away.send_replace(true);
    old.closed().await;
    let new = KeptConnection::new(server.address, &pair.certificate).await;
    assert_eq!(new.get("/").await.unwrap().1, "ok");
    new.closed().await;

    let certificate = pair.certificate.as_bytes();
    let mut http1 = connect(server.address, certificate, "localhost", b"http/1.1").await.unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    http1.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("connection: close") && answer.ends_with("ok"), "{answer}");

    server.sends_away.send_replace(false);
    let kept = KeptConnection::new(server.address, &pair.certificate).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(kept.get("/").await.unwrap().1, "ok");
}

/// The API server keeps idle connections. The limit for slow heads must not close them.
#[tokio::test]
async fn idle_connections_outlive_the_header_timeout() {
    let header = Duration::from_millis(100);
    let (pair, server) = start(ServerLimits { header, ..wide() }).await;
    let certificate = pair.certificate.as_bytes();
    let mut http1 = connect(server.address, certificate, "localhost", b"http/1.1").await.unwrap();
    let http2 = KeptConnection::new(server.address, &pair.certificate).await;
    for _ in 0..2 {
        tokio::time::sleep(header * 3).await;
        http1.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        // Reads the whole answer, so that the next answer begins at its start.
        while !answer.ends_with(b"ok") {
            let length = http1.read_buf(&mut answer).await.unwrap();
            assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
        assert_eq!(http2.get("/").await.unwrap().1, "ok");
    }
}

#[tokio::test]
async fn slow_head_over_http2_ends_its_connection() {
    let (pair, server) = start(ServerLimits { header: Duration::from_millis(100), ..wide() }).await;
    let mut stream = connect(server.address, pair.certificate.as_bytes(), "localhost", b"h2").await.unwrap();
    // The preface, the settings, and a header block without its end.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    stream.write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]).await.unwrap();
    closed(&mut stream).await;
    counted(&server, "header-timeout").await;
}

#[tokio::test]
async fn requests_beyond_the_share_are_refused() {
    let (pair, server) = start(ServerLimits { requests: 4, ..wide() }).await;
    let kept = KeptConnection::new(server.address, &pair.certificate).await;
    let each = || async {
        let answer = kept.get("/held").await.unwrap();
        server.release.notify_one();
        answer.0.as_u16()
    };
    // The share of one address is three of four.
    let all = futures::future::join_all((0..4).map(|_| each()));
    let (mut answers, ()) = tokio::join!(all, async {
        counted(&server, "max-requests").await;
        server.release.notify_one();
    });
    answers.sort_unstable();
    assert_eq!(answers, [200, 200, 200, 503]);
    assert_eq!(kept.get("/").await.unwrap().1, "ok");
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let (pair, server) = start(ServerLimits { connections_per_address: 2, ..wide() }).await;
    let (one, two) = (
        KeptConnection::new(server.address, &pair.certificate).await,
        KeptConnection::new(server.address, &pair.certificate).await,
    );
    assert_eq!(one.get("/").await.unwrap().1, "ok");
    // A new connection replaces an idle one; a connection without requests is first.
    assert_eq!(get_http1(server.address, &pair.certificate, "/").await.unwrap().1, "ok");
    two.closed().await;
    counted(&server, "max-connections-per-address").await;
    assert_eq!(one.get("/").await.unwrap().1, "ok");
}

/// An API server has up to 600 requests in flight, and a connection for each.
#[tokio::test]
async fn one_api_server_may_have_600_connections() {
    raise_descriptors();
    let (pair, server) = start(wide()).await;
    let connect = || KeptConnection::new(server.address, &pair.certificate);
    let connections = join_all((0..600).map(|_| connect())).await;
    for _ in 0..2 {
        let answers = join_all(connections.iter().map(|connection| connection.get("/"))).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|(code, _)| code.as_u16() == 200)));
    }
}

#[tokio::test]
async fn slow_request_is_answered_with_503() {
    let (pair, server) = start(ServerLimits { request: Duration::from_secs(2), ..wide() }).await;
    let kept = KeptConnection::new(server.address, &pair.certificate).await;
    assert_eq!(kept.get("/held").await.unwrap().0.as_u16(), 503);
    counted(&server, "request-timeout").await;
    assert_eq!(kept.get("/").await.unwrap().1, "ok");
}

#[tokio::test]
async fn rejects_oversized_head() {
    let (pair, server) = start(wide()).await;
    let path = format!("/{}", "x".repeat(40 * 1024));
    let kept = KeptConnection::new(server.address, &pair.certificate).await;
    assert!(kept.get(&path).await.err_or(|(status, _)| status.is_client_error()));
    let answer = get_http1(server.address, &pair.certificate, &path).await;
    assert!(answer.err_or(|(status, _)| status.is_client_error()));
    assert_eq!(get_http1(server.address, &pair.certificate, "/").await.unwrap().1, "ok");
}

/// Like `Result::is_err`, or true for a value that also means an error.
trait ErrOr<T> {
    fn err_or(self, also: impl FnOnce(T) -> bool) -> bool;
}

impl<T, E> ErrOr<T> for Result<T, E> {
    fn err_or(self, also: impl FnOnce(T) -> bool) -> bool {
        self.map_or(true, also)
    }
}

#[tokio::test]
async fn idle_connections_make_room_but_not_busy_ones() {
    let (pair, server) = start(ServerLimits { connections: 3, ..wide() }).await;
    let (useful, busy) = (
        KeptConnection::new(server.address, &pair.certificate).await,
        KeptConnection::new(server.address, &pair.certificate).await,
    );
    assert_eq!(useful.get("/").await.unwrap().1, "ok");
    let begun = server.begun.clone();
    let (answer, ()) = tokio::join!(busy.get("/held"), async {
        begun.notified().await;
        for _ in 0..20 {
            // None of these sends a byte; each replaces the previous one.
            TcpStream::connect(server.address).await.unwrap();
        }
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        // The server may still count connections that are already closed: it evicts these first.
        let gone = closed(&mut silent);
        let mut gone = std::pin::pin!(gone);
        loop {
            assert_eq!(get_http1(server.address, &pair.certificate, "/").await.unwrap().1, "ok");
            let soon = tokio::time::timeout(Duration::from_millis(100), gone.as_mut());
            if soon.await.is_ok() {
                break;
            }
        }
        counted(&server, "max-connections").await;
        assert_eq!(useful.get("/").await.unwrap().1, "ok", "the connection that had requests is still open");
        server.release.notify_one();
    });
    assert_eq!(answer.unwrap().1, "held");
}

#[tokio::test]
async fn new_connection_waits_while_all_are_busy() {
    let (pair, server) = start(ServerLimits { connections: 1, ..wide() }).await;
    let busy = KeptConnection::new(server.address, &pair.certificate).await;
    let answered = async {
        let answer = busy.get("/held").await.unwrap();
        // The connection is idle now, and has to make room.
        busy.closed().await;
        answer
    };
    let next = async {
        server.begun.notified().await;
        let next = get_http1(server.address, &pair.certificate, "/");
        let release = async {
            // Any order is correct; yielding makes it likely that the new connection is waiting by then.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            server.release.notify_one();
        };
        tokio::join!(next, release).0.unwrap()
    };
    let (kept, next) = tokio::join!(answered, next);
    assert_eq!((kept.1.as_str(), next.1.as_str()), ("held", "ok"));
}

/// The server accepts no new connections meanwhile.
#[tokio::test]
async fn stop_answers_requests_in_flight() {
    let (pair, mut server) = start(wide()).await;
    let (busy, idle) = (
        KeptConnection::new(server.address, &pair.certificate).await,
        KeptConnection::new(server.address, &pair.certificate).await,
    );
    let (begun, release) = (server.begun.clone(), server.release.clone());
    let answer = tokio::spawn(async move {
        let answer = busy.get("/held").await;
        busy.closed().await;
        answer
    });
    begun.notified().await;
    server.stop();
    idle.closed().await;
    let address = server.address;
    until("no new connection", async || TcpStream::connect(address).await.is_err().then_some(())).await;
    release.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().1, "held");
    assert_eq!(server.stopped().await.cut, 0);
}

#[tokio::test]
async fn stop_cuts_requests_that_do_not_end() {
    let (pair, mut server) = start(ServerLimits { drain: Duration::from_millis(200), ..wide() }).await;
    let busy = KeptConnection::new(server.address, &pair.certificate).await;
    let begun = server.begun.clone();
    let answer = tokio::spawn(async move { busy.get("/held").await });
    begun.notified().await;
    server.stop();
    assert_eq!(server.stopped().await.cut, 1);
    assert!(answer.await.unwrap().is_err());
}
