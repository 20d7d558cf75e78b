//! confrev's chart, installed without its pods.

use std::path::{Path, PathBuf};
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
        self.upgrade_chart(&own_chart(), values);
    }

    /// Applies the chart in this folder over what is installed, as `helm upgrade` does.
    ///
    /// # Panics
    /// If an object is refused.
    #[track_caller]
    pub fn upgrade_chart(&self, chart: &Path, values: &[&str]) {
        let manifests = self.rendered_chart(chart, values);
        self.kubectl(&["apply", "--filename", "-"]).stdin(manifests).run().ok();
    }

    /// Deletes what [`install_chart`](Self::install_chart) applied with these values.
    ///
    /// # Panics
    /// If an object cannot be deleted.
    #[track_caller]
    pub fn uninstall_chart(&self, values: &[&str]) {
        let delete = ["delete", "--ignore-not-found", "--timeout=180s", "--filename", "-"];
        self.kubectl(&delete).stdin(self.rendered_chart(&own_chart(), values)).run().ok();
    }

    #[track_caller]
    fn rendered_chart(&self, chart: &Path, values: &[&str]) -> String {
        let mut helm = Command::new(self.bin("helm"));
        helm.args(["template", "confrev"]).arg(chart).args(["--namespace", "confrev"]);
        // Without a cluster, helm does not know what the API server serves.
        let (_, served) = self.api().get("/apis/admissionregistration.k8s.io/v1");
        let served = served["resources"].as_array().into_iter().flatten();
        for kind in served.filter_map(|resource| resource["kind"].as_str()) {
            helm.args(["--api-versions", &format!("admissionregistration.k8s.io/v1/{kind}")]);
        }
        // A busy machine may need more time for a review than a cluster. An older chart has other values.
        let defaults = std::fs::read_to_string(chart.join("values.yaml")).expect("a chart has values");
        for value in ["timeoutSeconds", "sourceTimeoutSeconds", "checkedSourceTimeoutSeconds"] {
            if defaults.lines().any(|line| line.starts_with(&format!("{value}:"))) {
                helm.args(["--set-json", &format!("{value}=10")]);
            }
        }
        for value in values {
            helm.args(["--set-json", value]);
        }
        helm.env("HELM_CONFIG_HOME", "/nonexistent").env("HELM_DATA_HOME", "/nonexistent");
        helm.env("HELM_CACHE_HOME", std::env::temp_dir().join("confrev-helm-cache"));
        let rendered = helm.output().expect("helm can be run");
        assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        String::from_utf8(rendered.stdout).expect("helm writes text")
    }
}

/// The folder of this tree's chart.
pub fn own_chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/confrev")
}
