//! What holds for any bytes, whoever sends them. The targets of the fuzzer look at it for hours, the tests for a second.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold panics, which is how a fuzzer learns of it"
)]

pub mod annotations;
pub mod digest;
pub mod review;
pub mod seeds;
pub mod template;
pub mod world;
