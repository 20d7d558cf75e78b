//! Install, upgrade, uninstall: helm on a control plane of its own, with confrev beside it as in development, as there
//! is no Service network that pods could be reached by.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::{ControlPlane, Output, Program, wait_for};
use serde_json::{Value, json};

use crate::helm::{Setting, chart, flags, helm, root};

const LIMIT: Duration = Duration::from_mins(1);
const SNAPSHOTS: &str = "app.kubernetes.io/managed-by=confrev,confrev.dev/source";
/// The kinds of which an object, left behind, would change or refuse what users write.
const IN_THE_WAY: [&str; 4] = [
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

/// A cluster in which nothing is installed, for one test at a time: the chart's cluster-wide names are fixed.
struct Bare {
    cluster: &'static ControlPlane,
    _turn: MutexGuard<'static, ()>,
}

impl Bare {
    fn new() -> Self {
        static CLUSTER: OnceLock<ControlPlane> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster =
            CLUSTER.get_or_init(|| ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}")));
        let bare = Self { cluster, _turn: turn };
        bare.clear();
        bare
    }

    /// The release, and confrev beside it, which serves it.
    fn running(&self) -> (Program, Vec<Setting<'static>>) {
        self.install(&[]);
        let mut program = Program::new(self.cluster, Path::new(env!("CARGO_BIN_EXE_confrev")));
        let outside = vec![("webhookUrl", json!(program.webhook_url())), ("replicas", json!(0))];
        self.release("upgrade", &outside).ok();
        program.start();
        (program, outside)
    }

    /// The namespace, held to the strictest Pod Security level, and the release in it.
    fn install(&self, settings: &[Setting<'_>]) {
        self.cluster.kubectl(&["create", "namespace", "confrev"]).run().ok();
        let level = "pod-security.kubernetes.io/enforce=restricted";
        self.cluster.kubectl(&["label", "namespace", "confrev", level]).run().ok();
        self.release("install", settings).ok();
    }

    fn release(&self, verb: &str, settings: &[Setting<'_>]) -> Output {
        let (chart, flags) = (chart(), flags(settings));
        let mut arguments =
            vec![verb, "config", &chart, "--namespace", "confrev", "--wait", "--timeout", "60s"];
        arguments.extend(flags.iter().map(String::as_str));
        helm(&arguments, Some(self.cluster.kubeconfig()))
    }

    fn uninstall(&self) -> Output {
        let arguments = ["uninstall", "config", "--namespace", "confrev", "--wait", "--timeout", "60s"];
        helm(&arguments, Some(self.cluster.kubeconfig()))
    }

    /// Whatever a failed test has left.
    fn clear(&self) {
        let namespace = self.cluster.kubectl(&["get", "namespace", "confrev"]).run();
        if namespace.status.success() {
            let _ = self.uninstall();
            self.cluster.kubectl(&["delete", "namespace", "confrev"]).run().ok();
        }
    }

    /// Objects of confrev's that are in everybody's way.
    fn in_the_way(&self) -> Vec<String> {
        let kinds = IN_THE_WAY.join(",");
        let found = self.cluster.kubectl(&["get", &kinds, "--output=name"]).run().ok();
        found.lines().filter(|name| name.contains("confrev")).map(str::to_owned).collect()
    }

    fn webhooks(&self) -> Vec<Value> {
        let get = ["get", "mutatingwebhookconfigurations", "confrev", "--output=json"];
        let object: Value = serde_json::from_str(&self.cluster.kubectl(&get).run().ok()).unwrap();
        object["webhooks"].as_array().unwrap().clone()
    }
}

/// An opted-in Deployment and its ConfigMap.
fn web(image: &str, text: &str) -> Value {
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

fn apply(bare: &Bare, namespace: &str, object: &Value) -> Output {
    bare.cluster.kubectl(&["apply", "--namespace", namespace, "--filename", "-"]).stdin(object).run()
}

/// The name of the ConfigMap that the Deployment reads.
fn reads(bare: &Bare, namespace: &str) -> String {
    let web = bare.cluster.get("deployment", namespace, "web").expect("there is the Deployment");
    let name = &web["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
    name.as_str().unwrap_or_default().to_owned()
}

#[test]
fn after_uninstall_workloads_go_on_with_their_snapshots_and_nothing_is_blocked() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("left");
    let (mut program, _) = bare.running();
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    let snapshot = reads(&bare, namespace.name());
    assert!(snapshot.starts_with("demo-"), "the installation works: {snapshot}");
    let pods = || bare.cluster.ready_pods(namespace.name(), "app=web").len();
    wait_for("a ready pod", LIMIT, || (pods() == 1).then_some(()));

    bare.uninstall().ok();
    program.kill();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
    assert_eq!(reads(&bare, namespace.name()), snapshot, "uninstalling changes no workload");

    let kubectl =
        |arguments: &[&str]| bare.cluster.kubectl(arguments).arg("--namespace").arg(namespace.name()).run();
    kubectl(&["scale", "deployment/web", "--replicas=3"]).ok();
    wait_for("three ready pods of the same revision", LIMIT, || (pods() == 3).then_some(()));
    kubectl(&["set", "image", "deployment/web", "app=app:2"]).ok();
    apply(&bare, namespace.name(), &web("app:3", "B")).ok();
    // What was guarded can be removed: first one object, then the namespace with all of it, then confrev's own.
    kubectl(&["delete", "configmap", &snapshot]).ok();
    assert_eq!(bare.cluster.list("configmap", namespace.name(), SNAPSHOTS).len(), 0);
    bare.cluster.kubectl(&["delete", "namespace", namespace.name(), "--timeout=60s"]).run().ok();
    bare.cluster.kubectl(&["delete", "namespace", "confrev", "--timeout=60s"]).run().ok();
}

/// In a hurry, without helm: the cluster-wide objects stay. Helm takes them over when it installs again.
#[test]
fn deleting_the_namespace_alone_blocks_nothing_that_is_not_opted_in_and_helm_installs_again() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("alone");
    bare.install(&[]);
    bare.cluster.kubectl(&["delete", "namespace", "confrev", "--timeout=60s"]).run().ok();
    let mut plain = web("app:1", "A");
    plain["items"][1]["metadata"]["labels"] = json!({});
    apply(&bare, namespace.name(), &plain).ok();
    bare.install(&[]);
    bare.uninstall().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}

#[test]
fn pods_are_admitted_under_the_restricted_pod_security_level() {
    let bare = Bare::new();
    bare.install(&[("podLabels", json!({"team": "a"}))]);
    wait_for("both pods", LIMIT, || {
        let pods = bare.cluster.ready_pods("confrev", "app.kubernetes.io/name=confrev,team=a").len();
        (pods == 2).then_some(())
    });
    // The namespace would have refused it otherwise.
    let privileged = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "p", "image": "p", "securityContext": {"privileged": true}}]}});
    assert!(apply(&bare, "confrev", &privileged).refused().contains("restricted"));
    bare.uninstall().ok();
}

