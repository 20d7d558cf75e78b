//! confrev's decision without the rest of the program: the same source files, compiled separately.

pub use confrev_core::{annotations, compact, json, kinds, resolve, snapshot, template, uid};

// Included by path: as a crate it would need the whole program, whose optimised build takes longer than the test.
#[path = "../../../src/admission/review.rs"]
pub mod review;
/// The function that escapes the texts of answers.
#[path = "../../../src/text.rs"]
pub mod text;

/// The outcome that the metrics count.
pub mod telemetry {
    /// A replacement of the metrics, which the decision does not use.
    pub mod metrics {
        /// The outcome of a review.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ReviewOutcome {
            /// Allowed without a patch.
            Allowed,
            /// Allowed with a patch.
            Patched,
            /// Denied.
            Denied,
            /// Without an answer.
            Failed,
        }
    }
}
