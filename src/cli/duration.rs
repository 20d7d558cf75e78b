//! Durations in options.

use std::time::Duration;

use jiff::SignedDuration;

use crate::resolve::parse_duration;

/// A duration of zero or more.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration such as \"30s\", \"5m\" or \"1h30m\"".to_owned())
}

/// The same, for times that are subtracted from timestamps.
pub(super) fn signed_duration(text: &str) -> Result<SignedDuration, String> {
    parse_duration(text)
        .and_then(|duration| SignedDuration::try_from(duration).ok())
        .ok_or_else(|| "expected a duration such as \"30s\", \"5m\" or \"1h30m\"".to_owned())
}

/// A duration above zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).filter(|duration| !duration.is_zero());
    parsed.ok_or_else(|| "expected a duration above zero, such as \"5s\", \"500ms\" or \"1m\"".to_owned())
}
