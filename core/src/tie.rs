//! What ties a workload to a source: the facts that confrev remembers between two decisions.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    json,
    snapshot::{Digest, Digests},
};

/// An entry of the annotation `state` of a workload: what confrev remembers of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// Whether the content in `seen` lacks a key that the template requires, so that the references stay as written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacking: bool,
    /// When the controller moved the workload to the content in `seen`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_time",
        deserialize_with = "read_time"
    )]
    pub moved: Option<Timestamp>,
    /// The digest of the keys that the workload reads, in the content in `seen`, if an undo or a pin keeps other values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Digest>,
    /// The snapshot before the workload moved to the one that it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The content last taken into account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Digest>,
    /// The set of the source. It counts while the source does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// Whether the workload was unhealthy when it took the content in `seen`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unhealthy: bool,
    /// Whether the workload never used the content in `seen`: an undo or a pin kept it from a change of which few workloads
    /// move at a time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unused: bool,
}

/// What the controller keeps in memory of a workload and one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tie {
    /// The content last taken into account.
    pub seen: Option<Digest>,
    /// When the controller moved the workload to the content in `seen`, if the source has waves.
    pub moved: Option<Timestamp>,
    /// The snapshot before the workload moved to the one that it uses, if the source limits how far a change spreads.
    pub previous: Option<Arc<str>>,
    /// The digest of the keys that the workload reads, in the content in `seen`, if an undo or a pin keeps other values.
    pub pinned: Option<Box<Digest>>,
    /// The keys that its template names; `None` if it names no key, and the whole source.
    pub reads: Option<Box<Reads>>,
    /// The set of the source. It counts while the source does not exist.
    pub set: Option<Arc<str>>,
    /// Whether the workload was unhealthy when it took the content in `seen`.
    pub unhealthy: bool,
    /// Whether the workload never used the content in `seen`.
    pub unused: bool,
    /// Whether the content in `seen` lacks a key that the template requires, so that the references stay as written.
    pub lacking: bool,
}

impl From<&Remembered> for Tie {
    fn from(of: &Remembered) -> Self {
        Self {
            seen: of.seen,
            moved: of.moved,
            previous: of.previous.as_deref().map(Arc::from),
            pinned: of.pinned.map(Box::new),
            reads: None,
            set: of.set.as_deref().map(Arc::from),
            unhealthy: of.unhealthy,
            unused: of.unused,
            lacking: of.lacking,
        }
    }
}

impl Tie {
    /// Whether the workload has taken this content of the source into account.
    pub fn has_seen(&self, content: &Digests) -> bool {
        self.seen.is_some_and(|seen| content.contains(&seen))
    }
}

/// The keys that a template names of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reads {
    /// Whether some reference reads the whole source.
    pub whole: bool,
    /// The keys that other references name.
    pub keys: Box<[ReadKey]>,
}

/// A key that a template reads of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadKey {
    /// The key.
    pub key: Arc<str>,
    /// Whether pods do not start without it.
    pub required: bool,
}

/// Writes a time in the notation of the value of `roll`.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn write_time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.unwrap_or_default())
}

/// A time; `None` if the value is anything else.
fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(json::shallow(&[], deserializer)?.as_str().and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        snapshot::{ObjectName, SourceKind},
        template::SourceMap,
    };

    /// Kubernetes keeps the text of an annotation, so equal records must be equal bytes.
    #[test]
    fn state_is_compact_sorted_and_parseable() {
        let digest = |digit: &str| digit.repeat(64);
        let all = format!(
            r#"{{"lacking":true,"moved":"2026-05-01T10:00:00Z","pinned":"sha256:{}","previous":"a-1","seen":"sha256:{}","set":"shop","unhealthy":true,"unused":true}}"#,
            digest("1"),
            digest("2")
        );
        let text = format!(
            r#"{{"configmaps":{{"a":{all},"b":{{"seen":"sha256:{}"}}}},"secrets":{{"a":{{"previous":"a-2"}}}}}}"#,
            digest("3")
        );
        let read = SourceMap::<Remembered>::parse(&text).unwrap();
        assert_eq!(read.to_annotation(), text);
        let a = read.get(&ObjectName::new(SourceKind::ConfigMap, "a")).unwrap();
        assert_eq!((a.moved, a.unhealthy), ("2026-05-01T10:00:00Z".parse().ok(), true));
        let reversed = text.replace(r#""unhealthy":true,"unused":true"#, r#""unused":true,"unhealthy":true"#);
        assert_ne!(reversed, text);
        assert_eq!(SourceMap::<Remembered>::parse(&reversed).unwrap().to_annotation(), text);
    }

    /// A wrong digest makes the whole annotation malformed, as in `sources`; a wrong time is no time.
    #[test]
    fn malformed_state_is_rejected() {
        let parse =
            |entry: &str| SourceMap::<Remembered>::parse(&format!(r#"{{"configmaps":{{"a":{entry}}}}}"#));
        assert!(parse(r#"{"seen":"sha256:short"}"#).is_none());
        assert!(parse(r#""text""#).is_none());
        let lenient = parse(r#"{"moved":"yesterday","other":[1]}"#).unwrap();
        assert_eq!(lenient.iter().next().map(|(_, entry)| entry.clone()), Some(Remembered::default()));
    }
}
