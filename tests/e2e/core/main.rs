//! The main job, end to end: confrev under its own ServiceAccount, installed with exactly the manifests that users
//! install, on a real API server with real controllers and Argo Rollouts.
//!
//! All tests share one control plane and one running confrev. Each has its own namespace. Tests that stop or
//! restart confrev use it exclusively (`Exclusive`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod schema_limits;
mod schemas;
mod secrets_off;
mod shared;

mod availability;
mod canary;
mod commands;
mod defaults;
mod events;
mod forged_reviews;
mod group_failures;
mod guard;
mod hostile;
mod lost_snapshots;
mod missing_config_maps;
mod notifications;
mod opt_in;
mod picture;
mod refusals;
mod refused_contents;
mod refused_writes;
mod reverts;
mod revisions;
mod settings;
mod single_apply;
mod snapshot_limits;
mod snapshots;
mod spelling;
mod strategies;
mod turns;
mod undo;
mod undo_in_waves;
mod unreadable_objects;
mod unseen_settings;
mod user_rights;
mod verdicts;
mod wave_requests;
mod webhook_requests;

use confrev_test_support::{any_kind, gates, manifests, rolls, world};
