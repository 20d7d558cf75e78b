//! `--client-ca` and `--client-name`: the clients that may use the webhook.
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use confrev::telemetry::causes;
use confrev::telemetry::{Metrics, Readiness};
use confrev::tls::{CertificateSource, Clients};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, SupportedProtocolVersion};

use crate::client::{Made, Server, roots, wide};
use crate::mounted_secret::Mount;
use crate::test_cas::{Authority, Identity};
use crate::{LIMIT, until};

/// A server that requires client certificates of the CAs in a mount, and follows changes of the mount.
struct Running {
    server: Server,
    pair: Made,
    mount: Mount,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(authority: &Authority, names: &[&str]) -> Self {
        let pair = Made::new();
        let files = Mount::new(&pair.files());
        let condition = Readiness::new().register("serving certificate");
        let source = CertificateSource::files(files.dir(), Metrics::new(), condition).unwrap();
        let mount = Mount::new(&[("ca.crt", authority.pem.as_bytes())]);
        let names = names.iter().map(ToString::to_string).collect();
        let clients = Clients::open(mount.dir().join("ca.crt"), names).unwrap();
        let server = Server::start(source.server_config_for(&clients), wide()).await;
        let task = tokio::spawn(async move { clients.run().await });
        Self { server, pair, mount, task }
    }

    fn client(
        &self,
        identity: Option<&Identity>,
        version: &'static SupportedProtocolVersion,
    ) -> Arc<ClientConfig> {
        client(self.pair.certificate.as_bytes(), identity, version)
    }

    async fn ask(&self, client: &Arc<ClientConfig>) -> io::Result<[u8; 12]> {
        ask(self.server.address, client).await
    }

    async fn answers(&self, identity: &Identity) -> bool {
        self.ask(&self.client(Some(identity), &TLS13)).await.is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client that trusts `pem`.
pub(crate) fn client(
    pem: &[u8],
    identity: Option<&Identity>,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_protocol_versions(&[version]).with_root_certificates(roots(pem));
    Arc::new(match identity {
        Some(identity) => {
            builder.with_client_auth_cert(vec![identity.certificate()], identity.key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// The first bytes of the answer. With TLS 1.3, the client's handshake ends before the server has verified the client's
/// certificate. So only an answer shows that the certificate was accepted.
pub(crate) async fn ask(address: SocketAddr, client: &Arc<ClientConfig>) -> io::Result<[u8; 12]> {
    ask_for("/", address, client).await
}

async fn ask_for(path: &str, address: SocketAddr, client: &Arc<ClientConfig>) -> io::Result<[u8; 12]> {
    let ask = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(client.clone()).connect(name, stream).await?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.map(|_| answer)
    };
    tokio::time::timeout(LIMIT, ask).await.expect("an answer or the end of the connection")
}

/// With `--client-name`, the certificate must also have one of the names.
#[tokio::test]
async fn only_valid_client_certificates_are_accepted() {
    let (own, other) = (Authority::new(), Authority::new());
    let strict = Running::start(&own, &["kube-apiserver", "api.example"]).await;
    let open = Running::start(&own, &[]).await;
    let cases = [
        ("none", None, false, false),
        ("common name", Some(own.client("kube-apiserver", &[])), true, true),
        ("DNS name", Some(own.client("x", &["y.example", "API.example"])), true, true),
        ("other name", Some(own.client("somebody", &["else.example"])), false, true),
        ("other CA", Some(other.client("kube-apiserver", &[])), false, false),
        ("self-signed", Some(Identity::alone("kube-apiserver")), false, false),
        ("server certificate", Some(own.server("kube-apiserver")), false, false),
        ("expired", Some(own.expired("kube-apiserver")), false, false),
    ];
    for (what, identity, by_name, by_authority) in &cases {
        for version in [&TLS12, &TLS13] {
            for (running, expected) in [(&strict, *by_name), (&open, *by_authority)] {
                let answer = running.ask(&running.client(identity.as_ref(), version)).await;
                assert_eq!(answer.is_ok(), expected, "{what}, {:?}: {answer:?}", version.version);
                if let Ok(answer) = answer {
                    assert_eq!(&answer, b"HTTP/1.1 200");
                }
            }
        }
    }
}

/// A client may have a certificate that the server does not ask for.
#[tokio::test]
async fn server_knows_which_clients_are_verified() {
    let authority = Authority::new();
    let identity = authority.client("kube-apiserver", &[]);
    let strict = Running::start(&authority, &[]).await;
    let pair = Made::new();
    let files = Mount::new(&pair.files());
    let condition = Readiness::new().register("serving certificate");
    let source = CertificateSource::files(files.dir(), Metrics::new(), condition).unwrap();
    let open = Server::start(source.server_config(), wide()).await;
    for version in [&TLS12, &TLS13] {
        let client_of_strict = strict.client(Some(&identity), version);
        // The second handshake may resume the session of the first.
        for _ in 0..2 {
            let answer = ask_for("/verified", strict.server.address, &client_of_strict).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        }
        for identity in [None, Some(&identity)] {
            let client = client(pair.certificate.as_bytes(), identity, version);
            let answer = ask_for("/verified", open.address, &client).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 403");
        }
    }
}

/// A broken file leaves the previous CA in use.
#[tokio::test]
async fn new_client_ca_counts_from_the_next_handshake() {
    let (old, new) = (Authority::new(), Authority::new());
    let (before, after) = (old.client("a", &[]), new.client("a", &[]));
    let mut running = Running::start(&old, &["a"]).await;
    let known = [&TLS12, &TLS13].map(|version| running.client(Some(&before), version));
    for client in &known {
        running.ask(client).await.unwrap();
        running.ask(client).await.unwrap();
    }
    assert!(!running.answers(&after).await);

    let both = old.pem.clone() + &new.pem;
    running.mount.swap(&[("ca.crt", both.as_bytes())]);
    until("both CAs are accepted", async || running.answers(&after).await.then_some(())).await;
    assert!(running.answers(&before).await);

    running.mount.swap(&[("ca.crt", new.pem.as_bytes())]);
    until("the old CA is refused", async || (!running.answers(&before).await).then_some(())).await;
    assert!(running.answers(&after).await);
    for client in &known {
        running.ask(client).await.expect_err("a session is not resumed without a valid certificate");
    }

    for broken in ["garbage", ""] {
        running.mount.swap(&[("ca.crt", broken.as_bytes())]);
        // The time of three checks of the file.
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        assert!(running.answers(&after).await && !running.answers(&before).await, "{broken:?}");
    }
    running.mount.swap(&[("ca.crt", old.pem.as_bytes())]);
    until("a valid CA is accepted again", async || running.answers(&before).await.then_some(())).await;
}

#[test]
fn start_without_client_ca_names_the_file() {
    let mount = Mount::new(&[("ca.crt", b"garbage")]);
    let refusal = |name: &str| causes(&Clients::open(mount.dir().join(name), Vec::new()).unwrap_err());
    let garbage = refusal("ca.crt");
    assert!(garbage.contains("/ca.crt holds no usable PEM certificate"), "{garbage}");
    let missing = refusal("other.crt");
    assert!(missing.contains("--client-ca") && missing.contains("other.crt"), "{missing}");
}
