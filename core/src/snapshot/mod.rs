//! Content, its digest, and the immutable snapshot that carries both. Pure: no I/O, no client.

mod digest;
mod key;
mod label;
mod name;
mod object;

use std::{fmt, sync::Arc};

pub use digest::{Digest, DigestFormatError, Digests, Hasher, Tag};
pub use key::{KEY_BYTES, Key, KeyId, Keying};
pub use label::{CopiedLabel, CopiedLabelError};
pub use name::{DIGITS, is_namespace_name, is_object_name, snapshot_name, source_label};
pub use object::{ContentError, Identity, Object, snapshot_json};

/// What a snapshot is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A core/v1 ConfigMap.
    ConfigMap,
    /// A core/v1 Secret.
    Secret,
}

impl SourceKind {
    /// The kind as Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// The resource as it stands in API paths, and in confrev's own annotations.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A source or snapshot by kind and name, within one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// ConfigMap or Secret.
    pub kind: SourceKind,
    /// The object's name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// A name of that kind.
    pub fn new(kind: SourceKind, name: impl Into<Arc<str>>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}

/// Types of Secrets whose content the platform or a tool writes for itself; they are never snapshotted.
const UNTOUCHED_SECRET_TYPES: [&str; 3] =
    ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1"];

/// ConfigMaps that the platform rotates, never snapshotted unless the configuration says otherwise.
pub const ROTATED_CONFIGMAPS: [&str; 3] =
    ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"];

/// Whether a Secret of this type may be snapshotted.
pub fn secret_type_is_snapshotted(secret_type: &str) -> bool {
    !UNTOUCHED_SECRET_TYPES.contains(&secret_type)
}
