//! What several test suites share: a namespace with users, manifests, the running confrev, readers of the docs, helm.
//!
//! The path of the program is an argument where it is needed: only the suites know it (`CARGO_BIN_EXE_confrev`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "to panic is how this crate fails the test that uses it"
)]

pub mod any_kind;
pub mod chart_setup;
pub mod gates;
pub mod helm;
pub mod manifest_setup;
pub mod manifests;
pub mod mounted_secret;
pub mod page_commands;
pub mod page_reader;
pub mod requests;
pub mod rolls;
pub mod shared;
pub mod threads;
pub mod trace_collector;
pub mod webhook_receiver;
pub mod workload_corpus;
pub mod world;
pub mod writer;

use std::path::Path;

/// The root folder of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels below the root")
}
