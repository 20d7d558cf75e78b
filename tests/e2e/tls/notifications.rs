//! Notifications over TLS: the receiver's certificate is checked.
use std::sync::Arc;

use confrev::cluster::{Event, ObjectRef};
use confrev::notify::{Notifier, NotifyFormat, NotifyOptions};
use confrev::telemetry::Metrics;
use confrev::telemetry::metrics::Reason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::mounted_secret::Mount;
use crate::test_cas::Authority;
use crate::{metric, until};

fn event() -> Event {
    let regarding = ObjectRef {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: "demo".to_owned(),
        uid: "u".to_owned(),
    };
    let at = jiff::Timestamp::now();
    let (note, same) = ("held".to_owned(), String::new());
    Event { namespace: "shop".into(), regarding, related: None, reason: Reason::RollHeld, note, same, at }
}

#[tokio::test(flavor = "multi_thread")]
async fn https_receiver_needs_trusted_certificate() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let identity = trusted.server("receiver");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = CertificateDer::from_pem_slice(identity.pem.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
    let tls = tls.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    for (authority, outcome) in [(&trusted, "sent"), (&other, "failed")] {
        let mount = Mount::new(&[("ca.crt", authority.pem.as_bytes())]);
        let options = NotifyOptions {
            url: url.parse().unwrap(),
            format: NotifyFormat::Slack,
            key: None,
            ca: Some(mount.dir().join("ca.crt")),
            source: String::new(),
        };
        let metrics = Metrics::new();
        let (notices, notifier) = Notifier::new(options, metrics.clone()).unwrap();
        let running = tokio::spawn(notifier.run());
        notices.add(&event());
        let name = format!("confrev_notifications_total{{outcome=\"{outcome}\"}}");
        until(outcome, async || (metric(&metrics.encode(), &name) > 0).then_some(())).await;
        running.abort();
    }
}
