//! A proxy between confrev and the API server. It speaks plain HTTP/1 with confrev, and forwards each request.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use confrev_controlplane::ControlPlane;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::dice::Dice;
use crate::runtime;
use crate::watches::watched;

/// What the proxy does to requests. Probabilities are in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// The connection ends without a response: in half of the cases before the API server gets the request, else after
    /// it.
    Resets(u64),
    /// Responses end halfway, also those of watches.
    Cuts(u64),
    /// Requests and the parts of responses are delayed, by at most this number of milliseconds.
    Slow(u64),
    /// Responses with this status code. If the server may have carried out the request, it has in half of the cases.
    Answers(u16, u64),
    /// All watches end repeatedly.
    WatchesClosed,
    /// All watches get an error that their version is too old, and so do watches that resume.
    WatchesExpired,
    /// Some watches send only bookmarks and no new events. The others continue.
    WatchesWithBookmarksOnly,
}

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, Failure>;

pub(crate) struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
}

pub(crate) struct ProxyState {
    server: u16,
    tls: TlsConnector,
    connection: tokio::sync::Mutex<Option<SendRequest<Full<Bytes>>>>,
    pub(crate) trouble: tokio::sync::watch::Sender<Trouble>,
    dice: Mutex<Dice>,
    /// How often each fault was applied.
    done: Mutex<BTreeMap<&'static str, usize>>,
}

impl Proxy {
    pub(crate) fn start(cluster: &ControlPlane) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(cluster.ca_pem().as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = config.with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let shared = Arc::new(ProxyState {
            server: cluster.api_url().parse::<Uri>().unwrap().port_u16().unwrap(),
            tls: TlsConnector::from(Arc::new(config)),
            connection: tokio::sync::Mutex::new(None),
            trouble: tokio::sync::watch::Sender::new(Trouble::None),
            dice: Mutex::new(Dice::new(0)),
            done: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        let listener = runtime().block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime().spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                let own = Arc::clone(&own);
                let service = service_fn(move |request| Arc::clone(&own).serve(request));
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(TokioIo::new(client), service));
            }
        });
        Self { port, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A kubeconfig with the same identity, for a server on this port.
    pub(crate) fn kubeconfig(of: &Path, port: u16) -> PathBuf {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(of).unwrap()).unwrap();
        config["clusters"][0]["cluster"] = json!({"server": format!("http://127.0.0.1:{port}")});
        let path = of.with_extension(format!("by-{port}"));
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    pub(crate) fn set(&self, trouble: Trouble) {
        self.shared.trouble.send_replace(trouble);
    }

    /// How often a fault was applied to a request or a response.
    pub(crate) fn events(&self) -> usize {
        self.shared.done.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl ProxyState {
    pub(crate) fn strikes(&self, what: &'static str, often: u64) -> bool {
        let strikes = self.dice.lock().unwrap_or_else(PoisonError::into_inner).percent(often);
        if strikes {
            *self.done.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
        }
        strikes
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).below(limit)
    }

    /// An error ends the connection without a response.
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let version = request.uri().query().and_then(|query| {
            query.split('&').find_map(|part| part.strip_prefix("resourceVersion=").filter(|v| *v != "0"))
        });
        let version = version.map(str::to_owned);
        let trouble = *self.trouble.borrow();
        match trouble {
            Trouble::Resets(often) if self.strikes("reset", often) => {
                if self.below(2) == 0 {
                    done_unseen(self.forward(request).await?).await;
                }
                return Err(gone("reset"));
            }
            // The response to a successful create is a conflict, as if an earlier response had been lost.
            Trouble::Answers(409, often)
                if *request.method() == Method::POST && self.strikes("answer", often) =>
            {
                let answer = self.forward(request).await?;
                if answer.status().is_success() {
                    done_unseen(answer).await;
                    return Ok(status(409));
                }
                return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
            }
            // Only conditional writes get conflicts.
            Trouble::Answers(409, _) if !is_conditional(request.method()) => {}
            Trouble::Answers(code, often) if self.strikes("answer", often) => {
                // The server has not carried out a request that it refuses for its version or its rate.
                if code >= 500 && !watch && self.below(2) == 0 {
                    done_unseen(self.forward(request).await?).await;
                }
                return Ok(status(code));
            }
            Trouble::Slow(limit) if self.strikes("slow", 100) => {
                tokio::time::sleep(Duration::from_millis(self.below(limit))).await;
            }
            Trouble::WatchesExpired if watch && version.is_some() && self.strikes("expired", 50) => {
                return Ok(status(410));
            }
            Trouble::None
            | Trouble::Resets(_)
            | Trouble::Answers(..)
            | Trouble::Slow(_)
            | Trouble::WatchesExpired
            // Their responses change on their way.
            | Trouble::Cuts(_)
            | Trouble::WatchesClosed
            | Trouble::WatchesWithBookmarksOnly => {}
        }
        let (parts, body) = self.forward(request).await?.into_parts();
        // A watch is cut in the middle of an event.
        let cut = !watch && matches!(trouble, Trouble::Cuts(often) if self.strikes("cut", often));
        let body = if watch {
            watched(self, body, version)
        } else {
            let whole = body.collect().await?.to_bytes();
            if cut {
                // Half of the response arrives, then the connection ends, for a read as for a completed write.
                let half = whole.slice(..whole.len() / 2);
                let frames = [Ok(Frame::data(half)), Err(gone("cut"))];
                StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
            } else {
                Full::new(whole).map_err(|never| match never {}).boxed_unsync()
            }
        };
        Ok(Response::from_parts(parts, body))
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        let (mut parts, body) = request.into_parts();
        // The complete body: only the fault itself cuts data.
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("https://127.0.0.1:{}{path}", self.server).parse()?;
        parts.version = http::Version::HTTP_2;
        for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING] {
            parts.headers.remove(name);
        }
        let mut sender = self.sender().await?;
        sender.ready().await?;
        Ok(sender.send_request(Request::from_parts(parts, Full::new(body))).await?)
    }

    /// The one connection to the API server, opened again after it has ended.
    async fn sender(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let mut connection = self.connection.lock().await;
        if let Some(sender) = connection.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let make = async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server)).await?;
            let name = ServerName::try_from("127.0.0.1")?;
            let stream = self.tls.connect(name, stream).await?;
            Ok::<_, Failure>(handshake(TokioExecutor::new(), TokioIo::new(stream)).await?)
        };
        let (sender, serving) = tokio::time::timeout(Duration::from_secs(5), make).await??;
        tokio::spawn(serving);
        *connection = Some(sender.clone());
        Ok(sender)
    }
}

/// Reads a response to its end without forwarding it. The response of a watch has no end.
async fn done_unseen(answer: Response<Incoming>) {
    let _ = tokio::time::timeout(Duration::from_secs(1), answer.into_body().collect()).await;
}

fn is_conditional(method: &Method) -> bool {
    [Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

pub(crate) fn gone(what: &'static str) -> Failure {
    io::Error::other(what).into()
}

pub(crate) fn status_object(code: u16) -> Value {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": format!("{reason}, says the proxy"),
    })
}

fn status(code: u16) -> Response<Body> {
    let text = status_object(code).to_string();
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    if code == 429 {
        answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    answer
}
