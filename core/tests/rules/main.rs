//! The decision: tables and properties over [`confrev_core::resolve::resolve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

// The tests of the main crate use the same modules under this name.
extern crate confrev_core as confrev;

mod carried;
mod dangling_names;
mod defaults;
mod digest_vectors;
mod exports;
mod facts;
mod holds;
mod kinds;
mod max_in_flight;
mod newly_read_keys;
mod pending;
mod pins_of_keys;
mod plans;
mod properties;
mod recorded_sources;
mod reference_forms;
mod refused_contents;
mod relation;
mod reverts;
mod rules;
mod schemas;
mod sets;
mod settings;
mod spare_names;
mod undo;
mod undo_by_revision;
mod undo_in_waves;
mod waves;
mod windows;

use confrev_core_test_support::{carry, story, world};
