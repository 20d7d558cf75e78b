//! The rule of holds: the annotation `hold` comes before all rules. A reference to the source of a snapshot that it names
//! resolves to that snapshot, by whatever name the request refers to the source.
//!
//! A hold lasts until the annotation is removed. The references then resolve to the present content.

use std::collections::BTreeSet;

use super::{
    Observed, Policy,
    decide::{Resolver, Stop},
    holds::HoldRule,
    optin::was_decided_on,
    used::UsedKeys,
};
use crate::{
    annotations,
    snapshot::{ObjectName, is_named_after},
    template::Template,
};

impl Resolver<'_> {
    /// Finds the source of each snapshot on hold. A name that the request adds must be that of a snapshot.
    pub(super) fn find_holds(&mut self) -> Result<(), Stop> {
        let old = self.request.old.as_ref().filter(|old| was_decided_on(old));
        let stored = old.filter(|old| old.annotation(annotations::HOLD).is_some());
        self.holds.stored = stored.map(|old| Policy::read(old).0.hold).unwrap_or_default();
        for snapshot in &self.holds.stored {
            if let Some(source) = self.prior.source_of(snapshot.kind, &snapshot.name) {
                self.holds.before.insert(source.clone(), snapshot.name.to_string());
            }
        }
        let (policy, mut errors, mut is_unknown) = (self.policy, Vec::new(), false);
        for snapshot in &policy.hold {
            let source = match self.source_on_hold(snapshot) {
                Ok(Some(source)) => source,
                Ok(None) => continue,
                Err(Stop::Unknown) => {
                    is_unknown = true;
                    continue;
                }
                Err(Stop::Deny(reason)) => {
                    errors.push(reason);
                    continue;
                }
            };
            match self.holds.now.get(&source) {
                Some(other) => {
                    let name = &snapshot.name;
                    errors.push(format!(
                        "{other:?} and {name:?} are both snapshots of {source}: name one of them"
                    ));
                }
                None => self.holds.now.insert(source, snapshot.name.to_string()),
            }
        }
        match errors {
            _ if is_unknown => Err(Stop::Unknown),
            errors if errors.is_empty() => Ok(()),
            errors => Err(Stop::Deny(format!("annotation {}: {}", annotations::HOLD, errors.join("; ")))),
        }
    }

    /// The source of a snapshot on hold. `None`: the hold has no effect, since its snapshot is missing.
    fn source_on_hold(&mut self, snapshot: &ObjectName) -> Result<Option<ObjectName>, Stop> {
        let is_new = !self.holds.stored.contains(snapshot);
        // Refusing a creation would leave no workload: it may be an export, and its snapshot may be missing.
        let is_created = self.request.old.is_none();
        let known = self.prior.source_of(snapshot.kind, &snapshot.name).filter(|source| *source != snapshot);
        if let Some(source) = known.filter(|_| !is_new) {
            return Ok(Some(source.clone()));
        }
        if self.is_out_of_reach(snapshot) {
            return if is_new {
                Err(Stop::Deny(format!(
                    "{snapshot} cannot be held: snapshots of Secrets are disabled in this installation of confrev"
                )))
            } else {
                Ok(None)
            };
        }
        let observed = self.live(snapshot)?;
        let exists = observed.is_some();
        let identity = observed.filter(|observed| observed.is_sound()).and_then(Observed::identity);
        let source = identity.filter(|identity| *identity.source != *snapshot.name);
        if let Some(identity) = source {
            return Ok(Some(ObjectName::new(snapshot.kind, identity.source.as_str())));
        }
        // It is made again for the present content, which is the same.
        if is_created && !exists && self.is_present_content(snapshot)? {
            return Ok(None);
        }
        let problem = if exists { "is not a snapshot" } else { "does not exist" };
        let namespace = self.request.namespace;
        if is_new && (exists || !is_created) {
            return Err(Stop::Deny(format!(
                "{snapshot} {problem} in namespace {namespace:?}: use names that `kubectl confrev history` lists"
            )));
        }
        self.warnings.push(format!(
            "annotation {}: {snapshot} {problem} in namespace {namespace:?}, so it holds nothing",
            annotations::HOLD
        ));
        Ok(None)
    }

    /// Whether a snapshot is that of the present content of a source that the template names.
    fn is_present_content(&mut self, snapshot: &ObjectName) -> Result<bool, Stop> {
        let references = self.request.new.template.as_ref().map(Template::references).unwrap_or_default();
        let named = references.iter().map(|reference| ObjectName::new(reference.kind, reference.name));
        let stated = self.stated.source_of(snapshot.kind, &snapshot.name).cloned();
        let may_be = |source: &ObjectName| {
            let rest = snapshot.name.strip_prefix(&*source.name).filter(|_| source.kind == snapshot.kind);
            rest.is_some_and(|rest| rest.starts_with('-'))
        };
        for source in named.chain(stated).filter(may_be).collect::<BTreeSet<_>>() {
            let present = self.live(&source)?;
            if present.is_some_and(|present| is_named_after(&snapshot.name, &source.name, &present.digest()))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a hold decides about a reference to `source` by the name of `object`: the source itself, or a snapshot.
    pub(super) fn hold_rule(&mut self, source: &ObjectName, object: &ObjectName) -> Result<HoldRule, Stop> {
        if self.holds.now.is_empty() && self.holds.before.is_empty() {
            return Ok(HoldRule::Free);
        }
        let is_snapshot = source != object;
        // The request introduces the name of a snapshot: an undo, a pin or a copy.
        let is_turn = is_snapshot && !self.stored.contains(object);
        let Some(held) = self.holds.now.get(source).cloned() else {
            let ended = self.holds.has_ended(source) && !is_turn;
            return Ok(if ended { HoldRule::Ended } else { HoldRule::Free });
        };
        self.holds.used.insert(source.clone());
        let was_held = self.holds.before.get(source) == Some(&held);
        if is_turn && *object.name != held {
            if self.policy.holds_undos
                && was_held
                && self.live(object)?.is_some_and(|observed| observed.is_snapshot_of_source(&source.name))
            {
                return Ok(HoldRule::Free);
            }
            self.warn_hold_stays(
                source,
                &held,
                &format!("this request does not change it to {:?}", object.name),
            );
        } else if self.asks_for(source) {
            self.warn_hold_stays(
                source,
                &held,
                &format!("annotation {} does not change it", annotations::ROLL),
            );
        }
        let snapshot = ObjectName::new(source.kind, held.as_str());
        let is_readable = !self.is_out_of_reach(source);
        match self.seen(source).filter(|_| was_held || !is_readable) {
            // As long as the hold lasts, what the workload has seen stays as it is: a change of the source must not change
            // the answer to an apply.
            Some(seen) => self.now.entry(source).seen = Some(seen),
            None if is_readable => self.mark_seen(source)?,
            None => {}
        }
        let required = self.required.get(&(object.kind, &*object.name));
        let known = self.stored_keys.get(&(object.kind, held.as_str()));
        let requires_more = required.is_some_and(|keys| known.is_none_or(|known| !keys.is_subset(known)));
        let is_new = !self.stored.contains(&snapshot);
        // Newly required keys are looked for in a snapshot that was read.
        if is_readable && (is_new || requires_more) {
            let is_sound = self.live(&snapshot)?.is_some_and(Observed::is_sound);
            if is_sound && is_new {
                self.adopt.insert(snapshot);
            }
        }
        Ok(HoldRule::Held(held))
    }

    fn warn_hold_stays(&mut self, source: &ObjectName, held: &str, why: &str) {
        let key = annotations::HOLD;
        self.warnings.push(format!(
            "annotation {key}: {source} stays at {held:?}: {why}; remove the annotation to end the hold"
        ));
    }

    /// Records that the request undoes a change of the source, in a workload whose undos become holds.
    pub(super) fn note_undo(
        &mut self,
        source: &ObjectName,
        snapshot: &ObjectName,
        used: &UsedKeys<'_>,
    ) -> Result<(), Stop> {
        if !self.policy.holds_undos || !self.request.old.as_ref().is_some_and(was_decided_on) {
            return Ok(());
        }
        let keys = self.keys_read(source, used);
        let (present, held) = (self.live(source)?, self.live(snapshot)?);
        // The present content needs no hold: the workload has what it would roll to.
        let is_present = present.zip(held).is_some_and(|(present, held)| {
            held.same_content(present)
                || keys.is_some_and(|keys| held.same_values(present, keys.iter().copied()))
        });
        self.holds.undone.insert(source.clone(), (!is_present).then(|| snapshot.clone()));
        Ok(())
    }

    /// The snapshots to hold, if the undos of this request change them.
    pub(super) fn moved_hold(&self) -> Option<BTreeSet<ObjectName>> {
        let mut hold = self.policy.hold.clone();
        for (source, snapshot) in &self.holds.undone {
            if let Some(held) = self.holds.now.get(source) {
                hold.remove(&ObjectName::new(source.kind, held.as_str()));
            }
            hold.extend(snapshot.clone());
        }
        (hold != self.policy.hold).then_some(hold)
    }

    /// Adds a warning for each snapshot that is newly on hold and to whose source the template does not refer; and, for each
    /// hold that an undo made, how to end it.
    pub(super) fn report_holds(&mut self) {
        for (source, held) in self.holds.now.iter() {
            let snapshot = ObjectName::new(source.kind, held.as_str());
            if self.holds.stored.contains(&snapshot) {
                continue;
            }
            if !self.holds.used.contains(source) {
                self.warnings.push(format!(
                    "annotation {}: the template does not refer to {source}, so {held:?} is not held",
                    annotations::HOLD
                ));
            } else if self.moves_hold {
                self.warnings.push(format!(
                    "annotation {}{}: {source} is now held at {held:?}: remove annotation {} to end the hold",
                    annotations::ON_UNDO,
                    self.whose(annotations::ON_UNDO),
                    annotations::HOLD
                ));
            }
        }
    }
}
