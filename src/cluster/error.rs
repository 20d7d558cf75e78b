//! What the API server answered instead of what was asked for.

use http::StatusCode;
use serde::Deserialize;

/// A call to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No such object, or no such resource (a kind that is not installed).
    #[error("{what}: not found")]
    NotFound {
        /// The verb and the path.
        what: String,
    },
    /// The object changed in the meantime, or is not the one that was meant.
    #[error("{what}: the object changed in the meantime")]
    Conflict {
        /// The verb and the path.
        what: String,
    },
    /// The namespace is going away, and takes no new objects.
    #[error("{what}: the namespace is being terminated")]
    Terminating {
        /// The verb and the path.
        what: String,
    },
    /// A write passed, and admission did not see it.
    #[error("{what}: admission did not see the write: is the webhook configuration in place?")]
    InVain {
        /// What was to be done.
        what: String,
    },
    /// The API server refused.
    #[error("{what}: {code}: {message}")]
    Refused {
        /// The verb and the path.
        what: String,
        /// The HTTP status.
        code: u16,
        /// The API server's own words.
        message: String,
    },
    /// A name that no namespace or object can have.
    #[error("invalid name of a {what}: {name:?}")]
    InvalidName {
        /// What would be called so.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An answer of more bytes than are read.
    #[error("{what}: the answer is too large")]
    TooLarge {
        /// The verb and the path.
        what: String,
    },
    /// No answer in time.
    #[error("{what}: no answer within {seconds} s")]
    Late {
        /// The verb and the path.
        what: String,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The API server could not be reached.
    #[error("{what}: {source}")]
    Unreachable {
        /// The verb and the path.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// An answer that could not be read.
    #[error("{what}: the answer could not be read: {reason}")]
    Answer {
        /// The verb and the path.
        what: String,
        /// Why, without the answer's content.
        reason: String,
    },
}

impl ApiError {
    /// The error of an answer that is not a success.
    pub(super) fn of_status(what: String, status: StatusCode, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Status {
            #[serde(default)]
            message: String,
            #[serde(default)]
            details: Option<Details>,
        }

        #[derive(Deserialize)]
        struct Details {
            #[serde(default)]
            causes: Vec<Cause>,
        }

        #[derive(Deserialize)]
        struct Cause {
            #[serde(default)]
            reason: String,
        }

        match status {
            StatusCode::NOT_FOUND => Self::NotFound { what },
            StatusCode::CONFLICT => Self::Conflict { what },
            _ => {
                let parsed: Result<Status, _> = serde_json::from_slice(body);
                let details = parsed.as_ref().ok().and_then(|status| status.details.as_ref());
                let mut causes = details.into_iter().flat_map(|details| &details.causes);
                if causes.any(|cause| cause.reason == "NamespaceTerminating") {
                    return Self::Terminating { what };
                }
                let message = parsed.map_or_else(|_| status.to_string(), |status| status.message);
                Self::Refused { what, code: status.as_u16(), message }
            }
        }
    }

    /// Whether the resourceVersion, or the place in a list, that was asked for is too old.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the API server answered at all.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Late { .. } | Self::Unreachable { .. })
    }

    /// Whether the same call may succeed a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => *code == 429 || *code >= 500,
            _ => false,
        }
    }

    /// Whether to look at the present state and try again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}
