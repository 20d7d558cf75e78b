//! confrev: revisioned config for Kubernetes.
pub mod admission;
pub mod budget;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod notify;
pub mod schema;
pub mod server;
pub mod telemetry;
pub mod text;
pub mod tls;
mod turns;

pub use confrev_core::{
    annotations, compact, gate_settings, gates, json, json_values, kinds, resolve, snapshot, template, tie,
    uid,
};
pub use confrev_world as world;
