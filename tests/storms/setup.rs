//! The confrev of `tests/kinds`, with a rate of rolls that shows.

use confrev_controlplane::Program;

/// Automatic rolls in a second.
pub(crate) const ROLL_RATE: u32 = 25;

pub(crate) fn program() -> Program {
    crate::kinds::program_with(&[&format!("--roll-rate={ROLL_RATE}")])
}
