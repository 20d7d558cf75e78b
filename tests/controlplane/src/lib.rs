//! A real Kubernetes control plane on loopback, for tests, the demo and benchmarks.
//!
//! etcd, the API server, the controller manager, the scheduler, kwok (in place of the kubelet) and the Argo Rollouts
//! controller are built from Go modules once, cached, and started by a supervisor, the `controlplane` binary of this
//! crate. helm and cert-manager's controllers are built in the same way; a test starts them itself ([`CertManager`]). Tests
//! share a control plane with [`ControlPlane::shared`]:
//!
//! ```no_run
//! use confrev_controlplane::ControlPlane;
//!
//! let cluster = ControlPlane::shared();
//! let namespace = cluster.namespace("example");
//! cluster.kubectl(&["create", "configmap", "app", "-n", namespace.name()]).run().ok();
//! assert!(cluster.get("configmap", namespace.name(), "app").is_some());
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test-support crate: to panic is how it fails the test that uses it"
)]

mod api;
mod audit;
pub mod beside;
pub mod binaries;
mod cert_manager;
mod certs;
mod chart;
mod cluster;
mod gobuild;
mod kubeconfig;
mod kubectl;
mod launch;
mod locate;
mod namespace;
pub mod node;
mod pod;
mod ports;
mod process;
mod program;
mod progress;
mod recipe;
mod resources;
mod service;
mod site;
mod state;
mod suffix;
pub mod suites;
pub mod supervisor;
mod users;
mod wait;

pub use api::Api;
pub use audit::Request;
pub use cert_manager::CertManager;
pub use chart::own_chart;
pub use cluster::{ControlPlane, is_ready};
pub use kubectl::{Kubectl, Output, is_too_slow};
pub use namespace::Namespace;
pub use node::{Image, Nodes};
pub use pod::PodConfig;
pub use process::raise_descriptors;
pub use program::Program;
pub use service::Service;
pub use wait::{Observed, holds_for, wait_for};

/// The result of a step that can fail; the error is a sentence for people.
pub type Result<T> = std::result::Result<T, String>;
