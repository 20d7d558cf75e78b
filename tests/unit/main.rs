//! The controller and admission, without a cluster. The tests of the decision itself are in `core/tests`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

mod adopted;
mod again;
mod bound;
mod controller;
mod corpus;
mod deleted;
mod events;
mod health;
mod interval;
mod keep;
mod keyed;
mod large;
mod leader;
mod leaving;
mod live;
mod orders;
mod owners;
mod queue;
mod rate;
mod rotated;
mod rounds;
mod signals;
mod theirs;
mod told;
mod unexpected;

use confrev_core_test_support::{story, world};
use confrev_test_support::workload_corpus;
