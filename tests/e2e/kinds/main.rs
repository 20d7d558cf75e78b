//! Everything beside the main job, on real controllers: the other kinds of workloads, Secrets, configured kinds, and
//! rules whose effect only a workload's own controller shows.
//!
//! The confrev of these tests is installed from the chart, with Secrets and further kinds. The manifests of
//! `tests/e2e/core` have neither.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../core/manifests.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod manifests;
#[path = "../core/shared.rs"]
mod shared;
#[path = "../core/world.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod world;

mod load;
mod setup;

mod asked;
mod bind;
mod blue_green;
mod clone_set;
mod each;
mod experiments;
mod forms;
mod jobs;
mod mount;
mod secrets;
mod sets;
mod workload_ref;
