//! Sources in mode `live`: references stay as written, and the template states a digest of the content that it reads.

use super::{outcome::Outcome, question::Question, seen::Seen, stop::Stop};
use crate::snapshot::{Digest, ObjectName};

impl Outcome {
    /// Records a source in mode `live` with the digest of the keys that the template reads. A new digest rolls the workload, so
    /// the digest stays if the content is the same or cannot be compared. `name`: the name in the reference.
    pub(super) fn enter_live(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        name: &str,
    ) -> Result<(), Stop> {
        if !question.is_live_mode(source)? {
            return Ok(());
        }
        let Some(newest) = question.object(source)? else { return Ok(()) };
        let read = newest.digests_of(question.used.of_names(source, name).as_ref());
        let seen = question.is_seen(source)?;
        let stored = question.stored.live.get(source).copied();
        let is_other = |stored: &Digest| read.judge(stored) == Some(false);
        if let Some(stored) = stored.filter(is_other)
            && question.live_waits_at_a_gate(source, newest)?
        {
            self.keep_waiting(question, source, None)?;
            self.live.insert(source.clone(), stored);
            return Ok(());
        }
        if stored.is_none_or(|stored| is_other(&stored))
            && let Some(failure) = question.schema_failure(source)?
        {
            let Some(stored) = stored.filter(|_| !question.roll.is_poke) else {
                return Err(Stop::Deny(failure));
            };
            self.warn(format!("{failure}: {} does not roll to it", question.request.new.display()));
            self.restore_seen(question, source);
            self.live.insert(source.clone(), stored);
            return Ok(());
        }
        let is_asked = question.roll.asks_for(source);
        let is_kept = |stored: &Digest| match read.judge(stored) {
            Some(true) => true,
            Some(false) => {
                let requested = question.request.new.live();
                !question.policy.track && !is_asked && requested.get(source) == Some(stored)
            }
            // The key of that digest is lost.
            None => !is_asked && seen != Seen::No,
        };
        let kept = stored.filter(is_kept);
        let is_behind = kept.is_some_and(|kept| is_other(&kept));
        if is_behind || (seen == Seen::Unknown && kept.is_some() && !question.roll.is_poke) {
            self.keep_seen(question, source);
        } else {
            self.mark_seen(question, source)?;
        }
        self.live.insert(source.clone(), kept.unwrap_or_else(|| read.current()));
        Ok(())
    }

    /// Keeps the digest of a missing source in mode `live`, so that it rolls nothing if it returns with the same content.
    pub(super) fn keep_live(&mut self, question: &Question<'_>, source: &ObjectName) {
        if let Some(digest) = question.stored.live.get(source) {
            self.live.insert(source.clone(), *digest);
            self.keep_seen(question, source);
        }
    }
}
