//! A control plane on which nothing is installed, and what is done there.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Output, Program, wait_for};
use serde_json::{Value, json};

use crate::helm::{Setting, chart, flags, helm, root};

pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// How long a test may wait for all before it.
const QUEUE: Duration = Duration::from_mins(15);
pub(crate) const SNAPSHOTS: &str = "app.kubernetes.io/managed-by=confrev,confrev.dev/source";
/// The kinds of which an object, left behind, would change or refuse what users write.
pub(crate) const IN_THE_WAY: [&str; 4] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// How many such objects an installation has: one of each kind, and a second policy with its binding.
pub(crate) const OBJECTS_IN_THE_WAY: usize = IN_THE_WAY.len() + 2;

/// A cluster in which nothing is installed, for one test at a time: the chart's cluster-wide names are fixed. There are
/// two, for two tests.
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
            // A test has failed there: what it has left is cleared.
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

    /// The release, and confrev beside it, which serves it.
    pub(crate) fn running(&self) -> (Program, Vec<Setting<'static>>) {
        self.running_with(&[], &[])
    }

    /// The same with more settings of the chart, and the options that these give a pod.
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

    /// The namespace, held to the strictest Pod Security level, and the release in it.
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

    /// Whatever a failed test has left.
    fn clear(&self) {
        let namespace = self.cluster.kubectl(&["get", "namespace", "confrev"]).run();
        if namespace.status.success() {
            let _ = self.uninstall();
            // Whatever was applied, by helm or not.
            let manifests = root().join("manifests/self-signed.yaml").display().to_string();
            let delete = ["delete", "--ignore-not-found", "-f", &manifests];
            let _ = self.cluster.kubectl(&delete).run();
            self.cluster.kubectl(&["delete", "namespace", "confrev", "--ignore-not-found"]).run().ok();
        }
    }

    /// Objects of confrev's that are in everybody's way.
    pub(crate) fn in_the_way(&self) -> Vec<String> {
        let kinds = IN_THE_WAY.join(",");
        let found = self.cluster.kubectl(&["get", &kinds, "--output=name"]).run().ok();
        found.lines().filter(|name| name.contains("confrev")).map(str::to_owned).collect()
    }

    pub(crate) fn webhooks(&self) -> Vec<Value> {
        let get = ["get", "mutatingwebhookconfigurations", "confrev", "--output=json"];
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
    let web = bare.cluster.get("deployment", namespace, "web").expect("there is the Deployment");
    let name = &web["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
    name.as_str().unwrap_or_default().to_owned()
}

/// The kubelet's part: when the pods of confrev have been admitted and given a node, one is run, as that pod says. Answers
/// with the image of the pod, too.
pub(crate) fn as_its_pod(bare: &Bare) -> (Program, String) {
    let pods = wait_for("pods of confrev on a node", LIMIT, || {
        let pods = bare.cluster.list("pods", "confrev", "app.kubernetes.io/name=confrev");
        let placed = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
        if placed == 2 { Ok(pods) } else { Err(format!("{placed} of {}", pods.len())) }
    });
    let container = &pods[0]["spec"]["containers"][0];
    assert_eq!(pods[0]["spec"]["serviceAccountName"], "confrev");

    let mut program = Program::new(bare.cluster, Path::new(env!("CARGO_BIN_EXE_confrev")));
    // What the pod has beside the options that any confrev has here.
    let given = container["args"].as_array().expect("arguments");
    let given = given.iter().map(|argument| argument.as_str().expect("text"));
    let here = program.arguments().join("=");
    let others: Vec<_> = given.filter(|argument| !here.contains(argument)).collect();
    program = program.options(&others);
    program.start();
    (program, container["image"].as_str().expect("an image").to_owned())
}
