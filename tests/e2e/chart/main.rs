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
#[path = "../../repository/blocks.rs"]
#[expect(dead_code, reason = "some of it serves the other tests only")]
mod blocks;
mod cert_manager;
mod escalation;
mod first_steps;
mod guard;
mod helm;
mod lifecycle;
mod limited;
mod manifests;
#[path = "../tls/mount.rs"]
mod mount;
mod pages;
mod pods;
#[path = "../appliers/reader.rs"]
#[expect(dead_code, reason = "some of it serves the other pages")]
mod reader;
mod rights;
mod support;
mod table;
mod values;
mod wrong;
