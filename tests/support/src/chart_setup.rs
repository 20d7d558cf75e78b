//! confrev from the chart, with everything on that is off by default.

use std::fs;
use std::path::Path;

use confrev_controlplane::{ControlPlane, Program};
use serde_json::json;

/// A kind whose CRD a test installs after confrev has started.
pub const LATE_CRD: &str = "clonesets.apps.kruise.io";
/// The configured kinds, as in the option and in the chart: the targets of a `workloadRef` other than Deployments, a kind
/// whose CRD exists from the start, and the kind of [`LATE_CRD`].
const KINDS: [[&str; 5]; 4] = [
    ["apps.kruise.io", "v1alpha1", "clonesets", "CloneSet", "spec.template"],
    ["test.confrev.dev", "v1", "webs", "Web", "spec.pods.template"],
    ["apps", "v1", "replicasets", "ReplicaSet", "spec.template"],
    ["", "v1", "podtemplates", "PodTemplate", "template"],
];

/// Installs the chart, and adds these options to confrev's. `binary` is the confrev that the tests run.
pub fn program(binary: &Path, more: &[&str]) -> Program {
    let cluster = ControlPlane::shared();
    install(cluster);
    let kinds = KINDS.map(|[group, version, resource, kind, path]| {
        format!("--kind={group}/{version}/{resource}/{kind}={path}")
    });
    // A short grace, so that the tests observe the sweep.
    let options = ["--secrets", "--orphan-grace=5s"].into_iter().chain(kinds.iter().map(String::as_str));
    let options = options.chain(more.iter().copied()).collect::<Vec<_>>();
    Program::new(cluster, binary).options(&options)
}

fn install(cluster: &ControlPlane) {
    cluster.kubectl(&["delete", "customresourcedefinition", LATE_CRD, "--ignore-not-found"]).run().ok();
    let web = crate::any_kind::crd("test.confrev.dev", "v1", "webs", "Web").to_string();
    cluster.kubectl(&["apply", "--server-side", "--filename", "-"]).stdin(web).run().ok();
    let kinds = KINDS.map(|[group, version, resource, kind, path]| {
        json!({"group": group, "version": version, "resource": resource, "kind": kind, "path": path})
    });
    let kinds = format!("extraKinds={}", json!(kinds));
    // confrev runs beside the control plane, not in pods.
    cluster.install_chart(&["replicas=0", "namespace.create=true", "secrets.enabled=true", &kinds]);
}

/// The logs of every confrev of this control plane.
pub fn logs() -> String {
    let folder = fs::read_dir(ControlPlane::shared().state_dir()).expect("the state folder can be read");
    let paths = folder.map(|entry| entry.expect("the entry can be read").path());
    let is_log = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("confrev-") && name.ends_with(".log")
    };
    paths.filter(|path| is_log(path)).map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
}
