//! The values that an undo or a pin rejects: `pinned` in the annotation `state`.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::snapshot::ObjectName;

impl Question<'_> {
    /// Whether the workload keeps another snapshot by an undo or a pin, and the newest content has the values that the
    /// workload rejected by it: only keys changed that the workload does not read.
    pub(super) fn reads_what_is_pinned(&self, source: &ObjectName) -> Result<bool, Stop> {
        let Some(pinned) = self.stored.pinned(source) else { return Ok(false) };
        let Some(keys) = self.keys_read(source, &self.used) else { return Ok(false) };
        let newest = self.object(source)?;
        Ok(newest.is_some_and(|newest| newest.digests_of(Some(&keys)).judge(&pinned) == Some(true)))
    }
}

impl Outcome {
    /// Records which values the workload rejects, if it keeps a snapshot with other values in the keys that it reads. Any change
    /// of a source that the workload reads whole ends the undo or the pin, so nothing is recorded for such a source.
    pub(super) fn mark_pinned(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &ObjectName,
    ) -> Result<(), Stop> {
        self.state.entry(source).pinned = None;
        let Some(keys) = question.keys_read(source, &question.used) else { return Ok(()) };
        let (newest, kept) = (question.object(source)?, question.object(kept)?);
        let (Some(newest), Some(kept)) = (newest, kept) else { return Ok(()) };
        if !kept.same_values(newest, keys.iter().copied()) {
            let read = newest.digests_of(Some(&keys));
            // A digest under another scheme or key stays while it is true: an upgrade writes nothing.
            let stated = question.stored.pinned(source).filter(|stated| read.judge(stated) == Some(true));
            self.state.entry(source).pinned = Some(stated.unwrap_or_else(|| read.current()));
        }
        Ok(())
    }

    /// Records the rejected values again if the template reads other keys than before. They cannot be determined if the
    /// source has changed since.
    pub(super) fn keep_pinned(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &ObjectName,
    ) -> Result<(), Stop> {
        let read = [&question.stored.used, &question.used].map(|used| question.keys_read(source, used));
        if read[0] == read[1] {
            if let Some(pinned) = question.stored.pinned(source) {
                self.state.entry(source).pinned = Some(pinned);
            }
            return Ok(());
        }
        if question.is_seen(source)?.is_newest() {
            self.mark_pinned(question, source, kept)?;
        }
        Ok(())
    }
}
