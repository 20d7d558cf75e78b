//! A namespace in memory with admission, for the tests of the decision and of the controller.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::needless_pass_by_value,
    reason = "short calls in tests; to panic fails the test"
)]

pub mod carry;
pub mod story;
pub mod world;
