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

mod secrets_off;
mod shared;

mod alone;
mod commands;
mod events;
mod forged;
mod guard;
mod hostile;
mod http;
mod lost;
mod missing;
mod optin;
mod picture;
mod policy;
mod refused;
mod revisions;
mod snapshots;
mod story;
mod together;
mod trust;
mod undo;
mod unreadable;

use confrev_test_support::{manifests, world};
