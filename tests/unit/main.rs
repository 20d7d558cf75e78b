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
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, missing_docs, reason = "the fuzzer compiles it as a separate crate")]
mod fuzz;
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
#[path = "../../core/tests/rules/story.rs"]
#[allow(dead_code, reason = "the tests of the core use the rest")]
mod story;
mod theirs;
mod told;
mod unexpected;
#[path = "../../core/tests/rules/world.rs"]
#[allow(dead_code, reason = "the tests of the core use the rest")]
mod world;

use confrev_test_support::workload_corpus;
