//! The `sources` annotation: which snapshot stands for which source in a template.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

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

#[derive(Deserialize, Serialize)]
#[serde(bound(deserialize = "V: DeserializeOwned"))]
struct Wire<V> {
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    configmaps: BTreeMap<String, V>,
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    secrets: BTreeMap<String, V>,
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

impl<V: Clone + Serialize + DeserializeOwned> SourceMap<V> {
    /// Reads an annotation. `None` where it is not of this form: it is then written anew.
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
        let of_kind = |kind: SourceKind| {
            self.0
                .iter()
                .filter(|(source, _)| source.kind == kind)
                .map(|(source, value)| (source.name.clone(), value.clone()))
                .collect()
        };
        let wire = Wire { configmaps: of_kind(SourceKind::ConfigMap), secrets: of_kind(SourceKind::Secret) };
        // Maps of strings always serialize.
        serde_json::to_string(&wire).unwrap_or_default()
    }
}

impl SourceMap<String> {
    /// The source that a snapshot stands for.
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
    fn an_annotation_is_compact_sorted_and_read_back() {
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
