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

mod bind_mode;
mod broken_workloads;
mod changing_config_map;
mod group_waves;
mod many_workloads;
mod max_in_flight;
mod outages;
mod repeated_syncs;
mod restart;
mod shared;
mod soak;

use confrev_test_support::{any_kind, manifests, rolls, world};
