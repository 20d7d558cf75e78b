//! A control plane whose API server has a client certificate for webhooks and traces every request, and one address for
//! all replicas.
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use confrev::tls::WebhookUrl;
use confrev_controlplane::{ControlPlane, Program, Service};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::sync::{Mutex as Turn, MutexGuard};

use crate::test_cas::Authority;

/// The namespace of the manifests.
pub(crate) const NAMESPACE: &str = "confrev";
pub(crate) const SECRET: &str = "confrev-ca";
/// The name in the API server's client certificate.
pub(crate) const API_SERVER: &str = "kube-apiserver";

/// The control plane for one test at a time, since the webhook configurations have one name in a cluster.
pub(crate) struct Stage {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) service: &'static Service,
    /// The CA of the API server's client certificate.
    pub(crate) clients: &'static Authority,
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    /// Applies the manifests. There is no CA yet, and no replica.
    pub(crate) async fn take() -> Self {
        static TURN: Turn<()> = Turn::const_new(());
        static STAGE: OnceLock<(ControlPlane, Service, Authority)> = OnceLock::new();
        let turn = TURN.lock().await;
        let (plane, service, clients) = tokio::task::spawn_blocking(|| {
            let stage = STAGE.get_or_init(start);
            Program::install(&stage.0);
            stage
        })
        .await
        .unwrap();
        service.behind(&[]);
        let stage = Self { plane, service, clients, _turn: turn };
        let secrets: Api<Secret> = Api::namespaced(stage.client().await, NAMESPACE);
        let _ = secrets.delete(SECRET, &DeleteParams::default()).await;
        stage
    }

    /// The Service's URL, without a path.
    pub(crate) fn url(&self) -> WebhookUrl {
        self.service.url().parse().unwrap()
    }

    /// A client with the administrator's identity.
    pub(crate) async fn client(&self) -> Client {
        client(self.plane.kubeconfig()).await
    }

    /// A client with the identity of confrev's ServiceAccount.
    pub(crate) async fn own_client(&self) -> Client {
        let plane = self.plane;
        let account = move || plane.kubeconfig_for_service_account(NAMESPACE, "confrev");
        client(&tokio::task::spawn_blocking(account).await.unwrap()).await
    }

    /// A new namespace with the ConfigMap `demo` in it.
    pub(crate) async fn namespace(&self) -> confrev_controlplane::Namespace<'static> {
        let plane = self.plane;
        let namespace = tokio::task::spawn_blocking(|| plane.namespace("tls")).await.unwrap();
        let demo = json!({ "metadata": { "name": "demo" }, "data": { "text": "A" } });
        let demo: ConfigMap = serde_json::from_value(demo).unwrap();
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client().await, namespace.name());
        config_maps.create(&PostParams::default(), &demo).await.unwrap();
        namespace
    }
}

/// A client with the identity of a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Starts the control plane. The API server's configuration files are those in docs/client-certificates.md.
fn start() -> (ControlPlane, Service, Authority) {
    let (service, clients) = (Service::start().expect("a listener"), Authority::new());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("webhooks");
    fs::create_dir_all(&dir).unwrap();
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/client-certificates.md"))
        .unwrap();
    for file in ["kubeconfig.yaml", "admission.yaml"] {
        let start = format!("```yaml\n# /etc/kubernetes/webhooks/{file}\n");
        let (_, text) = docs.split_once(&start).expect("docs/client-certificates.md contains the file");
        let (text, _) = text.split_once("```").unwrap();
        let text = text.replace("/etc/kubernetes/webhooks", dir.to_str().unwrap());
        let text = text.replace("confrev.confrev.svc", &service.address().to_string());
        fs::write(dir.join(file), text).unwrap();
    }
    let identity = clients.client(API_SERVER, &[]);
    fs::write(dir.join("webhooks.crt"), identity.pem).unwrap();
    fs::write(dir.join("webhooks.key"), identity.key_pem).unwrap();
    // No collector receives the API server's own spans: the tests check the headers that it sends to webhooks.
    let tracing = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "TracingConfiguration",
        "endpoint": "127.0.0.1:1", "samplingRatePerMillion": 1_000_000,
    });
    fs::write(dir.join("tracing.yaml"), tracing.to_string()).unwrap();
    let flag = |name: &str, file: &str| format!("--{name}-config-file={}", dir.join(file).display());
    let flags = [flag("admission-control", "admission.yaml"), flag("tracing", "tracing.yaml")];
    (ControlPlane::start_with(&flags.each_ref().map(String::as_str)).unwrap(), service, clients)
}
