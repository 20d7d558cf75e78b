//! The rules of the design in their order: the first one that applies decides a reference.

use super::{
    by_name, changed,
    hold::HoldRule,
    outcome::Outcome,
    question::Question,
    resolved::{ResolvedReference, written},
    stop::Stop,
    unchanged,
};
use crate::{resolve::plan::Planned, snapshot::ObjectName, template::Reference};

/// Resolves a reference.
pub(super) fn resolve_reference(
    question: &Question<'_>,
    outcome: &mut Outcome,
    reference: &Reference<'_>,
) -> Result<ResolvedReference, Stop> {
    let object = ObjectName::new(reference.kind, reference.name);
    let of = match question.source_of(&object) {
        Err(stop) => {
            question.expect_newest(object, None);
            return Err(stop);
        }
        Ok(of) => of,
    };
    let named = of.clone().unwrap_or_else(|| object.clone());
    let planned = question.planned(&named, &object);
    if planned.is_err() {
        question.expect_newest(named.clone(), of.is_some().then(|| object.name.to_string()));
    }
    let is_chosen = is_chosen(question, &named);
    let planned = if is_chosen { Planned::Free } else { planned? };
    let (of, object) = match &planned {
        Planned::To(snapshot) => (Some(named), snapshot.clone()),
        Planned::Free | Planned::Stays | Planned::Moves => (of, object),
    };
    match outcome.hold_rule(question, of.as_ref().unwrap_or(&object), &object)? {
        HoldRule::Held(name) => {
            return Ok(ResolvedReference::Snapshot { source: of.unwrap_or(object), name });
        }
        HoldRule::Ended => return by_name::resolve(question, outcome, of.unwrap_or(object), reference),
        HoldRule::Free => {}
    }
    if matches!(planned, Planned::Stays) {
        return stay(question, outcome, of.as_ref(), &object);
    }
    let Some(source) = of else { return by_name::resolve(question, outcome, object, reference) };
    // A snapshot that the user names stays, whatever the mode of its source. It must be listed in order to be bound.
    let is_changed =
        !question.stored.names.contains(&object) || is_chosen || matches!(planned, Planned::To(_));
    if is_changed || question.is_dangling(&object)? {
        return changed::resolve(question, outcome, source, &object, reference);
    }
    let stays = question.stays_as_written(&source);
    if stays.is_err() && question.roll.is_poke {
        question.expect_newest(source.clone(), Some(object.name.to_string()));
    }
    if stays? {
        // A reference that confrev rewrote returns to the source's name; only the sources of such references are in `seen`. A
        // snapshot that the user named stays.
        if question.roll.asks_for(&source) || question.stored.seen(&source).is_some() {
            outcome.enter_live(question, &source, &object.name)?;
            return Ok(written(question, source));
        }
        return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
    }
    let name = unchanged::resolve(question, outcome, &source, &object)?;
    Ok(ResolvedReference::Snapshot { source, name })
}

/// Whether an undo or a pin that confrev did not answer keeps the snapshot of a source. A person may ask for another one since.
fn is_chosen(question: &Question<'_>, source: &ObjectName) -> bool {
    let roll = &question.roll;
    let is_asked = roll.plan.as_ref().map_or(roll.is_new, |plan| !plan.is_automatic);
    question.request.carried.chosen.contains(source) && !is_asked
}

/// A reference that a plan leaves as it is stored, resolved or not. If a write that confrev did not answer named its source, it has not taken
/// the newest content into account.
fn stay(
    question: &Question<'_>,
    outcome: &mut Outcome,
    of: Option<&ObjectName>,
    object: &ObjectName,
) -> Result<ResolvedReference, Stop> {
    let source = of.unwrap_or(object).clone();
    if of.is_some() && question.request.carried.kept.contains(&source) {
        outcome.mark_kept(question, &source, &object.name)?;
    } else {
        outcome.keep_seen(question, &source);
    }
    if let Some(live) = question.stored.live.get(&source).filter(|_| of.is_none()) {
        outcome.live.insert(source.clone(), *live);
    }
    // A source that is bound itself is its own snapshot.
    let is_bound = question.stored.sources.get(object).is_some_and(|name| **name == *object.name);
    if of.is_none() && !is_bound {
        return Ok(ResolvedReference::Source(source));
    }
    Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() })
}
