//! The gates at admission: unless a write is a deployment, the controller decides when the workload rolls.

use super::{outcome::Outcome, question::Question, stop::Stop};
use crate::{
    annotations, gate_settings,
    gates::Guard,
    resolve::Observed,
    snapshot::{ObjectName, is_named_after},
    template::Template,
};

/// Whether a workload keeps its snapshot of a source, since the controller decides when it rolls.
enum Motion {
    /// The workload keeps it.
    Waits,
    /// The workload moves.
    Moves,
    /// The workload moves, since this annotation of its template makes the write a deployment; otherwise it would wait.
    MovesBy(String),
}

impl Question<'_> {
    /// Whether the workload keeps its snapshot of a source, since the controller decides when it rolls. This depends only on
    /// the request and live objects, so every replica makes the same decision.
    ///
    /// `is_applied`: the request names the source itself. If it also changes anything else of the template, it is a deployment,
    /// and resolves to the newest content. A request that keeps the snapshot's name does not deploy the source, whatever else
    /// it changes. `named`: the snapshot that the request names.
    fn motion(&self, source: &ObjectName, kept: &str, named: &str, is_applied: bool) -> Result<Motion, Stop> {
        // A plan has decided before. Only an apply moves a workload that does not track.
        if self.roll.plan.is_some() || self.roll.asks_for(source) || !self.policy.track {
            return Ok(Motion::Moves);
        }
        let Some(newest) = self.object(source)? else { return Ok(Motion::Moves) };
        if is_named_after(kept, &source.name, &newest.digest()) {
            return Ok(Motion::Moves);
        }
        if is_applied && !self.is_same_template() {
            return Ok(match self.changed_checksum() {
                Some(key) if self.guard(source, Some(newest))?.is_some() => Motion::MovesBy(key),
                _ => Motion::Moves,
            });
        }
        if self.guard(source, Some(newest))?.is_none() {
            return Ok(Motion::Moves);
        }
        // If the snapshot is missing, only the newest content remains.
        let Some(content) = self.object(&ObjectName::new(source.kind, kept))? else {
            return Ok(Motion::Moves);
        };
        let keys = || self.used.of_names(source, named);
        let reads_the_same = || keys().is_some_and(|keys| content.same_values(newest, keys.iter().copied()));
        let is_other = content.is_snapshot_of_source(&source.name) && !content.same_content(newest);
        Ok(if is_other && !reads_the_same() { Motion::Waits } else { Motion::Moves })
    }

    /// Whether the stored digest of a source in mode `live` stays, for the same reason. Every request names such a source in the same way,
    /// so a request that changes anything else is a deployment.
    pub(super) fn live_waits_at_a_gate(&self, source: &ObjectName, newest: &Observed) -> Result<bool, Stop> {
        let is_asked = self.roll.plan.is_some() || self.roll.is_free_text;
        if is_asked || !self.policy.track || !self.is_same_template() {
            return Ok(false);
        }
        Ok(self.guard(source, Some(newest))?.is_some())
    }

    /// What may keep the workload from the newest content of a source.
    fn guard(&self, source: &ObjectName, newest: Option<&Observed>) -> Result<Option<Guard>, Stop> {
        let policy = newest.map(Observed::spread_policy).unwrap_or_default();
        let guard = Guard::of(&policy, self.set_wait(source)?, self.changed_gate());
        Ok(guard.or_else(|| self.parted.get(source).cloned().map(Guard::Parted)))
    }

    /// The setting of the workload that is a gate and that the request changes. Such a write rolls nothing by itself: it may be there to postpone
    /// a pending change. The controller rolls the workload at once if no gate is closed.
    fn changed_gate(&self) -> Option<&'static str> {
        let (old, new) = (self.request.old.as_ref()?, &self.request.new);
        gate_settings::keys().find(|key| old.annotation(key) != new.annotation(key))
    }

    /// Whether a person stopped the change to the newest content of a source.
    pub(super) fn is_aborted(&self, source: &ObjectName, newest: &Observed) -> Result<bool, Stop> {
        if !newest.spread_policy().has_waves() {
            return Ok(false);
        }
        Ok(self.verdict(source)?.is_some_and(|(_, verdict)| verdict.aborted))
    }

    /// An annotation of the template that changes with the content of a source, and has changed, as charts write it.
    fn changed_checksum(&self) -> Option<String> {
        let (old, new) = (self.request.old.as_ref()?.template.as_ref()?, self.request.new.template.as_ref()?);
        let value = |template: &Template<'_>, key: &str| Some(template.annotations()?.get(key)?.to_string());
        let is_changed = |key: &str| key.contains("checksum") && value(old, key) != value(new, key);
        new.annotations()?.keys().find(|key| is_changed(key)).map(|key| annotations::bounded(key).to_owned())
    }
}

