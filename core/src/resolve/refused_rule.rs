//! Refused contents: a workload failed with the content, and its source has `on-failure: revert`; or the installation refuses it.
//!
//! The failure is in the verdict on the snapshot. While it is there, no reference resolves to the snapshot: workloads go back to the snapshot
//! that they had before, or keep it. `seen` then records the content of that snapshot, so the change stays pending. A content that only the
//! installation refuses takes no workload back.

use super::{
    Observed, RecordedFailure, Seen, Verdict, Workload,
    decide::{Resolver, Stop},
    plan::auto_roll_time,
    used::UsedKeys,
};
use crate::{
    annotations,
    snapshot::{DIGITS, ObjectName, is_named_after, snapshot_name},
    template::SourceMap,
};

/// A refused snapshot.
pub(super) struct Refused {
    /// The snapshot of the present content.
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

impl Resolver<'_> {
    /// The refusal of the present content of a source; `None` if workloads may resolve to it.
    pub(super) fn refused(&mut self, source: &ObjectName) -> Result<Option<Refused>, Stop> {
        let Some(present) = self.live(source)? else { return Ok(None) };
        let (digest, listed) = (present.digest(), present.refused().map(Box::from));
        if present.spread_policy().reverts
            && let Some((snapshot, Verdict { failed: Some(failed), .. })) = self.verdict(source)?
        {
            return Ok(Some(Refused { snapshot, failed, goes_back: true, is_listed: listed.is_some() }));
        }
        let Some(why) = listed else { return Ok(None) };
        let is_its = |kept: &&String| is_named_after(kept, &source.name, &digest);
        let kept = self.prior.get(source).filter(is_its).cloned();
        let snapshot = kept.unwrap_or_else(|| snapshot_name(&source.name, &digest, DIGITS[0]));
        let failed = RecordedFailure { reason: why, ..RecordedFailure::default() };
        Ok(Some(Refused { snapshot, failed, goes_back: false, is_listed: true }))
    }

    /// Whether a stored workload keeps the name of the source itself, as it is written, since no snapshot was ever made for it: this request
    /// changes nothing else of its template.
    pub(super) fn stays_beside(&mut self, refused: &Refused, source: &ObjectName) -> bool {
        !refused.goes_back && self.stored.contains(source) && self.is_same_template()
    }

    /// The verdict on the present content of a source, with the snapshot that has it.
    pub(super) fn verdict(&mut self, source: &ObjectName) -> Result<Option<(String, Verdict)>, Stop> {
        let Some(present) = self.live(source)? else { return Ok(None) };
        let digest = present.digest();
        let names = DIGITS.iter().map(|digits| snapshot_name(&source.name, &digest, *digits));
        let of = |snapshot: String, found: &Observed| Some((snapshot, found.verdict()?));
        // A snapshot of a Secret may be named after a digest of another scheme or key.
        let kept = self.prior.get(source).filter(|kept| **kept != *source.name).cloned();
        for name in kept.iter().cloned().chain(names) {
            let Some(found) = self.live(&ObjectName::new(source.kind, name.as_str()))? else {
                // A longer name is given only if the shorter one is taken.
                if kept.as_ref() == Some(&name) {
                    continue;
                }
                return Ok(None);
            };
            if found.is_snapshot_of_source(&source.name) && found.same_content(present) {
                return Ok(of(name, found));
            }
        }
        // Objects of others have the usual names.
        let is_its = |name: &&String| is_named_after(name, &source.name, &digest);
        for name in self.spares(source)?.known.iter().filter(is_its) {
            let found = self.live(&ObjectName::new(source.kind, name.as_str()))?;
            if let Some(found) = found.filter(|found| found.is_snapshot_of(&source.name, &digest)) {
                return Ok(of(name.clone(), found));
            }
        }
        Ok(None)
    }

