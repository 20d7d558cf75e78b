//! Content, its digest, and the immutable snapshot that carries both. Pure: no I/O, no client.

mod author;
mod digest;
mod digest_key;
mod label;
mod name;
mod object;
mod size;

use std::{fmt, sync::Arc};

pub use author::{Authorship, CLOCK_TOLERANCE};
pub use digest::{Digest, DigestFormatError, Digests, Hasher, Tag};
pub use digest_key::{DigestKey, KEY_BYTES, KeyId, Keying};
pub use label::{CopiedLabel, CopiedLabelError};
pub use name::{
    DIGITS, SPARE_DIGITS, is_named_after, is_namespace_name, is_object_name, is_spare, may_be_generated,
    snapshot_name, source_label, source_of_name, spare_name,
};
pub use object::{ContentError, Identity, Made, Object, snapshot_json};
pub use size::{MAX_CONTENT, content_size};

/// The kind of a source.
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

    /// The resource name, as in API paths and in confrev's own annotations.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }

    /// The kind with this resource name.
    pub fn of_plural(plural: &str) -> Option<Self> {
        [Self::ConfigMap, Self::Secret].into_iter().find(|kind| kind.plural() == plural)
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
    /// The name of an object of that kind.
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

/// ConfigMaps that Kubernetes, OpenShift and Istio rotate.
pub const ROTATED_CONFIGMAPS: [&str; 3] =
    ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"];

/// The ConfigMaps that are never snapshotted, since the platform rotates them: [`ROTATED_CONFIGMAPS`] and the configured
/// ones.
#[derive(Clone, Debug, Default)]
pub struct Rotated(Arc<[String]>);

impl Rotated {
    /// The built-in names and the given ones.
    pub fn with(more: impl IntoIterator<Item = String>) -> Self {
        Self(more.into_iter().collect())
    }

    /// Whether references to this object stay as written, whatever its content.
    pub fn contains(&self, object: &ObjectName) -> bool {
        let mut names = ROTATED_CONFIGMAPS.into_iter().chain(self.0.iter().map(String::as_str));
        object.kind == SourceKind::ConfigMap && names.any(|name| *name == *object.name)
    }
}

/// Whether a Secret of this type may be snapshotted.
pub fn secret_type_is_snapshotted(secret_type: &str) -> bool {
    !UNTOUCHED_SECRET_TYPES.contains(&secret_type)
}
