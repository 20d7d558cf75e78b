//! Objects on their way from a watch to a record: they live for one event only.

use std::{borrow::Cow, fmt};

use kube::{
    Resource,
    api::{ApiResource, ObjectMeta},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of any kind as JSON, with its metadata parsed for the watch's own use. Its content is never printed.
#[derive(Clone)]
pub struct Lean {
    metadata: ObjectMeta,
    /// The whole object, its managedFields apart.
    pub(super) value: Value,
}

impl fmt::Debug for Lean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lean").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for Lean {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let field = |name: &str| value["metadata"][name].as_str().map(str::to_owned);
        let metadata = ObjectMeta {
            name: field("name"),
            namespace: field("namespace"),
            uid: field("uid"),
            resource_version: field("resourceVersion"),
            // A bookmark that ends the first list says so in an annotation.
            annotations: serde_json::from_value(value["metadata"]["annotations"].clone()).unwrap_or_default(),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, value })
    }
}

impl Resource for Lean {
    type DynamicType = ApiResource;
    type Scope = kube::core::DynamicResourceScope;

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
