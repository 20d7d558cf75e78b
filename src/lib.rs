//! confrev: revisioned config for Kubernetes.
pub mod admission;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod few;
pub mod json;
pub mod kinds;
pub mod names;
pub mod resolve;
pub mod snapshot;
pub mod telemetry;
pub mod template;
pub mod tls;
pub mod uid;
