//! A replica of confrev in this process: its certificates, its webhook configurations and its admission.
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use confrev::admission;
use confrev::cluster::KubeApi;
use confrev::controller::{Config, Shared, State};
use confrev::kinds::Kinds;
use confrev::schema::Schemas;
use confrev::server::{Drained, serve};
use confrev::telemetry::{Metrics, Readiness};
use confrev::tls::webhooks::Keeper;
use confrev::tls::{CertificateSource, Lifetimes, SelfSignedOptions, Transition};
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{connect, wide};
use crate::control_plane::{NAMESPACE, Stage};
use crate::mounted_secret::Mount;
use crate::until;

pub(crate) struct Replica {
    pub(crate) address: SocketAddr,
    pub(crate) source: CertificateSource,
    readiness: Readiness,
    server: JoinHandle<Drained>,
    keepers: Vec<JoinHandle<()>>,
}

impl Replica {
    pub(crate) async fn self_signed(stage: &Stage, lifetimes: Lifetimes) -> Self {
        let (client, readiness, metrics) = (stage.own_client().await, Readiness::new(), Metrics::new());
        let condition = readiness.register("certificate");
        let webhook_url = Some(stage.url());
        let options = SelfSignedOptions { namespace: NAMESPACE.to_owned(), webhook_url, lifetimes };
        let source = CertificateSource::self_signed(client.clone(), options, metrics.clone(), condition)
            .await
            .unwrap();
        Self::start(stage, client, source, readiness, metrics).await
    }

    pub(crate) async fn files(stage: &Stage, mount: &Mount, transition: Transition) -> Self {
        let (client, readiness, metrics) = (stage.own_client().await, Readiness::new(), Metrics::new());
        let condition = readiness.register("certificate");
        let source =
            CertificateSource::files_with(mount.dir(), transition, metrics.clone(), condition).unwrap();
        Self::start(stage, client, source, readiness, metrics).await
    }

    async fn start(
        stage: &Stage,
        client: Client,
        source: CertificateSource,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        let condition = readiness.register("webhook configurations");
        let keeper = Keeper::new(client.clone(), NAMESPACE, Some(stage.url()), source.clone(), condition);
        let fresh = source.clone();
        let keepers = vec![
            tokio::spawn(async move { fresh.run().await }),
            tokio::spawn(async move { keeper.run().await }),
        ];

        let kinds = Arc::new(Kinds::with(&[]));
        let config = Config { rolls_per_second: 1, ..Config::default() };
        let shared = Shared::new(State::new(kinds.clone(), config), Readiness::new().register("caches"));
        let api = KubeApi::new(client, kinds.clone(), metrics.clone());
        let limits = admission::ReviewLimits::default();
        let schemas = Schemas::default();
        let context =
            admission::Context { api, kinds, secrets: false, limits, shared, metrics, schemas, users: None };
        let router = admission::router(context).layer(map_response(closing));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Only HTTP/1.1, and each connection is closed after its first answer: every request has a handshake of its
        // own.
        let mut tls = (*source.server_config()).clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let serving = serve(
            listener,
            router,
            Arc::new(tls),
            wide(),
            Metrics::new(),
            watch::channel(false).1,
            std::future::pending(),
        );
        let server = tokio::spawn(serving);
        Self { address, source, readiness, server, keepers }
    }

    pub(crate) async fn ready(&self) {
        until("a ready replica", async || self.readiness.ready().then_some(())).await;
    }

    /// Stops all updates: the replica sees no change of the files or the Secret, and writes nothing. It continues to
    /// serve.
    pub(crate) fn deaf(&mut self) {
        self.keepers.drain(..).for_each(|keeper| keeper.abort());
    }

    /// Whether a client that trusts only `pem` accepts its certificate.
    pub(crate) async fn serves(&self, pem: &[u8]) -> bool {
        connect(self.address, pem, "localhost", b"http/1.1").await.is_ok()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.deaf();
        self.server.abort();
    }
}

async fn closing(mut answer: Response) -> Response {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}
