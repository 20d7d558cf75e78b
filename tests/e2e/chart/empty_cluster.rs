//! A control plane on which nothing is installed, and actions on it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Output, Program, wait_for};
use serde_json::{Value, json};

use crate::helm::{Setting, chart, flags, helm, root};

pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The time that a test may wait for all previous tests.
const QUEUE: Duration = Duration::from_mins(15);
pub(crate) const SNAPSHOTS: &str = "app.kubernetes.io/managed-by=confrev,confrev.dev/source";
/// The kinds whose objects, if they remained, would change or refuse the writes of users.
pub(crate) const IN_THE_WAY: [&str; 4] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// The number of such objects in an installation: one of each kind, and two more policies with their bindings.
pub(crate) const OBJECTS_IN_THE_WAY: usize = IN_THE_WAY.len() + 4;

/// The configurations of webhooks, in the order in which they are called.
pub(crate) const CONFIGURATIONS: [&str; 2] =
    ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// A cluster in which nothing is installed, for one test at a time, since the chart's cluster-wide names are fixed. Two
/// such clusters serve two tests.
pub(crate) struct Bare {
    pub(crate) cluster: &'static ControlPlane,
    _turn: MutexGuard<'static, ()>,
}

impl Bare {
    pub(crate) fn new() -> Self {
        static CLUSTERS: [OnceLock<ControlPlane>; 2] = [const { OnceLock::new() }; 2];
        static TURNS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
        let free = |turn: &'static Mutex<()>| match turn.try_lock() {
            Ok(guard) => Some(guard),
            // A test has failed there. Its remains are deleted below.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (cluster, turn) = wait_for("a cluster to be free", QUEUE, || {
            CLUSTERS.iter().zip(&TURNS).find_map(|(cluster, turn)| Some((cluster, free(turn)?)))
        });
        let cluster =
            cluster.get_or_init(|| ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}")));
        let bare = Self { cluster, _turn: turn };
        bare.clear();
        bare
    }

    /// Installs the release, and runs confrev for it outside the cluster.
    pub(crate) fn running(&self) -> (Program, Vec<Setting<'static>>) {
        self.running_with(&[], &[])
    }

    /// Does the same with more settings of the chart, and with the options that these settings give a pod.
    pub(crate) fn running_with(
        &self,
        settings: &[Setting<'static>],
        options: &[&str],
    ) -> (Program, Vec<Setting<'static>>) {
        self.install(settings);
        let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
        let mut program = Program::new(self.cluster, binary).options(options);
        let mut outside = settings.to_vec();
        outside.extend([("webhookUrl", json!(program.webhook_url())), ("replicas", json!(0))]);
        self.release("upgrade", &outside).ok();
        program.start();
        (program, outside)
    }

    /// Creates the namespace with the strictest Pod Security level, and installs the release in it.
    pub(crate) fn install(&self, settings: &[Setting<'_>]) {
        self.cluster.kubectl(&["create", "namespace", "confrev"]).run().ok();
        let level = "pod-security.kubernetes.io/enforce=restricted";
        self.cluster.kubectl(&["label", "namespace", "confrev", level]).run().ok();
        self.release("install", settings).ok();
    }

    pub(crate) fn release(&self, verb: &str, settings: &[Setting<'_>]) -> Output {
        let (chart, flags) = (chart(), flags(settings));
        let mut arguments =
            vec![verb, "config", &chart, "--namespace", "confrev", "--wait", "--timeout", "60s"];
        arguments.extend(flags.iter().map(String::as_str));
        helm(&arguments, Some(self.cluster.kubeconfig()))
    }

    pub(crate) fn uninstall(&self) -> Output {
        let arguments = ["uninstall", "config", "--namespace", "confrev", "--wait", "--timeout", "60s"];
        helm(&arguments, Some(self.cluster.kubeconfig()))
    }

    /// Deletes the remains of a failed test.
    fn clear(&self) {
        let namespace = self.cluster.kubectl(&["get", "namespace", "confrev"]).run();
        if namespace.status.success() {
            let _ = self.uninstall();
            // All objects, with or without helm.
            for file in ["carry.yaml", "self-signed.yaml"] {
                let manifests = root().join("manifests").join(file).display().to_string();
                let _ = self.cluster.kubectl(&["delete", "--ignore-not-found", "-f", &manifests]).run();
            }
            self.cluster.kubectl(&["delete", "namespace", "confrev", "--ignore-not-found"]).run().ok();
        }
    }

    /// confrev's objects that affect the writes of users.
    pub(crate) fn in_the_way(&self) -> Vec<String> {
        let kinds = IN_THE_WAY.join(",");
        let found = self.cluster.kubectl(&["get", &kinds, "--output=name"]).run().ok();
        found.lines().filter(|name| name.contains("confrev")).map(str::to_owned).collect()
    }

    /// All webhooks, those that change objects first.
    pub(crate) fn webhooks(&self) -> Vec<Value> {
        CONFIGURATIONS.into_iter().flat_map(|kind| self.webhooks_of(kind)).collect()
    }

    /// The webhooks of a kind of configuration.
    pub(crate) fn webhooks_of(&self, kind: &str) -> Vec<Value> {
        let get = ["get", kind, "confrev", "--output=json"];
        let object: Value = serde_json::from_str(&self.cluster.kubectl(&get).run().ok()).unwrap();
        object["webhooks"].as_array().unwrap().clone()
    }
}

/// An opted-in Deployment and its ConfigMap.
pub(crate) fn web(image: &str, text: &str) -> Value {
    let labels = json!({"app": "web"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": {"text": text}},
        {
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{
                    "name": "app", "image": image, "envFrom": [{"configMapRef": {"name": "demo"}}],
                }]}},
            },
        },
    ]})
}

pub(crate) fn apply(bare: &Bare, namespace: &str, object: &Value) -> Output {
    bare.cluster.kubectl(&["apply", "--namespace", namespace, "--filename", "-"]).stdin(object).run()
}

/// The name of the ConfigMap that the Deployment reads.
pub(crate) fn reads(bare: &Bare, namespace: &str) -> String {
    let web = bare.cluster.get("deployment", namespace, "web").expect("the Deployment exists");
    let name = &web["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
    name.as_str().unwrap_or_default().to_owned()
}

/// Does the part of the kubelet: when confrev's pods have been admitted and have a node, runs confrev with the options of
/// one pod. Also returns the pod's image.
pub(crate) fn as_its_pod(bare: &Bare) -> (Program, String) {
    let pods = wait_for("pods of confrev on a node", LIMIT, || {
        let pods = bare.cluster.list("pods", "confrev", "app.kubernetes.io/name=confrev");
        let placed = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
        if placed == 2 { Ok(pods) } else { Err(format!("{placed} of {}", pods.len())) }
    });
    let container = &pods[0]["spec"]["containers"][0];
    assert_eq!(pods[0]["spec"]["serviceAccountName"], "confrev");

    let mut program = Program::new(bare.cluster, Path::new(env!("CARGO_BIN_EXE_confrev")));
    // The pod's options without those that every confrev of these tests has.
    let given = container["args"].as_array().expect("arguments");
    let given = given.iter().map(|argument| argument.as_str().expect("text"));
    let here = program.arguments().join("=");
    let others: Vec<_> = given.filter(|argument| !here.contains(argument)).collect();
    program = program.options(&others);
    program.start();
    (program, container["image"].as_str().expect("an image").to_owned())
}
