//! The one decision: the snapshot to which each reference of a workload's template resolves. Pure: no I/O, no client.
//!
//! A decision takes several passes. [`resolve`] is one pass over the facts that are known so far. If they do not suffice, it
//! returns the missing ones ([`Pass::Needs`]). Its caller reads the facts and repeats the pass until the decision is complete:
//! admission and `kubectl confrev impact` from the API server, `render` from manifests, with [`decide()`].

mod analysis;
mod bare;
mod carried;
mod change_state;
mod decision;
pub(crate) mod defaults;
mod driver;
mod effects;
mod exclusions;
mod facts;
mod health;
mod key_names;
mod malformed;
mod misplaced;
mod mount;
mod namespace_opt_in;
mod optin;
mod other_tools;
mod pending;
mod plan;
mod policy;
mod refused_contents;
mod relation;
mod revisions;
mod schema;
mod set;
mod spread;
mod spread_policy;
mod strategies;
mod strategy;
mod undo;
mod used;
mod values;
mod verdict;
mod waves;
mod workload;

use std::collections::BTreeSet;

pub use analysis::{Analysis, AnalysisRun, EndedWave, RunState, is_run_of, run_arguments, run_of_template};
pub use carried::{Carried, Unmarked};
pub use change_state::{ChangeState, Phase};
pub use decision::resolve;
pub use defaults::Defaults;
pub use driver::decide;
pub use exclusions::{ExcludedLabels, Exclusions, LabelNames};
pub use facts::{Facts, NamespaceFacts, Observed, SourceError, Spares};
pub use health::{Health, Referrer, has_deadline, may_lend_template};
pub use key_names::KeyNames;
pub use malformed::malformed;
pub use mount::Mount;
pub use namespace_opt_in::NamespaceOptIn;
pub use other_tools::{RELOADER, WAVE, reloader_reads_true};
pub use pending::{Pace, Present, Record, Use, is_pending};
pub use plan::{Move, Plan, To, auto_roll_time, plan_time, roll_time};
pub use policy::{DEFAULT_MIN_INTERVAL, Policy, hold_text, order_of_namespace, parse_keep};
pub use refused_contents::{REFUSED_CONTENTS, RefusedContents};
pub use relation::{Mode, Relation, Values};
pub use revisions::{Past, RevisionsOf};
pub use schema::{SchemaReference, correct_schema, invalid_schema, invalid_schema_for};
pub use set::{Membership, SetVersion, SetWait, invalid_set};
pub use spread::{
    Member, MemberState, Moved, Progress, Proof, RollOrder, Spread, Wait, Waiting, WorkloadView,
};
pub use spread_policy::SpreadPolicy;
pub use strategies::Strategies;
pub use strategy::Strategy;
pub use values::{MissingPolicy, parse_duration, parse_max_in_flight};
pub use verdict::{ALL_WAVES, ChangeVerdict, RecordedFailure, UserAction, UserDecision, Verdict};
pub use waves::Waves;
pub use workload::{TargetRef, Workload};

use crate::snapshot::{Digest, Identity, ObjectName};

/// The input of a decision: the requested object, and in an update the stored one.
#[derive(Debug)]
pub struct Request<'a> {
    /// The object's namespace.
    pub namespace: &'a str,
    /// Whether this installation snapshots Secrets at all.
    pub secrets: bool,
    /// The requested object.
    pub new: Workload<'a>,
    /// The object as it is stored; `None` for a creation.
    pub old: Option<Workload<'a>>,
    /// What earlier writes left in the workload's mark while confrev was away.
    pub carried: Carried,
}

/// A fact that the decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The live object of that name in the workload's namespace.
    Object(ObjectName),
    /// The settings of the workload's namespace.
    Namespace,
    /// Whether the workload to which a `workloadRef` refers is opted in.
    Target(TargetRef),
    /// The live revisions of the workload, to find out whether the request is an undo.
    Revisions(RevisionsOf),
    /// Whether the present content of this source, which was read, matches its schema.
    Schema(ObjectName),
    /// Further names for the snapshot of this source's present content: objects of others have the usual ones.
    Spares(ObjectName),
    /// Most likely the snapshot of this source's present content; it is asked for together with the source. A caller that
    /// can guess its name reads it at once, and saves a round of reads. Other callers are asked for it by name later.
    Newest {
        /// The source.
        source: ObjectName,
        /// The snapshot that the template names. If that is the newest one, it is not asked for.
        kept: Option<String>,
    },
}

/// The result of [`resolve`].
#[derive(Debug)]
pub enum Pass {
    /// Not decidable yet: these facts are missing.
    Needs(BTreeSet<Need>),
    /// Decided.
    Decided(Decision),
}

/// The result of a decision.
#[derive(Debug, Default)]
pub struct Decision {
    /// Operations on the raw object of the request; empty if nothing is to change.
    pub patch: json_patch::Patch,
    /// Snapshots to create before the object may be stored.
    pub ensure: Vec<Ensure>,
    /// Existing snapshots that this request newly refers to (an undo, a pin). They must be bound to the workload at once,
    /// since their last owner may be deleted at any moment.
    pub adopt: Vec<ObjectName>,
    /// Existing objects to which the template newly refers by a snapshot's name, adopted or not.
    pub refers: Vec<ObjectName>,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
    /// The reason for which the request is refused.
    pub denial: Option<String>,
}

/// A snapshot to create from the present content of a source.
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

    /// The identity that the snapshot states.
    pub fn identity(&self) -> Identity {
        Identity { source: self.source.name.to_string(), digest: self.digest }
    }
}
