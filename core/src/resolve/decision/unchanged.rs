//! The rule for a snapshot that this request left in place: it moves if a person asks for it, or if a roll is pending.

use super::{outcome::Outcome, question::Question, seen::Seen, stop::Stop};
use crate::{resolve::Observed, snapshot::ObjectName};

/// The name of the snapshot to which the reference resolves.
pub(super) fn resolve(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: &ObjectName,
    object: &ObjectName,
) -> Result<String, Stop> {
    let kept = object.name.to_string();
    let lacks_keys = lacks_new_keys(question, source, object)?;
    if question.object(source)?.is_none() {
        outcome.warn_source_is_missing(source, &kept);
        outcome.keep_seen_or_mark(question, source, object)?;
        return Ok(kept);
    }
    if !question.roll.is_forced(source)
        && let Some(refused) = question.refused(source)?
    {
        return outcome.without_refused(question, source, Some(&kept), &refused);
    }
    let seen = if question.policy.track { question.is_seen(source)? } else { Seen::Yes };
    // The controller knows more than this request shows, and writes `roll` only if it found a difference.
    let is_pending = match seen {
        Seen::Yes | Seen::Alike => false,
        Seen::No => true,
        Seen::Rejected | Seen::Unknown => question.roll.is_poke,
    };
    let is_applied = is_applied(question, source, object);
    if question.roll.asks_for(source) || lacks_keys {
        return outcome.newest_content(question, source, Some(&kept));
    }
    if is_pending || is_applied {
        // A change of keys that the workload does not read leaves an undo or a pin alone.
        // What cannot be determined ends no undo.
        let keeps_pin =
            is_pending && !is_applied && (seen == Seen::Rejected || question.reads_what_is_pinned(source)?);
        if keeps_pin || (is_pending && question.is_undo()?) {
            keep_choice(question, outcome, source, object, keeps_pin, seen)?;
            return Ok(kept);
        }
        if outcome.waits_at_a_gate(question, source, &kept, is_applied)? {
            return Ok(kept);
        }
        if !is_applied && question.is_left_to_controller(source)? {
            outcome.keep_waiting(question, source, Some(&kept))?;
            return Ok(kept);
        }
        return outcome.newest_content(question, source, Some(&kept));
    }
    // A change that a workload misses while it does not track is pending when it tracks again. A pin of another reference
    // to the source marks the change as seen; otherwise the pin would end then.
    if outcome.seen(source).is_none() {
        if seen == Seen::Alike {
            outcome.mark_seen(question, source)?;
        } else {
            outcome.keep_seen(question, source);
        }
    }
    outcome.keep_pinned(question, source, object)?;
    Ok(kept)
}

/// Keeps the snapshot that an undo or a pin chose, although a change is pending. `keeps_pin`: an earlier request chose it.
fn keep_choice(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: &ObjectName,
    object: &ObjectName,
    keeps_pin: bool,
    seen: Seen,
) -> Result<(), Stop> {
    if question.policy.holds_undos && question.is_undo()? {
        outcome.note_undo(question, source, object)?;
    }
    if !keeps_pin && question.object(source)?.is_some_and(Observed::is_limited) {
        // The workload never had the content, so the undo is no verdict on it: the workload stays behind.
        return outcome.keep_waiting(question, source, Some(&object.name));
    }
    outcome.mark_seen(question, source)?;
    outcome.mark_pinned(question, source, object)?;
    // Nor is it one on the change of a group, of which other sources have settings.
    outcome.state.entry(source).unused |= !keeps_pin && seen == Seen::No;
    Ok(())
}

/// Whether the request begins to require keys that this snapshot lacks and the newest content has. Pods of the
/// new template would not start with the snapshot.
fn lacks_new_keys(question: &Question<'_>, source: &ObjectName, object: &ObjectName) -> Result<bool, Stop> {
    let key = (object.kind, &*object.name);
    let Some(required) = question.required.get(&key) else { return Ok(false) };
    let stored = question.stored.required.get(&key);
    let is_new = |key: &&&str| stored.is_none_or(|stored| !stored.contains(**key));
    let new: Vec<&str> = required.iter().filter(is_new).copied().collect();
    if new.is_empty() {
        return Ok(false);
    }
    let (kept, newest) = (question.object(object)?, question.object(source)?);
    let has_all = |content: Option<&Observed>| {
        content.is_some_and(|content| new.iter().all(|key| content.has_key(key)))
    };
    Ok(!has_all(kept) && has_all(newest))
}

/// Whether the request names the source beside this snapshot, which was its only one: an apply that sends only the lists
/// that changed. All references then move together; otherwise a pod would read two contents of one source.
fn is_applied(question: &Question<'_>, source: &ObjectName, snapshot: &ObjectName) -> bool {
    let kept = question.stored.sources.get(source);
    kept.is_some_and(|kept| **kept == *snapshot.name) && question.used.has_name(source)
}
