//! `/mutate/configmaps` and `/mutate/secrets`: a version of a source is snapshotted before it is stored, so that none is lost.

use super::{Answer, Context, DECISION_LIMIT, Review};
use crate::{
    cluster::Api,
    controller::{Name, ensure},
    names,
    resolve::{Observed, is_reserved, parse_keep, parse_max_in_flight},
    snapshot::{Digest, ObjectName, SourceKind, snapshot_name},
    telemetry::metrics::Limit,
};

/// How many workloads a warning names.
const NAMED: usize = 3;

/// Snapshots the content that is about to be stored. It never refuses: what fails here, the controller makes up for.
pub(super) async fn mutate<A: Api>(context: &Context<A>, kind: SourceKind, review: &Review<'_>) -> Answer {
    if review.is_deletion() {
        return keep_bound(context, kind, review).await;
    }
    let is_named = !review.name().is_empty() && !review.namespace().is_empty();
    let Some(object) = review.object().filter(|_| review.is_write() && is_named) else {
        return Answer::allowed();
    };
    let source = Name::new(review.namespace(), ObjectName::new(kind, review.name()));
    if is_reserved(&source.object) || (kind == SourceKind::Secret && !context.secrets) {
        return Answer::allowed();
    }
    let used = context.shared.is_snapshotted(&source);
    // The common case: nothing opted-in uses it, and only a label could ask for more.
    if !used && !object.contains(names::ENABLED) {
        return Answer::allowed();
    }
    // What cannot be read, the API server itself refuses, and says why.
    let Ok(observed) = Observed::read(kind, object.as_bytes()) else {
        return Answer::allowed();
    };
    let odd = observed.enabled().filter(|value| !matches!(*value, "true" | "false" | "bind"));
    let odd = odd.map(|value| {
        let key = names::ENABLED;
        format!("label {key}: {value:?} means nothing, use \"true\", \"false\" or \"bind\"")
    });
    let wanted = used || odd.is_some() || observed.enabled() == Some("true");
    if !wanted || observed.identity().is_some() || observed.stays_as_written() {
        return Answer::allowed();
    }
    let mut warnings: Vec<_> = odd.into_iter().collect();
    if !used && !warnings.is_empty() {
        return Answer::allowed().with_warnings(warnings);
    }
    if parse_keep(observed.annotation(names::KEEP).as_deref()).is_none() {
        warnings
            .push(format!("annotation {}: not a count from 0 to 1000, so the default holds", names::KEEP));
    }
    let max = observed.annotation(names::MAX_IN_FLIGHT);
    if max.is_some_and(|text| parse_max_in_flight(&text).is_none()) {
        warnings.push(format!(
            "annotation {}: not a count of at least 1, so nothing is held",
            names::MAX_IN_FLIGHT
        ));
    }
    if is_new_content(kind, review, &observed.digest()) {
        let name = snapshot_name(review.name(), &observed.digest(), crate::snapshot::DIGITS[0]);
        warnings.extend(rolls(context, &source, &observed.digest(), &name));
        let count = context.shared.snapshot_count(&source);
        if count >= context.limits.snapshots {
            context.metrics.limit_reached(Limit::Snapshots, 1);
            warnings.push(format!(
                "confrev: there are {count} snapshots of it (--max-snapshots): this version has one once a workload takes it"
            ));
        } else if !review.dry_run() {
            warnings.extend(take(context, &source, &observed).await);
        }
    }
    Answer::allowed().with_warnings(warnings)
}

/// An object that is bound itself and still in use is copied before it goes: the controller then makes it again under its
/// own name, and old pods keep starting, whatever the tool does that deletes it.
async fn keep_bound<A: Api>(context: &Context<A>, kind: SourceKind, review: &Review<'_>) -> Answer {
    let source = Name::new(review.namespace(), ObjectName::new(kind, review.name()));
    let Some(object) = review.deleted_object().filter(|_| !review.dry_run()) else {
        return Answer::allowed();
    };
    if !context.shared.lock().is_in_use(&source) {
        return Answer::allowed();
    }
    match Observed::read(kind, object.as_bytes()) {
        Ok(observed) if observed.is_bound_itself() && observed.identity().is_none() => {
            context.shared.remember(&source, &observed);
            Answer::allowed().with_warnings(take(context, &source, &observed).await.into_iter().collect())
        }
        _ => Answer::allowed(),
    }
}

/// Whether the write changes the content at all.
fn is_new_content(kind: SourceKind, review: &Review<'_>, digest: &Digest) -> bool {
    let Some(old) = review.old_object() else { return true };
    Observed::read(kind, old.as_bytes()).is_ok_and(|old| old.digest() != *digest)
}

/// Takes the snapshot. Answers with a warning where that failed.
async fn take<A: Api>(context: &Context<A>, source: &Name, observed: &Observed) -> Option<String> {
    let error = match tokio::time::timeout(DECISION_LIMIT, ensure(&context.api, source, observed)).await {
        Ok(Ok(_)) => return None,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", DECISION_LIMIT.as_secs()),
    };
    tracing::warn!(%source, error, "no snapshot was taken at admission: the controller makes up for it");
    Some("confrev could not snapshot this version yet, and tries again after it is stored".to_owned())
}

/// One line on what follows; none where nothing does.
fn rolls<A: Api>(context: &Context<A>, source: &Name, digest: &Digest, snapshot: &str) -> Option<String> {
    let state = context.shared.lock();
    let mut workloads: Vec<_> = state
        .workloads_using(source)
        .filter(|(_, record)| record.track && record.seen.get(&source.object) != Some(digest))
        .map(|(key, _)| state.display_short(key))
        .collect();
    workloads.sort();
    let (named, more) = workloads.split_at(workloads.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!named.is_empty())
        .then(|| format!("confrev: snapshot {snapshot}, taken up by {}{more}", named.join(", ")))
}
