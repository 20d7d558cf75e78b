//! The controller, admission, the docs and the source tree, without a cluster. The tests of the decision itself are in `core/tests`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test panics when an expectation fails"
)]

mod accounted;
mod adopted;
mod again;
#[expect(dead_code, reason = "tests on a control plane use the rest")]
mod blocks;
mod bound;
mod controller;
mod corpus;
mod coverage;
mod deleted;
mod docs;
mod documents;
mod events;
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, missing_docs, reason = "the fuzzer compiles it as a separate crate")]
mod fuzz;
mod health;
mod house;
mod interval;
mod keep;
mod keyed;
mod krew;
mod large;
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
#[allow(dead_code, reason = "the tests of the core use the rest")]
mod story;
mod theirs;
mod told;
mod unexpected;
mod words;
#[path = "../../core/tests/rules/world.rs"]
#[allow(dead_code, reason = "the tests of the core use the rest")]
mod world;
