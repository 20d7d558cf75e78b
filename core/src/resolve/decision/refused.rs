//! Refused contents: a workload failed with the content, and its source has `on-failure: revert`; or the installation refuses it.
//!
//! The failure is in the verdict on the snapshot. While it is there, no reference resolves to the snapshot: workloads go back to the snapshot
//! that they had before, or keep it. `seen` then records the content of that snapshot, so the change stays pending. A content that only the
//! installation refuses takes no workload back.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::{
    annotations,
    resolve::{Observed, RecordedFailure, Verdict, Workload, auto_roll_time},
    snapshot::{DIGITS, ObjectName, is_named_after, snapshot_name},
    template::SourceMap,
};

/// A refused snapshot.
pub(super) struct Refused {
    /// The snapshot of the newest content.
    snapshot: String,
    failed: RecordedFailure,
    /// Whether workloads on it go back: one failed with it.
    goes_back: bool,
    /// Whether the installation refuses it: no command of a person ends that.
    is_listed: bool,
}

impl Refused {
    /// What ends the refusal beside a correction.
    fn remedy(&self, source: &ObjectName) -> String {
        if self.is_listed {
            String::new()
        } else {
            format!(", or run `kubectl confrev waves retry {}`", source.name)
        }
    }

    /// Why a plan may not move a workload to it.
    pub(super) fn needs_force(&self) -> String {
        needs_force(&self.snapshot, &self.failed.reason)
    }
}

/// Why a plan may not move a workload to a refused snapshot.
pub(super) fn needs_force(snapshot: &str, reason: &str) -> String {
    format!("{snapshot:?} was refused ({reason}): to move to it nevertheless, add --force")
}

