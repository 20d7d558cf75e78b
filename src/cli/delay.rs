//! Why a pending change is not rolled out yet.

use jiff::Timestamp;

use super::analysis::JudgingRun;
use crate::{gates::Why, world::WorkloadKey};

/// Why a pending change is not rolled out yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delay {
    /// The API server, a webhook or a policy refuses the roll.
    Refused(String),
    /// The installation makes no snapshots of Secrets.
    SecretsOff,
    /// The API server does not call confrev, or confrev does not answer.
    Unanswered(String),
    /// A gate holds the workload.
    Shut {
        /// The answer of the gate.
        why: Why<WorkloadKey>,
        /// The same, for people.
        reason: String,
        /// The AnalysisRun that decides about the next wave.
        run: Option<JudgingRun>,
    },
}

impl Delay {
    /// The name of the gate that is shut; `None` if no gate is.
    pub(super) const fn gate(&self) -> Option<&'static str> {
        match self {
            Self::Shut { why, .. } => Some(why.gate().name()),
            Self::Refused(_) | Self::SecretsOff | Self::Unanswered(_) => None,
        }
    }

    /// When the gate opens, as far as the time alone decides that.
    pub(super) fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Shut { why, .. } => why.until(Timestamp::now()),
            _ => None,
        }
    }
}

impl std::fmt::Display for Delay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(reason) | Self::Unanswered(reason) | Self::Shut { reason, .. } => {
                f.write_str(reason)
            }
            Self::SecretsOff => f.write_str("this installation makes no snapshots of Secrets (--secrets)"),
        }
    }
}
