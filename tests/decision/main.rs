//! The decision, without a cluster: tables and properties over [`confrev::resolve::resolve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test ends where something is not as it must be"
)]

mod accounted;
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
mod forms;
#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, missing_docs, reason = "a crate of its own for the fuzzer")]
mod fuzz;
mod house;
mod interval;
mod keep;
mod keyed;
mod kinds;
mod krew;
mod leader;
mod leaving;
mod live;
mod metrics;
mod orders;
mod owners;
mod properties;
mod queue;
mod rate;
mod reference;
mod rounds;
mod rules;
mod settings;
mod signals;
mod theirs;
mod told;
mod undo;
mod unexpected;
mod vectors;
mod world;
