//! Calls to the API server. Every call but a watch is counted, limited in time, and conditional or idempotent if it
//! writes.

mod api;
mod connect;
mod error;
mod event;
mod identity;
mod keys;
pub mod lease;
mod meter;
mod owners;
mod pages;
mod patch;
pub(crate) mod path;
mod reads;
mod usage;
mod watch;

use std::{future::Future, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

pub use api::KubeApi;
pub use connect::connect;
pub use error::ApiError;
pub use event::{Event, ObjectRef, REPEAT_AFTER};
pub use identity::{IdentityError, client};
pub use keys::{DigestKeys, KeyError, KeyKeeper};
pub use lease::{Lease, LeaseRecord};
pub use meter::Meter;
pub use owners::{own_owners, owners_but_our_own, owners_of_others};
pub use pages::{Listed, Page, Pages};
pub(crate) use usage::MAX_NAMES;
pub use usage::Usage;
pub(crate) use watch::OPEN;

use crate::{
    kinds::WorkloadKind,
    resolve::{Ensure, NamespaceFacts, Observed, Past, Record, RevisionsOf, TargetRef},
    snapshot::{Identity, ObjectName},
    uid::Uid,
};

/// The time limit of one call, answer included. During an admission the limit of the whole decision ends a call sooner.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A workload by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKey {
    /// Index into the configured kinds.
    pub kind: usize,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// An ownerReference: it keeps a snapshot from garbage collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// `group/version` of the owner.
    pub api_version: Arc<str>,
    /// Kind of the owner.
    pub kind: Arc<str>,
    /// Name of the owner.
    pub name: Arc<str>,
    /// Uid of the owner.
    pub uid: Uid,
    /// Always false: a snapshot has no controller.
    pub controller: bool,
    /// Always false: a snapshot never blocks its owner's deletion.
    pub block_owner_deletion: bool,
}

impl Owner {
    /// An owner of this kind, name and uid.
    pub fn new(
        api_version: impl Into<Arc<str>>,
        kind: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        uid: impl Into<Uid>,
    ) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            controller: false,
            block_owner_deletion: false,
        }
    }

    /// The entry for an object's `ownerReferences`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The result of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object was created now.
    Now,
    /// An object of that name already exists.
    Exists,
}

/// The state of an object on which a write is conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The object's uid.
    pub uid: String,
    /// The object's resourceVersion.
    pub resource_version: String,
}

/// The condition of a poke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The workload has this resourceVersion.
    Version(String),
    /// The workload carries no `enabled` label, however often others write it meanwhile.
    Unlabelled {
        /// The workload has other labels.
        has_labels: bool,
        /// The workload has annotations.
        has_annotations: bool,
    },
}

/// A workload that its namespace may opt in: it carries no `enabled` label.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The workload.
    pub record: Record,
    /// The condition that the workload still carries no label.
    pub condition: Precondition,
}

/// The result of a live read of a workload.
#[derive(Clone, Debug)]
pub enum Live {
    /// No such workload exists, or it must not roll: it opts out, or is a revision of another workload.
    Apart,
    /// The workload is opted in.
    Enabled(Box<Record>),
    /// Its namespace decides.
    Unlabelled(Box<Candidate>),
}

/// The calls that admission and the controller make. The tests' model has an implementation in memory.
pub trait Api: Clone + Send + Sync + 'static {
    /// The same calls, whose answers count against `meter` until they are parsed. An answer beyond the meter's limit is an
    /// error. Calls in memory have no answers to count.
    #[must_use]
    fn metered(&self, _meter: Arc<dyn Meter>) -> Self {
        self.clone()
    }

    /// Reads a ConfigMap or Secret live, never from a cache. `None`: it does not exist.
    fn read(
        &self,
        namespace: &str,
        object: &ObjectName,
    ) -> impl Future<Output = Result<Option<Observed>, ApiError>> + Send;

    /// The settings of the namespace for its workloads; read live.
    fn namespace(&self, namespace: &str) -> impl Future<Output = Result<NamespaceFacts, ApiError>> + Send;

    /// Whether the object that holds a Rollout's template is opted in by its own label. `None`: the object does not
    /// exist, or its kind is not configured or cannot hold such a template.
    fn is_enabled(
        &self,
        namespace: &str,
        target: &TargetRef,
    ) -> impl Future<Output = Result<Option<bool>, ApiError>> + Send;

    /// The live revisions of a workload with these labels, to compare their templates with a requested one.
    fn revisions(
        &self,
        namespace: &str,
        of: &RevisionsOf,
    ) -> impl Future<Output = Result<Vec<Past>, ApiError>> + Send;

    /// Creates a snapshot with the content of `of`.
    fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> impl Future<Output = Result<Created, ApiError>> + Send;

    /// Sets a snapshot's owners if the snapshot has this version. Returns the updated object.
    fn set_owners(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        owners: &[Owner],
    ) -> impl Future<Output = Result<Observed, ApiError>> + Send;

    /// Adds one owner to a snapshot, whatever its version: merged by uid, so repeating it changes nothing.
    fn add_owner(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        owner: &Owner,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Deletes a snapshot if it has this version.
    fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes the workload's `roll` annotation, on a condition. Returns the record of the workload as admission changed
    /// it.
    fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        now: Timestamp,
    ) -> impl Future<Output = Result<Record, ApiError>> + Send;

    /// How each owner uses a ConfigMap or Secret, in the order of `owners`; read live. The ownerReferences are not
    /// trusted: each uid is compared with the object's.
    fn usages(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> impl Future<Output = Result<Vec<Usage>, ApiError>> + Send;

    /// The revisions (whatever their labels) and opted-in workloads of the namespace whose templates refer to this
    /// object, or may refer to it because they cannot be read. Read live, whatever the watches report.
    fn users_of(
        &self,
        namespace: &str,
        object: &ObjectName,
    ) -> impl Future<Output = Result<Vec<Owner>, ApiError>> + Send;

    /// Writes an Event. It is no error if the same Event already exists.
    fn tell(&self, event: &Event) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// The workloads of a namespace without an `enabled` label. A kind that is not installed has none. A workload that
    /// cannot be read is left out.
    fn unlabelled(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<(WorkloadKey, Candidate)>, ApiError>> + Send;

    /// Reads a workload live.
    fn look(&self, workload: &WorkloadKey) -> impl Future<Output = Result<Live, ApiError>> + Send;
}

/// The ownerReference of a workload on its snapshots.
pub fn workload_owner(kind: &WorkloadKind, name: &str, uid: impl Into<Uid>) -> Owner {
    Owner::new(kind.api_version(), kind.kind.as_str(), name, uid)
}

/// Creates the snapshot that a decision asks for, without owners: the controller binds it. If the snapshot already
/// exists, the caller has to compare its content.
pub async fn ensure_snapshot<A: Api>(
    api: &A,
    namespace: &str,
    ensure: &Ensure,
    of: &[u8],
) -> Result<Created, ApiError> {
    let (name, identity) = (ensure.snapshot(), ensure.identity());
    api.create_snapshot(namespace, &name, &identity, of, &[]).await
}
