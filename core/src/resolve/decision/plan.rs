//! What a plan in `roll` decides about a reference.

use super::{question::Question, refused::needs_force, stop::Stop};
use crate::{
    annotations,
    resolve::{Move, To, plan::Planned},
    snapshot::{ObjectName, SourceKind},
};

impl Question<'_> {
    /// What the plan of the request says about a reference to `source` by the name of `object`.
    pub(super) fn planned(&self, source: &ObjectName, object: &ObjectName) -> Result<Planned, Stop> {
        let Some(plan) = &self.roll.plan else { return Ok(Planned::Free) };
        let Some(Move { to, forced }) = plan.of_source(source) else {
            // The controller does not know a Secret that only the namespace asks for, until an admission has resolved it.
            let is_unknown = plan.is_automatic
                && source.kind == SourceKind::Secret
                && self.policy.secrets.is_none()
                && self.stored.sources.get(source).is_none()
                && self.stored.state.get(source).is_none();
            // Nor does a name of no object tell anyone its source.
            let is_unknown = is_unknown || (source != object && self.is_dangling(object)?);
            let stays = self.stored.names.contains(object) && !is_unknown;
            return Ok(if stays { Planned::Stays } else { Planned::Free });
        };
        if let To::Snapshot(name) = to {
            return Ok(Planned::To(ObjectName::new(source.kind, name.as_str())));
        }
        if !plan.is_automatic
            && !forced
            && let Some(refused) = self.refused(source)?
        {
            return Err(Stop::Deny(refused.needs_force()));
        }
        if self.is_out_of_reach(source) {
            return Ok(Planned::Moves);
        }
        let Some(newest) = self.object(source)? else { return Ok(Planned::Moves) };
        let is_it = match to {
            To::Content(digits) => newest.digests().iter().any(|digest| digest.hex(digits.len()) == *digits),
            To::Present | To::Snapshot(_) => true,
        };
        // A person may have stopped the change since the controller decided. That keeps no workload on refused content, and says nothing
        // about one that has the content.
        let has_seen = self.stored.seen(source).is_some_and(|seen| newest.digests().contains(&seen));
        let is_stopped = plan.is_automatic
            && !has_seen
            && self.is_aborted(source, newest)?
            && self.refused(source)?.is_none();
        Ok(if is_it && !is_stopped { Planned::Moves } else { Planned::Stays })
    }

    /// Checks the snapshots that the plan names.
    pub(super) fn check_plan(&self) -> Result<(), Stop> {
        let Some(plan) = &self.roll.plan else { return Ok(()) };
        let mut is_unknown = false;
        for (source, Move { to, forced }) in &plan.moves {
            let To::Snapshot(name) = to else { continue };
            let snapshot = ObjectName::new(source.kind, name.as_str());
            if self.is_out_of_reach(&snapshot) {
                return Err(Stop::Deny(format!(
                    "{snapshot} cannot be used: snapshots of Secrets are disabled in this installation of confrev"
                )));
            }
            let (Ok(found), Ok(newest)) = (self.object(&snapshot), self.object(source)) else {
                is_unknown = true;
                continue;
            };
            let Some(found) = found.filter(|found| found.is_snapshot_of_source(&source.name)) else {
                return Err(Stop::Deny(format!(
                    "annotation {}: {snapshot} is no snapshot of {source} in namespace {:?}: use names that \
                     `kubectl confrev history` lists",
                    annotations::ROLL,
                    self.request.namespace
                )));
            };
            let reverts = newest.is_none_or(|newest| newest.spread_policy().reverts);
            let is_kept = self.stored.sources.get(source) == Some(name);
            let failed = found.verdict().and_then(|verdict| verdict.failed).filter(|_| reverts);
            let reason = found.refused().or(failed.as_ref().map(|failed| &*failed.reason));
            if let Some(reason) = reason.filter(|_| !forced && !is_kept) {
                return Err(Stop::Deny(needs_force(name, reason)));
            }
        }
        if is_unknown { Err(Stop::Unknown) } else { Ok(()) }
    }
}
