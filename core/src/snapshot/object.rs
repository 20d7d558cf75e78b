//! A ConfigMap or Secret read from JSON, and the snapshot made from it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    Authorship, CopiedLabel, Digest, Digests, Hasher, Keying, SourceKind, Tag, is_named_after, source_label,
};
use crate::{annotations, json::Str};

/// A ConfigMap or Secret, borrowed from its JSON text.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct Object<'a> {
    #[serde(default)]
    metadata: ObjectMetadata<'a>,
    #[serde(default)]
    data: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default, rename = "binaryData")]
    binary_data: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default, rename = "type")]
    secret_type: Option<Str<'a>>,
    #[serde(default)]
    immutable: Option<bool>,
}

/// An object's metadata. `M` is what is read of its managedFields: nothing, except for a snapshot that is created.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a, M: Default + Deserialize<'de>"), rename_all = "camelCase")]
struct ObjectMetadata<'a, M = IgnoredAny> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    uid: Str<'a>,
    #[serde(default)]
    resource_version: Str<'a>,
    #[serde(default)]
    labels: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default)]
    annotations: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default)]
    deletion_timestamp: Option<Str<'a>>,
    #[serde(default)]
    owner_references: Option<Vec<OwnerReference<'a>>>,
    #[serde(default)]
    managed_fields: M,
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct OwnerReference<'a> {
    #[serde(default)]
    uid: Str<'a>,
}

impl<'a, M> ObjectMetadata<'a, M> {
    /// The metadata, and what was read of the managedFields.
    fn split(self) -> (ObjectMetadata<'a>, M) {
        let metadata = ObjectMetadata {
            name: self.name,
            uid: self.uid,
            resource_version: self.resource_version,
            labels: self.labels,
            annotations: self.annotations,
            deletion_timestamp: self.deletion_timestamp,
            owner_references: self.owner_references,
            managed_fields: IgnoredAny,
        };
        (metadata, self.managed_fields)
    }
}

/// The source and digest that a snapshot states. They are trusted only if its content matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the source.
    pub source: String,
    /// The digest that it states.
    pub digest: Digest,
}

/// Content that no API server would have stored.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// A value that must be base64 is not.
    #[error("the value of key {key:?} is not base64")]
    NotBase64 {
        /// The key.
        key: String,
    },
    /// The same key is in `data` and in `binaryData`.
    #[error("key {key:?} is in data and in binaryData: remove one")]
    Twice {
        /// The key.
        key: String,
    },
    /// The same of a Secret, whose keys no message names.
    #[error("a value is not base64")]
    SecretNotBase64,
}

impl ContentError {
    /// The error as it may be shown for an object of this kind.
    fn of(self, kind: SourceKind) -> Self {
        if kind == SourceKind::Secret { Self::SecretNotBase64 } else { self }
    }
}

impl<'a> Object<'a> {
    /// Reads an object from its JSON text.
    pub fn parse(json: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// The object's own name; empty if it has none.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The object's uid; empty before it is stored.
    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// The object's resourceVersion; empty before it is stored.
    pub fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(|value| &**value)
    }

