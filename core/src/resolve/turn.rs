//! `max-in-flight` and waves at admission: unless a write is a deployment, the controller decides when the workload rolls.

use std::collections::BTreeSet;

use super::{
    Observed, Policy, Seen, Workload,
    bare::bare,
    decide::{Resolver, Stop},
    plan::auto_roll_time,
    used::UsedKeys,
};
use crate::{
    annotations, gate_settings,
    gates::Guard,
    snapshot::{Digest, ObjectName, is_named_after},
    template::Template,
};

impl Resolver<'_> {
    /// Whether the workload keeps its snapshot of a source, since the controller decides when it rolls. This depends only on
    /// the request and live objects, so every replica makes the same decision.
    ///
    /// `is_applied`: the request names the source itself. If it also changes anything else of the template, it is a deployment,
    /// and resolves to the newest content. A request that keeps the snapshot's name does not deploy the source, whatever else
    /// it changes.
    pub(super) fn awaits_its_turn(
        &mut self,
        source: &ObjectName,
        kept: &str,
        used: &UsedKeys<'_>,
        is_applied: bool,
    ) -> Result<bool, Stop> {
        let keys = used.of_names(source, kept);
        self.awaits_its_turn_with(source, kept, keys.as_ref(), is_applied)
    }

    /// The snapshot to return to, if an earlier pass of this same admission set the reference. Another webhook may since have
    /// completed a template that was replaced, so that it equals the stored template after all.
    pub(super) fn returns_to(
        &mut self,
        source: &ObjectName,
        object: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<Option<String>, Stop> {
        let Some(kept) = self.prior.get(source).filter(|kept| ***kept != *object.name).cloned() else {
            return Ok(None);
        };
        if self.has_other_roll {
            return Ok(None);
        }
        // An earlier pass has also marked the present content as seen.
        let stated = self.request.new.state().get(source).and_then(|stated| stated.seen);
        let Some(stated) = stated.filter(|stated| self.seen(source) != Some(*stated)) else {
            return Ok(None);
        };
        let Some(present) = self.live(source)? else { return Ok(None) };
        let digest = present.digest();
        let is_present = is_named_after(&object.name, &source.name, &digest);
        if !is_present || present.digests().judge(&stated) != Some(true) {
            return Ok(None);
        }
        let keys = used.of_names(source, &object.name);
        // An undo of a Deployment also restores the `seen` of its revision.
        let returns = self.awaits_its_turn_with(source, &kept, keys.as_ref(), true)? && !self.is_undo()?;
        Ok(returns.then_some(kept))
    }

    fn awaits_its_turn_with(
        &mut self,
        source: &ObjectName,
        kept: &str,
        keys: Option<&BTreeSet<&str>>,
        is_applied: bool,
    ) -> Result<bool, Stop> {
        // A plan has decided before. Only an apply moves a workload that does not track.
        if self.plan.is_some() || self.asks_for(source) || !self.policy.track {
            return Ok(false);
        }
        let Some(present) = self.live(source)? else { return Ok(false) };
        if is_named_after(kept, &source.name, &present.digest()) {
            return Ok(false);
        }
        if is_applied && !self.is_same_template() {
            self.warn_checksum(source, present)?;
            return Ok(false);
        }
        if !self.is_held_back(source, present)? {
            return Ok(false);
        }
        // If the snapshot is missing, only the present content remains.
        let Some(content) = self.live(&ObjectName::new(source.kind, kept))? else { return Ok(false) };
        let reads_the_same =
            |content: &Observed| keys.is_some_and(|keys| content.same_values(present, keys.iter().copied()));
        let is_other = content.is_snapshot_of_source(&source.name) && !content.same_content(present);
        Ok(is_other && !reads_the_same(content))
    }

    /// Whether the stored digest of a source in mode `live` stays, for the same reason. Every request names such a source in the same way,
    /// so a request that changes anything else is a deployment.
    pub(super) fn live_awaits_its_turn(
        &mut self,
        source: &ObjectName,
        present: &Observed,
    ) -> Result<bool, Stop> {
        let is_asked = self.plan.is_some() || (self.has_other_roll && self.is_free_text());
        if is_asked || !self.policy.track || !self.is_same_template() {
            return Ok(false);
        }
        self.is_held_back(source, present)
    }

    /// Whether anything may keep the workload from the present content of a source.
    fn is_held_back(&mut self, source: &ObjectName, present: &Observed) -> Result<bool, Stop> {
        Ok(self.guard(source, Some(present))?.is_some())
    }

    fn guard(&mut self, source: &ObjectName, present: Option<&Observed>) -> Result<Option<Guard>, Stop> {
        let policy = present.map(Observed::spread_policy).unwrap_or_default();
        let guard = Guard::of(&policy, self.set_wait(source)?, self.changed_gate());
        Ok(guard.or_else(|| self.parted.get(source).cloned().map(Guard::Parted)))
    }

    /// The setting of the workload that is a gate and that the request changes. Such a write rolls nothing by itself: it may be there to postpone
    /// a pending change. The controller rolls the workload at once if no gate is closed.
    fn changed_gate(&self) -> Option<&'static str> {
        let (old, new) = (self.request.old.as_ref()?, &self.request.new);
        gate_settings::keys().find(|key| old.annotation(key) != new.annotation(key))
    }

    /// Records when the controller moved the workload to the content that it has seen. A source without settings may belong to a group
    /// whose other sources have some. The time is in the value of `roll`, so that equal requests give equal bytes.
    pub(super) fn record_moves(&mut self) {
        let Some(old) = &self.request.old else { return };
        let time = |workload: &Workload<'_>| workload.annotation(annotations::ROLL).and_then(auto_roll_time);
        // An undo of a Deployment may restore an older value.
        let turn = time(&self.request.new)
            .filter(|turn| self.has_other_roll && time(old).is_none_or(|last| last <= *turn));
        let (before, returned) = (&self.before, &self.returned);
        self.now.retain(|source, now| {
            if now.seen.is_some() && !returned.contains(source) {
                now.moved = match before.get(source) {
                    Some(before) if before.seen == now.seen => before.moved,
                    _ => turn,
                };
            }
            true
        });
    }

    /// Leaves `seen` as it is, so that the content stays pending for the controller, and adds a warning.
    pub(super) fn keep_until_its_turn(
        &mut self,
        source: &ObjectName,
        kept: Option<&str>,
    ) -> Result<(), Stop> {
        let is_seen = matches!(self.is_seen(source)?, Seen::Yes | Seen::Alike);
        if self.now_seen(source).is_none() {
            self.keep_seen(source);
        }
        let until = if is_seen {
            format!("until {source} changes again or annotation {} has a new value", annotations::ROLL)
        } else {
            "until the controller rolls it".to_owned()
        };
        let kept = kept.map_or_else(|| "its pods".to_owned(), |kept| format!("the snapshot {kept:?}"));
        let present = self.live(source)?;
        let guard = match self.guard(source, present)? {
            Some(guard) => Some(guard),
            None => self.is_left_to_controller(source)?.then_some(Guard::Schema),
        };
        let limits = guard.map(|guard| guard.text(source)).unwrap_or_default();
        self.warnings.push(format!("{limits}: {} keeps {kept} {until}", self.request.new.display()));
        Ok(())
    }

    /// Whether a person stopped the change to the present content of a source.
    pub(super) fn is_aborted(&mut self, source: &ObjectName, present: &Observed) -> Result<bool, Stop> {
        if !present.spread_policy().has_waves() {
            return Ok(false);
        }
        Ok(self.verdict(source)?.is_some_and(|(_, verdict)| verdict.aborted))
    }

    /// Warns of an annotation that makes a sync a deployment, if the source would hold it otherwise.
    fn warn_checksum(&mut self, source: &ObjectName, present: &Observed) -> Result<(), Stop> {
        let Some(key) = self.changed_checksum() else { return Ok(()) };
        if self.is_held_back(source, present)? {
            self.warnings.push(format!(
                "annotation {key} of the pod template has a new value, which is a deployment: {} moves to the newest content of {source} at \
                 once. Remove the annotation: confrev rolls the workload when the source changes",
                self.request.new.display()
            ));
        }
        Ok(())
    }

    /// An annotation of the template that changes with the content of a source, and has changed, as charts write it.
    fn changed_checksum(&self) -> Option<String> {
        let (old, new) = (self.request.old.as_ref()?.template.as_ref()?, self.request.new.template.as_ref()?);
        let value = |template: &Template<'_>, key: &str| Some(template.annotations()?.get(key)?.to_string());
        let is_changed = |key: &str| key.contains("checksum") && value(old, key) != value(new, key);
        new.annotations()?.keys().find(|key| is_changed(key)).map(|key| annotations::bounded(key).to_owned())
    }

    /// Whether the requested and the stored template differ at most in the names by which they refer to the same sources.
    pub(super) fn is_same_template(&mut self) -> bool {
        if let Some(known) = self.same_template {
            return known;
        }
        let same = self.request.old.as_ref().is_some_and(|old| {
            let stored = |name: &ObjectName| self.prior.source_of(name.kind, &name.name).cloned();
            let requested = |name: &ObjectName| {
                stored(name).or_else(|| self.stated.source_of(name.kind, &name.name).cloned())
            };
            let digest = |workload: &Workload<'_>, name_of: &dyn Fn(&ObjectName) -> Option<ObjectName>| {
                bare(workload.text()?, &workload.kind.template, name_of)
            };
            let before: Option<Digest> = digest(old, &stored);
            before.is_some()
                && before == digest(&self.request.new, &requested)
                && Policy::read(old).0.mount == self.policy.mount
        });
        self.same_template = Some(same);
        same
    }
}