impl Outcome {
    /// Whether the workload keeps its snapshot of a source, as of [`Question::motion`], which is then recorded.
    pub(super) fn waits_at_a_gate(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: &str,
        is_applied: bool,
    ) -> Result<bool, Stop> {
        let motion = question.motion(source, kept, kept, is_applied)?;
        if !self.waits(question, source, &motion) {
            return Ok(false);
        }
        self.keep_waiting(question, source, Some(kept))?;
        Ok(true)
    }

    /// The snapshot to return to, if an earlier pass of this same admission set the reference. Another webhook may since have
    /// completed a template that was replaced, so that it equals the stored template after all.
    pub(super) fn returns_to(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        object: &ObjectName,
    ) -> Result<Option<String>, Stop> {
        let kept = question.stored.sources.get(source).filter(|kept| ***kept != *object.name);
        let Some(kept) = kept.filter(|_| !question.roll.is_other) else { return Ok(None) };
        // An earlier pass has also marked the newest content as seen.
        let stated = question.request.new.state().get(source).and_then(|stated| stated.seen);
        let Some(stated) = stated.filter(|stated| question.stored.seen(source) != Some(*stated)) else {
            return Ok(None);
        };
        let Some(newest) = question.object(source)? else { return Ok(None) };
        let is_newest = is_named_after(&object.name, &source.name, &newest.digest());
        if !is_newest || newest.digests().judge(&stated) != Some(true) {
            return Ok(None);
        }
        // An undo of a Deployment also restores the `seen` of its revision.
        let motion = question.motion(source, kept, &object.name, true)?;
        let returns = self.waits(question, source, &motion) && !question.is_undo()?;
        Ok(returns.then(|| kept.clone()))
    }

    /// Whether a workload waits; warns of an annotation that makes it move.
    fn waits(&mut self, question: &Question<'_>, source: &ObjectName, motion: &Motion) -> bool {
        if let Motion::MovesBy(key) = motion {
            self.warn(format!(
                "annotation {key} of the pod template has a new value, which is a deployment: {} moves to the newest content of {source} at \
                 once. Remove the annotation: confrev rolls the workload when the source changes",
                question.request.new.display()
            ));
        }
        matches!(motion, Motion::Waits)
    }

    /// Leaves `seen` as it is, so that the content stays pending for the controller, and adds a warning.
    pub(super) fn keep_waiting(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        kept: Option<&str>,
    ) -> Result<(), Stop> {
        let is_seen = question.is_seen(source)?.is_newest();
        if self.seen(source).is_none() {
            self.keep_seen(question, source);
        }
        let until = if is_seen {
            format!("until {source} changes again or annotation {} has a new value", annotations::ROLL)
        } else {
            "until the controller rolls it".to_owned()
        };
        let kept = kept.map_or_else(|| "its pods".to_owned(), |kept| format!("the snapshot {kept:?}"));
        let guard = match question.guard(source, question.object(source)?)? {
            Some(guard) => Some(guard),
            None => question.is_left_to_controller(source)?.then_some(Guard::Schema),
        };
        let limits = guard.map(|guard| guard.text(source)).unwrap_or_default();
        self.warn(format!("{limits}: {} keeps {kept} {until}", question.request.new.display()));
        Ok(())
    }
}
