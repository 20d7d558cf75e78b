//! Why a command failed, and the exit code.

use super::{explain, manifests::ManifestError, serve::ServeError};
use crate::cluster::ApiError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Serving did not start, or ended.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Manifests could not be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// No configuration of a cluster was found.
    #[error("no usable cluster configuration: {0}")]
    Kubeconfig(String),
    /// The API server does not answer.
    #[error("the API server at {url} does not answer: {reason}")]
    Unreachable {
        /// The API server.
        url: String,
        /// Why.
        reason: String,
    },
    /// The API server does not know the user.
    #[error("the API server at {url} rejected the credentials: log in again")]
    Unauthorized {
        /// The API server.
        url: String,
    },
    /// The API server, or a webhook that it called, refused the call.
    #[error("{0}")]
    Refused(String),
    /// A call failed for another reason.
    #[error("{}", explain::call(.0))]
    Api(ApiError),
    /// The named object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The arguments do not fit the objects in the cluster.
    #[error("{0}")]
    Usage(String),
    /// The result of the command is no, as in a check that failed.
    #[error("{0}")]
    No(String),
    /// The contents that `diff` compared are different. Nothing more is printed.
    #[error("the contents differ")]
    Different,
    /// Standard output or input failed.
    #[error("standard input or output: {}", explain::io_error(.0))]
    Output(#[from] std::io::Error),
}

impl Failure {
    /// The exit code of the program.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::No(_) => 3,
            _ => 1,
        }
    }
}
