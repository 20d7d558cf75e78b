//! Admission over HTTP: from the body of a request to the body of an answer. Nothing outlives either.

mod bodies;
mod context;
mod decision;
mod json_values;
mod limits;
mod reads;
mod request;
mod review;
mod routes;
mod sources;
mod turns;
mod users;
mod workloads;

pub use context::Context;
pub use decision::Decider;
pub use limits::{DECISION_LIMIT, ReviewLimits};
pub use reads::{ReadBudget, ReadShare};
pub use review::{Answer, Review};
pub use routes::router;
pub(crate) use sources::{invalid_setting, odd_settings};
pub use users::Users;
