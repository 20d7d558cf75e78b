//! The docs, the source tree and the packaging match each other and the program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics when an expectation fails"
)]

mod accounted;
mod coverage;
mod docs;
mod house;
mod krew;
mod metrics;
mod reference;
mod threats;
mod words;

use confrev_test_support::page_commands;
