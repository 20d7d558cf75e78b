//! The content of a ConfigMap or Secret, as the commands and pages may show it.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use crate::snapshot::{Digest, SourceKind};

/// Values by key.
pub(super) type Values = BTreeMap<String, Vec<u8>>;

/// The values of a ConfigMap or Secret. Two contents of a Secret can be compared, and nothing else is known of them: no value, key,
/// number or size, unless the user asked for values.
#[derive(PartialEq, Eq)]
pub(super) struct Content {
    kind: SourceKind,
    is_shown: bool,
    values: Values,
}

impl Content {
    /// The content of an object. `show_values`: the user asked for the values of Secrets.
    pub(super) fn of(kind: SourceKind, object: &Value, show_values: bool) -> Self {
        let entries = |field: &str| object[field].as_object().into_iter().flatten();
        let decoded = |value: &Value| {
            let text: String = value.as_str().unwrap_or_default().split_whitespace().collect();
            BASE64_STANDARD.decode(text).unwrap_or_default()
        };
        let plain = entries("data").map(|(key, value)| {
            let bytes = match kind {
                SourceKind::ConfigMap => value.as_str().unwrap_or_default().as_bytes().to_vec(),
                SourceKind::Secret => decoded(value),
            };
            (key.clone(), bytes)
        });
        let binary = entries("binaryData").map(|(key, value)| (key.clone(), decoded(value)));
        let is_shown = kind == SourceKind::ConfigMap || show_values;
        Self { kind, is_shown, values: plain.chain(binary).collect() }
    }

    /// The values by key; `None` if they must not be shown.
    pub(super) fn shown(&self) -> Option<&Values> {
        self.is_shown.then_some(&self.values)
    }

    /// The text in place of a value that is not text. Only of a ConfigMap, it is a size and a digest.
    pub(super) fn summary(&self, value: Option<&Vec<u8>>) -> String {
        match (value, self.kind) {
            (None, _) => "none".to_owned(),
            (Some(value), SourceKind::ConfigMap) => {
                format!("{} bytes, sha256 {}", value.len(), short_digest(value))
            }
            (Some(value), SourceKind::Secret) => format!("base64 {}", BASE64_STANDARD.encode(value)),
        }
    }

    /// The same for programs.
    pub(super) fn shown_value(&self, value: &[u8]) -> ShownValue {
        match (std::str::from_utf8(value), self.kind) {
            (Ok(text), _) => ShownValue::Text(text.to_owned()),
            (Err(_), SourceKind::ConfigMap) => {
                ShownValue::Summary { size: value.len(), digest: short_digest(value) }
            }
            (Err(_), SourceKind::Secret) => ShownValue::Encoded { base64: BASE64_STANDARD.encode(value) },
        }
    }
}

/// A value of a key that may be shown.
#[derive(Debug, serde::Serialize)]
#[serde(untagged)]
pub(super) enum ShownValue {
    /// Text.
    Text(String),
    /// A value of a ConfigMap that is not text.
    Summary {
        /// Bytes.
        size: usize,
        /// The first digits of its digest.
        digest: String,
    },
    /// A value of a Secret that is not text.
    Encoded {
        /// The value.
        base64: String,
    },
}

/// The first digits of the digest of a value of a ConfigMap.
fn short_digest(value: &[u8]) -> String {
    Digest::of_bytes(value).hex(12)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(kind: SourceKind, value: &[u8], show_values: bool) -> Content {
        let encoded = BASE64_STANDARD.encode(value);
        let field = if kind == SourceKind::Secret { "data" } else { "binaryData" };
        Content::of(kind, &json!({field: {"key": encoded}}), show_values)
    }

    #[test]
    fn content_of_secrets_is_hidden_without_option() {
        let hidden = content(SourceKind::Secret, b"hunter2", false);
        assert_eq!(hidden.shown(), None);
        assert!(hidden == content(SourceKind::Secret, b"hunter2", false));
        assert!(hidden != content(SourceKind::Secret, b"hunter3", false));
        assert!(content(SourceKind::Secret, b"hunter2", true).shown().is_some());
        assert!(content(SourceKind::ConfigMap, b"a", false).shown().is_some());
    }

    /// A size and a short hash are enough to find a short password.
    #[test]
    fn values_of_secrets_have_no_digest() {
        for (kind, summary) in
            [(SourceKind::Secret, "base64 //4="), (SourceKind::ConfigMap, "2 bytes, sha256 ")]
        {
            let content = content(kind, b"\xff\xfe", true);
            let value = content.shown().unwrap().get("key");
            assert!(content.summary(value).starts_with(summary), "{}", content.summary(value));
            let shown = serde_json::to_value(content.shown_value(b"\xff\xfe")).unwrap();
            assert_eq!(shown["size"].is_null(), kind == SourceKind::Secret, "{shown}");
            assert_eq!(content.shown_value(b"text").text(), Some("text"));
        }
    }

    impl ShownValue {
        fn text(&self) -> Option<&str> {
            if let Self::Text(text) = self { Some(text) } else { None }
        }
    }
}
