//! confrev's chart, installed without its pods.

use std::path::Path;
use std::process::Command;

use crate::cluster::ControlPlane;

impl ControlPlane {
    /// Renders the chart for the namespace `confrev` with these values (`key=JSON`), and applies the result.
    ///
    /// # Panics
    /// If an object is refused.
    #[track_caller]
    pub fn install_chart(&self, values: &[&str]) {
        // A confrev that ran outside the cluster left its URL in the configurations; the API server allows no Service
        // beside it.
        let configurations = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
        self.kubectl(&["delete", configurations, "confrev", "--ignore-not-found"]).run().ok();
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/confrev");
        let mut helm = Command::new(self.bin("helm"));
        helm.args(["template", "confrev"]).arg(chart).args(["--namespace", "confrev"]);
        for value in values {
            helm.args(["--set-json", value]);
        }
        helm.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
        helm.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
        let rendered = helm.output().expect("helm can be run");
        assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        let manifests = String::from_utf8(rendered.stdout).expect("helm writes text");
        self.kubectl(&["apply", "--filename", "-"]).stdin(manifests).run().ok();
    }
}
