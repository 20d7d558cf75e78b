//! Workloads, owners, and the conditions of writes.

use std::sync::Arc;

use confrev_core::{kinds::WorkloadKind, snapshot::ObjectName, uid::Uid};
use serde::Serialize;

use crate::name::Name;

/// The most names that one revision or workload may refer to: the default of `--max-reads`. Each name takes about 600 bytes in
/// the controller's state, and a task if its snapshot is missing. Any user may create a revision, and no webhook sees it.
pub const MAX_NAMES: usize = 2000;

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

impl WorkloadKey {
    /// An object in the workload's namespace, such as a source that it uses.
    pub fn beside(&self, object: ObjectName) -> Name {
        Name::new(Arc::clone(&self.namespace), object)
    }
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

/// The ownerReference of a workload on its snapshots.
pub fn workload_owner(kind: &WorkloadKind, name: &str, uid: impl Into<Uid>) -> Owner {
    Owner::new(kind.api_version(), kind.kind.as_str(), name, uid)
}