    /// The labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.labels.iter().flatten().map(|(key, value)| (&**key, &**value))
    }

    /// An annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(|value| &**value)
    }

    /// The annotations of confrev.
    pub fn own_annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.metadata.annotations.iter().flatten();
        all.filter(|(key, _)| key.starts_with(annotations::PREFIX)).map(|(key, value)| (&**key, &**value))
    }

    /// The uids of its owners.
    pub fn owner_uids(&self) -> Vec<String> {
        self.metadata.owner_references.iter().flatten().map(|owner| (*owner.uid).to_owned()).collect()
    }

    /// Whether its deletion has begun.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The type of a Secret; the API server's default if none is given.
    pub fn secret_type(&self) -> &str {
        self.secret_type.as_deref().filter(|text| !text.is_empty()).unwrap_or("Opaque")
    }

    /// The identity that the object states, if it has confrev's labels and the name of such a snapshot: it is a snapshot, or claims
    /// to be one. A copy under another name belongs to the user who made it.
    pub fn identity(&self) -> Option<Identity> {
        if self.label(annotations::MANAGED_BY) != Some(annotations::MANAGER)
            || self.label(annotations::SOURCE).is_none()
        {
            return None;
        }
        let source = self.annotation(annotations::SOURCE_NAME)?.to_owned();
        let digest = self.annotation(annotations::DIGEST)?.parse().ok()?;
        is_named_after(self.name(), &source, &digest).then_some(Identity { source, digest })
    }

    /// The namespace and name under which the content is digested: those of the object itself, or of a snapshot's source. A
    /// snapshot records both, so it is verified under the same ones after it was restored into another namespace. Only who may
    /// create snapshots can choose what an object records; others could test guesses that way.
    fn source_of<'s>(&'s self, identity: Option<&'s Identity>, keying: &'s Keying) -> (&'s str, &'s str) {
        match identity {
            None => (keying.namespace(), self.name()),
            Some(identity) => {
                let recorded = self.annotation(annotations::SOURCE_NAMESPACE);
                (recorded.unwrap_or(keying.namespace()), &identity.source)
            }
        }
    }

    /// The plain SHA-256 of the content.
    pub fn digest(&self, kind: SourceKind) -> Result<Digest, ContentError> {
        Ok(self.digests(kind, &Keying::default(), None)?.current())
    }

    /// The digests of the content under every key; with `keys`, of these entries only.
    pub fn digests(
        &self,
        kind: SourceKind,
        keying: &Keying,
        keys: Option<&BTreeSet<&str>>,
    ) -> Result<Digests, ContentError> {
        let identity = self.identity();
        let source = self.source_of(identity.as_ref(), keying);
        let mut hashers = Hasher::all(keying.keys(), source, kind, self.secret_type());
        for (key, tag, text) in self.entries(kind)? {
            if keys.is_none_or(|keys| keys.contains(key)) {
                let value = decode(tag, key, text).map_err(|error| error.of(kind))?;
                for hasher in &mut hashers {
                    hasher.entry(tag, key, &value);
                }
            }
        }
        let mut digests: Vec<_> = hashers.into_iter().map(Hasher::finish).collect();
        // There is always at least one hasher.
        let plain = digests.pop().unwrap_or_else(|| Digest::of_bytes(""));
        let mut keyed = digests.into_iter();
        let mut all = Digests::from(keyed.next().unwrap_or(plain));
        all.extend(keyed);
        Ok(all.with_plain(plain))
    }

    /// The digest that the object states, if it is a snapshot: immutable, not being deleted, labelled by confrev, and with
    /// content of that digest. A digest under an unknown key cannot be verified. It counts, since the snapshot must outlive the
    /// key.
    pub fn stated_digest(&self, digests: &Digests) -> Option<Digest> {
        let Identity { digest, .. } = self.identity()?;
        let is_known = digest.key().is_none() || digests.iter().any(|known| known.key() == digest.key());
        let holds = !is_known || digests.contains(&digest);
        (self.immutable == Some(true) && !self.is_being_deleted() && holds).then_some(digest)
    }

    /// The keys of the content.
    pub fn keys(&self) -> BTreeSet<String> {
        let maps = [&self.data, &self.binary_data].into_iter().flatten();
        maps.flat_map(|map| map.keys()).map(|key| (**key).to_owned()).collect()
    }

    /// The text of each entry; `None` for an entry that is no text.
    pub fn entry_texts(&self, kind: SourceKind) -> BTreeMap<String, Option<String>> {
        let entries = self.entries(kind).unwrap_or_default().into_iter();
        let text = |tag, key: &str, text| String::from_utf8(decode(tag, key, text).ok()?.into_owned()).ok();
        entries.map(|(key, tag, value)| (key.to_owned(), text(tag, key, value))).collect()
    }

    /// Whether `key` has the same value in both contents, or is absent from both.
    pub fn same_value(&self, other: &Object<'_>, key: &str) -> bool {
        fn value<'m>(map: Option<&'m BTreeMap<Str<'_>, Str<'_>>>, key: &str) -> Option<&'m str> {
            map?.get(key).map(|text| &**text)
        }
        value(self.data.as_ref(), key) == value(other.data.as_ref(), key)
            && value(self.binary_data.as_ref(), key) == value(other.binary_data.as_ref(), key)
    }

    /// All entries in ascending order of their key's bytes, with their undecoded text.
    fn entries(&self, kind: SourceKind) -> Result<Vec<(&str, Tag, &str)>, ContentError> {
        let data_tag = if kind == SourceKind::ConfigMap { Tag::Text } else { Tag::Bytes };
        // A Secret has no binaryData: the API server drops that field.
        let binary_data = self.binary_data.as_ref().filter(|_| kind == SourceKind::ConfigMap);
        let maps = [(self.data.as_ref(), data_tag), (binary_data, Tag::Bytes)];
        let mut entries = Vec::new();
        for (map, tag) in maps {
            entries.extend(map.into_iter().flatten().map(|(key, text)| (&**key, tag, &**text)));
        }
        // Each map is sorted, but not the two together.
        entries.sort_by_key(|(key, ..)| *key);
        match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(ContentError::Twice { key: pair[0].0.to_owned() }),
            None => Ok(entries),
        }
    }
}

