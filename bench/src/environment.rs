//! The control plane with confrev running beside it, and a client for concurrent requests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::cluster::connect;
use confrev_controlplane::{ControlPlane, Program, Request as Asked, wait_for};
use futures::{StreamExt as _, stream};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::bare::Bare;

/// The namespace that both webhooks exclude.
pub(crate) const PLAIN: &str = "bench-plain";
/// The namespace of the webhook that does nothing.
pub(crate) const NOTHING: &str = "bench-nothing";
/// The namespace of confrev's webhooks.
pub(crate) const CONFREV: &str = "bench-confrev";

/// The namespaces of all peers, given or not.
pub(crate) const PEERS: [&str; 2] = ["bench-wave", "bench-reloader"];

/// The namespaces of all baselines.
const BASELINES: [&str; 4] = [PLAIN, NOTHING, PEERS[0], PEERS[1]];

/// The time limit of everything that ends.
pub(crate) const LIMIT: Duration = Duration::from_mins(30);
/// The number of concurrent writes, if their order does not matter.
pub(crate) const AT_ONCE: usize = 16;

/// The measured programs. All stop on drop.
pub(crate) struct Environment {
    pub(crate) cluster: &'static ControlPlane,
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) confrev: Program,
    pub(crate) bare: Bare,
    /// confrev's requests so far, and the position in the audit log up to which they were read.
    asked: Mutex<(Vec<Asked>, u64)>,
}

/// Requests by verb.
pub(crate) type Requests = BTreeMap<String, f64>;

/// A client with many connections.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) kube::Client);

impl Client {
    /// A client with the identity of a kubeconfig. It connects as confrev does.
    async fn new(kubeconfig: &Path) -> Self {
        let config = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        Self(connect(config.expect("a configuration")).expect("a client"))
    }

    /// One request, which must succeed.
    pub(crate) async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Value {
        let answer = self.try_send(method.clone(), path, kind, body).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// One request.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> kube::Result<Value> {
        let mut request = Request::builder().method(method).uri(path);
        let mut text = Vec::new();
        if !body.is_null() {
            request = request.header(http::header::CONTENT_TYPE, kind);
            text = body.to_string().into_bytes();
        }
        self.0.request(request.body(text).expect("a request")).await
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Value {
        self.send(Method::POST, path, "application/json", object).await
    }

    pub(crate) async fn merge(&self, path: &str, change: &Value) -> Value {
        self.send(Method::PATCH, path, "application/merge-patch+json", change).await
    }

    /// Creates many objects.
    pub(crate) async fn create_all(&self, path: &str, objects: impl Iterator<Item = Value>) {
        let created = stream::iter(objects).map(|object| async move { self.create(path, &object).await });
        created.buffer_unordered(AT_ONCE).for_each(|_| async {}).await;
    }
}

impl Environment {
    /// A new control plane, with both webhooks active in their namespaces.
    pub(crate) fn start(binary: &Path, options: &[&str]) -> Self {
        // `Program` needs a control plane that lives as long as this process. This one is stopped before that.
        let cluster: &'static ControlPlane =
            Box::leak(Box::new(ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}"))));
        let runtime = Runtime::new().expect("threads");
        let client = runtime.block_on(Client::new(cluster.kubeconfig()));
        for name in [PLAIN, NOTHING, CONFREV].into_iter().chain(PEERS) {
            cluster.create("namespace", "", &json!({"metadata": {"name": name, "labels": {"bench": name}}}));
        }
        Program::install(cluster);
        for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
            leave_alone(cluster, kind);
        }
        let excluded = format!("--excluded-namespaces={}", BASELINES.join(","));
        let options: Vec<_> = options.iter().copied().chain([excluded.as_str()]).collect();
        let mut confrev = Program::new(cluster, binary).options(&options);
        confrev.start();
        let bare = Bare::start();
        cluster.create("mutatingwebhookconfigurations", "", &nothing(&bare));
        // The API server learns of the configuration from its own watch.
        wait_for("the webhook that does nothing to be asked", LIMIT, || {
            let path = format!("{}?dryRun=All", config_maps(NOTHING));
            cluster.api().post(&path, &json!({"metadata": {"name": "first"}}));
            bare.is_asked().then_some(())
        });
        Self { cluster, runtime, client, confrev, bare, asked: Mutex::default() }
    }

    /// A client with the identity of a kubeconfig.
    pub(crate) fn client_of(&self, kubeconfig: &Path) -> Client {
        self.runtime.block_on(Client::new(kubeconfig))
    }

