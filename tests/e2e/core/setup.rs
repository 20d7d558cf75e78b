//! confrev as users install it with `kubectl apply`.

use std::path::Path;

use confrev_controlplane::{ControlPlane, Program};

/// Short, so that the tests observe the sweep.
const ORPHAN_GRACE: &str = "--orphan-grace=5s";

/// Installs the manifests.
pub(crate) fn program() -> Program {
    let cluster = ControlPlane::shared();
    Program::install(cluster);
    let binary = Path::new(env!("CARGO_BIN_EXE_confrev"));
    Program::new(cluster, binary).options(&[ORPHAN_GRACE])
}
