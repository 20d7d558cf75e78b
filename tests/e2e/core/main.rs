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

mod manifests;
mod secrets_off;
mod setup;
mod shared;
mod world;

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
