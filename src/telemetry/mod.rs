//! What the program tells its operator: logs, metrics, and whether it is ready.
pub mod admin;
mod labels;
pub mod log;
pub mod metrics;
pub mod readiness;

pub use metrics::Metrics;
pub use readiness::{Condition, Readiness};
