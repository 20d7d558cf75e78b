//! Objects on their way from a watch to a record: they live for one event only, and are read without what nothing here asks
//! for. A page of a list holds a hundred of them at once, and `managedFields` would be most of it.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{
    Resource,
    api::{ApiResource, ObjectMeta},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::resolve::Managers;

/// An object of any kind as JSON, with its metadata parsed for the watch's own use. Its content is never printed.
#[derive(Clone)]
pub struct Lean {
    metadata: ObjectMeta,
    /// The whole object; its managedFields say no more than decisions ask of them.
    pub(super) value: Value,
}

/// Of an object of any kind, its metadata, managedFields apart. The API server is asked for no more.
#[derive(Clone)]
pub struct LeanMeta {
    pub(super) metadata: ObjectMeta,
}

/// What is read of the metadata.
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

impl<'de> Deserialize<'de> for LeanMeta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }

        Ok(Self { metadata: Object::deserialize(deserializer)?.metadata.into() })
    }
}

impl<'de> Deserialize<'de> for Lean {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Part::Object.deserialize(deserializer)?;
        let field = |name: &str| value["metadata"][name].as_str().map(str::to_owned);
        let metadata = ObjectMeta {
            name: field("name"),
            namespace: field("namespace"),
            uid: field("uid"),
            resource_version: field("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, value })
    }
}

/// A part of an object that is read into a tree, and may have something in it that is not.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Metadata,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match (self, key.as_str()) {
                (Self::Object, "metadata") => map.next_value_seed(Self::Metadata)?,
                (Self::Metadata, "managedFields") => match map.next_value::<Managers>()?.abridged() {
                    Some(managers) => managers,
                    None => continue,
                },
                _ => map.next_value()?,
            };
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// What both have in common: any kind, and metadata.
macro_rules! is_a_resource {
    ($object:ident, $metadata_api:literal) => {
        impl fmt::Debug for $object {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($object)).field("name", &self.metadata.name).finish_non_exhaustive()
            }
        }

        impl Resource for $object {
            type DynamicType = ApiResource;
            type Scope = kube::core::DynamicResourceScope;

            fn metadata_api() -> bool {
                $metadata_api
            }

            fn kind(resource: &ApiResource) -> Cow<'_, str> {
                resource.kind.as_str().into()
            }

            fn group(resource: &ApiResource) -> Cow<'_, str> {
                resource.group.as_str().into()
            }

            fn version(resource: &ApiResource) -> Cow<'_, str> {
                resource.version.as_str().into()
            }

            fn plural(resource: &ApiResource) -> Cow<'_, str> {
                resource.plural.as_str().into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

is_a_resource!(Lean, false);
is_a_resource!(LeanMeta, true);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_managed_fields_it_is_read_who_owns_the_label() {
        let owns = json!({"fieldsV1": {"f:metadata": {"f:labels": {"f:confrev.dev/enabled": {}}}}});
        let mut long = owns.clone();
        long["manager"] = json!("kubectl");
        long["fieldsV1"]["f:metadata"]["f:labels"]["f:app"] = json!({});
        long["fieldsV1"]["f:spec"] = json!({"f:replicas": {}});
        let others = json!({"fieldsV1": {"f:metadata": {"f:labels": {"f:app": {}}}}});
        for (written, read) in [
            (json!([others, null, long]), json!([owns])),
            (json!([others]), Value::Null),
            (json!([]), Value::Null),
            (Value::Null, Value::Null),
        ] {
            let lean: Lean = serde_json::from_value(json!({"metadata": {"managedFields": written}})).unwrap();
            assert_eq!(lean.value["metadata"]["managedFields"], read, "{written}");
        }
    }

    #[test]
    fn an_object_is_read_whole_but_for_its_managed_fields() {
        let whole = json!({
            "apiVersion": "apps/v1",
            "metadata": {"name": "web", "managedFields": [{"manager": "kubectl"}], "labels": {"managedFields": "mine"}},
            "spec": {"managedFields": 1, "metadata": {"managedFields": 2}},
        });
        let mut without = whole.clone();
        without["metadata"].as_object_mut().unwrap().remove("managedFields");
        let lean: Lean = serde_json::from_str(&whole.to_string()).unwrap();
        assert_eq!(lean.value, without);
        assert_eq!(lean.meta().name.as_deref(), Some("web"));
        let bare: Lean = serde_json::from_value(json!({"metadata": null})).unwrap();
        assert_eq!(bare.meta().name, None);
        assert!(serde_json::from_value::<Lean>(json!("text")).is_err());
    }

    #[test]
    fn of_the_metadata_all_is_read_that_records_are_made_of() {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "2"});
        let metadata = json!({
            "name": "demo", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "ownerReferences": [owner],
        });
        let mut with = metadata.clone();
        with["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}]);
        let lean: LeanMeta =
            serde_json::from_value(json!({"kind": "PartialObjectMetadata", "metadata": with})).unwrap();
        assert_eq!(lean.metadata, serde_json::from_value(metadata).unwrap());
    }
}
