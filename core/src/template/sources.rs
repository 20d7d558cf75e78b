//! The `sources` annotation: the snapshot of each source that a template uses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

use crate::snapshot::{Digest, ObjectName, SourceKind};

/// Hex digits of the `revision` label.
const REVISION_DIGITS: usize = 10;

/// A value for each source, by kind and name. Written as compact JSON with sorted keys, as in
/// `{"configmaps":{"demo":"demo-3a18d34e26"}}`; equal maps are equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceMap<V>(BTreeMap<ObjectName, V>);

impl<V> Default for SourceMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "V: DeserializeOwned"))]
struct Wire<V> {
    #[serde(default = "BTreeMap::new")]
    configmaps: BTreeMap<String, V>,
    #[serde(default = "BTreeMap::new")]
    secrets: BTreeMap<String, V>,
}

/// The serialized form of [`Wire`].
#[derive(Serialize)]
#[serde(bound(serialize = "V: Serialize"))]
struct Written<'a, V> {
    #[serde(skip_serializing_if = "OfKind::is_empty")]
    configmaps: OfKind<'a, V>,
    #[serde(skip_serializing_if = "OfKind::is_empty")]
    secrets: OfKind<'a, V>,
}

/// The values of one kind's sources.
struct OfKind<'a, V>(SourceKind, &'a BTreeMap<ObjectName, V>);

impl<'a, V> OfKind<'a, V> {
    fn iter(&self) -> impl Iterator<Item = (&'a str, &'a V)> {
        let kind = self.0;
        let values = self.1.iter().filter(move |(source, _)| source.kind == kind);
        values.map(|(source, value)| (&*source.name, value))
    }

    fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl<V: Serialize> Serialize for OfKind<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<V> SourceMap<V> {
    /// The value of a source.
    pub fn get(&self, source: &ObjectName) -> Option<&V> {
        self.0.get(source)
    }

    /// Sets the value of a source.
    pub fn insert(&mut self, source: ObjectName, value: V) {
        self.0.insert(source, value);
    }

    /// All sources in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectName, &V)> {
        self.0.iter()
    }

    /// Whether there is no source.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V: Serialize + DeserializeOwned> SourceMap<V> {
    /// Reads an annotation. `None` if it is malformed: it is then overwritten.
    pub fn parse(text: &str) -> Option<Self> {
        let wire: Wire<V> = serde_json::from_str(text).ok()?;
        let configmaps =
            wire.configmaps.into_iter().map(|(name, value)| (SourceKind::ConfigMap, name, value));
        let secrets = wire.secrets.into_iter().map(|(name, value)| (SourceKind::Secret, name, value));
        Some(Self(
            configmaps.chain(secrets).map(|(kind, name, v)| (ObjectName::new(kind, name), v)).collect(),
        ))
    }

    /// The annotation's text.
    pub fn to_annotation(&self) -> String {
        let written = Written {
            configmaps: OfKind(SourceKind::ConfigMap, &self.0),
            secrets: OfKind(SourceKind::Secret, &self.0),
        };
        // Maps of strings always serialize.
        serde_json::to_string(&written).unwrap_or_default()
    }
}

impl SourceMap<String> {
    /// The source of a snapshot.
    pub fn source_of(&self, kind: SourceKind, snapshot: &str) -> Option<&ObjectName> {
        self.0
            .iter()
            .find(|(source, value)| source.kind == kind && *value == snapshot)
            .map(|(source, _)| source)
    }
}

/// The `revision` label: ten hex digits of the SHA-256 over the text of the `sources` annotation.
pub fn revision_of(sources_annotation: &str) -> String {
    Digest::of_bytes(sources_annotation).hex(REVISION_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_annotation_is_compact_sorted_and_parseable() {
        let mut map = SourceMap::default();
        map.insert(ObjectName::new(SourceKind::Secret, "s"), "s-1".to_owned());
        map.insert(ObjectName::new(SourceKind::ConfigMap, "b"), "b-1".to_owned());
        map.insert(ObjectName::new(SourceKind::ConfigMap, "a"), "a-1".to_owned());
        let text = map.to_annotation();
        assert_eq!(text, r#"{"configmaps":{"a":"a-1","b":"b-1"},"secrets":{"s":"s-1"}}"#);
        assert_eq!(SourceMap::parse(&text), Some(map));
        assert_eq!(SourceMap::<String>::parse("\"text\""), None);
        assert_eq!(SourceMap::<String>::parse(r#"{"configmaps":{"a":1}}"#), None);
    }
}
