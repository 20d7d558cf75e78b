//! The state of a change in a namespace, as the annotation `change` of its source has it: for tools that look at the source alone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::Digest;

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// All workloads have the content, are healthy and have baked.
    Complete,
    /// Workloads move to the content, or are about to.
    Rolling,
    /// A gate keeps the others from it.
    Waiting,
    /// A workload failed with it, and its source reverts.
    Refused,
}

/// The state of a change in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeState {
    /// The digest of the present content.
    pub digest: Digest,
    /// How far the change has come.
    pub phase: Phase,
    /// How many workloads have the content, or nothing to move to.
    pub moved: usize,
    /// How many workloads follow changes of the source.
    pub of: usize,
    /// The gate that keeps the others from it, if the phase is waiting or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// Since when the digest, the phase and the gate are these.
    pub since: Timestamp,
}

impl ChangeState {
    /// The state that an annotation has; `None` if it is malformed.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// This state after that one: without a change of the phase, it began then. A time in the future is none.
    #[must_use]
    pub fn after(self, before: Option<Self>) -> Self {
        let is_same = |before: &Self| {
            (before.digest, before.phase, &before.gate) == (self.digest, self.phase, &self.gate)
                && before.since <= self.since
        };
        match before.filter(is_same) {
            Some(before) => Self { since: before.since, ..self },
            None => self,
        }
    }

    /// The value of the annotation.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: Phase, second: i64) -> ChangeState {
        let digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
        let since = Timestamp::from_second(second).unwrap();
        ChangeState { digest, phase, moved: 1, of: 4, gate: Some("wave".to_owned()), since }
    }

    #[test]
    fn text_has_the_documented_form() {
        let expected = format!(
            r#"{{"digest":"sha256:{}","phase":"waiting","moved":1,"of":4,"gate":"wave","since":"1970-01-01T00:01:00Z"}}"#,
            "1".repeat(64)
        );
        assert_eq!(state(Phase::Waiting, 60).text(), expected);
        let complete = ChangeState { gate: None, ..state(Phase::Complete, 60) };
        assert!(!complete.text().contains("gate"), "{}", complete.text());
    }

    #[test]
    fn phase_keeps_its_time_until_it_ends() {
        let before = state(Phase::Waiting, 60);
        let more = ChangeState { moved: 2, ..state(Phase::Waiting, 90) };
        for (what, before, now, since) in [
            ("nothing was known", None, more.clone(), 90),
            ("only the count differs", Some(before.text()), more.clone(), 60),
            ("the phase differs", Some(before.text()), state(Phase::Rolling, 90), 90),
            ("the gate differs", Some(before.text()), ChangeState { gate: None, ..more.clone() }, 90),
            ("it began in the future", Some(state(Phase::Waiting, 120).text()), more.clone(), 90),
            ("it is malformed", Some("{}".to_owned()), more, 90),
        ] {
            assert_eq!(
                now.after(before.as_deref().and_then(ChangeState::read)).since.as_second(),
                since,
                "{what}"
            );
        }
    }
}
