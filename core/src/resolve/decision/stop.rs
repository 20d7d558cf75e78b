//! Why a decision ends before its last step.

/// Why a decision cannot be completed in this pass.
pub(super) enum Stop {
    /// A fact is missing; the question lists it.
    Unknown,
    /// The request must be refused.
    Deny(String),
}
