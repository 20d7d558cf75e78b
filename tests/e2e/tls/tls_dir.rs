//! `--tls-dir`: certificates from mounted files.
use std::time::Duration;

use confrev::telemetry::causes;
use confrev::telemetry::{Metrics, Readiness};
use confrev::tls::CertificateSource;

use crate::client::{KeptConnection, Made, Server, connect, get_http1, presents, wide};
use crate::mounted_secret::Mount;
use crate::{metric, until};

/// A certificate source that follows a mount, and a server that uses it.
struct Running {
    server: Server,
    metrics: Metrics,
    readiness: Readiness,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(mount: &Mount) -> Self {
        let (metrics, readiness) = (Metrics::new(), Readiness::new());
        let condition = readiness.register("serving certificate");
        let source = CertificateSource::files(mount.dir(), metrics.clone(), condition).unwrap();
        let server = Server::start(source.server_config(), wide()).await;
        let task = tokio::spawn(async move { source.run().await });
        Self { server, metrics, readiness, task }
    }

    fn reloads(&self, outcome: &str) -> u64 {
        let name = format!("confrev_certificate_reloads_total{{outcome=\"{outcome}\"}}");
        metric(&self.metrics.encode(), &name)
    }

    async fn comes_to_present(&self, pair: &Made) {
        let address = self.server.address;
        let look = async || presents(address, &pair.certificate).await.then_some(());
        until("the new certificate is presented", look).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn refusal(mount: &Mount) -> String {
    let condition = Readiness::new().register("serving certificate");
    causes(&CertificateSource::files(mount.dir(), Metrics::new(), condition).unwrap_err())
}

/// The Secret is swapped twice.
#[tokio::test]
async fn swapped_secret_is_served_and_open_connections_continue() {
    let pairs = [Made::new(), Made::new(), Made::new()];
    let mut mount = Mount::new(&pairs[0].files());
    let running = Running::start(&mount).await;
    assert!(running.readiness.ready());
    let kept = KeptConnection::new(running.server.address, &pairs[0].certificate).await;
    let begun = running.server.begun.clone();
    let (answer, ()) = tokio::join!(kept.get("/held"), async {
        begun.notified().await;
        for pair in &pairs[1..] {
            mount.swap(&pair.files());
            running.comes_to_present(pair).await;
            assert_eq!(kept.get("/").await.unwrap().1, "ok", "the connection from before the swap");
        }
        running.server.release.notify_one();
    });
    assert_eq!(answer.unwrap().1, "held", "the request from before both swaps");
    assert!(!presents(running.server.address, &pairs[0].certificate).await);
    assert_eq!((running.reloads("loaded"), running.reloads("refused")), (2, 0));
    assert!(running.readiness.ready());
}

#[tokio::test]
async fn broken_pair_leaves_the_old_one_in_use() {
    let (first, last, other, old) = (Made::new(), Made::new(), Made::new(), Made::valid(2001, 2002));
    let mut mount = Mount::new(&first.files());
    let running = Running::start(&mount).await;
    let (certificate, key) = (last.certificate.as_bytes(), last.key.as_bytes());
    let broken: [&[(&str, &[u8])]; 7] = [
        &[("tls.crt", b"garbage"), ("tls.key", b"garbage")],
        &[("tls.crt", certificate), ("tls.key", other.key.as_bytes())],
        &[("tls.crt", certificate)],
        &[("tls.key", key)],
        &[("tls.crt", &certificate[..certificate.len() / 2]), ("tls.key", key)],
        &[("tls.crt", certificate), ("tls.key", key), ("ca.crt", b"garbage")],
        &old.files(),
    ];
    for (done, files) in (1..).zip(broken) {
        mount.swap(files);
        until("the broken pair is detected", async || (running.reloads("refused") == done).then_some(()))
            .await;
        assert!(presents(running.server.address, &first.certificate).await, "after broken pair {done}");
    }
    assert!(running.readiness.ready(), "the certificate in use is valid");
    mount.swap(&last.files());
    running.comes_to_present(&last).await;
    assert_eq!(running.reloads("refused"), 7, "each content is reported once");
}

/// It returns with the next certificate.
#[tokio::test]
async fn readiness_ends_before_the_certificate_expires() {
    let (good, late, next) = (Made::new(), Made::ending(Duration::from_secs(55)), Made::new());
    let mut mount = Mount::new(&good.files());
    let running = Running::start(&mount).await;
    assert!(running.readiness.ready());
    mount.swap(&late.files());
    running.comes_to_present(&late).await;
    let unready = until("the replica is not ready", async || (!running.readiness.ready()).then_some(()));
    // The limit is well before the expiry, where readiness would end without the margin.
    tokio::time::timeout(Duration::from_secs(30), unready)
        .await
        .expect("the replica is not ready before the expiry");
    let report = running.readiness.report().lines.join("\n");
    assert!(report.contains("serving certificate: valid from 2020-01-01T00:00:00Z to "), "{report}");
    assert!(presents(running.server.address, &late.certificate).await, "requests in flight can still use it");
    mount.swap(&next.files());
    until("the replica is ready again", async || running.readiness.ready().then_some(())).await;
    assert!(presents(running.server.address, &next.certificate).await);
}

/// So does a chain.
#[tokio::test]
async fn all_key_types_work_over_both_protocols() {
    macro_rules! kept {
        ($name:literal) => {
            include_str!(concat!("keys/", $name)).to_owned()
        };
    }
    let (rsa, ec, ed25519) = (kept!("rsa.crt"), kept!("ec.crt"), kept!("ed25519.crt"));
    let pairs = [
        (rsa.clone(), kept!("rsa.pkcs1.key")),
        (rsa.clone(), kept!("rsa.pkcs8.key")),
        (ec.clone(), kept!("ec.sec1.key")),
        (ec.clone(), kept!("ec.pkcs8.key")),
        (ed25519.clone(), kept!("ed25519.pkcs8.key")),
        (format!("{ec}\n{rsa}"), kept!("ec.pkcs8.key")),
    ];
    for (certificate, key) in pairs {
        let pair = Made { certificate, key };
        let running = Running::start(&Mount::new(&pair.files())).await;
        let address = running.server.address;
        assert!(presents(address, &pair.certificate).await, "{}", pair.key.lines().next().unwrap());
        assert_eq!(KeptConnection::new(address, &pair.certificate).await.get("/").await.unwrap().1, "ok");
        assert_eq!(get_http1(address, &pair.certificate, "/").await.unwrap().1, "ok");
    }
}

#[tokio::test]
async fn the_whole_chain_is_presented() {
    let (own, other) = (Made::new(), Made::new());
    let chain = own.certificate.clone() + &other.certificate;
    let pair = Made { certificate: chain, key: own.key };
    let running = Running::start(&Mount::new(&pair.files())).await;
    let stream =
        connect(running.server.address, pair.certificate.as_bytes(), "localhost", b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap().len(), 2);
}

#[tokio::test]
async fn start_with_broken_pair_names_file_and_remedy() {
    let (one, two) = (Made::new(), Made::new());
    let mount = Mount::new(&[("tls.crt", one.certificate.as_bytes()), ("tls.key", two.key.as_bytes())]);
    let error = refusal(&mount);
    assert!(error.contains("tls.key does not belong to the (first) certificate in tls.crt"), "{error}");
    assert!(error.contains(mount.dir().to_str().unwrap()), "{error}");

    let error = refusal(&Mount::new(&[("tls.crt", one.certificate.as_bytes())]));
    assert!(error.contains("tls.key") && error.contains("mount a Secret"), "{error}");

    let error = refusal(&Mount::new(&Made::valid(2001, 2002).files()));
    assert!(error.contains("expired at 2002-01-01T00:00:00Z"), "{error}");
}

#[tokio::test]
async fn expiry_metric_is_of_the_certificate_in_use() {
    let (first, second) = (Made::valid(2020, 2100), Made::valid(2020, 2101));
    let mut mount = Mount::new(&first.files());
    let running = Running::start(&mount).await;
    let expiry = || metric(&running.metrics.encode(), "confrev_certificate_expiry_timestamp_seconds");
    assert_eq!(expiry(), 4_102_444_800, "2100-01-01");
    mount.swap(&second.files());
    running.comes_to_present(&second).await;
    assert_eq!(expiry(), 4_133_980_800, "2101-01-01");
}
