//! Logs, metrics, traces and readiness.
pub mod admin;
mod causes;
mod labels;
pub mod log;
pub mod metrics;
pub mod readiness;
pub mod traces;

pub use causes::causes;
pub use metrics::Metrics;
pub use readiness::{Condition, Readiness};
pub use traces::Traces;
