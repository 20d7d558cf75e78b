//! Why a workload has not rolled to a pending change: refused, held, too soon after its last roll, or never.
//!
//! Nothing records this. The delay of a workload follows from its own state and that of the others; a refusal follows from dry runs
//! of the controller's own writes. Events are never read: any user may write them.

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admitted,
    analysis::{self, Judged},
    delay::Delay,
    failure::Failure,
    inventory::Inventory,
    objects::{OptedIn, Scope, Snapshot, SourceKey, text},
    target::{Target, is_unanswered},
    world::{self, ReadWorld},
};
use crate::{
    annotations,
    cluster::ApiError,
    gates::{self, About, Answer, Why},
    resolve::{Observed, Plan, Record, Use, Wait, roll_time},
    snapshot::{ObjectName, SourceKind},
    world::{Name, WorkloadKey},
};

/// Why a workload does not move, whatever its source holds.
pub(super) fn of_workload(record: &Record, used: &Use) -> Option<Delay> {
    let why = gates::of_workload::<WorkloadKey>(record, used)?;
    Some(Delay::Shut { reason: why.text(&About::alone(&used.source)), why, run: None })
}

/// Why the workload has not rolled to the present content of a source; `None` if it is about to roll.
pub(super) async fn of(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    present: &Observed,
) -> Result<Option<Delay>, Failure> {
    let is_unresolved_secret = source.kind == SourceKind::Secret
        && workload.record.uses.iter().all(|used| used.source != *source || used.snapshot.is_none());
    if is_unresolved_secret && let Some(delay) = probe(target, workload, Some(source)).await {
        return Ok(Some(delay));
    }
    let name = Name::new(workload.namespace(), source.clone());
    let mut world = inventory.world(target).await;
    // The other namespaces of the group are not read here: there may be many.
    world.enter(target, workload.namespace()).await?;
    world.add_checked(target, &name, present).await;
    let key = world.key(workload);
    if let Some((about, why)) = world.shut(target, &key, source).await? {
        let judged = world.spread(target, &about).await?;
        return Ok(Some(delay(&world, &key, &about.object, judged, why)));
    }
    let group = world.group(workload.namespace()).map(str::to_owned);
    drop(world);
    let refused = match tried(target, workload, None).await {
        Tried::Passes => snapshot_refused(target, inventory, workload, source, present).await,
        Tried::Delayed(delay) => Some(delay),
        Tried::Unknown => None,
    };
    let turn = group.map(|group| {
        // The source of another namespace may have the settings.
        let waits = if present.spread_policy().is_limited() { "waits" } else { "may wait" };
        let see = format!("see kubectl confrev waves {}", source.name);
        let reason = format!("{waits} for its turn in the group {group}, {see}");
        Delay::Shut { why: Why::Others(Wait::Wave), reason, run: None }
    });
    Ok(refused.or(turn))
}

/// Why a workload would not move at once to a content that the source may get, which is the present one in this world; an error: it would
/// not move at all. Unless the content is known, no verdict on it is.
pub(super) async fn of_content(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    (content, is_known): (&Observed, bool),
) -> Result<Result<Option<Delay>, Delay>, Failure> {
    let name = Name::new(workload.namespace(), source.clone());
    let mut world = inventory.world(target).await;
    world.enter(target, workload.namespace()).await?;
    world.add_checked(target, &name, content).await;
    if world::is_in_set(content) {
        world.add_sources_of(target, workload).await?;
    }
    if !is_known {
        world.forget_verdict(&name);
    }
    let key = world.key(workload);
    let spread = world.spread_assumed(&name);
    // No workload has had a content that is not known, and no person has decided about it.
    let is_verdict = |wait: &Wait<WorkloadKey>| matches!(wait, Wait::Bad(_) | Wait::Aborted | Wait::Refused);
    let counts = |wait: &Wait<WorkloadKey>| is_known || !is_verdict(wait);
    let words = |why| delay(&world, &key, source, spread.clone().map(|spread| (spread, None)), why);
    Ok(match world.answer(&key, &name, spread.as_ref(), counts) {
        None | Some(Answer::Open) => Ok(None),
        Some(Answer::Wait(why)) => Ok(Some(words(why))),
        Some(Answer::Refuse(why)) => Err(words(why)),
    })
}

/// Why a workload whose turn it is among the others does not move to the present content of a source; `None`: it may.
pub(super) fn of_next(world: &ReadWorld, key: &WorkloadKey, source: &Name) -> Option<Delay> {
    match world.answer(key, source, None, |_| true)? {
        Answer::Open => None,
        Answer::Wait(why) | Answer::Refuse(why) => Some(delay(world, key, &source.object, None, why)),
    }
}

/// A reason of the gates, with its words. `judged`: how far the change has spread, if anything limits that.
fn delay(
    world: &ReadWorld,
    key: &WorkloadKey,
    source: &ObjectName,
    judged: Option<Judged>,
    why: Why<WorkloadKey>,
) -> Delay {
    let (spread, run) = judged.unzip();
    let name = |other: &WorkloadKey| world.name(&key.namespace, other);
    let has_failed = world.has_failed(key);
    let about = About { source, spread: spread.as_ref(), has_failed, name: &name };
    let is_analysed = matches!(why, Why::Others(Wait::Analysis(_)));
    let run = run.flatten().filter(|_| is_analysed);
    Delay::Shut { reason: why.text(&about), why, run }
}