    /// The number of requests that confrev has sent to the API server so far.
    pub(crate) fn asked(&self) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, place) = &mut *asked;
        requests.extend(self.cluster.requests_of_confrev_from(place));
        requests.len()
    }

    /// The requests after the first `before`, by verb, as far as `counts` returns true.
    pub(crate) fn asked_since(&self, before: usize, counts: impl Fn(&Asked) -> bool) -> Requests {
        self.asked();
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = Requests::new();
        for request in asked.0[before..].iter().filter(|request| counts(request)) {
            *requests.entry(request.verb.clone()).or_default() += 1.0;
        }
        requests
    }

    /// The processor seconds of the API server, from its own metric.
    pub(crate) fn api_server_cpu(&self) -> f64 {
        let (_, metrics) = self.cluster.api().get("/metrics");
        let lines = metrics.as_str().unwrap_or_default().lines();
        let mut seconds = lines.filter_map(|line| line.strip_prefix("process_cpu_seconds_total "));
        seconds.next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    }

    /// The version of the API server.
    pub(crate) fn kubernetes(&self) -> String {
        let (_, version) = self.cluster.api().get("/version");
        version["gitVersion"].as_str().unwrap_or("unknown").to_owned()
    }

    /// Waits until confrev has sent no request for `time`, except for its Lease.
    pub(crate) fn wait_at_rest(&self, time: Duration) {
        let count = || {
            self.asked();
            let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.0.iter().filter(|request| request.resource != "leases").count()
        };
        let (mut before, mut since) = (count(), Instant::now());
        wait_for("confrev to be at rest", LIMIT, || {
            let now = count();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            (since.elapsed() > time).then_some(())
        });
    }

    /// The CA of confrev's certificate, in PEM.
    pub(crate) fn authority(&self) -> String {
        let object =
            self.cluster.get("mutatingwebhookconfigurations", "", "confrev").expect("confrev is installed");
        let bundle =
            object["webhooks"][0]["clientConfig"]["caBundle"].as_str().expect("the CA is trusted").to_owned();
        String::from_utf8(BASE64_STANDARD.decode(bundle).expect("base64")).expect("PEM")
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        self.confrev.kill();
        self.cluster.stop();
    }
}

/// The path of the ConfigMaps of a namespace.
pub(crate) fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

/// The path of the ReplicaSets of a namespace.
pub(crate) fn replica_sets(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/replicasets")
}

/// The path of the Deployments of a namespace.
pub(crate) fn deployments(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments")
}

/// A ConfigMap with one file of `bytes` bytes.
pub(crate) fn config_map(name: &str, bytes: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"file": "x".repeat(bytes)}})
}

/// An opted-in Deployment without pods that refers to these ConfigMaps.
pub(crate) fn deployment(name: &str, sources: &[String]) -> Value {
    let volumes: Vec<_> =
        sources.iter().map(|source| json!({"name": source, "configMap": {"name": source}})).collect();
    let mounts: Vec<_> =
        sources.iter().map(|source| json!({"name": source, "mountPath": format!("/etc/{source}")})).collect();
    json!({
        "metadata": {
            "name": name,
            "labels": {"confrev.dev/enabled": "true"},
            "annotations": {"confrev.dev/min-interval": "0"},
        },
        "spec": {
            "replicas": 0,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}],
                    "volumes": volumes,
                },
            },
        },
    })
}

/// Excludes the namespaces of the baselines from a webhook configuration of confrev, as the chart's value does.
fn leave_alone(cluster: &ControlPlane, kind: &str) {
    let mut configuration = cluster.get(kind, "", "confrev").expect("confrev is installed");
    let mut left_out = 0;
    for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
        let expressions = webhook["namespaceSelector"]["matchExpressions"].as_array_mut();
        for expression in expressions.into_iter().flatten() {
            if expression["key"] == "kubernetes.io/metadata.name"
                && let Some(values) = expression["values"].as_array_mut()
            {
                values.extend(BASELINES.map(Value::from));
                left_out += 1;
            }
        }
    }
    assert_eq!(
        Some(left_out),
        configuration["webhooks"].as_array().map(Vec::len),
        "each webhook excludes namespaces"
    );
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/confrev");
    let (code, answer) = cluster.api().put(&path, &configuration);
    assert_eq!(code, 200, "{answer}");
}

/// The configuration of the webhook that does nothing. It matches the same writes as confrev's.
fn nothing(bare: &Bare) -> Value {
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]});
    let bundle = BASE64_STANDARD.encode(&bare.certificate);
    json!({
        "metadata": {"name": "bench-nothing"},
        "webhooks": [{
            "name": "nothing.bench.confrev.dev",
            "clientConfig": {"url": format!("https://127.0.0.1:{}/", bare.port), "caBundle": bundle},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchLabels": {"bench": NOTHING}},
            "rules": [rule("apps", "deployments"), rule("", "configmaps")],
        }],
    })
}
