//! Storms of changes, many workloads at once, and restarts meanwhile, for every kind.
//!
//! The confrev of these tests is that of `tests/e2e/kinds` with a lower rate of rolls, so that the tests can observe the
//! limit. No test here relies on an uninterrupted confrev: each test but one lets the others kill it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../../e2e/core/manifests.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod manifests;
#[path = "../../e2e/core/shared.rs"]
mod shared;
#[path = "../../e2e/core/world.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod world;

#[path = "../../e2e/kinds/setup.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod kinds;
#[path = "../../e2e/kinds/load.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod load;
mod setup;

mod bound;
mod changes;
mod many;
mod max_in_flight;
mod restart;
mod soak;
mod synced;
