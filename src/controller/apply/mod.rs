//! Executes actions against the API server, and applies their outcomes.

pub(crate) mod execute;
mod finish;
