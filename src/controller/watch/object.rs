//! Objects on their way from a watch to a record. They live for one event only.
//!
//! An object is kept as text until its record is made, and only the fields that matter are then read. Other fields are
//! skipped, however deep or large.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object of any kind: its metadata, and its text. Its content is never printed.
#[derive(Clone)]
pub struct RawObject {
    pub(super) metadata: ObjectMeta,
    text: Box<str>,
}

/// The metadata of an object of any kind. Nothing else is requested from the API server.
#[derive(Clone)]
pub struct PartialObject {
    pub(super) metadata: ObjectMeta,
}

/// An object that a watch delivers. It can be made from any object's text.
pub trait FromText {
    /// Reads the object. Metadata that cannot be read is left out.
    fn from_text(text: &str) -> Self;
    /// The resourceVersion of the object.
    fn resource_version(&self) -> Option<&str>;
}

impl RawObject {
    /// The object's text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The object's uid; empty if it has none.
    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether it is being deleted.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl FromText for RawObject {
    fn from_text(text: &str) -> Self {
        Self { metadata: identity(text), text: text.into() }
    }

    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl FromText for PartialObject {
    fn from_text(text: &str) -> Self {
        Self { metadata: metadata(text) }
    }

    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

/// The fields that are read of the metadata.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    labels: Option<std::collections::BTreeMap<String, String>>,
    annotations: Option<std::collections::BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

// The fields that identify an object. The API server guarantees their form, whatever else the object holds.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IdentityFields {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
}

fn identity(text: &str) -> ObjectMeta {
    let IdentityFields { name, namespace, uid, resource_version, deletion_timestamp } =
        part(text).unwrap_or_default();
    ObjectMeta { name, namespace, uid, resource_version, deletion_timestamp, ..ObjectMeta::default() }
}

fn metadata(text: &str) -> ObjectMeta {
    part::<Metadata>(text).map_or_else(|| identity(text), ObjectMeta::from)
}

/// Reads a part of the metadata.
fn part<M: for<'de> Deserialize<'de>>(text: &str) -> Option<M> {
    #[derive(Deserialize)]
    struct Object<M> {
        metadata: M,
    }
    serde_json::from_str::<Object<M>>(text).ok().map(|object| object.metadata)
}

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        Self {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            creation_timestamp: metadata.creation_timestamp,
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: metadata.owner_references,
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for PartialObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self::from_text(text.get()))
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self::from_text(text.get()))
    }
}

impl fmt::Debug for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawObject").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for PartialObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialObject").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_readable_despite_unusual_other_fields() {
        let nested = (0..1000).fold(json!(1), |inner, _| json!([inner]));
        let name = json!({"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7"});
        let with = |field: &str, value: &serde_json::Value| {
            let mut metadata = name.clone();
            metadata[field] = value.clone();
            metadata
        };
        for object in [
            json!({"metadata": name}),
            json!({"spec": nested, "metadata": name, "status": nested}),
            json!({"metadata": with("managedFields", &nested)}),
            json!({"metadata": with("labels", &nested)}),
            json!({"metadata": with("creationTimestamp", &json!("never"))}),
        ] {
            let object: RawObject = serde_json::from_str(&object.to_string()).unwrap();
            let found = [
                &object.metadata.name,
                &object.metadata.namespace,
                &object.metadata.uid,
                &object.metadata.resource_version,
            ];
            assert_eq!(found.map(|text| text.as_deref().unwrap_or_default()), ["web", "ns", "u", "7"]);
            assert!(!format!("{object:?}").contains("1]"), "content is printed");
            assert_eq!(object.resource_version(), Some("7"));
        }
    }

    #[test]
    fn metadata_holds_all_that_records_need() {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "2"});
        let metadata = json!({
            "name": "demo", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "ownerReferences": [owner],
        });
        let mut with = metadata.clone();
        with["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}]);
        let object: PartialObject =
            serde_json::from_value(json!({"kind": "PartialObjectMetadata", "metadata": with})).unwrap();
        assert_eq!(object.metadata, serde_json::from_value(metadata).unwrap());
        assert_eq!(object.resource_version(), Some("7"));
    }
}
