//! confrev as users install it with `kubectl apply`.

use std::path::Path;

use confrev_controlplane::{ControlPlane, Program};

/// Short, so that the tests observe the sweep.
const ORPHAN_GRACE: &str = "--orphan-grace=5s";

/// The strategies of the manifests, which the Deployment has as a variable.
const STRATEGIES: &str = r#"--strategies={
    "careful": {"waves": "1, 10%, 50%", "bake": "10m", "on-failure": "revert"},
    "immediate": {}
}"#;

/// Installs the manifests. `binary` is the confrev that the tests run.
pub fn program(binary: &Path) -> Program {
    let cluster = ControlPlane::shared();
    Program::install(cluster);
    Program::new(cluster, binary).options(&[ORPHAN_GRACE, STRATEGIES])
}
