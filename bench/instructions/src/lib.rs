//! confrev's decision without the program around it: the same files, compiled by themselves.

pub use confrev_core::{few, json, kinds, names, resolve, snapshot, template, uid};

#[path = "../../../src/admission/review.rs"]
pub mod review;

/// What the answer to a review is counted as.
pub mod telemetry {
    /// Stands in for the metrics, which the decision does not reach.
    pub mod metrics {
        /// The outcome of a review.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Review {
            /// Let through as it is.
            Allowed,
            /// Let through with a patch.
            Patched,
            /// Refused.
            Denied,
            /// Not answered.
            Failed,
        }
    }
}
