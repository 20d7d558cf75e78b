//! The one running confrev, from the chart, with all that is off by default.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use confrev_controlplane::{ControlPlane, Program};

/// The kind that is no built-in one.
const KIND: &str = "apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template";
/// The same for the chart.
const EXTRA_KINDS: &str = r#"extraKinds=[{"group": "apps.kruise.io", "version": "v1alpha1", "resource": "clonesets",
    "kind": "CloneSet", "path": "spec.template"}]"#;
/// The CRD of that kind, which a test installs after confrev has started.
pub(crate) const CRD: &str = "clonesets.apps.kruise.io";

/// Shows the end of confrev's log where the test fails.
pub(crate) struct Running(&'static Program);

/// confrev runs from here on.
pub(crate) fn running() -> Running {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    Running(PROGRAM.get_or_init(|| {
        let cluster = ControlPlane::shared();
        install(cluster);
        let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
        // The grace is short, so that tests see the sweep.
        let options = ["--secrets", "--kind", KIND, "--orphan-grace", "5s"];
        let mut program = Program::new(cluster, binary).options(&options);
        program.start();
        program
    }))
}

/// Everything that any confrev of this control plane has logged.
pub(crate) fn logs() -> String {
    let folder = fs::read_dir(ControlPlane::shared().state_dir()).expect("the state folder can be read");
    let paths = folder.map(|entry| entry.expect("it can be read").path());
    let is_log = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("confrev-") && name.ends_with(".log")
    };
    paths.filter(|path| is_log(path)).map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
}

fn install(cluster: &ControlPlane) {
    // One that ran outside the cluster left its URL there, beside which the API server takes no Service.
    let configurations = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    cluster.kubectl(&["delete", configurations, "confrev", "--ignore-not-found"]).run().ok();
    cluster.kubectl(&["delete", "customresourcedefinition", CRD, "--ignore-not-found"]).run().ok();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/confrev");
    let mut helm = Command::new(cluster.bin("helm"));
    helm.args(["template", "confrev"]).arg(chart).args(["--namespace", "confrev"]);
    // It runs beside the control plane, not in pods.
    for value in ["replicas=0", "namespace.create=true", "secrets.enabled=true", EXTRA_KINDS] {
        helm.args(["--set-json", value]);
    }
    helm.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
    helm.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
    let rendered = helm.output().expect("helm can be run");
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let manifests = String::from_utf8(rendered.stdout).expect("helm writes text");
    cluster.kubectl(&["apply", "--filename", "-"]).stdin(manifests).run().ok();
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("The end of confrev's log:\n{}", self.0.log_tail());
        }
    }
}
