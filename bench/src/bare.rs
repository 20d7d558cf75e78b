//! The baseline of confrev's admission: the same HTTP and TLS libraries around a handler that reads the body and allows
//! the request.

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{CertificateParams, KeyPair};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// The server as a separate process. It is killed on drop.
pub(crate) struct Bare {
    child: Child,
    asked: Arc<AtomicBool>,
    /// The port.
    pub(crate) port: u16,
    /// The self-signed certificate, in PEM.
    pub(crate) certificate: String,
}

impl Bare {
    /// Runs this program again as the server.
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program).arg("bare").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("this program can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut certificate = String::new();
        let mut port = String::new();
        lines.read_line(&mut port).expect("the server prints its port");
        while !certificate.contains("END CERTIFICATE") {
            assert!(
                lines.read_line(&mut certificate).expect("the server prints its certificate") > 0,
                "the server ended"
            );
        }
        let asked = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&asked);
        std::thread::spawn(move || {
            let first = lines.lines().any(|line| line.is_ok_and(|line| line == "asked"));
            tell.store(first, Ordering::Relaxed);
        });
        Self { child, asked, port: port.trim().parse().expect("a port"), certificate }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the server has received a request.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until this process is killed, or its standard input is closed.
pub(crate) async fn serve() {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(vec![certificate.der().clone()], private).expect("a pair");
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    println!("{}", listener.local_addr().expect("an address").port());
    println!("{}", certificate.pem());
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let router = Router::new().fallback(allow);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The text before the uid of a review.
const MARK: &[u8] = b"\"uid\":\"";

/// Allows the request. The answer must contain the uid; the handler reads nothing else of the body.
async fn allow(body: Bytes) -> impl IntoResponse {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if !ASKED.swap(true, Ordering::Relaxed) {
        println!("asked");
    }
    let from = body.windows(MARK.len()).position(|bytes| bytes == MARK).map_or(0, |at| at + MARK.len());
    let uid: String = body[from..].iter().take(36).map(|byte| char::from(*byte)).collect();
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true}}}}"#
    );
    ([(CONTENT_TYPE, "application/json")], answer)
}