/// Accepts leftover bits, like Go's decoder: the API server decodes `QR==` as `QQ==`.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Decodes a value to bytes. Line breaks inside base64 are ignored, as in Go's decoder.
fn decode<'t>(tag: Tag, key: &str, text: &'t str) -> Result<Cow<'t, [u8]>, ContentError> {
    if tag == Tag::Text {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let folded: Cow<'_, str> = if text.contains(['\r', '\n']) {
        Cow::Owned(text.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(text)
    };
    let bytes =
        BASE64.decode(folded.as_bytes()).map_err(|_| ContentError::NotBase64 { key: key.to_owned() })?;
    Ok(Cow::Owned(bytes))
}

/// An object with its payload as JSON text.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Payload<'a> {
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "binaryData")]
    binary_data: Option<&'a RawValue>,
    #[serde(default, rename = "type")]
    secret_type: Option<Str<'a>>,
    #[serde(default)]
    metadata: ObjectMetadata<'a, Option<&'a RawValue>>,
    #[serde(default)]
    immutable: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotJson<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: WrittenMetadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    immutable: Option<bool>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    secret_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_references: Option<&'a [serde_json::Value]>,
}

/// The metadata with which a source that is bound itself (mode `bind`) is restored, or that of a snapshot.
#[derive(Debug, Default)]
struct OwnMetadata {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    immutable: Option<bool>,
}

/// Whether a tool prunes objects that have this label or annotation and are no longer in Git. It would delete a restored
/// object repeatedly. The marks are those of Argo CD (source: "Resource Tracking" in its documentation), and the one
/// that `kubectl apply --prune` reads, which also repeats the content.
fn is_mark_to_prune_by(key: &str) -> bool {
    key == annotations::LAST_APPLIED
        || key == "app.kubernetes.io/instance"
        || key.starts_with("argocd.argoproj.io/")
}

impl OwnMetadata {
    /// Reads the metadata of a source that is bound itself, without the marks by which a tool would delete it again.
    fn of(object: &Object<'_>) -> Self {
        let owned = |map: &Option<BTreeMap<Str<'_>, Str<'_>>>| {
            let entries = map.iter().flatten().filter(|(key, _)| !is_mark_to_prune_by(key));
            entries.map(|(key, value)| (key.to_string(), value.to_string())).collect()
        };
        Self {
            labels: owned(&object.metadata.labels),
            annotations: owned(&object.metadata.annotations),
            immutable: object.immutable,
        }
    }
}

/// The change that made the content of `object`: that of a source, or the one that a snapshot of the source records.
fn change(object: &Object<'_>, managed_fields: Option<&RawValue>, now: Timestamp) -> Option<Authorship> {
    if object.identity().is_none() {
        return Authorship::in_managed_fields(managed_fields?, now);
    }
    let stated = |key| object.annotation(key).map(str::to_owned);
    Some(Authorship { at: stated(annotations::CHANGED_AT)?, by: stated(annotations::CHANGED_BY)? })
}

/// How a snapshot is made.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    /// The labels that are copied from its source.
    pub copied: &'a [CopiedLabel],
    /// When it is made. A change of the source in the future does not count.
    pub at: Timestamp,
}

impl Made<'_> {
    /// A snapshot that is made at that time, and copies no labels.
    pub fn at(at: Timestamp) -> Self {
        Self { copied: &[], at }
    }
}

/// The unit of the size that a snapshot records, in bytes. The size of a Secret must not show the length of a value.
const SIZE_UNIT: usize = 1024;

