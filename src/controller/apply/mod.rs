//! Executes actions against the API server, and applies their outcomes.

mod analysis;
pub(crate) mod execute;
mod finish;
pub(crate) mod schema_check;
