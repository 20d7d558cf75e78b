//! The rule for a reference by the name of its source: it resolves to the source's newest content.

use super::{
    outcome::Outcome,
    question::Question,
    resolved::{ResolvedReference, written},
    stop::Stop,
};
use crate::{snapshot::ObjectName, template::Reference};

pub(super) fn resolve(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: ObjectName,
    reference: &Reference<'_>,
) -> Result<ResolvedReference, Stop> {
    if question.stays_as_written(&source)? {
        outcome.enter_live(question, &source, &source.name)?;
        return Ok(written(question, source));
    }
    let is_own = |kept: &&String| ***kept == *source.name && question.known(&source).is_some();
    let kept = question.stored.sources.get(&source).filter(|kept| !is_own(kept)).cloned();
    if question.object(&source)?.is_none() {
        return without_source(question, outcome, source, kept, reference);
    }
    if !question.roll.is_forced(&source)
        && let Some(refused) = question.refused(&source)?
    {
        if kept.is_none() && question.stays_beside(&refused, &source) {
            return Ok(written(question, source));
        }
        let name = outcome.without_refused(question, &source, kept.as_deref(), &refused)?;
        return Ok(ResolvedReference::Snapshot { source, name });
    }
    if let Some(kept) = &kept
        && !question.holds.has_ended(&source)
        && outcome.waits_at_a_gate(question, &source, kept, true)?
    {
        return Ok(ResolvedReference::Snapshot { source, name: kept.clone() });
    }
    if kept.is_none() {
        if outcome.lacks_required_key(question, &source, reference)? {
            return Ok(ResolvedReference::Source(source));
        }
        outcome.warn_mixed_set(question, &source)?;
    }
    let name = outcome.newest_content(question, &source, kept.as_deref())?;
    Ok(ResolvedReference::Snapshot { source, name })
}

/// The source does not exist: the workload keeps its snapshot.
fn without_source(
    question: &Question<'_>,
    outcome: &mut Outcome,
    source: ObjectName,
    kept: Option<String>,
    reference: &Reference<'_>,
) -> Result<ResolvedReference, Stop> {
    let Some(name) = kept else {
        outcome.keep_live(question, &source);
        return Ok(ResolvedReference::Unresolved(source));
    };
    if !reference.optional {
        outcome.warn_source_is_missing(&source, &name);
    }
    outcome.mark_kept(question, &source, &name)?;
    Ok(ResolvedReference::Snapshot { source, name })
}
