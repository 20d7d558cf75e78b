//! The content that the workload has taken into account: `seen` in the annotation `state`.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::{
    snapshot::{DIGITS, Digest, ObjectName, snapshot_name},
    tie::Remembered,
};

/// Whether a workload has taken the newest content of a source into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The content is the one that was seen.
    Yes,
    /// The seen content cannot be determined, but the workload's snapshot holds the newest content.
    Alike,
    /// Another content was seen, or none.
    No,
    /// The seen content cannot be determined, and an undo or a pin keeps another one.
    Rejected,
    /// The seen content cannot be determined.
    Unknown,
}

impl Seen {
    /// Whether the workload's content is the newest one, as far as is known.
    pub(super) const fn is_newest(self) -> bool {
        matches!(self, Self::Yes | Self::Alike)
    }
}

impl Question<'_> {
    /// Whether the content last taken into account is the newest one.
    ///
    /// The digest in `seen` may be under a scheme or key that cannot be computed. A snapshot that states the same digest then
    /// holds that content.
    pub(super) fn is_seen(&self, source: &ObjectName) -> Result<Seen, Stop> {
        let Some(stated) = self.stored.seen(source) else { return Ok(Seen::No) };
        let Some(newest) = self.object(source)? else { return Ok(Seen::Unknown) };
        let seen = |is_seen| if is_seen { Seen::Yes } else { Seen::No };
        if let Some(known) = newest.digests().judge(&stated) {
            return Ok(seen(known));
        }
        for digits in DIGITS {
            let name = snapshot_name(&source.name, &stated, digits);
            match self.object(&ObjectName::new(source.kind, name))? {
                Some(named) if named.is_snapshot_of_source(&source.name) && named.states(&stated) => {
                    return Ok(seen(named.same_content(newest)));
                }
                Some(_) => {}
                None => break,
            }
        }
        let Some(kept) = self.stored.sources.get(source) else { return Ok(Seen::Unknown) };
        let kept = self.object(&ObjectName::new(source.kind, kept.as_str()))?;
        let Some(kept) = kept.filter(|kept| kept.is_snapshot_of_source(&source.name)) else {
            return Ok(Seen::Unknown);
        };
        let reads_whole = || self.keys_read(source, &self.stored.used).is_none();
        Ok(match kept.same_content(newest) {
            is_seen if kept.states(&stated) => seen(is_seen),
            true => Seen::Alike,
            // A workload that reads some keys may also keep it because those have equal values in both contents.
            false if self.stored.pinned(source).is_some() || reads_whole() => Seen::Rejected,
            false => Seen::Unknown,
        })
    }
}

impl Outcome {
    /// The content of the source that this decision has marked as seen so far.
    pub(super) fn seen(&self, source: &ObjectName) -> Option<Digest> {
        self.state.get(source)?.seen
    }

    /// Marks the newest content of the source as seen.
    pub(super) fn mark_seen(&mut self, question: &Question<'_>, source: &ObjectName) -> Result<(), Stop> {
        let Some(newest) = question.object(source)? else {
            self.keep_seen(question, source);
            return Ok(());
        };
        // A digest under another scheme or key stays while it is true: an upgrade writes nothing.
        let is_true = match question.is_seen(source)? {
            Seen::Yes => true,
            Seen::Alike => !question.roll.is_poke,
            Seen::No | Seen::Rejected | Seen::Unknown => false,
        };
        let stated = question.stored.seen(source).filter(|_| is_true);
        self.state.entry(source).seen = Some(stated.unwrap_or_else(|| newest.digest()));
        Ok(())
    }

    /// Keeps `seen` of the source as it is, and `pinned` and `lacking`, which belong to the same content.
    pub(super) fn keep_seen(&mut self, question: &Question<'_>, source: &ObjectName) {
        let Some(Remembered { seen, pinned, lacking, .. }) = question.stored.state.get(source) else {
            return;
        };
        let now = self.state.entry(source);
        (now.seen, now.pinned) = (seen.or(now.seen), pinned.or(now.pinned));
        now.lacking |= lacking;
    }

    /// The same, even if this decision has marked another content as seen.
    pub(super) fn restore_seen(&mut self, question: &Question<'_>, source: &ObjectName) {
        self.state.entry(source).seen = None;
        self.keep_seen(question, source);
    }

    /// Marks the content of the snapshot `kept` as seen, for a reference to the name of a missing source. If the source returns
    /// with other content, that change is pending, even if that content was seen before an undo.
    pub(super) fn mark_kept(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &str,
    ) -> Result<(), Stop> {
        if *kept == *source.name {
            // A source that is bound itself has no other name.
            self.keep_seen(question, source);
        } else if let Some(kept) = question.object(&ObjectName::new(source.kind, kept))? {
            let stated = question.stored.seen(source).filter(|stated| kept.is_known_by(stated));
            self.state.entry(source).seen = Some(stated.unwrap_or_else(|| kept.digest()));
        }
        Ok(())
    }

    /// Keeps `seen` of a missing source whose snapshot this request leaves in place, unless another reference of the
    /// template marks the snapshot's content ([`Self::mark_kept`]). An earlier pass of this admission may have marked it: after
    /// a change by another webhook, the decision runs again on its own result.
    pub(super) fn keep_seen_or_mark(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &ObjectName,
    ) -> Result<(), Stop> {
        if self.seen(source).is_some() {
            return Ok(());
        }
        let stated = question.request.new.state().get(source).and_then(|stated| stated.seen);
        if let Some(stated) = stated
            && Some(stated) != question.stored.seen(source)
            && question.object(kept)?.is_some_and(|kept| kept.is_known_by(&stated))
        {
            return self.mark_kept(question, source, &kept.name);
        }
        self.keep_seen(question, source);
        Ok(())
    }
}
