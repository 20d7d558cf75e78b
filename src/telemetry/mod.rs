//! What the program tells its operator: logs, metrics, traces, and whether it is ready.
pub mod admin;
mod labels;
pub mod log;
pub mod metrics;
pub mod readiness;
pub mod traces;

pub use metrics::Metrics;
pub use readiness::{Condition, Readiness};
pub use traces::Traces;
