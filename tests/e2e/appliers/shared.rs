//! The confrev of `tests/e2e/kinds`, with more time for tools between a ConfigMap and its workload.

use std::path::Path;

use confrev_controlplane::Program;
use confrev_test_support::{
    chart_setup,
    shared::{Running, SharedProgram},
};

fn program() -> Program {
    chart_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")), &["--settle=5s"])
}

static CONFREV: SharedProgram = SharedProgram::new(program);

/// confrev, which keeps running while the result exists.
pub(crate) fn running() -> Running {
    CONFREV.running()
}
