//! The confrev that all tests of this suite share, from the chart.

use std::path::Path;

use confrev_controlplane::Program;
use confrev_test_support::{
    chart_setup,
    shared::{Exclusive, Running, SharedProgram},
};

fn program() -> Program {
    // On a busy machine a second may pass within one apply of a ConfigMap and its workload.
    chart_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")), &["--settle=3s"])
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
