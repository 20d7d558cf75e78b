//! Executes actions against the API server.

pub(crate) mod execute;
