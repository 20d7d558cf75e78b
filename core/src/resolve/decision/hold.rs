//! The rule of holds: the annotation `hold` comes before all rules. A reference to the source of a snapshot that it names
//! resolves to that snapshot, by whatever name the request refers to the source.
//!
//! A hold lasts until the annotation is removed. The references then resolve to the newest content.

use std::collections::BTreeSet;

use super::{holds::Holds, outcome::Outcome, question::Question, stop::Stop};
use crate::{
    annotations,
    resolve::{Observed, Policy, Workload, optin::was_decided_on},
    snapshot::{ObjectName, is_named_after},
    template::Template,
};

/// What a hold decides about a reference.
pub(super) enum HoldRule {
    /// The reference resolves to this snapshot.
    Held(String),
    /// The request ends the hold of the source: the reference resolves to the newest content.
    Ended,
    /// No hold applies.
    Free,
}

/// The warning for a workload without a template: its annotation has no effect.
pub(super) fn without_template(workload: &Workload<'_>) -> Option<String> {
    let key = annotations::HOLD;
    workload
        .annotation(key)
        .map(|_| format!("annotation {key} has no effect: set it on the object that has the template"))
}

/// Finds the source of each snapshot on hold. A name that the request adds must be that of a snapshot.
pub(super) fn find_holds(question: &Question<'_>, outcome: &mut Outcome) -> Result<Holds, Stop> {
    let mut holds = Holds::default();
    let old = question.request.old.as_ref().filter(|old| was_decided_on(old));
    let stored = old.filter(|old| old.annotation(annotations::HOLD).is_some());
    holds.stored = stored.map(|old| Policy::read(old).0.hold).unwrap_or_default();
    for snapshot in &holds.stored {
        if let Some(source) = question.stored.sources.source_of(snapshot.kind, &snapshot.name) {
            holds.before.insert(source.clone(), snapshot.name.to_string());
        }
    }
    let (mut errors, mut is_unknown) = (Vec::new(), false);
    for snapshot in &question.policy.hold {
        let source = match source_of(question, outcome, snapshot, !holds.stored.contains(snapshot)) {
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
        match holds.now.get(&source) {
            Some(other) => {
                let name = &snapshot.name;
                errors
                    .push(format!("{other:?} and {name:?} are both snapshots of {source}: name one of them"));
            }
            None => holds.now.insert(source, snapshot.name.to_string()),
        }
    }
    match errors {
        _ if is_unknown => Err(Stop::Unknown),
        errors if errors.is_empty() => Ok(holds),
        errors => Err(Stop::Deny(format!("annotation {}: {}", annotations::HOLD, errors.join("; ")))),
    }
}

/// The source of a snapshot on hold. `None`: the hold has no effect, since its snapshot is missing. `is_new`: the request adds the name.
fn source_of(
    question: &Question<'_>,
    outcome: &mut Outcome,
    snapshot: &ObjectName,
    is_new: bool,
) -> Result<Option<ObjectName>, Stop> {
    // Refusing a creation would leave no workload: it may be an export, and its snapshot may be missing.
    let is_created = question.request.old.is_none();
    let known = question.stored.sources.source_of(snapshot.kind, &snapshot.name);
    if let Some(source) = known.filter(|source| *source != snapshot && !is_new) {
        return Ok(Some(source.clone()));
    }
    if question.is_out_of_reach(snapshot) {
        return if is_new {
            Err(Stop::Deny(format!(
                "{snapshot} cannot be held: snapshots of Secrets are disabled in this installation of confrev"
            )))
        } else {
            Ok(None)
        };
    }
    let observed = question.object(snapshot)?;
    let exists = observed.is_some();
    let identity = observed.filter(|observed| observed.is_sound()).and_then(Observed::identity);
    let source = identity.filter(|identity| *identity.source != *snapshot.name);
    if let Some(identity) = source {
        return Ok(Some(ObjectName::new(snapshot.kind, identity.source.as_str())));
    }
    // It is made again for the newest content, which is the same.
    if is_created && !exists && is_of_newest_content(question, snapshot)? {
        return Ok(None);
    }
    let problem = if exists { "is not a snapshot" } else { "does not exist" };
    let namespace = question.request.namespace;
    if is_new && (exists || !is_created) {
        return Err(Stop::Deny(format!(
            "{snapshot} {problem} in namespace {namespace:?}: use names that `kubectl confrev history` lists"
        )));
    }
    outcome.warn(format!(
        "annotation {}: {snapshot} {problem} in namespace {namespace:?}, so it holds nothing",
        annotations::HOLD
    ));
    Ok(None)
}

/// Whether a snapshot is that of the newest content of a source that the template names.
fn is_of_newest_content(question: &Question<'_>, snapshot: &ObjectName) -> Result<bool, Stop> {
    let template = question.request.new.template.as_ref();
    let references = template.map(Template::references).unwrap_or_default();
    let named = references.iter().map(|reference| ObjectName::new(reference.kind, reference.name));
    let stated = question.stated.source_of(snapshot.kind, &snapshot.name).cloned();
    let may_be = |source: &ObjectName| {
        let rest = snapshot.name.strip_prefix(&*source.name).filter(|_| source.kind == snapshot.kind);
        rest.is_some_and(|rest| rest.starts_with('-'))
    };
    for source in named.chain(stated).filter(may_be).collect::<BTreeSet<_>>() {
        let newest = question.object(&source)?;
        if newest.is_some_and(|newest| is_named_after(&snapshot.name, &source.name, &newest.digest())) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Outcome {
    /// What a hold decides about a reference to `source` by the name of `object`: the source itself, or a snapshot.
    pub(super) fn hold_rule(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        object: &ObjectName,
    ) -> Result<HoldRule, Stop> {
        let holds = &question.holds;
        if holds.now.is_empty() && holds.before.is_empty() {
            return Ok(HoldRule::Free);
        }
        let is_snapshot = source != object;
        // The request introduces the name of a snapshot: an undo, a pin or a copy.
        let is_changed = is_snapshot && !question.stored.names.contains(object);
        let Some(held) = holds.now.get(source).cloned() else {
            let ended = holds.has_ended(source) && !is_changed;
            return Ok(if ended { HoldRule::Ended } else { HoldRule::Free });
        };
        self.held.insert(source.clone());
        let was_held = holds.before.get(source) == Some(&held);
        if is_changed && *object.name != held {
            let is_its = |observed: &Observed| observed.is_snapshot_of_source(&source.name);
            if question.policy.holds_undos && was_held && question.object(object)?.is_some_and(is_its) {
                return Ok(HoldRule::Free);
            }
            let why = format!("this request does not change it to {:?}", object.name);
            self.warn_hold_stays(source, &held, &why);
        } else if question.roll.asks_for(source) {
            let why = format!("annotation {} does not change it", annotations::ROLL);
            self.warn_hold_stays(source, &held, &why);
        }
        let snapshot = ObjectName::new(source.kind, held.as_str());
        let is_readable = !question.is_out_of_reach(source);
        match question.stored.seen(source).filter(|_| was_held || !is_readable) {
            // As long as the hold lasts, what the workload has seen stays as it is: a change of the source must not change
            // the answer to an apply.
            Some(seen) => self.state.entry(source).seen = Some(seen),
            None if is_readable => self.mark_seen(question, source)?,
            None => {}
        }
        let required = question.required.get(&(object.kind, &*object.name));
        let known = question.stored.required.get(&(object.kind, held.as_str()));
        let requires_more = required.is_some_and(|keys| known.is_none_or(|known| !keys.is_subset(known)));
        // Newly required keys are looked for in a snapshot that was read.
        if is_readable
            && (requires_more || !question.stored.names.contains(&snapshot))
            && question.object(&snapshot)?.is_some_and(Observed::is_sound)
        {
            self.adopt_new(question, snapshot);
        }
        Ok(HoldRule::Held(held))
    }

    fn warn_hold_stays(&mut self, source: &ObjectName, held: &str, why: &str) {
        let key = annotations::HOLD;
        self.warn(format!(
            "annotation {key}: {source} stays at {held:?}: {why}; remove the annotation to end the hold"
        ));
    }

    /// Records that the request undoes a change of the source, in a workload whose undos become holds.
    pub(super) fn note_undo(
        &mut self,
        question: &Question<'_>,
        source: &ObjectName,
        snapshot: &ObjectName,
    ) -> Result<(), Stop> {
        let policy = question.policy;
        if !policy.holds_undos || !question.request.old.as_ref().is_some_and(was_decided_on) {
            return Ok(());
        }
        let keys = question.keys_read(source, &question.used);
        let (newest, held) = (question.object(source)?, question.object(snapshot)?);
        // The newest content needs no hold: the workload has what it would roll to.
        let is_newest = newest.zip(held).is_some_and(|(newest, held)| {
            held.same_content(newest)
                || keys.is_some_and(|keys| held.same_values(newest, keys.iter().copied()))
        });
        self.undone.insert(source.clone(), (!is_newest).then(|| snapshot.clone()));
        Ok(())
    }

    /// Adds a warning for each snapshot that is newly on hold and to whose source the template does not refer; and, for each
    /// hold that an undo made, how to end it. `by_undo`: undos of this request made the holds.
    pub(super) fn report_holds(&mut self, question: &Question<'_>, by_undo: bool) {
        for (source, held) in question.holds.now.iter() {
            let snapshot = ObjectName::new(source.kind, held.as_str());
            if question.holds.stored.contains(&snapshot) {
                continue;
            }
            if !self.held.contains(source) {
                self.warn(format!(
                    "annotation {}: the template does not refer to {source}, so {held:?} is not held",
                    annotations::HOLD
                ));
            } else if by_undo {
                self.warn(format!(
                    "annotation {}{}: {source} is now held at {held:?}: remove annotation {} to end the hold",
                    annotations::ON_UNDO,
                    question.whose(annotations::ON_UNDO),
                    annotations::HOLD
                ));
            }
        }
    }
}
