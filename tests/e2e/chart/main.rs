//! The Helm chart, with the real helm: rendered objects, refused values, and the lifecycle of an installation on a real
//! control plane.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod alerts;
mod bare;
mod cert_manager;
mod escalation;
mod first_steps;
mod guard;
mod lifecycle;
mod limited;
mod manifests;
mod pages;
mod pods;
mod rights;
mod support;
mod table;
mod values;
mod wrong;

use confrev_test_support::{helm, mounted_secret, page_reader};