impl Question<'_> {
    /// The refusal of the newest content of a source; `None` if workloads may resolve to it.
    pub(super) fn refused(&self, source: &ObjectName) -> Result<Option<Refused>, Stop> {
        let Some(newest) = self.object(source)? else { return Ok(None) };
        let (digest, listed) = (newest.digest(), newest.refused().map(Box::from));
        if newest.spread_policy().reverts
            && let Some((snapshot, Verdict { failed: Some(failed), .. })) = self.verdict(source)?
        {
            return Ok(Some(Refused { snapshot, failed, goes_back: true, is_listed: listed.is_some() }));
        }
        let Some(why) = listed else { return Ok(None) };
        let is_its = |kept: &&String| is_named_after(kept, &source.name, &digest);
        let kept = self.stored.sources.get(source).filter(is_its).cloned();
        let snapshot = kept.unwrap_or_else(|| snapshot_name(&source.name, &digest, DIGITS[0]));
        let failed = RecordedFailure { reason: why, ..RecordedFailure::default() };
        Ok(Some(Refused { snapshot, failed, goes_back: false, is_listed: true }))
    }

    /// Whether a stored workload keeps the name of the source itself, as it is written, since no snapshot was ever made for it: this request
    /// changes nothing else of its template.
    pub(super) fn stays_beside(&self, refused: &Refused, source: &ObjectName) -> bool {
        !refused.goes_back && self.stored.names.contains(source) && self.is_same_template()
    }

    /// The verdict on the newest content of a source, with the snapshot that has it.
    pub(super) fn verdict(&self, source: &ObjectName) -> Result<Option<(String, Verdict)>, Stop> {
        let Some(newest) = self.object(source)? else { return Ok(None) };
        let digest = newest.digest();
        let names = DIGITS.iter().map(|digits| snapshot_name(&source.name, &digest, *digits));
        let of = |snapshot: String, found: &Observed| Some((snapshot, found.verdict()?));
        // A snapshot of a Secret may be named after a digest of another scheme or key.
        let kept = self.stored.sources.get(source).filter(|kept| **kept != *source.name);
        for name in kept.cloned().into_iter().chain(names) {
            let Some(found) = self.object(&ObjectName::new(source.kind, name.as_str()))? else {
                // A longer name is given only if the shorter one is taken.
                if kept == Some(&name) {
                    continue;
                }
                return Ok(None);
            };
            if found.is_snapshot_of_source(&source.name) && found.same_content(newest) {
                return Ok(of(name, found));
            }
        }
        // Objects of others have the usual names.
        let is_its = |name: &&String| is_named_after(name, &source.name, &digest);
        for name in self.spares(source)?.known.iter().filter(is_its) {
            let found = self.object(&ObjectName::new(source.kind, name.as_str()))?;
            if let Some(found) = found.filter(|found| found.is_snapshot_of(&source.name, &digest)) {
                return Ok(of(name.clone(), found));
            }
        }
        Ok(None)
    }

    /// Whether this is a snapshot of the newest content of a source.
    fn has_newest_content(&self, source: &ObjectName, name: &str) -> Result<bool, Stop> {
        let Some(newest) = self.object(source)? else { return Ok(false) };
        let found = self.object(&ObjectName::new(source.kind, name))?;
        let is_it = |found: &Observed| {
            found.is_snapshot_of_source(&source.name) && found.digests().same_content(newest.digests())
        };
        Ok(found.is_some_and(is_it))
    }

    /// The snapshot to which the workload goes back: its own previous one, or else the one that the verdict names.
    fn previous_snapshot(&self, source: &ObjectName, refused: &Refused) -> Result<Option<String>, Stop> {
        let own = self.stored.state.get(source).and_then(|before| before.previous.clone());
        let revoked = self.object(source)?.and_then(|newest| newest.annotation(annotations::REVOKED));
        let is_revoked = |name: &str| {
            revoked.iter().flat_map(|text| text.split(',')).any(|revoked| revoked.trim() == name)
        };
        for name in own.into_iter().chain(refused.failed.previous.as_deref().map(str::to_owned)) {
            if name == refused.snapshot {
                return Ok(Some(name));
            }
            if is_revoked(&name) {
                continue;
            }
            let found = self.object(&ObjectName::new(source.kind, name.as_str()))?;
            let is_fit = |found: &Observed| {
                found.is_sound() && found.is_snapshot_of_source(&source.name) && !found.is_unfit()
            };
            if found.is_some_and(is_fit) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}

impl Outcome {
    /// The snapshot of a source whose newest content is refused. `kept`: the one that the reference has, if any.
    pub(super) fn without_refused(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: Option<&str>,
        refused: &Refused,
    ) -> Result<String, Stop> {
        let Refused { snapshot, failed, goes_back, .. } = refused;
        let workload = question.request.new.display();
        if let Some(kept) = kept.filter(|kept| kept != snapshot || !goes_back) {
            self.keep_beside_refused(question, source, kept)?;
            if !question.is_seen(source)?.is_newest() {
                self.warn_refused(refused, &format!("{workload} keeps {kept:?}"));
            }
            return Ok(kept.to_owned());
        }
        match (question.previous_snapshot(source, refused)?, kept) {
            (Some(previous), _) if previous == *snapshot => {
                // A person chose it.
                self.keep_beside_refused(question, source, &previous)?;
                Ok(previous)
            }
            (Some(previous), _) => {
                self.return_to(question, source, &previous)?;
                self.warn_refused(refused, &format!("{workload} resolves to {previous:?}"));
                Ok(previous)
            }
            (None, Some(kept)) => {
                self.keep_beside_refused(question, source, kept)?;
                self.warn_refused(refused, &format!("{workload} keeps it, since no earlier snapshot exists"));
                Ok(kept.to_owned())
            }
            (None, None) => {
                let none = if *goes_back {
                    "no earlier snapshot exists"
                } else {
                    "the workload has no earlier snapshot"
                };
                let (reason, remedy) = (&failed.reason, refused.remedy(source));
                let denial = format!(
                    "the content of {source} was refused ({reason}), and {none}: correct {source}{remedy}"
                );
                Err(Stop::Deny(denial))
            }
        }
    }

    /// Records an undo or a pin while the newest content is refused. Returns whether that is all: the snapshot is another one.
    pub(super) fn chooses_beside_refused(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        object: &ObjectName,
    ) -> Result<bool, Stop> {
        let Some(refused) = question.refused(source)? else { return Ok(false) };
        if question.has_newest_content(source, &object.name)? {
            self.warn_chosen(question, &refused.snapshot, &refused.failed.reason);
            return Ok(false);
        }
        self.return_to(question, source, &object.name)?;
        // In a later pass of an admission, a return looks like an undo. No undo has a newer time.
        let time = |workload: &Workload<'_>| workload.annotation(annotations::ROLL).and_then(auto_roll_time);
        let is_roll = time(&question.request.new) > question.request.old.as_ref().and_then(time);
        if !is_roll {
            self.note_undo(question, source, object)?;
        }
        Ok(true)
    }

    /// Warns of a choice of a content that the installation refuses, and that the source does not have.
    pub(super) fn warn_listed(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        object: &ObjectName,
    ) -> Result<(), Stop> {
        if let Some(why) = question.object(object)?.and_then(Observed::refused)
            && !question.has_newest_content(source, &object.name)?
        {
            self.warn_chosen(question, &object.name, why);
        }
        Ok(())
    }

    /// Lets the workload resolve to this snapshot instead of the newest content, which stays pending.
    fn return_to(&mut self, question: &Question<'_>, source: &ObjectName, name: &str) -> Result<(), Stop> {
        self.mark_kept(question, source, name)?;
        self.returned.insert(source.clone());
        self.adopt_new(question, ObjectName::new(source.kind, name));
        Ok(())
    }

    /// Keeps what the workload has seen.
    fn keep_beside_refused(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &str,
    ) -> Result<(), Stop> {
        if self.seen(source).is_none() {
            self.keep_seen(question, source);
        }
        if self.seen(source).is_none() {
            self.mark_kept(question, source, kept)?;
        }
        self.keep_pinned(question, source, &ObjectName::new(source.kind, kept))
    }

    fn warn_chosen(&mut self, question: &Question<'_>, snapshot: &str, reason: &str) {
        let workload = question.request.new.display();
        self.warn(format!("{snapshot:?} was refused ({reason}): {workload} rolls to it nevertheless"));
    }

    fn warn_refused(&mut self, Refused { snapshot, failed, .. }: &Refused, then: &str) {
        self.warn(format!("{snapshot:?} was refused ({}): {then}", failed.reason));
    }

    /// For each source that limits how far a change spreads, the snapshot to go back to from the one that the workload now has.
    /// A person's choice of a refused snapshot is recorded as that snapshot itself.
    pub(super) fn record_previous(
        &mut self,
        question: &Question<'_>,
        sources: &SourceMap<String>,
    ) -> Result<(), Stop> {
        if question.request.old.is_none() {
            return Ok(());
        }
        for (source, name) in sources.iter() {
            let before = question.stored.sources.get(source).filter(|before| **before != *source.name);
            let kept = question.stored.state.get(source).and_then(|before| before.previous.clone());
            if before == Some(name) {
                if kept.is_some() {
                    self.state.entry(source).previous = kept;
                }
                continue;
            }
            let Some(newest) = question.known(source) else { continue };
            if *name == *source.name || !newest.is_limited() || self.returned.contains(source) {
                continue;
            }
            if question.refused(source)?.is_some() && question.has_newest_content(source, name)? {
                self.state.entry(source).previous = Some(name.clone());
                continue;
            }
            let is_newest = is_named_after(name, &source.name, &newest.digest());
            let Some(before) = before.filter(|_| is_newest) else { continue };
            // A workload on refused content goes back to the content before it.
            let stored = ObjectName::new(source.kind, before.as_str());
            let is_refused =
                newest.spread_policy().reverts && question.object(&stored)?.is_some_and(Observed::is_unfit);
            let back = if is_refused { kept.filter(|kept| kept != before) } else { Some(before.clone()) };
            if back.is_some() {
                self.state.entry(source).previous = back;
            }
        }
        Ok(())
    }
}
