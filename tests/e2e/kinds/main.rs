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

mod away;
mod bind_mode;
mod blue_green;
mod carried_rules;
mod clone_set;
mod controller_revisions;
mod every_kind;
mod experiments;
mod group_secrets;
mod guessed_secrets;
mod jobs;
mod mount_annotation;
mod name_policies;
mod reference_forms;
mod second_applier;
mod secret_modes;
mod secret_output;
mod secret_schemas;
mod secrets;
mod settings;
mod shared;
mod waves;
mod workload_ref;

use confrev_test_support::{any_kind, chart_setup, gates, manifests, rolls, threads, world};
