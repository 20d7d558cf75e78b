//! Errors of calls to the API server.

use http::StatusCode;
use serde::Deserialize;

use crate::telemetry::metrics::Forbidden;

/// How the message begins if a webhook refuses a request. Source: `ToStatusErr` of k8s.io/apiserver.
const OF_WEBHOOK: &str = "admission webhook ";

/// A call to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No such object or resource exists (the kind may not be installed).
    #[error("{what}: not found")]
    NotFound {
        /// The verb and the path.
        what: String,
    },
    /// The object changed in the meantime, or has another uid.
    #[error("{what}: the object changed in the meantime")]
    Conflict {
        /// The verb and the path.
        what: String,
    },
    /// The namespace is being terminated, and accepts no new objects.
    #[error("{what}: the namespace is being terminated")]
    Terminating {
        /// The verb and the path.
        what: String,
    },
    /// A write succeeded, but admission did not see it.
    #[error("{what}: the webhook was not called for the write: is the webhook configuration in place?")]
    InVain {
        /// What the write was for.
        what: String,
    },
    /// The API server refused the call.
    #[error("{what}: {code}: {message}")]
    Refused {
        /// The verb and the path.
        what: String,
        /// The HTTP status.
        code: u16,
        /// The API server's message.
        message: String,
    },
    /// A name that no namespace or object can have.
    #[error("invalid {what} name {name:?}")]
    InvalidName {
        /// Kind of thing with that name: a namespace or an object.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The answer has more bytes than are read.
    #[error("{what}: the answer is too large")]
    TooLarge {
        /// The verb and the path.
        what: String,
    },
    /// No answer came in time.
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
    /// The answer could not be read.
    #[error("{what}: the answer could not be read: {reason}")]
    Answer {
        /// The verb and the path.
        what: String,
        /// Why, without the content of the answer.
        reason: String,
    },
}

impl ApiError {
    /// The error for reads that exceed the memory of concurrent reviews.
    pub(crate) fn too_many_bytes(what: String) -> Self {
        let reason = "too many bytes read for concurrent reviews (--max-read-bytes)".to_owned();
        Self::Answer { what, reason }
    }

    /// The error for a call that could not begin in time.
    pub(super) fn too_many_calls(what: String) -> Self {
        let reason = "too many calls to the API server at once (--max-calls)".to_owned();
        Self::Answer { what, reason }
    }

    /// The error for an answer that is not a success.
    pub(super) fn of_status(what: String, status: StatusCode, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct StatusBody {
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

        let parsed: Result<StatusBody, _> = serde_json::from_slice(body);
        // A webhook may refuse a request with any status. This says nothing about the object.
        let is_denied = parsed.as_ref().is_ok_and(|status| status.message.starts_with(OF_WEBHOOK));
        match status {
            StatusCode::NOT_FOUND if !is_denied => Self::NotFound { what },
            StatusCode::CONFLICT if !is_denied => Self::Conflict { what },
            _ => {
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

    /// Why the API server answered with 403. Its answer has no field for that, only a message.
    pub(super) fn forbidden(&self) -> Forbidden {
        // Source: `NewForbidden` of k8s.io/apimachinery and `forbiddenMessage` of k8s.io/apiserver.
        const OF_RBAC: &str = "is forbidden: User \"";
        const OF_GUARD: &str = "ValidatingAdmissionPolicy 'confrev-";
        const OF_OUTAGE: &str = "ValidatingAdmissionPolicy 'confrev-unresolved'";
        match self {
            Self::Terminating { .. } => Forbidden::Terminating,
            Self::Refused { message, .. } if message.starts_with(OF_WEBHOOK) => Forbidden::Admission,
            Self::Refused { message, .. } if message.contains(OF_RBAC) => Forbidden::Rbac,
            Self::Refused { message, .. } if message.contains(OF_OUTAGE) => Forbidden::Unanswered,
            Self::Refused { message, .. } if message.contains(OF_GUARD) => Forbidden::Guard,
            _ => Forbidden::Admission,
        }
    }

    /// Whether the user lacks the right to make the call.
    pub fn is_missing_right(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. }) && self.forbidden() == Forbidden::Rbac
    }

    /// Whether the requested resourceVersion or continue token is too old.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the API server answered at all.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Late { .. } | Self::Unreachable { .. })
    }

    /// Whether a write that failed with this error may have taken effect, or may still do so.
    pub fn may_have_effect(&self) -> bool {
        match self {
            Self::Refused { code, .. } => *code >= 500,
            Self::Late { .. } | Self::Unreachable { .. } | Self::TooLarge { .. } | Self::Answer { .. } => {
                true
            }
            Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::Terminating { .. }
            | Self::InVain { .. }
            | Self::InvalidName { .. } => false,
        }
    }

    /// Whether the same call may succeed a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => *code == 429 || *code >= 500,
            _ => false,
        }
    }

    /// Whether the caller should read the current state and try again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A webhook may choose the status of its refusal.
    #[test]
    fn refusal_by_webhook_is_no_conflict() {
        let refusal = r#"admission webhook "freeze.example.com" denied the request: no rollouts today"#;
        let conflict =
            r#"Operation cannot be fulfilled on deployments.apps "web": the object has been modified"#;
        for code in [StatusCode::CONFLICT, StatusCode::NOT_FOUND] {
            let of = |message: &str| {
                let body = json!({"message": message}).to_string();
                ApiError::of_status("patch /x".to_owned(), code, body.as_bytes())
            };
            let refused = of(refusal);
            assert!(
                matches!(&refused, ApiError::Refused { code: of, message, .. } if *of == code.as_u16() && message == refusal),
                "{refused}"
            );
            assert!(of(conflict).is_conflict() || of(conflict).is_not_found(), "{code}");
        }
    }

    #[test]
    fn tells_missing_rights_from_refusals_by_admission() {
        let of = |message: &str, reason: &str| {
            let body = json!({"message": message, "details": {"causes": [{"reason": reason}]}}).to_string();
            ApiError::of_status("create /x".to_owned(), StatusCode::FORBIDDEN, body.as_bytes()).forbidden()
        };
        for (message, reason, cause) in [
            (
                r#"configmaps is forbidden: User "system:serviceaccount:confrev:confrev" cannot list resource "configmaps""#,
                "",
                Forbidden::Rbac,
            ),
            (
                r#"admission webhook "workloads.confrev.dev" denied the request: Deployment "web": ConfigMap "demo" has no key "a""#,
                "",
                Forbidden::Admission,
            ),
            (
                r#"deployments.apps "web" is forbidden: exceeded quota: compute, used: 2"#,
                "",
                Forbidden::Admission,
            ),
            (
                "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'confrev-self' with binding 'confrev-self' denied request: no",
                "",
                Forbidden::Guard,
            ),
            (
                "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'confrev-unresolved' with binding 'b' denied request: no",
                "",
                Forbidden::Unanswered,
            ),
            (
                "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'b' denied request: no",
                "",
                Forbidden::Admission,
            ),
            (
                "configmaps \"a\" is forbidden: unable to create new content in namespace x because it is being terminated",
                "NamespaceTerminating",
                Forbidden::Terminating,
            ),
        ] {
            assert_eq!(of(message, reason), cause, "{message}");
        }
    }
}
