//! What a plan in `roll` decides about a reference.

use super::{
    decide::{Resolver, Stop},
    effects::Resolution,
    optin::was_decided_on,
    plan::{Move, Planned, To},
    refused_rule::needs_force,
};
use crate::{
    annotations,
    snapshot::{ObjectName, SourceKind},
};

impl Resolver<'_> {
    /// What the plan of the request says about a reference to `source` by the name of `object`.
    pub(super) fn planned(&mut self, source: &ObjectName, object: &ObjectName) -> Result<Planned, Stop> {
        let Some(plan) = &self.plan else { return Ok(Planned::Free) };
        let (is_automatic, wanted) = (plan.is_automatic, plan.of_source(source).cloned());
        let Some(Move { to, forced }) = wanted else {
            // The controller does not know a Secret that only the namespace asks for, until an admission has resolved it.
            let is_unknown = is_automatic
                && source.kind == SourceKind::Secret
                && self.policy.secrets.is_none()
                && self.prior.get(source).is_none()
                && self.before.get(source).is_none();
            // Nor does a name of no object tell anyone its source.
            let is_unknown = is_unknown || (source != object && self.is_dangling(object)?);
            let stays = self.stored.contains(object) && !is_unknown;
            return Ok(if stays { Planned::Stays } else { Planned::Free });
        };
        if let To::Snapshot(name) = to {
            return Ok(Planned::To(ObjectName::new(source.kind, name.as_str())));
        }
        if !is_automatic
            && !forced
            && let Some(refused) = self.refused(source)?
        {
            return Err(Stop::Deny(refused.needs_force()));
        }
        if self.is_out_of_reach(source) {
            return Ok(Planned::Moves);
        }
        let Some(present) = self.live(source)? else { return Ok(Planned::Moves) };
        let is_it = match &to {
            To::Content(digits) => present.digests().iter().any(|digest| digest.hex(digits.len()) == *digits),
            To::Present | To::Snapshot(_) => true,
        };
        // A person may have stopped the change since the controller decided. That keeps no workload on refused content, and says nothing
        // about one that has the content.
        let has_seen = self.seen(source).is_some_and(|seen| present.digests().contains(&seen));
        let is_stopped =
            is_automatic && !has_seen && self.is_aborted(source, present)? && self.refused(source)?.is_none();
        Ok(if is_it && !is_stopped { Planned::Moves } else { Planned::Stays })
    }

    /// Whether the plan moves a source to its present content even if that was refused.
    pub(super) fn is_forced(&self, source: &ObjectName) -> bool {
        let wanted = self.plan.as_ref().and_then(|plan| plan.of_source(source));
        wanted.is_some_and(|wanted| wanted.forced && wanted.to == To::Present)
    }

    /// Whether the controller's plan changes nothing: a source has changed since the decision, or a person has stopped the change. The
    /// next try must not wait for `min-interval`, which counts from the last plan.
    pub(super) fn plan_moves_nothing(&self, resolution: &Resolution) -> bool {
        let is_automatic = self.plan.as_ref().is_some_and(|plan| plan.is_automatic);
        is_automatic
            && self.request.old.as_ref().is_some_and(was_decided_on)
            && (&resolution.sources, &resolution.live) == (&self.prior, &self.prior_live)
            && self.now == self.before
    }

    /// Whether the controller asks for the decision on a write that admission did not answer: its plan moves nothing.
    pub(super) fn is_late(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.is_automatic && plan.moves.is_empty() && plan.every.is_none())
    }

    /// Keeps entries of sources that the template no longer uses, if nothing else differs: to remove them would start pods.
    pub(super) fn keep_unused(&self, resolution: &mut Resolution) {
        let is_part = resolution.sources.iter().all(|(source, name)| self.prior.get(source) == Some(name))
            && resolution.live.iter().all(|(source, digest)| self.prior_live.get(source) == Some(digest));
        if is_part {
            resolution.sources = self.prior.clone();
            resolution.live = self.prior_live.clone();
        }
    }

    /// Checks the snapshots that the plan names.
    pub(super) fn check_plan(&mut self) -> Result<(), Stop> {
        let Some(plan) = &self.plan else { return Ok(()) };
        let named = plan.moves.iter().filter_map(|(source, wanted)| match &wanted.to {
            To::Snapshot(name) => Some((source.clone(), name.clone(), wanted.forced)),
            To::Present | To::Content(_) => None,
        });
        let (named, namespace, mut is_unknown) = (named.collect::<Vec<_>>(), self.request.namespace, false);
        for (source, name, forced) in named {
            let snapshot = ObjectName::new(source.kind, name.as_str());
            if self.is_out_of_reach(&snapshot) {
                return Err(Stop::Deny(format!(
                    "{snapshot} cannot be used: snapshots of Secrets are disabled in this installation of confrev"
                )));
            }
            let (Ok(found), Ok(present)) = (self.live(&snapshot), self.live(&source)) else {
                is_unknown = true;
                continue;
            };
            let Some(found) = found.filter(|found| found.is_snapshot_of_source(&source.name)) else {
                return Err(Stop::Deny(format!(
                    "annotation {}: {snapshot} is no snapshot of {source} in namespace {namespace:?}: use names that \
                     `kubectl confrev history` lists",
                    annotations::ROLL
                )));
            };
            let reverts = present.is_none_or(|present| present.spread_policy().reverts);
            let is_kept = self.prior.get(&source) == Some(&name);
            let failed = found.verdict().and_then(|verdict| verdict.failed).filter(|_| reverts);
            let reason = found.refused().or(failed.as_ref().map(|failed| &*failed.reason));
            if let Some(reason) = reason.filter(|_| !forced && !is_kept) {
                return Err(Stop::Deny(needs_force(&name, reason)));
            }
        }
        if is_unknown { Err(Stop::Unknown) } else { Ok(()) }
    }
}
