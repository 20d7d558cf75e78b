//! The Helm chart, with the real helm: rendered objects, refused values, and the lifecycle of an installation on a real
//! control plane.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod alerts;
mod cert_manager;
mod empty_cluster;
mod escalation;
mod first_steps;
mod guard;
mod lifecycle;
mod manifests;
mod own_writes;
mod pages;
mod pasted;
mod pods;
mod reduced_rights;
mod refused_values;
mod rights;
mod stamps;
mod supported_versions;
mod user_roles;
mod value_table;
mod values;
mod without_argo;

use confrev_test_support::{helm, mounted_secret, page_reader};
