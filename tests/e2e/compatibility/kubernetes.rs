//! Kubernetes' own end-to-end tests.

use std::fs::{self, File};
use std::process::Command;

use confrev_controlplane::ControlPlane;
use serde_json::Value;

use crate::in_force::{Stand, chosen};
use crate::results::{Results, Verdict, compare};

/// Every conformance test of workloads, and of ConfigMaps, Secrets and projected volumes; and `kubectl rollout`.
const FOCUS: [&str; 4] = [
    r"\[sig-apps\].*\[Conformance\]",
    r"\[sig-storage\] (ConfigMap|Secrets|Projected) .*\[Conformance\]",
    r"\[sig-node\] (ConfigMap|Secrets) .*\[Conformance\]",
    r"\[sig-cli\] Kubectl rollout",
];

/// Tests that fail with and without confrev, and why.
const CANNOT_PASS: [(&str, &str); 2] =
    [("be consumable via the environment", SHELL), ("with various prefixes", SHELL)];
const SHELL: &str = "the shell of Debian's busybox drops variables whose names are no identifiers";

#[test]
#[ignore = "it needs real nodes: make compatibility"]
fn kubernetes_conformance_passes_with_confrev() {
    let stand = Stand::take();
    let [without, with] = stand.twice(run);
    compare("Kubernetes v1.37.2", &without, &with, &CANNOT_PASS, if chosen().is_empty() { 90 } else { 1 });
}

fn run(stand: &Stand, with: bool) -> Results {
    let cluster = ControlPlane::shared();
    let folder = cluster.state_dir().join(if with { "kubernetes-with" } else { "kubernetes-without" });
    fs::create_dir_all(&folder).expect("a folder for the report");
    let log = folder.join("log");
    let output = File::create(&log).expect("a log can be written");
    let mut ginkgo = Command::new(stand.suites.join("ginkgo"));
    ginkgo.args([
        "--procs=6",
        "--no-color",
        "--succinct",
        "--silence-skips",
        "--timeout=60m",
        "--keep-going",
    ]);
    // As in the jobs of Kubernetes itself, a test that fails on a busy machine runs again.
    ginkgo.args(["--flake-attempts=2", "--json-report=report.json", "--output-dir"]).arg(&folder);
    let chosen = chosen();
    let focus = if chosen.is_empty() { FOCUS.to_vec() } else { vec![chosen.as_str()] };
    ginkgo.args(focus.iter().map(|focus| format!("--focus={focus}")));
    ginkgo.arg(stand.suites.join("e2e.test")).arg("--");
    ginkgo.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    ginkgo.args(["--provider=skeleton", "--num-nodes=2", "--system-pods-startup-timeout=1m"]);
    ginkgo.current_dir(&folder).env("KUBECONFIG", cluster.kubeconfig());
    ginkgo.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
    // Failed tests end it with an error: the report has them.
    let status = ginkgo.status().expect("ginkgo can be run");
    let report = fs::read_to_string(folder.join("report.json"));
    let report = report.unwrap_or_else(|e| panic!("{status}: {e}\n{}", fs::read_to_string(&log).unwrap()));
    read(&serde_json::from_str(&report).expect("ginkgo writes JSON"))
}

/// The results of the tests in ginkgo's report. Tests outside the focus are skipped without a mention.
fn read(report: &Value) -> Results {
    let suites = report.as_array().expect("a list of suites");
    let specs = suites.iter().flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    let mut results = Results::default();
    for spec in specs.filter(|spec| spec["LeafNodeType"] == "It") {
        let above = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let mut words: Vec<_> = above.filter_map(Value::as_str).collect();
        words.push(spec["LeafNodeText"].as_str().unwrap_or_default());
        let name = words.join(" ");
        let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
        let verdict = match spec["State"].as_str() {
            Some("passed") => Verdict::Passed,
            Some("skipped") if message.is_empty() => continue,
            Some("skipped") => Verdict::Skipped,
            state => Verdict::Failed(format!("{state:?}: {message}")),
        };
        let group = name.split_whitespace().next().unwrap_or_default().to_owned();
        results.0.insert((group, name), verdict);
    }
    results
}
