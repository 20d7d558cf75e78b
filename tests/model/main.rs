//! The promises as an executable model: random sequences of events over an API server in memory, with the real
//! admission, decision and controller.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a failed check ends the test"
)]

mod admission;
mod api;
mod cluster;
mod event;
mod exhaustive;
mod ghost;
mod judge;
mod manifest;
mod model;
mod promises;
mod real;
mod replica;
mod rest;
mod search;
mod sequence;
mod store;
mod trial;
mod users;
mod waves;
