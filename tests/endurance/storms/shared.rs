//! The confrev of `tests/e2e/kinds`, with a rate of rolls low enough to observe.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use confrev_controlplane::Program;
pub(crate) use confrev_test_support::shared::Running;
use confrev_test_support::{
    chart_setup,
    shared::{Exclusive, SharedProgram},
};

/// Automatic rolls per second.
pub(crate) const ROLL_RATE: u32 = 25;

fn program() -> Program {
    let rate = format!("--roll-rate={ROLL_RATE}");
    chart_setup::program(Path::new(env!("CARGO_BIN_EXE_confrev")), &[&rate])
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

static HELD: Mutex<()> = Mutex::new(());

/// The metric of held workloads, for one test alone: it counts those of all namespaces. A test waits for it before it uses
/// confrev.
pub(crate) fn held_workloads() -> MutexGuard<'static, ()> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
