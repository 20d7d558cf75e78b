//! Admission over HTTP: from the body of a request to the body of an answer. Nothing outlives either.

mod authors;
mod bodies;
mod context;
mod decider;
mod limits;
mod reads;
mod request;
mod review;
mod routes;
mod sources;
mod turns;
mod workloads;

pub use authors::Authors;
pub use context::Context;
pub use decider::Decider;
pub use limits::{DECISION_LIMIT, ReviewLimits};
pub use reads::{ReadBudget, ReadShare};
pub use review::{Answer, Review};
pub use routes::{MARKED_WORKLOADS, router};
pub(crate) use sources::{invalid_setting, odd_settings};