    /// The snapshot of a source whose present content is refused. `kept`: the one that the reference has, if any.
    pub(super) fn without_refused(
        &mut self,
        source: &ObjectName,
        kept: Option<&str>,
        refused: &Refused,
        used: &UsedKeys<'_>,
    ) -> Result<String, Stop> {
        let Refused { snapshot, failed, goes_back, .. } = refused;
        if let Some(kept) = kept.filter(|kept| kept != snapshot || !goes_back) {
            self.keep_beside_refused(source, kept, used)?;
            if !matches!(self.is_seen(source)?, Seen::Yes | Seen::Alike) {
                self.warn_refused(refused, &format!("{} keeps {kept:?}", self.request.new.display()));
            }
            return Ok(kept.to_owned());
        }
        match (self.previous_snapshot(source, refused)?, kept) {
            (Some(previous), _) if previous == *snapshot => {
                // A person chose it.
                self.keep_beside_refused(source, &previous, used)?;
                Ok(previous)
            }
            (Some(previous), _) => {
                self.return_to(source, &previous)?;
                self.warn_refused(
                    refused,
                    &format!("{} resolves to {previous:?}", self.request.new.display()),
                );
                Ok(previous)
            }
            (None, Some(kept)) => {
                self.keep_beside_refused(source, kept, used)?;
                let warning =
                    format!("{} keeps it, since no earlier snapshot exists", self.request.new.display());
                self.warn_refused(refused, &warning);
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

    /// Records an undo or a pin while the present content is refused. Returns whether that is all: the snapshot is another one.
    pub(super) fn chooses_beside_refused(
        &mut self,
        source: &ObjectName,
        object: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<bool, Stop> {
        let Some(refused) = self.refused(source)? else { return Ok(false) };
        if self.has_present_content(source, &object.name)? {
            self.warn_chosen(&refused.snapshot, &refused.failed.reason);
            return Ok(false);
        }
        self.return_to(source, &object.name)?;
        // In a later pass of an admission, a return looks like an undo. No undo has a newer time.
        let time = |workload: &Workload<'_>| workload.annotation(annotations::ROLL).and_then(auto_roll_time);
        let is_roll = time(&self.request.new) > self.request.old.as_ref().and_then(time);
        if !is_roll {
            self.note_undo(source, object, used)?;
        }
        Ok(true)
    }

    /// Whether this is a snapshot of the present content of a source.
    fn has_present_content(&mut self, source: &ObjectName, name: &str) -> Result<bool, Stop> {
        let Some(present) = self.live(source)?.map(|present| present.digests().clone()) else {
            return Ok(false);
        };
        let found = self.live(&ObjectName::new(source.kind, name))?;
        let is_it = |found: &Observed| {
            found.is_snapshot_of_source(&source.name) && found.digests().same_content(&present)
        };
        Ok(found.is_some_and(is_it))
    }

    /// Warns of a choice of a content that the installation refuses, and that the source does not have.
    pub(super) fn warn_listed(&mut self, source: &ObjectName, object: &ObjectName) -> Result<(), Stop> {
        let Some(why) = self.live(object)?.and_then(Observed::refused).map(str::to_owned) else {
            return Ok(());
        };
        if !self.has_present_content(source, &object.name)? {
            self.warn_chosen(&object.name, &why);
        }
        Ok(())
    }

    /// The snapshot to which the workload goes back: its own previous one, or else the one that the verdict names.
    fn previous_snapshot(&mut self, source: &ObjectName, refused: &Refused) -> Result<Option<String>, Stop> {
        let own = self.before.get(source).and_then(|before| before.previous.clone());
        let revoked = self.live(source)?.and_then(|present| present.annotation(annotations::REVOKED));
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
            let found = self.live(&ObjectName::new(source.kind, name.as_str()))?;
            let is_fit = |found: &Observed| {
                found.is_sound() && found.is_snapshot_of_source(&source.name) && !found.is_unfit()
            };
            if found.is_some_and(is_fit) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Lets the workload resolve to this snapshot instead of the present content, which stays pending.
    fn return_to(&mut self, source: &ObjectName, name: &str) -> Result<(), Stop> {
        self.mark_kept(source, name)?;
        self.returned.insert(source.clone());
        let object = ObjectName::new(source.kind, name);
        if !self.stored.contains(&object) {
            self.adopt.insert(object);
        }
        Ok(())
    }

    /// Keeps what the workload has seen.
    fn keep_beside_refused(
        &mut self,
        source: &ObjectName,
        kept: &str,
        used: &UsedKeys<'_>,
    ) -> Result<(), Stop> {
        if self.now_seen(source).is_none() {
            self.keep_seen(source);
        }
        if self.now_seen(source).is_none() {
            self.mark_kept(source, kept)?;
        }
        self.keep_pinned(source, &ObjectName::new(source.kind, kept), used)
    }

    fn warn_chosen(&mut self, snapshot: &str, reason: &str) {
        let workload = self.request.new.display();
        self.warnings
            .push(format!("{snapshot:?} was refused ({reason}): {workload} rolls to it nevertheless"));
    }

    fn warn_refused(&mut self, Refused { snapshot, failed, .. }: &Refused, then: &str) {
        self.warnings.push(format!("{snapshot:?} was refused ({}): {then}", failed.reason));
    }

    /// For each source that limits how far a change spreads, the snapshot to go back to from the one that the workload now has.
    /// A person's choice of a refused snapshot is recorded as that snapshot itself.
    pub(super) fn record_previous(&mut self, sources: &SourceMap<String>) -> Result<(), Stop> {
        if self.request.old.is_none() {
            return Ok(());
        }
        for (source, name) in sources.iter() {
            let before = self.prior.get(source).filter(|before| **before != *source.name).cloned();
            let kept = self.before.get(source).and_then(|before| before.previous.clone());
            if before.as_ref() == Some(name) {
                if kept.is_some() {
                    self.now.entry(source).previous = kept;
                }
                continue;
            }
            let Some(Some(present)) = self.facts.object(source) else { continue };
            if *name == *source.name || !present.is_limited() || self.returned.contains(source) {
                continue;
            }
            let refused = self.refused(source)?;
            if refused.is_some() && self.has_present_content(source, name)? {
                self.now.entry(source).previous = Some(name.clone());
                continue;
            }
            let digest = present.digest();
            let is_present = is_named_after(name, &source.name, &digest);
            let Some(before) = before.filter(|_| is_present) else { continue };
            // A workload on refused content goes back to the content before it.
            let is_refused = present.spread_policy().reverts
                && self.live(&ObjectName::new(source.kind, before.as_str()))?.is_some_and(Observed::is_unfit);
            let back = if is_refused { kept.filter(|kept| *kept != before) } else { Some(before) };
            if back.is_some() {
                self.now.entry(source).previous = back;
            }
        }
        Ok(())
    }
}