/// Creates a ConfigMap or Secret like the snapshot that the roll needs, as a dry run: a dry run of the roll creates no snapshot, which a
/// quota may refuse. `None` if it could be created, if it exists, or if the user may not create it.
async fn snapshot_refused(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    present: &Observed,
) -> Option<Delay> {
    let holds = |(key, snapshot): (&SourceKey, &Snapshot)| {
        key.0 == workload.namespace()
            && snapshot.source == *source
            && snapshot.digest.is_some_and(|digest| present.digests().contains(&digest))
    };
    if present.stays_as_written() || inventory.snapshots.iter().any(holds) {
        return None;
    }
    let metadata = match analysis::expected_name(source, present) {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": format!("{}-", source.name)}),
    };
    let mut body = json!({"apiVersion": "v1", "kind": source.kind.as_str(), "metadata": metadata});
    if source.kind == SourceKind::ConfigMap {
        let live: Value = serde_json::from_slice(present.json()).ok()?;
        for field in ["data", "binaryData"] {
            body[field] = live[field].clone();
        }
    }
    let collection = Scope::Namespace(workload.namespace().to_owned()).collection("v1", source.kind.plural());
    let path = format!("{collection}?fieldManager=kubectl-confrev&dryRun=All");
    let api = target.api.quiet();
    let call = api.call("create", Method::POST, path, "application/json", body.to_string().into());
    match call.await {
        Err(error) if error.is_missing_right() => None,
        Err(ApiError::Refused { code: 403 | 413 | 422, message, .. }) => {
            Some(Delay::Refused(format!("the API server refuses its snapshot: {message}")))
        }
        _ => None,
    }
}

/// Makes the controller's write as a dry run, with the rights of the user. `None` if it would succeed, or if the user may not
/// make it. With a Secret, a success shows whether references to it are resolved.
pub(super) async fn probe(target: &Target, workload: &OptedIn, secret: Option<&ObjectName>) -> Option<Delay> {
    match tried(target, workload, secret).await {
        Tried::Delayed(delay) => Some(delay),
        Tried::Passes | Tried::Unknown => None,
    }
}

/// The result of the controller's write as a dry run.
enum Tried {
    /// It would succeed.
    Passes,
    /// It would not, and why.
    Delayed(Delay),
    /// The user may not make it, or it gave no answer.
    Unknown,
}

async fn tried(target: &Target, workload: &OptedIn, secret: Option<&ObjectName>) -> Tried {
    // Admission writes this annotation again, so that its answer differs from that of an API server that did not call confrev.
    let stale = json!({"configmaps": {"confrev-dry-run": "confrev-dry-run-0"}}).to_string();
    let plan = Plan::every(roll_time(Timestamp::now(), workload.record.last_plan), true);
    let mut body = json!({"metadata": {"annotations": {annotations::SOURCES: stale}}});
    for field in workload.kind.template.iter().rev() {
        body = json!({field.clone(): body});
    }
    body["metadata"] = json!({
        "uid": text(&workload.value, "/metadata/uid"),
        "annotations": {annotations::ROLL: plan.to_value()},
    });
    let path = format!("{}?fieldManager=kubectl-confrev&dryRun=All", workload.path());
    let api = target.api.quiet();
    let call =
        api.call("patch", Method::PATCH, path, "application/merge-patch+json", body.to_string().into());
    let delay = match call.await {
        Ok(answer) => {
            let value = serde_json::from_slice::<Value>(&answer).ok();
            let answer = value.and_then(|value| OptedIn::of(target, &workload.kind, value));
            let Some(answer) = answer else { return Tried::Unknown };
            let is_resolved = |secret: &ObjectName| {
                let mut uses = answer.record.uses.iter().filter(|used| used.source == *secret);
                let is_lacking = answer.record.ties.get(secret).is_some_and(|tie| tie.lacking);
                is_lacking || uses.any(|used| used.snapshot.is_some() || used.live)
            };
            if !admitted::is_resolved(&answer) {
                Delay::Unanswered(
                    "the API server does not call confrev, see kubectl confrev check".to_owned(),
                )
            } else if secret.is_some_and(|secret| !is_resolved(secret)) {
                Delay::SecretsOff
            } else {
                return Tried::Passes;
            }
        }
        Err(ApiError::Refused { message, .. }) if is_unanswered(&message) => {
            Delay::Unanswered("confrev does not answer, see kubectl confrev check".to_owned())
        }
        Err(error) if error.is_missing_right() => return Tried::Unknown,
        Err(ApiError::Refused { code, message, .. })
            if code == 429 || code >= 500 || message.contains("failed calling webhook") =>
        {
            Delay::Unanswered(message)
        }
        Err(ApiError::Refused { message, .. }) => Delay::Refused(message),
        Err(_) => return Tried::Unknown,
    };
    Tried::Delayed(delay)
}

/// The turns that `max-in-flight` sets for a change that is not written yet.
pub(super) fn turns(limit: Option<usize>, rolling: usize) -> Option<Delay> {
    let limit = limit.filter(|limit| rolling > *limit)?;
    let verb = if limit == 1 { "workload rolls" } else { "workloads roll" };
    let reason = format!("at most {limit} {verb} at once (max-in-flight)");
    Some(Delay::Shut { why: Why::Others(Wait::Full), reason, run: None })
}
