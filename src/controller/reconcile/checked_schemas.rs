//! The last check of each source against its schema, and how long its result counts.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::world::{Name, SourceRecord};

/// How long a check counts: many workloads may move within a moment. A schema may change meanwhile.
const FRESH: SignedDuration = SignedDuration::from_secs(10);
/// The pause between checks of a content that fails grows from one to the other. Nothing reports a change of its schema.
const FAILING: [SignedDuration; 2] = [SignedDuration::from_secs(1), SignedDuration::from_secs(60)];

/// The last check of a source.
#[derive(Clone, Copy, Debug)]
struct Checked {
    at: Timestamp,
    /// Since when the source fails its schema; `None` if it matches it.
    failing_since: Option<Timestamp>,
}

impl Checked {
    /// Until when the result counts.
    fn until(self) -> Timestamp {
        let [shortest, longest] = FAILING;
        let time =
            self.failing_since.map_or(FRESH, |since| self.at.duration_since(since).clamp(shortest, longest));
        self.at + time
    }

    /// Whether the result still counts. One from the future comes from a clock that stepped back.
    fn is_fresh(self, now: Timestamp) -> bool {
        self.at <= now && now < self.until()
    }
}

/// The last check of each source with a schema.
#[derive(Debug, Default)]
pub(crate) struct CheckedSchemas(HashMap<Name, Checked>);

impl CheckedSchemas {
    /// Records the result of a check. `failed`: whether this content has failed before. Returns until when the result counts.
    pub(in crate::controller) fn set(
        &mut self,
        source: &Name,
        failed: bool,
        fails: bool,
        now: Timestamp,
    ) -> Timestamp {
        let since = self.0.get(source).and_then(|last| last.failing_since).filter(|_| failed);
        let checked = Checked { at: now, failing_since: fails.then(|| since.unwrap_or(now)) };
        self.0.insert(source.clone(), checked);
        checked.until()
    }

    /// Whether the result of the last check counts. `known`: the source, as it is now.
    pub(in crate::controller) fn is_fresh(
        &self,
        source: &Name,
        known: &SourceRecord,
        now: Timestamp,
    ) -> bool {
        known.check().is_some() && self.0.get(source).is_some_and(|last| last.is_fresh(now))
    }

    /// Forgets a source.
    pub(in crate::controller) fn forget(&mut self, source: &Name) {
        self.0.remove(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{controller::reconcile::fixture::at, world::fixture::source};

    /// A schema may be corrected, and no watch reports that.
    #[test]
    fn failing_content_is_checked_again() {
        let (mut checks, source) = (CheckedSchemas::default(), source("a"));
        let counts = |checks: &CheckedSchemas, second: i64| checks.0[&source].is_fresh(at(second));
        checks.set(&source, false, false, at(0));
        assert_eq!([-1, 0, 9, 10].map(|second| counts(&checks, second)), [false, true, true, false]);
        let times = [(100, 1), (101, 1), (102, 2), (104, 4), (108, 8), (150, 50), (200, 60), (900, 60)];
        for (time, pause) in times {
            let until = checks.set(&source, time > 100, true, at(time));
            assert_eq!(until, at(time + pause));
            assert!(counts(&checks, time + pause - 1) && !counts(&checks, time + pause), "{time}");
        }
        assert_eq!(checks.set(&source, false, true, at(1001)), at(1002), "another content failed");
    }
}
