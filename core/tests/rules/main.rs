//! The decision: tables and properties over [`confrev_core::resolve::resolve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

// Tests of the main crate share some of these files, and use this crate name.
extern crate confrev_core as confrev;

mod facts;
mod forms;
mod grown;
mod kinds;
mod limits;
mod pending;
mod properties;
mod restored;
mod rules;
mod settings;
mod story;
mod undo;
mod vectors;
#[allow(dead_code, reason = "the tests of the main crate use the rest")]
mod world;
