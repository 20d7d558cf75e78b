//! A setting that is a gate.

use std::fmt;

use jiff::Timestamp;

use crate::{annotations, snapshot::ObjectName};

/// An annotation of a workload, of its namespace or of a source that keeps the workload where it is for some time.
pub(super) struct Setting {
    /// The whole key.
    pub(super) key: &'static str,
    /// Whether a value can be followed; an error says what is allowed.
    pub(super) check: fn(&str) -> Result<(), &'static str>,
    /// Until when the values of these objects keep the workload; `None` if it may move.
    pub(super) closed: fn(&[(Place, &str)], Timestamp) -> Found,
}

impl Setting {
    /// The key without its prefix, which is the name of the gate.
    pub(super) fn name(&self) -> &'static str {
        annotations::short(self.key)
    }
}

/// Why a value of an annotation cannot be followed.
pub(super) fn refused(key: &str, text: &str, allowed: &str) -> String {
    format!("annotation {key}: {text:?} is not allowed, use {allowed}")
}

/// Until when values keep a workload; `None` if it may move.
pub(super) type Found = Result<Option<Until>, Malformed>;

/// A value that cannot be followed.
pub(super) struct Malformed {
    /// The object that has it.
    pub(super) of: Place,
    /// The value.
    pub(super) text: String,
    /// What is allowed.
    pub(super) allowed: &'static str,
}

/// How long a setting keeps a workload.
pub(super) struct Until {
    /// When it may move; `None` if that is not known, or not soon.
    pub(super) opens: Option<Timestamp>,
    /// The reason, for people.
    pub(super) reason: String,
}

/// The object that has a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The workload itself.
    Workload,
    /// Its namespace.
    Namespace,
    /// A source whose content changed.
    Source(ObjectName),
}

impl Place {
    /// Its setting of this name, for messages.
    pub(super) fn of(&self, name: &str) -> String {
        match self {
            Self::Workload => format!("its {name}"),
            Self::Namespace => format!("the {name} of its namespace"),
            Self::Source(source) => format!("the {name} of {source}"),
        }
    }
}

/// Why a setting keeps a workload where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// A setting is malformed, so nothing moves.
    Invalid {
        /// The name of the setting.
        name: &'static str,
        /// The object that has it.
        of: Place,
        /// What is wrong.
        why: String,
    },
    /// The workload may move later.
    Until {
        /// The name of the setting.
        name: &'static str,
        /// When it may move; `None` if that is not known, or not soon.
        opens: Option<Timestamp>,
        /// The reason, for people.
        reason: String,
    },
}

impl Closed {
    /// The annotation.
    pub fn key(&self) -> String {
        let (Self::Invalid { name, .. } | Self::Until { name, .. }) = self;
        format!("{}{name}", annotations::PREFIX)
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { of: Place::Workload, why, .. } => f.write_str(why),
            Self::Invalid { name, of, why } => write!(f, "{}: {why}", of.of(name)),
            Self::Until { reason, .. } => f.write_str(reason),
        }
    }
}
