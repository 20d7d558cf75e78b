//! The decision, without a cluster: tables and properties over [`confrev::resolve::resolve`].

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test ends where something is not as it must be"
)]

mod bound;
mod controller;
mod corpus;
mod coverage;
mod docs;
mod documents;
mod events;
mod forms;
mod house;
mod interval;
mod kinds;
mod krew;
mod metrics;
mod properties;
mod reference;
mod rules;
mod settings;
mod signals;
mod undo;
mod vectors;
mod world;
