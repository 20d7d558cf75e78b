//! The decision: tables and properties over [`confrev_core::resolve::resolve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

mod facts;
mod forms;
mod grown;
mod kinds;
mod limits;
mod properties;
mod restored;
mod rules;
mod settings;
mod undo;
mod vectors;

use confrev_core_test_support::{story, world};
