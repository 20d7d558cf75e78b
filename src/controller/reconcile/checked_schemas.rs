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
    /// Whether the result still counts. One from the future comes from a clock that stepped back.
    fn is_fresh(self, now: Timestamp) -> bool {
        let [shortest, longest] = FAILING;
        let time =
            self.failing_since.map_or(FRESH, |since| self.at.duration_since(since).clamp(shortest, longest));
        self.at <= now && now < self.at + time
    }
}

/// The last check of each source with a schema.
#[derive(Debug, Default)]
pub(crate) struct CheckedSchemas(HashMap<Name, Checked>);

impl CheckedSchemas {
    /// Records the result of a check.
    pub(super) fn set(&mut self, source: &Name, fails: bool, now: Timestamp) {
        let since = self.0.get(source).and_then(|last| last.failing_since);
        let failing_since = fails.then(|| since.unwrap_or(now));
        self.0.insert(source.clone(), Checked { at: now, failing_since });
    }

    /// Whether the result of the last check counts. `known`: the source, as it is now.
    pub(super) fn is_fresh(&self, source: &Name, known: &SourceRecord, now: Timestamp) -> bool {
        known.check().is_some() && self.0.get(source).is_some_and(|last| last.is_fresh(now))
    }

    /// Forgets a source.
    pub(super) fn forget(&mut self, source: &Name) {
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
        let mut checks = CheckedSchemas::default();
        let source = source("a");
        let counts = |checks: &CheckedSchemas, second: i64| checks.0[&source].is_fresh(at(second));
        checks.set(&source, false, at(0));
        assert_eq!([-1, 0, 9, 10].map(|second| counts(&checks, second)), [false, true, true, false]);
        for (time, pause) in
            [(100, 1), (101, 1), (102, 2), (104, 4), (108, 8), (150, 50), (200, 60), (900, 60)]
        {
            checks.set(&source, true, at(time));
            assert!(counts(&checks, time + pause - 1) && !counts(&checks, time + pause), "{time}");
        }
        checks.set(&source, false, at(1000));
        checks.set(&source, true, at(1001));
        assert!(!counts(&checks, 1002), "it failed anew");
    }
}
