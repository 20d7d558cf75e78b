//! The docs, the source tree and the packaging match each other and the program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics when an expectation fails"
)]

mod budget;
mod coverage;
mod docs;
mod documented_commands;
mod gates;
mod import_cycles;
mod keys;
mod krew;
mod manifests;
mod metrics;
mod printing;
mod reference;
mod source_tree;
mod threat_model;
mod times;
mod words;
mod workflows;

use confrev_test_support::page_commands;
