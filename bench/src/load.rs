//! Direct load over TLS: reviews per second, and the cost of each for the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::process;
use crate::stats::number;

/// The protocols of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// A server under load.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    /// The trusted CA, in PEM.
    pub(crate) authority: String,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
}

/// The results of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Reviews per second.
    pub(crate) per_second: f64,
    /// Processor time of the server for each review, in microseconds.
    pub(crate) cpu: f64,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<http::Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

impl Target {
    async fn connect(&self, protocol: Protocol) -> Sender {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            roots.add(certificate.expect("a certificate")).expect("a CA");
        }
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![match protocol {
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Http2 => b"h2".to_vec(),
        }];
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server listens");
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        let stream: TlsStream<_> = connector.connect(name, stream).await.expect("a handshake");
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
                let (sender, connection) = made.expect("HTTP/2");
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        }
    }

    fn request(&self, protocol: Protocol) -> Request<Full<Bytes>> {
        let authority = format!("127.0.0.1:{}", self.port);
        let request = match protocol {
            Protocol::Http1 => Request::builder().uri(self.path).header(header::HOST, authority),
            Protocol::Http2 => Request::builder().uri(format!("https://{authority}{}", self.path)),
        };
        let request = request.method(Method::POST).header(header::CONTENT_TYPE, "application/json");
        request.body(Full::new(self.body.clone())).expect("a request")
    }

    /// Sends requests over `connections` connections, one request after another on each, for `time`.
    pub(crate) async fn load(&self, protocol: Protocol, connections: usize, time: Duration) -> Rate {
        let mut senders = Vec::new();
        for _ in 0..connections {
            let mut sender = self.connect(protocol).await;
            self.ask(&mut sender, protocol).await;
            senders.push(sender);
        }
        let answered = Arc::new(AtomicUsize::new(0));
        let (start, cpu) = (Instant::now(), process::cpu(self.pid));
        let tasks: Vec<_> = senders
            .into_iter()
            .map(|mut sender| {
                let (target, answered) = (self.clone(), Arc::clone(&answered));
                tokio::spawn(async move {
                    while start.elapsed() < time {
                        target.ask(&mut sender, protocol).await;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("every request is answered");
        }
        let count = number(answered.load(Ordering::Relaxed));
        let cpu = process::cpu(self.pid).saturating_sub(cpu).as_secs_f64() * 1e6 / count;
        Rate { per_second: count / start.elapsed().as_secs_f64(), cpu }
    }

    async fn ask(&self, sender: &mut Sender, protocol: Protocol) {
        let answer = sender.send(self.request(protocol)).await.expect("an answer");
        let status = answer.status();
        let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(status.is_success() && text.contains("\"allowed\":true"), "{status} {text}");
    }
}
