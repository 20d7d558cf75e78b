//! When the state of each reported change was last derived, and written.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::{snapshot::Digest, world::Name};

/// The time between two writes on one source, and between two checks of one content.
pub(in crate::controller) const PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// The time until a state is written again that another client has removed, which may do that each time.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// The last check of each change whose state is on its source.
#[derive(Debug, Default)]
pub(crate) struct StateChecks(HashMap<Name, StateCheck>);

#[derive(Debug)]
struct StateCheck {
    at: Timestamp,
    /// The content.
    digest: Digest,
    /// When the state was last written.
    written: Option<Timestamp>,
}

impl StateChecks {
    /// When the state of a content may be derived, if not now. `is_stated`: the source has a state.
    pub(in crate::controller) fn free(
        &self,
        source: &Name,
        digest: Digest,
        is_stated: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        // A check from the future comes from a clock that stepped back.
        let last = self.0.get(source).filter(|last| last.at <= now)?;
        let is_same = last.digest == digest;
        let pause = if is_same && !is_stated { AGAIN } else { PAUSE };
        let free = last.written.map(|written| written + pause).max(is_same.then(|| last.at + PAUSE));
        free.filter(|free| *free > now)
    }

    /// Records a check.
    pub(in crate::controller) fn checked(&mut self, source: &Name, digest: Digest, now: Timestamp) {
        let written = self.0.get(source).and_then(|last| last.written);
        self.0.insert(source.clone(), StateCheck { at: now, digest, written });
    }

    /// Records a write; `is_stated`: of a state, and not its removal.
    pub(in crate::controller) fn written(&mut self, source: &Name, is_stated: bool, now: Timestamp) {
        if let Some(last) = self.0.get_mut(source) {
            last.written = is_stated.then_some(now);
        }
    }

    /// Forgets a source.
    pub(in crate::controller) fn forget(&mut self, source: &Name) {
        self.0.remove(source);
    }
}
