//! Real deployment tools on a real API server: kubectl with all its ways to apply, kustomize, helm, and the server-side
//! dry-run that shows GitOps tools the drift. Also the corpus of third-party workloads on the same API server.
//!
//! The confrev of these tests is that of `tests/e2e/kinds`: Secrets are on.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod asciicast;
mod drift;
mod page;
mod shared;
mod tools;

mod argo_cd;
mod bad_value;
mod change_states;
mod corpus;
mod examples;
mod fleets;
mod generated_names;
mod generated_secrets;
mod gitops;
mod holds;
mod manual_changes;
mod migration;
mod pages;
mod pasted;
mod recording;
mod repeated_applies;

use confrev_test_support::{
    any_kind, gates, helm, manifests, page_commands, page_reader, workload_corpus, world,
};
