//! The confrev that all tests of this suite share, as users install it with `kubectl apply`.

use std::path::Path;

use confrev_controlplane::Program;
pub(crate) use confrev_test_support::shared::Running;
use confrev_test_support::{
    manifest_setup,
    shared::{Exclusive, SharedProgram},
};

fn program() -> Program {
    manifest_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")))
}

static CONFREV: SharedProgram = SharedProgram::new(program);

/// confrev, which keeps running while the result exists.
pub(crate) fn running() -> Running {
    CONFREV.running()
}

/// confrev, for one test alone.
pub(crate) fn exclusive() -> Exclusive {
    CONFREV.exclusive()
}
