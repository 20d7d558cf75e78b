//! The limits of a check.

use std::time::Duration;

use crate::budget;

/// The processor time of a check, in seconds.
pub(super) const SECONDS: u64 = 1;
/// The longest time of a check, however busy the machine is. The webhook of sources has a timeout of 3 s.
pub(super) const LONGEST: Duration = Duration::from_secs(2);
/// The longest stack of a check, in bytes.
pub(super) const STACK: u64 = 4 << 20;
/// The memory that a check may allocate, in bytes.
pub(super) const MEMORY: u64 = ((budget::CHECK as u64) << 20) - STACK;
