//! The one decision: which snapshot each reference of a workload's template names. Pure: no I/O, no client.
//!
//! [`resolve`] is asked with what is known. Where that does not suffice, it answers with what it needs to know
//! ([`Outcome::Needs`]); the caller reads that, live, and asks again. Admission, `render` and the tests are such callers.

mod bare;
mod content;
mod decide;
mod effects;
mod facts;
mod health;
mod malformed;
mod mount;
mod optin;
mod pending;
mod policy;
mod turn;
mod undo;
mod used;
mod workload;

use std::collections::BTreeSet;

pub use decide::resolve;
pub use facts::{Facts, NamespaceFacts, Observed, SourceError};
pub use health::{Health, Referrer, has_deadline, may_lend_template};
pub use malformed::malformed;
pub use pending::{Present, Record, Use, is_pending};
pub use policy::{
    DEFAULT_MIN_INTERVAL, Missing, Mount, Policy, auto_roll_time, auto_roll_value, parse_duration,
    parse_keep, parse_max_in_flight,
};
pub use undo::{Past, RevisionsOf};
pub use workload::{TargetRef, Workload};

use crate::snapshot::{Digest, Identity, ObjectName};

/// What is to be decided: the object as it shall be, and as it was before an update.
#[derive(Debug)]
pub struct Request<'a> {
    /// The object's namespace.
    pub namespace: &'a str,
    /// Whether this installation snapshots Secrets at all.
    pub secrets: bool,
    /// The object as the request wants it.
    pub new: Workload<'a>,
    /// The object as it is stored; `None` for a creation.
    pub old: Option<Workload<'a>>,
}

/// A fact that the decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The live object of that name in the workload's namespace.
    Object(ObjectName),
    /// What the workload's namespace says for its workloads.
    Namespace,
    /// Whether the workload to which a `workloadRef` refers is opted in.
    Target(TargetRef),
    /// The live revisions of the workload, to find out whether the request is an undo.
    Revisions(RevisionsOf),
    /// The snapshot of this source's present content, most likely: it stands beside the source itself. Who can guess its
    /// name saves a round of reads by reading it at once; who cannot is asked for it by name.
    Newest {
        /// The source.
        source: ObjectName,
        /// The snapshot that the template has; where it is that one, it will not be asked for.
        held: Option<String>,
    },
}

/// Whether a workload has taken the present content of a source into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The content is the one that was seen.
    Yes,
    /// What was seen cannot be told, but the workload's snapshot holds the present content.
    Alike,
    /// Another content was seen, or none.
    No,
    /// What was seen cannot be told.
    Unknown,
}

/// An answer of [`resolve`].
#[derive(Debug)]
pub enum Outcome {
    /// Not decidable yet: read these, and ask again.
    Needs(BTreeSet<Need>),
    /// Decided.
    Decided(Decision),
}

/// What is to happen.
#[derive(Debug, Default)]
pub struct Decision {
    /// Operations on the raw object that was asked about; empty where it is as wanted.
    pub patch: json_patch::Patch,
    /// Snapshots to create before the object may be stored.
    pub ensure: Vec<Ensure>,
    /// Snapshots that exist and that this request turned to (an undo, a pin): to be bound to the workload at once,
    /// since their last owner may go at any moment.
    pub adopt: Vec<ObjectName>,
    /// What the user should know, each in one line.
    pub warnings: Vec<String>,
    /// Why the request is refused.
    pub denial: Option<String>,
}

/// A snapshot to be created of the present content of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensure {
    /// The source.
    pub source: ObjectName,
    /// The digest of its content.
    pub digest: Digest,
    /// The snapshot's name.
    pub name: String,
}

impl Ensure {
    /// The snapshot by kind and name.
    pub fn snapshot(&self) -> ObjectName {
        ObjectName::new(self.source.kind, self.name.as_str())
    }

    /// What the snapshot says of itself.
    pub fn identity(&self) -> Identity {
        Identity { source: self.source.name.to_string(), digest: self.digest }
    }
}
