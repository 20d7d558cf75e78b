//! Detects an undo: a request that restores the template of a live revision.
//!
//! References alone do not show every undo. The revision may name the same snapshots as the stored template; and
//! `kubectl rollout undo` of a Deployment replaces the workload's annotations by those of the old ReplicaSet too.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Facts, Need, Request, Workload,
    bare::bare,
    plan::auto_roll_time,
    revisions::{Past, RevisionsOf, digest, settings},
};
use crate::{
    annotations,
    kinds::{REVISION_KINDS, WorkloadKind},
    snapshot::Digest,
    uid::Uid,
};

/// Annotations that `kubectl rollout undo` leaves alone. Other writes that remove annotations change them: `kubectl apply`
/// records what it applied, and `kubectl replace` drops the Deployment controller's number.
const UNTOUCHED: [&str; 2] = [annotations::LAST_APPLIED, "deployment.kubernetes.io/revision"];

/// Annotations that each admission writes again, so that an undo cannot restore a stale value.
const WRITTEN: [&str; 2] = [annotations::STATE, annotations::ENABLED_BY];

/// The settings that an undo must not change: every annotation of confrev's that an admission does not write again.
pub(super) fn kept_settings<'a>(workload: &'a Workload<'_>) -> BTreeMap<&'a str, &'a str> {
    let mut kept = settings(workload.annotations());
    kept.retain(|key, _| !WRITTEN.contains(key));
    kept
}

/// Whether the request restores a live revision's annotations as well as its template. `Err`: the fact to read first.
pub(super) fn replaces_settings(request: &Request<'_>, facts: &Facts) -> Result<bool, Need> {
    let Some(old) = &request.old else { return Ok(false) };
    let is_untouched = |key: &&str| request.new.annotation(key) == old.annotation(key);
    if !UNTOUCHED.iter().all(is_untouched) || kept_settings(&request.new) == kept_settings(old) {
        return Ok(false);
    }
    let wanted = digest(request.new.annotations());
    Ok(past(request, facts)?.any(|past| past.settings == wanted))
}

/// Whether the request restores the template of a live revision. `Err`: the fact to read first.
pub(super) fn is_undo(request: &Request<'_>, facts: &Facts) -> Result<bool, Need> {
    Ok(past(request, facts)?.next().is_some())
}

/// Whether `roll` has a newer value written by confrev than the stored one, which no undo restores. A stored value that a user
/// wrote has no time, so an undo may restore any value in its place.
fn is_own_poke(new: &Workload<'_>, old: &Workload<'_>) -> bool {
    let [new, old] =
        [new, old].map(|workload| workload.annotation(annotations::ROLL).and_then(auto_roll_time));
    new.zip(old).is_some_and(|(new, old)| new > old)
}

/// The workload's live revisions that have the requested template; none if the stored workload has that template already.
fn past<'f>(
    request: &Request<'_>,
    facts: &'f Facts,
) -> Result<impl Iterator<Item = &'f Past> + use<'f>, Need> {
    let (revisions, template) = match candidate(request) {
        None => (&[][..], None),
        Some((of, template)) => match facts.revisions() {
            None => return Err(Need::Revisions(of)),
            Some(revisions) => (revisions, Some(template)),
        },
    };
    let workload = request.old.as_ref().map(|old| Uid::from(old.uid()));
    Ok(revisions.iter().filter(move |past| Some(past.template) == template && past.workload == workload))
}

/// The revisions that may have the requested template, and the template's digest. `None`: the request is not an undo, since
/// the template is the stored one, or names sources in place of their snapshots, or since the controller rolls the workload. Its roll may
/// lead to the template of a revision, too, when it returns from refused content or to content that is back.
fn candidate(request: &Request<'_>) -> Option<(RevisionsOf, Digest)> {
    let old = request.old.as_ref()?;
    let new = &request.new;
    if is_own_poke(new, old) {
        return None;
    }
    let kind = revision_kind(new.kind)?;
    let template = new.template.as_ref()?;
    let references = template.references();
    let names: BTreeSet<_> = references.iter().map(|reference| reference.name).collect();
    if !new.sources().iter().all(|(_, snapshot)| names.contains(snapshot.as_str())) {
        return None;
    }
    let labels: Vec<_> = template.labels()?.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let is_label =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    if labels.is_empty() || !labels.iter().all(|(key, value)| is_label(key) && is_label(value)) {
        return None;
    }
    let path = &new.kind.template;
    let digest = bare(new.text()?, path, |_| None)?;
    (bare(old.text()?, path, |_| None) != Some(digest)).then_some((RevisionsOf { kind, labels }, digest))
}

/// The kind of the workload's revisions; `None` if an undo cannot restore them.
fn revision_kind(kind: &WorkloadKind) -> Option<usize> {
    let of = match kind.kind.as_str() {
        "Deployment" | "Rollout" => "ReplicaSet",
        "CronJob" | "Job" => return None,
        _ => "ControllerRevision",
    };
    REVISION_KINDS.iter().position(|revision| revision.kind == of)
}
