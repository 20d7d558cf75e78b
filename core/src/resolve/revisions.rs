//! The live revisions of a workload, and the parts of them that an undo restores.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeSeed as _};

use super::bare::bare;
use crate::{
    annotations,
    json::{At, Str},
    kinds::RevisionKind,
    snapshot::Digest,
    uid::Uid,
};

/// The parts of a live revision that an undo restores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The digest of its template, see [`bare`].
    pub(super) template: Digest,
    /// The digest of confrev's annotations of the workload, if the revision holds a copy of them. They may be large, and are
    /// only compared.
    pub(super) settings: Digest,
    /// The uid of the workload that it belongs to; `None` if it has no controller. Workloads may share their labels.
    pub(super) workload: Option<Uid>,
}

/// The fields of a revision's metadata that matter for an undo.
#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase", default)]
struct RevisionMetadata<'a> {
    annotations: Option<BTreeMap<Str<'a>, Str<'a>>>,
    owner_references: Option<Vec<Option<RevisionOwner<'a>>>>,
}

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RevisionOwner<'a> {
    uid: Str<'a>,
    controller: Option<bool>,
}

impl Past {
    /// Reads a revision object; `None` if its template cannot be read.
    pub fn read(kind: &RevisionKind, text: &str) -> Option<Self> {
        let metadata: Option<RevisionMetadata<'_>> =
            At::new(&["metadata"]).deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?;
        let RevisionMetadata { annotations, owner_references } = metadata.unwrap_or_default();
        let template = bare(text, kind.template, |_| None)?;
        let mut owners = owner_references.iter().flatten().flatten();
        let workload = owners.find(|owner| owner.controller == Some(true)).map(|owner| (&*owner.uid).into());
        Some(Self { template, settings: digest(annotations.as_ref()), workload })
    }
}

/// The revisions that an undo may bring back: objects of one kind with these labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevisionsOf {
    /// Index into [`crate::kinds::REVISION_KINDS`].
    pub kind: usize,
    /// The labels of the requested template, which Kubernetes copies to the template's revisions.
    pub labels: Vec<(String, String)>,
}

/// confrev's own annotations among these. The mark of `confrev-carry` is that of a single write.
pub(super) fn settings<'a>(
    annotations: Option<&'a BTreeMap<Str<'_>, Str<'_>>>,
) -> BTreeMap<&'a str, &'a str> {
    let all = annotations.into_iter().flatten();
    all.filter(|(key, _)| key.starts_with(annotations::PREFIX) && ***key != *annotations::CARRIED)
        .map(|(key, value)| (&**key, &**value))
        .collect()
}

/// The digest of confrev's own annotations: of their JSON, with sorted keys.
pub(super) fn digest(annotations: Option<&BTreeMap<Str<'_>, Str<'_>>>) -> Digest {
    // Maps of strings always serialize.
    Digest::of_bytes(serde_json::to_string(&settings(annotations)).unwrap_or_default())
}
