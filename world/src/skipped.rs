//! Why an object is skipped: it is nested too deep, not of the form of its kind, or refers to too many names.

use confrev_core::uid::Uid;

/// Why an object is skipped.
#[derive(Debug)]
pub enum Unreadable {
    /// It is nested too deep, or malformed. The error itself may quote the object's content.
    Form(serde_json::Error),
    /// It refers to more names than the limit.
    Names {
        /// The limit.
        limit: usize,
    },
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self::Form(error)
    }
}

/// What is known of an object that is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The object's uid.
    pub uid: Uid,
    /// The exceeded limit of names; `None` if the object is malformed.
    pub names_limit: Option<usize>,
}
