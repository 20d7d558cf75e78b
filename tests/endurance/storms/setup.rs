//! The confrev of `tests/e2e/kinds`, with a rate of rolls low enough to observe.

use confrev_controlplane::Program;

/// Automatic rolls per second.
pub(crate) const ROLL_RATE: u32 = 25;

pub(crate) fn program() -> Program {
    crate::kinds::program_with(&[&format!("--roll-rate={ROLL_RATE}")])
}
