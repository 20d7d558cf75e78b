//! confrev in force for every namespace that is created, or for none.

use std::env;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Nodes, wait_for};
use confrev_test_support::root;
use serde_json::{Value, json};

use crate::images;

/// The longest that confrev may take to serve. Containers start slowly on a busy machine.
const LIMIT: Duration = Duration::from_mins(3);
/// The values of the chart: with Secrets, so that confrev does all it can.
const VALUES: [&str; 2] = ["namespace.create=true", "secrets.enabled=true"];
/// The policy that opts every new namespace in, and its binding.
const POLICY: &str = "confrev-in-force";

const OPT_IN: &str = r#"Object{metadata: Object.metadata{labels: {"confrev.dev/enabled": "true"}}}"#;
/// The policy that lets pods use the local images, in both runs: some tests ask for a pull at each start.
const NO_PULL: &str = "no-pull";
const NO_PULL_CHANGE: &str = r#"Object{spec: Object.spec{containers: object.spec.containers.map(container,
    Object.spec.containers{name: container.name, imagePullPolicy: "IfNotPresent"})}}"#;

/// The nodes, for one suite at a time.
pub(crate) struct Stand {
    /// The folder with the suites.
    pub(crate) suites: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Stand {
    /// Waits until no other suite runs. confrev is not installed then.
    pub(crate) fn take() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let suites = env::var_os("CONFREV_SUITES").expect("`make compatibility` sets CONFREV_SUITES");
        let suites = PathBuf::from(suites);
        Nodes::shared().repair();
        images::import(&suites);
        let image = env::var_os("CONFREV_IMAGE").map_or_else(|| root().join("target/image"), PathBuf::from);
        Nodes::shared().import(&image.join("confrev.tar"));
        for object in policy(NO_PULL, "pods", NO_PULL_CHANGE) {
            cluster().kubectl(&["apply", "--filename", "-"]).stdin(object).run().ok();
        }
        Self { suites, _alone: alone }
    }

    /// Runs a suite without confrev, and with it.
    pub(crate) fn twice<T>(&self, mut suite: impl FnMut(&Self, bool) -> T) -> [T; 2] {
        remove();
        let without = suite(self, false);
        install();
        let before = reviews();
        let with = suite(self, true);
        let answered = reviews() - before;
        assert!(answered > 0.0, "confrev answered only {answered} reviews");
        eprintln!("confrev answered {answered} reviews");
        remove();
        [without, with]
    }
}

/// The tests that `make compatibility FOCUS=…` selects.
pub(crate) fn chosen() -> String {
    env::var("CONFREV_FOCUS").unwrap_or_default()
}

fn cluster() -> &'static ControlPlane {
    ControlPlane::shared()
}

fn install() {
    cluster().install_chart(&VALUES);
    let status = ["rollout", "status", "deployment/confrev", "--namespace=confrev", "--timeout=180s"];
    cluster().kubectl(&status).run().ok();
    wait_for("the API server to call confrev", LIMIT, || cluster().calls_confrev());
    for object in policy(POLICY, "namespaces", OPT_IN) {
        cluster().kubectl(&["apply", "--filename", "-"]).stdin(object).run().ok();
    }
    wait_for("a new namespace to be opted in", LIMIT, || {
        let probe = json!({"metadata": {"name": "probe"}});
        let (_, answer) = cluster().api().post("/api/v1/namespaces?dryRun=All", &probe);
        let label = &answer["metadata"]["labels"]["confrev.dev/enabled"];
        if label == "true" { Ok(()) } else { Err(answer.to_string()) }
    });
}

fn remove() {
    for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
        cluster().kubectl(&["delete", kind, POLICY, "--ignore-not-found"]).run().ok();
    }
    cluster().uninstall_chart(&VALUES);
}

/// A policy of the API server itself that changes every new object of a resource.
fn policy(name: &str, resource: &str, expression: &str) -> [Value; 2] {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]});
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": [rule]},
                "mutations": [{
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": expression},
                }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        }),
    ]
}

/// How many reviews of workloads and sources confrev's replicas have answered.
fn reviews() -> f64 {
    let pods = cluster().ready_pods("confrev", "app.kubernetes.io/name=confrev");
    pods.iter()
        .map(|pod| {
            let address = pod["status"]["podIP"].as_str().expect("a ready pod has an address");
            let admin = cluster().api().at(&format!("http://{address}:8080")).within(Duration::from_secs(5));
            let (_, text) = admin.get("/metrics");
            let text = text.as_str().unwrap_or_default().to_owned();
            let counts = text.lines().filter(|line| line.starts_with("confrev_admission_reviews_total{"));
            counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
        })
        .sum()
}
