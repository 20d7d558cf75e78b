//! The `sources` annotation: the snapshot of each source that a template uses.

use std::{collections::BTreeMap, sync::OnceLock};

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

use crate::{
    annotations::MAX_ANNOTATION,
    snapshot::{Digest, ObjectName, SourceKind},
};

/// Hex digits of the `revision` label.
const REVISION_DIGITS: usize = 10;
/// Up to this many entries, a scan is faster than an index.
const MAX_SCANNED: usize = 8;

/// A value for each source, by kind and name. Written as compact JSON with sorted keys, as in
/// `{"configmaps":{"demo":"demo-3a18d34e26"}}`; equal maps are equal bytes.
#[derive(Clone, Debug)]
pub struct SourceMap<V> {
    values: BTreeMap<ObjectName, V>,
    /// The sources by kind and value, made when [`SourceMap::source_of`] is first called.
    by_value: OnceLock<ByValue>,
}

type ByValue = BTreeMap<SourceKind, BTreeMap<String, ObjectName>>;

impl<V> Default for SourceMap<V> {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

impl<V: PartialEq> PartialEq for SourceMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<V: Eq> Eq for SourceMap<V> {}

#[derive(Deserialize)]
#[serde(bound(deserialize = "V: DeserializeOwned"))]
struct ParsedSourceMap<V> {
    #[serde(default = "BTreeMap::new")]
    configmaps: BTreeMap<String, V>,
    #[serde(default = "BTreeMap::new")]
    secrets: BTreeMap<String, V>,
}

/// The serialized form of [`ParsedSourceMap`].
#[derive(Serialize)]
#[serde(bound(serialize = "V: Serialize"))]
struct SourceMapJson<'a, V> {
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
    fn new(values: BTreeMap<ObjectName, V>) -> Self {
        Self { values, by_value: OnceLock::new() }
    }

    /// The value of a source.
    pub fn get(&self, source: &ObjectName) -> Option<&V> {
        self.values.get(source)
    }

    /// Sets the value of a source.
    pub fn insert(&mut self, source: ObjectName, value: V) {
        self.by_value.take();
        self.values.insert(source, value);
    }

    /// The value of a source, to be changed; a new one if the source has none.
    pub fn entry(&mut self, source: &ObjectName) -> &mut V
    where
        V: Default,
    {
        self.by_value.take();
        self.values.entry(source.clone()).or_default()
    }

    /// Keeps the values for which this holds, after it has changed them.
    pub fn retain(&mut self, keeps: impl FnMut(&ObjectName, &mut V) -> bool) {
        self.by_value.take();
        self.values.retain(keeps);
    }

    /// All sources in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectName, &V)> {
        self.values.iter()
    }

    /// Whether there is no source.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<V: Serialize + DeserializeOwned> SourceMap<V> {
    /// Reads an annotation. `None` if it is malformed, or longer than annotations may be: it is then overwritten.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_ANNOTATION {
            return None;
        }
        let wire: ParsedSourceMap<V> = serde_json::from_str(text).ok()?;
        let configmaps =
            wire.configmaps.into_iter().map(|(name, value)| (SourceKind::ConfigMap, name, value));
        let secrets = wire.secrets.into_iter().map(|(name, value)| (SourceKind::Secret, name, value));
        Some(Self::new(
            configmaps.chain(secrets).map(|(kind, name, v)| (ObjectName::new(kind, name), v)).collect(),
        ))
    }

    /// The annotation's text.
    pub fn to_annotation(&self) -> String {
        let written = SourceMapJson {
            configmaps: OfKind(SourceKind::ConfigMap, &self.values),
            secrets: OfKind(SourceKind::Secret, &self.values),
        };
        // Maps of strings always serialize.
        serde_json::to_string(&written).unwrap_or_default()
    }
}

impl SourceMap<String> {
    /// The source of a snapshot; the first one in order if there are several. The caller may ask for each reference of a
    /// template: an answer takes no longer than a look into a map.
    pub fn source_of(&self, kind: SourceKind, snapshot: &str) -> Option<&ObjectName> {
        if self.values.len() <= MAX_SCANNED {
            let mut entries = self.values.iter();
            let found = entries.find(|(source, value)| source.kind == kind && *value == snapshot);
            return found.map(|(source, _)| source);
        }
        let by_value = self.by_value.get_or_init(|| {
            let mut by_value = ByValue::new();
            for (source, value) in &self.values {
                let of_kind = by_value.entry(source.kind).or_default();
                of_kind.entry(value.clone()).or_insert_with(|| source.clone());
            }
            by_value
        });
        by_value.get(&kind)?.get(snapshot)
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
    fn snapshot_source_is_first_in_any_map() {
        for size in 1..40 {
            let mut map = SourceMap::default();
            for number in 0..size {
                for kind in [SourceKind::ConfigMap, SourceKind::Secret] {
                    map.insert(ObjectName::new(kind, format!("s{number:02}")), format!("v{}", number / 2));
                }
                for asked in 0..size {
                    let of = |kind| map.source_of(kind, &format!("v{asked}")).cloned();
                    let first = (2 * asked <= number).then(|| format!("s{:02}", 2 * asked));
                    let named = |kind| first.clone().map(|first| ObjectName::new(kind, first));
                    assert_eq!(of(SourceKind::ConfigMap), named(SourceKind::ConfigMap));
                    assert_eq!(of(SourceKind::Secret), named(SourceKind::Secret));
                }
            }
        }
    }

    #[test]
    fn annotation_beyond_the_limit_of_kubernetes_is_malformed() {
        let of_length = |length: usize| {
            let text = format!(r#"{{"configmaps":{{"a":"{}"}}}}"#, "v".repeat(length - 23));
            (text.len(), SourceMap::<String>::parse(&text).is_some())
        };
        assert_eq!(of_length(MAX_ANNOTATION), (MAX_ANNOTATION, true));
        assert_eq!(of_length(MAX_ANNOTATION + 1), (MAX_ANNOTATION + 1, false));
    }

    #[test]
    fn sources_annotation_is_compact_sorted_and_parseable() {
        let mut map = SourceMap::default();
        map.insert(ObjectName::new(SourceKind::Secret, "s"), "s-1".to_owned());
        map.insert(ObjectName::new(SourceKind::ConfigMap, "b"), "b-1".to_owned());
        map.insert(ObjectName::new(SourceKind::ConfigMap, "a"), "a-1".to_owned());
        let text = map.to_annotation();
        assert_eq!(text, r#"{"configmaps":{"a":"a-1","b":"b-1"},"secrets":{"s":"s-1"}}"#);
        assert_eq!(SourceMap::parse(&text), Some(map.clone()));
        map.insert(ObjectName::new(SourceKind::Secret, "s"), "s-2".to_owned());
        assert_ne!(SourceMap::parse(&text), Some(map));
        assert_eq!(SourceMap::<String>::parse("\"text\""), None);
        assert_eq!(SourceMap::<String>::parse(r#"{"configmaps":{"a":1}}"#), None);
    }
}
