//! The docs, the source tree and the packaging match each other and the program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics when an expectation fails"
)]

mod accounted;
#[expect(dead_code, reason = "tests on a control plane use the rest")]
mod blocks;
mod coverage;
mod docs;
mod house;
mod krew;
mod metrics;
mod reference;
mod threats;
mod words;
