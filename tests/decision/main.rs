//! The controller, admission, the docs and the source tree, without a cluster. The tests of the decision itself are in `core/tests`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test ends where something is not as it must be"
)]

mod accounted;
mod adopted;
mod again;
#[expect(dead_code, reason = "some of it serves tests on a control plane")]
mod blocks;
mod bound;
mod controller;
mod corpus;
mod coverage;
mod docs;
mod documents;
mod events;
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, missing_docs, reason = "a crate of its own for the fuzzer")]
mod fuzz;
mod health;
mod house;
mod interval;
mod keep;
mod keyed;
mod krew;
mod leader;
mod leaving;
mod live;
mod metrics;
mod orders;
mod owners;
mod queue;
mod rate;
mod reference;
mod rotated;
mod rounds;
mod signals;
#[path = "../../core/tests/rules/story.rs"]
#[allow(dead_code, reason = "some of it serves the tests of the core")]
mod story;
mod theirs;
mod told;
mod unexpected;
#[path = "../../core/tests/rules/world.rs"]
#[allow(dead_code, reason = "some of it serves the tests of the core")]
mod world;
