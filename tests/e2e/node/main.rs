//! Stories on real nodes: confrev runs as pods, and each story asserts what containers print.
//!
//! `make test-node` runs this suite as root, on two nodes with containerd and the kubelet. Under `make test`, all of its
//! tests are ignored.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod away;
mod bound;
mod canary;
mod certificates;
mod confrev_pods;
mod crashes;
mod disruptions;
mod kinds;
mod memory;
mod network;
mod printing;
mod refresh;
mod secrets;
mod shared;
mod upgrade;
mod volumes;

use confrev_test_support::{any_kind, manifests, world, writer};
