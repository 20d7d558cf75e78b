//! confrev's decision without the program around it: the same files, compiled by themselves.

#[path = "../../../src/few.rs"]
pub mod few;
#[path = "../../../src/json.rs"]
pub mod json;
#[path = "../../../src/kinds.rs"]
pub mod kinds;
#[path = "../../../src/names.rs"]
pub mod names;
#[path = "../../../src/resolve/mod.rs"]
pub mod resolve;
#[path = "../../../src/admission/review.rs"]
pub mod review;
#[path = "../../../src/snapshot/mod.rs"]
pub mod snapshot;
#[path = "../../../src/template/mod.rs"]
pub mod template;
#[path = "../../../src/uid.rs"]
pub mod uid;

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