#[test]
fn an_upgrade_changes_what_it_is_told_to_and_keeps_the_ca_bundle_that_confrev_wrote() {
    let bare = Bare::new();
    bare.install(&[]);
    // As confrev writes it in the cluster.
    let bundle = STANDARD.encode(bare.cluster.ca_pem());
    let bundles = || -> Vec<_> {
        bare.webhooks().iter().map(|webhook| webhook["clientConfig"]["caBundle"].clone()).collect()
    };
    let write = |index| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle});
    let patch = Value::from((0..bundles().len()).map(write).collect::<Vec<_>>()).to_string();
    let configuration =
        ["patch", "mutatingwebhookconfiguration", "confrev", "--type=json", "--patch", &patch];
    bare.cluster.kubectl(&configuration).run().ok();

    bare.release("upgrade", &[("replicas", json!(3)), ("failurePolicy", json!("Ignore"))]).ok();
    assert_eq!(bundles(), vec![json!(bundle); 4], "an upgrade must not cut the API server off");
    assert_eq!(bare.webhooks()[0]["failurePolicy"], "Ignore");
    assert_eq!(bare.cluster.get("deployment", "confrev", "confrev").unwrap()["spec"]["replicas"], 3);
    // More webhooks, in the list that others were written into meanwhile.
    bare.release("upgrade", &[("secrets.enabled", json!(true))]).ok();
    let secrets = [Value::Null, Value::Null];
    assert_eq!(bundles(), [vec![json!(bundle); 4], secrets.to_vec()].concat());
    bare.uninstall().ok();
}

/// The webhooks point at confrev's URL then, where the chart without `webhookUrl` has a Service.
#[test]
fn an_upgrade_works_while_confrev_runs_outside_the_cluster() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("outside");
    let (_program, outside) = bare.running();
    let before = bare.webhooks();
    bare.release("upgrade", &[&outside[..], &[("excludedNamespaces", json!(["legacy"]))]].concat()).ok();
    for (before, after) in before.iter().zip(bare.webhooks()) {
        assert_eq!(before["clientConfig"], after["clientConfig"], "as confrev has it");
    }
    apply(&bare, namespace.name(), &web("app:1", "A")).ok();
    assert!(reads(&bare, namespace.name()).starts_with("demo-"));

    // Back to the Service: confrev, which still runs outside, makes it its URL again.
    bare.release("upgrade", &[("replicas", json!(0))]).ok();
    wait_for("the webhooks to be as before", LIMIT, || {
        let same = |(before, after): (&Value, &Value)| before["clientConfig"] == after["clientConfig"];
        before.iter().zip(&bare.webhooks()).all(same).then_some(())
    });

    // Now a Service stands in the release and a URL in the cluster. Helm keeps the one and so cannot write the other:
    // the API server refuses, nothing is changed, and the value is the way out, as values.yaml says.
    let refused = bare.release("upgrade", &[("replicas", json!(1))]).refused();
    assert!(refused.contains("exactly one of url or service"), "{refused}");
    assert_eq!(bare.webhooks()[0]["clientConfig"], before[0]["clientConfig"]);
    bare.release("upgrade", &outside).ok();
    bare.uninstall().ok();
}

#[test]
fn the_manifests_are_applied_again_and_again_in_both_ways_and_deleted_without_a_trace() {
    let bare = Bare::new();
    let manifests = root().join("manifests/self-signed.yaml").display().to_string();
    let client = ["apply", "-f", &manifests];
    let server = ["apply", "--server-side", "-f", &manifests];
    for apply in [&client[..], &client, &server, &server, &client] {
        bare.cluster.kubectl(apply).run().ok();
    }
    assert_eq!(bare.in_the_way().len(), IN_THE_WAY.len(), "{:?}", bare.in_the_way());
    bare.cluster.kubectl(&["delete", "--wait", "-f", &manifests]).run().ok();
    assert_eq!(bare.in_the_way(), [""; 0], "left behind");
}
