//! The demo on real nodes: pods print the content that they find.

use std::env;

use confrev_controlplane::{ControlPlane, Image, Nodes};
use serde_json::Value;

/// The variable that selects real nodes.
const VARIABLE: &str = "CONFREV_DEMO_NODE";
/// Prints the file, or the variable without one, at the start and after each change.
const SCRIPT: &str = r#"trap 'exit 0' TERM
last=
while true; do
  now=$(cat /config/color 2>/dev/null || echo "$color")
  [ "$now" = "$last" ] || echo "$now"
  last=$now
  sleep 1 & wait $!
done"#;

/// Whether the demo runs on real nodes.
pub(crate) fn is_real() -> bool {
    env::var_os(VARIABLE).is_some_and(|value| value == "real")
}

/// Starts the nodes, with the image of the workloads.
///
/// # Panics
/// Outside `controlplane nodes`.
pub(crate) fn start() {
    let command = ["/bin/sh", "-c", SCRIPT];
    let image = Image { names: &["docker.io/library/demo:latest"], command: &command, ..Image::default() };
    Nodes::shared().import_image(image);
}

/// What the container of a pod has printed since it started: one content, or several separated by commas.
pub(crate) fn printed(cluster: &ControlPlane, namespace: &str, pod: &str) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?container=app");
    match cluster.api().get(&path) {
        (200, Value::String(text)) if !text.is_empty() => Ok(text.trim_end().replace('\n', ",")),
        (code, answer) => Err(format!("no log of pod {pod} yet: {code} {answer}")),
    }
}
