//! The chart that `helm create` makes: installed, tested by `helm test`, upgraded, rolled back and tested again.

use std::fs;
use std::path::Path;
use std::process::Command;

use confrev_controlplane::ControlPlane;

use crate::in_force::Stand;
use crate::results::{Results, Verdict, compare};

#[test]
#[ignore = "it needs real nodes: make compatibility"]
fn helm_test_passes_with_confrev() {
    let stand = Stand::take();
    let [without, with] = stand.twice(|_, _| run());
    compare("Helm v3.21.4", &without, &with, &[], 1);
}

fn run() -> Results {
    let verdict = install().map_or_else(Verdict::Failed, |()| Verdict::Passed);
    Results([(("helm test".to_owned(), "helm create".to_owned()), verdict)].into())
}

fn install() -> Result<(), String> {
    let cluster = ControlPlane::shared();
    let namespace = cluster.namespace("helm");
    let folder = cluster.state_dir().join(namespace.name());
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let helm = |arguments: &[&str]| helm(cluster, &folder, namespace.name(), arguments);
    helm(&["create", "web"])?;
    // Its test asks for the newest busybox, which a node would have to pull.
    let test = folder.join("web/templates/tests/test-connection.yaml");
    let text = fs::read_to_string(&test).map_err(|e| e.to_string())?;
    fs::write(&test, text.replace("image: busybox", "image: busybox:local")).map_err(|e| e.to_string())?;
    helm(&["install", "web", "web", "--wait", "--timeout=3m"])?;
    helm(&["test", "web", "--timeout=3m"])?;
    helm(&["upgrade", "web", "web", "--set=podAnnotations.changed=yes", "--wait", "--timeout=3m"])?;
    helm(&["rollback", "web", "1", "--wait", "--timeout=3m"])?;
    helm(&["test", "web", "--timeout=3m"])?;
    helm(&["uninstall", "web", "--wait", "--timeout=3m"])
}

fn helm(cluster: &ControlPlane, folder: &Path, namespace: &str, arguments: &[&str]) -> Result<(), String> {
    let mut helm = Command::new(cluster.bin("helm"));
    helm.args(arguments).args(["--namespace", namespace]).current_dir(folder);
    helm.env("KUBECONFIG", cluster.kubeconfig());
    for variable in ["HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME"] {
        helm.env(variable, folder.join("home"));
    }
    let output = helm.output().map_err(|e| format!("cannot run helm: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("helm {}: {text}", arguments.join(" "))) }
}
