//! The values of settings that several objects may have.

use std::time::Duration;

use serde_json::Value;

use crate::snapshot::{ObjectName, SourceKind, is_object_name};

/// How admission reacts to a missing object or key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingPolicy {
    /// Admit with a warning.
    #[default]
    Warn,
    /// Refuse.
    Deny,
    /// Admit without a warning.
    Allow,
}

/// Reads `NAME`, `configmap/NAME` or `secret/NAME`.
pub(super) fn parse_source(text: &str) -> Option<ObjectName> {
    parse_source_if(text, is_object_name)
}

/// The same with a name for which this is true.
pub(super) fn parse_source_if(text: &str, is_name: impl FnOnce(&str) -> bool) -> Option<ObjectName> {
    let (kind, name) = match text.split_once('/') {
        Some(("secret", name)) => (SourceKind::Secret, name),
        Some(("configmap", name)) => (SourceKind::ConfigMap, name),
        Some(_) => return None,
        None => (SourceKind::ConfigMap, text),
    };
    is_name(name).then(|| ObjectName::new(kind, name))
}

/// The text of a setting that is given as JSON. An error names the setting.
pub(super) fn text_of(name: &str, value: &Value) -> Result<Box<str>, String> {
    match value {
        Value::String(text) => Ok(text.as_str().into()),
        Value::Number(number) => Ok(number.to_string().into()),
        other => Err(format!("{name}: {other} is neither a text nor a number")),
    }
}

/// Reads the annotation `missing`. An error has the values that are allowed.
pub(super) fn parse_missing(value: &str) -> Result<MissingPolicy, &'static str> {
    match value {
        "warn" => Ok(MissingPolicy::Warn),
        "deny" => Ok(MissingPolicy::Deny),
        "allow" => Ok(MissingPolicy::Allow),
        _ => Err("\"warn\", \"deny\" or \"allow\""),
    }
}

/// Reads the annotation `on-undo`: whether every undo becomes a hold. An error has the values that are allowed.
pub(super) fn parse_on_undo(value: &str) -> Result<bool, &'static str> {
    match value {
        "hold" => Ok(true),
        "none" => Ok(false),
        _ => Err("\"hold\" or \"none\""),
    }
}

/// The values that a duration may have, for messages.
pub(crate) const DURATIONS: &str = "a duration such as \"30s\", \"5m\" or \"1h30m\"";

/// Reads a duration in the form that Kubernetes' own tools use: numbers, each with a unit, such as `1h30m`, `500ms`, `0`.
/// `None` if it is malformed or too large. Go, whose notation it is, takes units in any order and after a fraction; jiff takes neither.
pub fn parse_duration(value: &str) -> Option<Duration> {
    if value == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = value;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    // A hundred years: longer than needed, and within the range of timestamps.
    (!value.is_empty() && total.as_secs() < 100 * 365 * 86_400).then_some(total)
}

/// Reads a source's `max-in-flight`; `None` if it is not a count of at least one.
pub fn parse_max_in_flight(annotation: &str) -> Option<usize> {
    let digits = annotation.bytes().all(|byte| byte.is_ascii_digit());
    annotation.parse().ok().filter(|count| digits && *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_like_kubernetes_tools() {
        for (text, millis) in [
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            ("0", 0),
            ("0s", 0),
            ("875999h", 3_153_596_400_000),
            ("1.5h30m", 7_200_000),
            ("30m1h", 5_400_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "10",
            "s",
            "-1s",
            "1 s",
            "1d",
            "10s ",
            "1e3s",
            ".5s",
            "876000h",
            "99999999999h",
            "1..5s",
            "1h30",
            "PT1H",
            "1hm",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
