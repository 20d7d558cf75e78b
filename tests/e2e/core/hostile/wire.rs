//! A client that sends arbitrary bytes over TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use confrev_controlplane::ControlPlane;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::world::{LIMIT, text};

/// A hostile client. confrev asks for no client certificate here.
#[derive(Clone)]
pub(crate) struct Stranger {
    address: SocketAddr,
    /// The source address.
    from: Ipv4Addr,
    config: Arc<ClientConfig>,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The status of an answer over HTTP/1.1.
    Status(u16),
    Closed,
}

impl Stranger {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let secret = ControlPlane::shared().get("secret", "confrev", "confrev-ca");
        let bundle = secret.expect("the CA's Secret")["data"]["ca.crt"].take();
        let bundle = BASE64_STANDARD.decode(text(&bundle)).unwrap();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bundle) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { address, from: Ipv4Addr::LOCALHOST, config: Arc::new(config) }
    }

    /// The same client with another source address, like that of another pod.
    pub(crate) fn from(&self, last: u8) -> Self {
        Self { from: Ipv4Addr::new(127, 0, 0, last), ..self.clone() }
    }

    pub(crate) async fn plain(&self) -> TcpStream {
        self.plain_to(self.address).await
    }

    /// A connection to another port of the same confrev.
    pub(crate) async fn plain_to(&self, address: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((self.from, 0).into()).expect("an address of loopback");
        socket.connect(address).await.expect("the port accepts connections")
    }

    pub(crate) async fn connect(&self, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::from(self.address.ip());
        TlsConnector::from(Arc::new(config)).connect(name, self.plain().await).await
    }

    /// Sends the head of a request over HTTP/1.1.
    pub(crate) async fn head(&self, fields: &str) -> TlsStream<TcpStream> {
        self.head_at("/mutate/workloads", fields).await
    }

    /// The same for another path.
    async fn head_at(&self, path: &str, fields: &str) -> TlsStream<TcpStream> {
        let mut stream = self.connect(b"http/1.1").await.expect("a handshake");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{fields}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("the head is sent");
        stream
    }

    /// Sends a whole request over HTTP/1.1. Returns the status and the answer; the status is 0 if the connection was closed.
    pub(crate) async fn ask(&self, body: &[u8]) -> (u16, String) {
        self.ask_at("/mutate/workloads", body).await
    }

    /// The same for another path.
    pub(crate) async fn ask_at(&self, path: &str, body: &[u8]) -> (u16, String) {
        let fields = format!("connection: close\r\ncontent-length: {}", body.len());
        let mut stream = self.head_at(path, &fields).await;
        // A request that is refused early is answered before its end, or not at all.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("an answer in time");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (status(&answer).unwrap_or(0), answer)
    }
}

fn status(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// Reads until the head of an answer has arrived, or the connection is closed.
pub(crate) async fn end(stream: &mut TlsStream<TcpStream>) -> End {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    let read = async {
        loop {
            match stream.read(&mut buffer).await {
                Ok(length @ 1..) => answer.extend_from_slice(&buffer[..length]),
                _ => return End::Closed,
            }
            if let Some(status) = status(&String::from_utf8_lossy(&answer)) {
                return End::Status(status);
            }
        }
    };
    timeout(LIMIT, read).await.expect("an answer, or an end")
}

/// Sends this many chunks, or fewer if the connection is closed. Returns how many were accepted.
pub(crate) async fn flood(
    stream: &mut TlsStream<TcpStream>,
    times: usize,
    mut next: impl FnMut(usize) -> Vec<u8>,
) -> usize {
    for sent in 0..times {
        // Stop if the other end no longer reads.
        match timeout(std::time::Duration::from_secs(3), stream.write_all(&next(sent))).await {
            Ok(Ok(())) => {}
            _ => return sent,
        }
    }
    let _ = stream.flush().await;
    times
}

/// One frame of HTTP/2.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface of an HTTP/2 connection.
pub(crate) fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat()
}

/// The head of `POST /mutate/workloads` (RFC 7541: indexed fields, and literals that are not).
pub(crate) fn headers() -> Vec<u8> {
    let literal =
        |index: u8, value: &str| [&[index, u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    // From the static table: 0x83 is POST, 0x87 is https, 1 is `:authority`, 4 is `:path`.
    [vec![0x83, 0x87], literal(0x01, "localhost"), literal(0x04, "/mutate/workloads")].concat()
}
