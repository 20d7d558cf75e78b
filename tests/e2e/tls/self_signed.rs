//! `--self-signed` and the webhook configurations, on a real control plane.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use confrev::telemetry::causes;
use confrev::telemetry::{Metrics, Readiness};
use confrev::tls::webhooks::Keeper;
use confrev::tls::{CertificateSource, Lifetimes, SelfSignedOptions, WebhookUrl};
use confrev_controlplane::{ControlPlane, holds_for};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Server, connect, wide};
use crate::until;

const CONFIGURATION: &str = "confrev";
const SECRET: &str = "confrev-ca";

async fn client(plane: &ControlPlane) -> Client {
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn options(namespace: &str) -> SelfSignedOptions {
    let lifetimes = Lifetimes { settle: Duration::from_secs(2), ..Lifetimes::default() };
    SelfSignedOptions { namespace: namespace.to_owned(), webhook_url: None, lifetimes }
}

async fn self_signed(client: &Client, options: SelfSignedOptions) -> Result<CertificateSource, String> {
    let condition = Readiness::new().register("serving certificate");
    let source = CertificateSource::self_signed(client.clone(), options, Metrics::new(), condition).await;
    source.map_err(|error| causes(&error))
}

/// The bundle in the Secret.
async fn bundle(secrets: &Api<Secret>) -> Vec<u8> {
    secrets.get(SECRET).await.unwrap().data.unwrap()["ca.crt"].0.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_start_together_share_one_ca() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("tls");
    let client = client(plane).await;
    let starts = (0..8).map(|_| self_signed(&client, options(namespace.name())));
    let sources = futures::future::join_all(starts).await;
    let secrets: Api<Secret> = Api::namespaced(client, namespace.name());
    let bundle = bundle(&secrets).await;
    assert_eq!(String::from_utf8_lossy(&bundle).matches("BEGIN CERTIFICATE").count(), 1);
    for source in sources {
        let server = Server::start(source.unwrap().server_config(), wide()).await;
        let name = format!("confrev.{}.svc", namespace.name());
        for name in [name.as_str(), "localhost", "127.0.0.1"] {
            connect(server.address, &bundle, name, b"h2").await.unwrap();
        }
    }
    let secret = secrets.get(SECRET).await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    assert_eq!(secret.metadata.labels.unwrap()["app.kubernetes.io/managed-by"], "confrev-tls");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_ca_secret_is_an_error_with_remedy() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("tls");
    let client = client(plane).await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace.name());
    let garbage = json!({
        "metadata": { "name": SECRET },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": "garbage", "tls.key": "garbage" },
    });
    let garbage: Secret = serde_json::from_value(garbage).unwrap();
    secrets.create(&PostParams::default(), &garbage).await.unwrap();
    let error = self_signed(&client, options(namespace.name())).await.unwrap_err();
    let remedy = format!("kubectl delete secret -n {} {SECRET}", namespace.name());
    assert!(error.contains(&remedy), "{error}");

    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    self_signed(&client, options(namespace.name())).await.unwrap();

    let error = self_signed(&client, options("no-such-namespace")).await.unwrap_err();
    assert!(error.contains("is --namespace right"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serving_certificate_is_renewed_before_its_expiry() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("tls");
    let client = client(plane).await;
    let mut options = options(namespace.name());
    options.lifetimes.serving = Duration::from_secs(6);
    let source = self_signed(&client, options).await.unwrap();
    let first = source.serving().expires();
    let renewing = source.clone();
    let task = tokio::spawn(async move { renewing.run().await });
    let renewed = async || (source.serving().expires() > first).then_some(());
    until("a new certificate", renewed).await;
    task.abort();
}

/// The webhook configurations have one name in a cluster. So the tests that use them have a cluster of their own.
struct Story {
    client: Client,
    url: WebhookUrl,
    webhooks: Api<MutatingWebhookConfiguration>,
    secrets: Api<Secret>,
    readiness: Readiness,
    tasks: Vec<JoinHandle<()>>,
}

const NAMESPACE: &str = "confrev";

impl Story {
    /// Two replicas behind one URL. The server uses the certificate of the first.
    async fn start() -> (Self, Server) {
        static PLANE: OnceLock<ControlPlane> = OnceLock::new();
        let client = client(PLANE.get_or_init(|| ControlPlane::start().unwrap())).await;
        let name = ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata: name, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: WebhookUrl = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let mut story = Self {
            url,
            webhooks: Api::all(client.clone()),
            secrets: Api::namespaced(client.clone(), NAMESPACE),
            client,
            readiness: Readiness::new(),
            tasks: Vec::new(),
        };
        let source = story.replica().await;
        story.replica().await;
        let server = Server::start_on(listener, source.server_config(), wide());
        (story, server)
    }

    async fn replica(&mut self) -> CertificateSource {
        let options = SelfSignedOptions { webhook_url: Some(self.url.clone()), ..options(NAMESPACE) };
        let condition = self.readiness.register("serving certificate");
        let source = CertificateSource::self_signed(self.client.clone(), options, Metrics::new(), condition)
            .await
            .unwrap();
        let condition = self.readiness.register("webhook configurations");
        let url = Some(self.url.clone());
        let keeper = Keeper::new(self.client.clone(), NAMESPACE, url, source.clone(), condition);
        let fresh = source.clone();
        self.tasks.push(tokio::spawn(async move { fresh.run().await }));
        self.tasks.push(tokio::spawn(async move { keeper.run().await }));
        source
    }

    /// Installs a webhook configuration as in the manifest: with the Service, and without a bundle.
    async fn install(&self) {
        let configuration = json!({
            "metadata": { "name": CONFIGURATION },
            "webhooks": [{
                "name": "configmaps.confrev.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "failurePolicy": "Fail",
                "clientConfig": { "service": {
                    "name": "confrev", "namespace": NAMESPACE, "path": "/mutate/configmaps", "port": 443 } },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": NAMESPACE } },
                "objectSelector": { "matchLabels": { "asked": "yes" } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                    "operations": ["CREATE"] }],
            }],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        self.webhooks.create(&PostParams::default(), &configuration).await.unwrap();
    }

    /// Sends a request to the API server for which it calls the webhook.
    async fn asked(&self) -> Result<(), kube::Error> {
        let config_map = json!({ "metadata": { "generateName": "asked-", "labels": { "asked": "yes" } } });
        let config_map: ConfigMap = serde_json::from_value(config_map).unwrap();
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        config_maps.create(&dry, &config_map).await.map(|_| ())
    }

    async fn carried(&self) -> (Option<String>, Vec<u8>) {
        let configuration = self.webhooks.get(CONFIGURATION).await.unwrap();
        let client_config = configuration.webhooks.unwrap().remove(0).client_config;
        (client_config.url, client_config.ca_bundle.map_or_else(Vec::new, |bundle| bundle.0))
    }

    async fn right(&self) {
        let wanted = Some(self.url.with_path("/mutate/configmaps"));
        let look = async || {
            let ready = self.readiness.ready();
            (ready && self.carried().await == (wanted.clone(), bundle(&self.secrets).await)).then_some(())
        };
        until("the webhook configuration is correct", look).await;
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// No request fails when the CA changes.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_configurations_are_repaired_without_failed_requests() {
    let (story, server) = Story::start().await;
    let story = Arc::new(story);

    let missing = async || {
        let line = story.readiness.report().lines.join("\n");
        line.contains("kubectl apply -f manifests/self-signed.yaml").then_some(())
    };
    until("the missing configuration is reported", missing).await;

    story.install().await;
    story.right().await;
    until("the API server calls the webhook", async || story.asked().await.ok()).await;

    // An older manifest is applied again.
    let older = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]);
    let older = Patch::Json::<()>(serde_json::from_value(older).unwrap());
    story.webhooks.patch(CONFIGURATION, &PatchParams::default(), &older).await.unwrap();
    story.right().await;
    until("the API server calls the webhook", async || story.asked().await.ok()).await;

    // At rest, nothing is written.
    let at_rest = story.webhooks.get(CONFIGURATION).await.unwrap().metadata.resource_version;
    let secret_at_rest = story.secrets.get(SECRET).await.unwrap().metadata.resource_version;
    let handle = tokio::runtime::Handle::current();
    let quiet = story.clone();
    let still = move || {
        holds_for("no write", Duration::from_secs(4), || {
            let now = handle.block_on(quiet.webhooks.get(CONFIGURATION)).unwrap().metadata.resource_version;
            let secret = handle.block_on(quiet.secrets.get(SECRET)).unwrap().metadata.resource_version;
            if (&now, &secret) == (&at_rest, &secret_at_rest) { Ok(()) } else { Err("written".to_owned()) }
        });
    };
    tokio::task::spawn_blocking(still).await.unwrap();

    // Another CA takes over under load: four requests at a time.
    let old = bundle(&story.secrets).await;
    let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (story, over, asked) = (story.clone(), over.clone(), asked.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    story.asked().await.expect("no request fails");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    story.secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let served_by_new = async || {
        let secret = story.secrets.get_opt(SECRET).await.unwrap()?;
        let new = secret.data?["tls.crt"].0.clone();
        (new != old && connect(server.address, &new, "localhost", b"h2").await.is_ok()).then_some(())
    };
    until("the new CA's certificate is served", served_by_new).await;
    assert!(connect(server.address, &old, "localhost", b"h2").await.is_err());
    let before = asked.load(Ordering::Relaxed);
    let more = async || (asked.load(Ordering::Relaxed) > before + 100).then_some(());
    until("requests with the new CA", more).await;
    over.store(true, Ordering::Relaxed);
    for load in load {
        load.await.unwrap();
    }
    story.right().await;
}
