//! The rule for a snapshot that this request put there (an undo, a pin or a copy): it stays.

use super::{
    by_name, outcome::Outcome, question::Question, resolved::ResolvedReference, seen::Seen, stop::Stop,
};
use crate::{
    resolve::Observed,
    snapshot::{ObjectName, is_named_after, may_be_generated},
    template::Reference,
};

pub(super) fn resolve(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: ObjectName,
    object: &ObjectName,
    reference: &Reference<'_>,
) -> Result<ResolvedReference, Stop> {
    if question.is_out_of_reach(object) {
        return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
    }
    if !question.holds.has_ended(&source)
        && let Some(kept) = outcome.returns_to(question, &source, object)?
    {
        outcome.keep_waiting(question, &source, Some(&kept))?;
        return Ok(ResolvedReference::Snapshot { source, name: kept });
    }
    let chosen = question.object(object)?;
    let newest = question.object(&source)?;
    if let Some(chosen) = chosen {
        record_choice(question, outcome, &source, object, chosen, newest)?;
        return Ok(ResolvedReference::Snapshot { source, name: object.name.to_string() });
    }
    // The name of the newest content's snapshot comes from this same decision: a dry run creates no snapshot, and is
    // reviewed again.
    let of_newest = newest.is_some_and(|newest| is_named_after(&object.name, &source.name, &newest.digest()));
    // Nor does a name move it to a content that is refused.
    let is_refused = of_newest && !question.roll.is_forced(&source) && question.refused(&source)?.is_some();
    if of_newest && !is_refused {
        let name = outcome.newest_content(question, &source, None)?;
        return Ok(ResolvedReference::Snapshot { source, name });
    }
    // The snapshot of a live revision may be made again. A name that a tool generated is that of a ConfigMap that comes later.
    let is_stated = question.stated.source_of(object.kind, &object.name).is_some();
    let may_come_later = newest.is_none() && !is_stated && may_be_generated(&object.name);
    if may_come_later || question.is_undo()? {
        return Ok(ResolvedReference::Unresolved(object.clone()));
    }
    // A template from an export, another namespace or another cluster names snapshots that do not exist here.
    by_name::resolve(question, outcome, source, reference)
}

/// Records that the request chooses a snapshot of the source, which exists.
fn record_choice(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: &ObjectName,
    object: &ObjectName,
    chosen: &Observed,
    newest: Option<&Observed>,
) -> Result<(), Stop> {
    outcome.warn_listed(question, source, object)?;
    if !question.stays_as_written(source)? && !outcome.chooses_beside_refused(question, source, object)? {
        let is_other = newest.is_some_and(|newest| !chosen.same_content(newest));
        let is_behind = is_other && question.is_seen(source)? == Seen::No;
        outcome.mark_seen(question, source)?;
        outcome.mark_pinned(question, source, object)?;
        outcome.state.entry(source).unused |= is_behind;
        outcome.note_undo(question, source, object)?;
    }
    if chosen.is_sound() {
        outcome.adopt.insert(object.clone());
    }
    Ok(())
}
