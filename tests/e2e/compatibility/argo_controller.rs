//! What Argo Rollouts' own jobs set up for its tests.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use confrev_controlplane::{ControlPlane, wait_for};
use confrev_test_support::any_kind::crd;
use serde_json::{Value, json};

/// The label that the tests put on all objects has this value. The controller that other tests share ignores such objects.
const INSTANCE: &str = "argo-rollouts-e2e";
/// Where the controller looks for its configuration.
const CONTROLLER_NAMESPACE: &str = "argo-rollouts";
/// A test reads the metrics on this port.
const METRICS: u16 = 8090;
const HEALTH: u16 = 8091;
/// The longest that the controller may take to serve on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

/// A controller for the tests' objects. It ends on drop.
pub(crate) struct Controller(Child);

impl Controller {
    /// Creates the CustomResourceDefinitions of meshes and load balancers, and the configuration with the tests' plugin. Then starts
    /// a controller, which reads both once.
    pub(crate) fn start(suites: &Path) -> Self {
        let (cluster, sources) = (ControlPlane::shared(), suites.join("argo-e2e"));
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename"];
        for file in ["apisix.yaml", "istio.yaml"] {
            cluster.kubectl(&apply).arg(&sources.join("crds").join(file).display().to_string()).run().ok();
        }
        for definition in definitions() {
            cluster.kubectl(&apply).arg("-").stdin(definition).run().ok();
        }
        let established = ["wait", "--for=condition=Established", "--all", "--timeout=120s"];
        cluster.kubectl(&established).arg("customresourcedefinition").run().ok();
        cluster.kubectl(&apply).arg("-").stdin(config(suites, CONTROLLER_NAMESPACE)).run().ok();

        // The configuration names the plugin's file relative to this folder.
        let folder = cluster.state_dir().join("argo-e2e");
        fs::create_dir_all(folder.join("plugin-bin")).expect("a folder for plugins");
        fs::copy(suites.join("e2e-step-plugin"), folder.join("plugin-bin/e2e-step-plugin"))
            .expect("the plugin can be copied");
        let log = folder.join("controller.log");
        let output = File::create(&log).expect("a log can be written");
        let mut command = Command::new(cluster.bin("rollouts-controller"));
        let kubeconfig = cluster.state_dir().join("argo-rollouts.kubeconfig");
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.args([
            &format!("--instance-id={INSTANCE}"),
            "--leader-elect=false",
            "--qps=500",
            "--burst=1000",
        ]);
        command.args([format!("--metricsPort={METRICS}"), format!("--healthzPort={HEALTH}")]);
        command.current_dir(&folder).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
        let mut controller = Self(command.spawn().expect("the controller can be started"));
        wait_for("the controller of the tests' objects", LIMIT, || {
            let log = || fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = controller.0.try_wait().expect("the controller can be waited for") {
                panic!("the controller ended ({status}):\n{}", log());
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, METRICS)).map_err(|e| format!("{e}\n{}", log()))
        });
        controller
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The controller's configuration, with the tests' plugin.
pub(crate) fn config(suites: &Path, namespace: &str) -> String {
    let file = suites.join("argo-e2e/step-plugin/argo-rollouts-config.yaml");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.replace(&format!("namespace: {CONTROLLER_NAMESPACE}"), &format!("namespace: {namespace}"))
}

/// CustomResourceDefinitions with any content. Argo's own jobs skip the tests that need them: its sources have none of AWS App Mesh,
/// and none of the version of SMI that its controller uses.
fn definitions() -> impl Iterator<Item = Value> {
    let kinds = [
        ("appmesh.k8s.aws", "v1beta2", "Mesh", "meshes", "Cluster"),
        ("appmesh.k8s.aws", "v1beta2", "VirtualNode", "virtualnodes", "Namespaced"),
        ("appmesh.k8s.aws", "v1beta2", "VirtualRouter", "virtualrouters", "Namespaced"),
        ("appmesh.k8s.aws", "v1beta2", "VirtualService", "virtualservices", "Namespaced"),
        ("split.smi-spec.io", "v1alpha1", "TrafficSplit", "trafficsplits", "Namespaced"),
    ];
    kinds.into_iter().map(|(group, version, kind, plural, scope)| {
        let mut definition = crd(group, version, plural, kind);
        definition["spec"]["scope"] = json!(scope);
        definition
    })
}
