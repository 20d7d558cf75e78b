//! Why a check has no result. A check that did not run is a failed check with that reason.

use std::{fmt, io, process::ExitStatus, time::Duration};

use super::limits::{MEMORY, SECONDS};
use crate::{annotations, resolve::SchemaReference, snapshot::MAX_CONTENT};

/// Why a check has no result.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// The content is larger than the API server stores.
    TooLarge,
    /// Other checks took all turns until the deadline of the review.
    NoTurn,
    /// The process could not be started.
    NotStarted(io::Error),
    /// It used its processor time.
    Processor,
    /// It used its memory.
    Memory,
    /// It did not end in this time.
    Late(Duration),
    /// The kernel killed it.
    Killed,
    /// It ended in another way.
    Defect(ExitStatus),
}

impl Unfinished {
    /// What is said of the check. It contains nothing of the content.
    pub(super) fn message(&self, reference: &SchemaReference) -> String {
        format!("the check against the schema {reference} (annotation {}) {self}", annotations::SCHEMA)
    }

    /// The same for a Secret, without the name of a key.
    pub(super) fn of_secret(&self) -> String {
        format!("the check against its schema (annotation {}) {self}", annotations::SCHEMA)
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "was not run: content over {MAX_CONTENT} bytes is not checked"),
            Self::NoTurn => {
                f.write_str("was not run: other checks took all the time of this request: try again")
            }
            Self::NotStarted(error) => write!(f, "was not run: its process could not be started: {error}"),
            Self::Processor => {
                write!(f, "was ended after {SECONDS} s of processor time: simplify the schema or the content")
            }
            Self::Memory => write!(
                f,
                "was ended after it used {} MiB of memory: simplify the schema or the content",
                MEMORY >> 20
            ),
            Self::Late(time) => {
                write!(
                    f,
                    "was ended after {:.1} s: the machine or other checks are busy: try again",
                    time.as_secs_f64()
                )
            }
            Self::Killed => f.write_str("was killed: the machine has too little memory: try again"),
            Self::Defect(status) => write!(f, "failed, which is a defect of confrev ({status})"),
        }
    }
}