/// The size that a snapshot records: its payload as JSON text, in whole KiB.
fn recorded_size(payload: [Option<&RawValue>; 2]) -> usize {
    let bytes: usize = payload.into_iter().flatten().map(|part| part.get().len()).sum();
    bytes.max(1).next_multiple_of(SIZE_UNIT)
}

/// The JSON of the snapshot to create: the unchanged payload of `json`, the labels that [`Made`] copies, and no other label or
/// annotation of the source.
///
/// `json` is the source, or another snapshot of the same content. If `name` is the source's own name, the source is bound itself,
/// and is restored with its labels and annotations. Its tool then finds its own marks; without them, Helm would refuse to adopt
/// the object.
///
/// # Example
///
/// ```
/// # use confrev_core::snapshot::{Identity, Made, Object, SourceKind, snapshot_json, snapshot_name};
/// let source = br#"{"metadata": {"name": "demo"}, "data": {"color": "blue"}}"#;
/// let digest = Object::parse(source)?.digest(SourceKind::ConfigMap)?;
/// let name = snapshot_name("demo", &digest, 10);
/// assert_eq!(name, "demo-3a18d34e26");
/// let identity = Identity { source: "demo".to_owned(), digest };
/// let made = Made::at("2026-01-02T03:04:05Z".parse()?);
/// let snapshot = snapshot_json(SourceKind::ConfigMap, "shop", &name, &identity, source, &[], made)?;
/// let read = Object::parse(&snapshot)?;
/// assert_eq!(read.identity(), Some(identity));
/// assert_eq!(read.digest(SourceKind::ConfigMap)?, digest);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn snapshot_json(
    kind: SourceKind,
    namespace: &str,
    name: &str,
    of: &Identity,
    json: &[u8],
    owners: &[serde_json::Value],
    made: Made<'_>,
) -> Result<Vec<u8>, serde_json::Error> {
    let payload: Payload<'_> = serde_json::from_slice(json)?;
    let (metadata, managed_fields) = payload.metadata.split();
    let object = Object {
        metadata,
        data: None,
        binary_data: None,
        secret_type: payload.secret_type,
        immutable: payload.immutable,
    };
    let OwnMetadata { labels, annotations, immutable } = if name == of.source {
        let mut own = OwnMetadata::of(&object);
        own.labels.insert(annotations::ENABLED.to_owned(), "bind".to_owned());
        own
    } else {
        let mut annotations = BTreeMap::from([
            (annotations::SOURCE_NAME.to_owned(), of.source.clone()),
            (annotations::DIGEST.to_owned(), of.digest.to_string()),
            (annotations::BYTES.to_owned(), recorded_size([payload.data, payload.binary_data]).to_string()),
        ]);
        if kind == SourceKind::Secret {
            // A copy of a snapshot from another namespace has the same digest, and is verified under the same namespace.
            let copied = object.identity().filter(|copied| copied == of);
            let recorded = copied.and_then(|_| object.annotation(annotations::SOURCE_NAMESPACE));
            let recorded = recorded.unwrap_or(namespace).to_owned();
            annotations.insert(annotations::SOURCE_NAMESPACE.to_owned(), recorded);
        }
        if let Some(Authorship { at, by }) = change(&object, managed_fields, made.at) {
            annotations
                .extend([(annotations::CHANGED_AT.to_owned(), at), (annotations::CHANGED_BY.to_owned(), by)]);
        }
        let of_source = |key: &str| object.label(key).map(str::to_owned);
        let mut labels: BTreeMap<_, _> = CopiedLabel::choose(made.copied, of_source).collect();
        labels.extend([
            (annotations::MANAGED_BY.to_owned(), annotations::MANAGER.to_owned()),
            (annotations::SOURCE.to_owned(), source_label(&of.source)),
        ]);
        OwnMetadata { labels, annotations, immutable: Some(true) }
    };
    serde_json::to_vec(&SnapshotJson {
        api_version: "v1",
        kind: kind.as_str(),
        metadata: WrittenMetadata {
            name,
            namespace,
            labels,
            annotations,
            owner_references: Some(owners).filter(|owners| !owners.is_empty()),
        },
        immutable,
        secret_type: (kind == SourceKind::Secret).then(|| object.secret_type()),
        data: payload.data,
        binary_data: payload.binary_data.filter(|_| kind == SourceKind::ConfigMap),
    })
}
