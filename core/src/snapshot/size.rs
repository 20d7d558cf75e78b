//! The size of a content, counted in its text before the text is parsed.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::SourceKind;

/// The most bytes that all values of a ConfigMap or Secret may have together: `MaxSecretSize` of Kubernetes, which applies to both.
pub const MAX_CONTENT: usize = 1 << 20;

/// The content of an object, unparsed.
#[derive(Deserialize)]
struct Texts<'a> {
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "binaryData")]
    binary_data: Option<&'a RawValue>,
}

/// The bytes of all values of a ConfigMap or Secret, from its JSON text. Nothing is copied. A key that occurs twice counts twice.
pub fn content_size(kind: SourceKind, json: &[u8]) -> Result<usize, serde_json::Error> {
    let texts: Texts<'_> = serde_json::from_slice(json)?;
    let size = |values: Option<&RawValue>, is_base64| values.map_or(0, |all| size_of_values(all, is_base64));
    // A Secret has no binaryData, but a sender may write it.
    Ok(size(texts.data, kind == SourceKind::Secret) + size(texts.binary_data, true))
}

/// The bytes of all strings of a map, except for its keys.
fn size_of_values(map: &RawValue, is_base64: bool) -> usize {
    let (mut size, mut rest) = (0, map.get().as_bytes());
    while let Some(start) = find(rest, |byte| byte == b'"') {
        let Text { bytes, padding, after } = text(rest.get(start + 1..).unwrap_or_default());
        if after.trim_ascii_start().first() != Some(&b':') {
            size += if is_base64 { (bytes / 4 * 3).saturating_sub(padding) } else { bytes };
        }
        rest = after;
    }
    size
}

/// A string of JSON.
struct Text<'a> {
    /// Its bytes, without escapes.
    bytes: usize,
    /// How many `=` it ends with.
    padding: usize,
    /// What follows its closing quote.
    after: &'a [u8],
}

/// Reads a string, whose opening quote was read.
fn text(start: &[u8]) -> Text<'_> {
    let (mut bytes, mut rest) = (0, start);
    loop {
        let Some(at) = find(rest, |byte| matches!(byte, b'"' | b'\\')) else {
            return Text { bytes: bytes + rest.len(), padding: 0, after: &[] };
        };
        bytes += at;
        let (before, from) = rest.split_at(at);
        if from.first() == Some(&b'"') {
            let padding = before.iter().rev().take_while(|byte| **byte == b'=').count();
            return Text { bytes, padding, after: from.get(1..).unwrap_or_default() };
        }
        let (of_escape, length) = escape(from);
        bytes += of_escape;
        rest = from.get(length..).unwrap_or_default();
    }
}

/// The bytes of the character of an escape, and the length of the escape. Each half of a surrogate pair counts two bytes.
fn escape(from: &[u8]) -> (usize, usize) {
    if from.get(1) != Some(&b'u') {
        return (1, 2);
    }
    let digits = from.get(2..6).and_then(|digits| std::str::from_utf8(digits).ok());
    let bytes = match digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()) {
        Some(0..=0x7f) => 1,
        Some(0x80..=0x7ff | 0xd800..=0xdfff) => 2,
        _ => 3,
    };
    (bytes, 6)
}

fn find(bytes: &[u8], is_wanted: impl Fn(u8) -> bool) -> Option<usize> {
    bytes.iter().position(|byte| is_wanted(*byte))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;

    #[test]
    fn size_is_that_of_decoded_values() {
        let texts = ["", "plain", "\"quoted\"\n\\", "\u{1}\u{7f}", "é€\u{1f600}", "a: \"b\", {}[]"];
        let data: serde_json::Map<_, _> =
            texts.iter().enumerate().map(|(number, text)| (format!("k\"{number}:"), json!(text))).collect();
        let object =
            json!({"metadata": {"annotations": {"a": "not content"}}, "data": data, "x": {"data": "y"}});
        let wanted: usize = texts.iter().map(|text| text.len()).sum();
        assert_eq!(content_size(SourceKind::ConfigMap, object.to_string().as_bytes()).unwrap(), wanted);
        let escaped = r#"{"data":{"a":"\u0041\u00e9\u20ac\ud83d\ude00"}}"#;
        assert_eq!(content_size(SourceKind::ConfigMap, escaped.as_bytes()).unwrap(), 1 + 2 + 3 + 4);
        let pretty = "{\n \"data\" : {\n \"a\" :\n \"b\" ,\n \"c\" : null }\n}";
        assert_eq!(content_size(SourceKind::ConfigMap, pretty.as_bytes()).unwrap(), 1);
    }

    #[test]
    fn base64_counts_decoded() {
        for length in 0..9 {
            let text = BASE64_STANDARD.encode("x".repeat(length));
            let secret = json!({"data": {"a": text}}).to_string();
            assert_eq!(content_size(SourceKind::Secret, secret.as_bytes()).unwrap(), length);
            let config_map = json!({"data": {"b": "yy"}, "binaryData": {"a": text}}).to_string();
            assert_eq!(content_size(SourceKind::ConfigMap, config_map.as_bytes()).unwrap(), length + 2);
        }
    }

    #[test]
    fn repeated_key_counts_twice() {
        let twice = br#"{"data":{"a":"xxx","a":"yyy"}}"#;
        assert_eq!(content_size(SourceKind::ConfigMap, twice).unwrap(), 6);
        for empty in ["{}", r#"{"data":null}"#, r#"{"data":{}}"#] {
            assert_eq!(content_size(SourceKind::ConfigMap, empty.as_bytes()).unwrap(), 0, "{empty}");
        }
        assert!(content_size(SourceKind::ConfigMap, br#"{"data":{},"data":{}}"#).is_err());
    }
}
