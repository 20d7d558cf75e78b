//! Why a pending change is not rolled out yet.

use jiff::{SignedDuration, Timestamp};

use super::analysis::JudgingRun;

/// Why a pending change is not rolled out yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delay {
    /// The API server, a webhook or a policy refuses the roll.
    Refused(String),
    /// The installation makes no snapshots of Secrets.
    SecretsOff,
    /// The API server does not call confrev, or confrev does not answer.
    Unanswered(String),
    /// `max-in-flight`, a wave or a set holds the workload, or another workload that failed.
    Held(String),
    /// The AnalysisRun of a wave holds the workload.
    Analysed {
        /// The reason, for people.
        reason: String,
        /// The run.
        run: JudgingRun,
    },
    /// A person stopped the change, or wrote a malformed setting: it stays until a person acts.
    Stopped(String),
    /// A window is closed.
    Closed {
        /// The reason, for people.
        reason: String,
        /// When it opens; `None` if that is not within two weeks.
        opens: Option<Timestamp>,
    },
    /// The workload rolled less than its `min-interval` ago.
    Interval(SignedDuration),
}

impl std::fmt::Display for Delay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(reason)
            | Self::Unanswered(reason)
            | Self::Held(reason)
            | Self::Stopped(reason)
            | Self::Analysed { reason, .. }
            | Self::Closed { reason, .. } => f.write_str(reason),
            Self::SecretsOff => f.write_str("this installation makes no snapshots of Secrets (--secrets)"),
            Self::Interval(left) => write!(f, "min-interval, {} s left", left.as_secs().max(1)),
        }
    }
}
