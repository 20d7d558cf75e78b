//! Why a workload has not rolled to a pending change: refused, held, too soon after its last roll, or never.
//!
//! Nothing records this. The delay of a workload follows from its own state and that of the others; a refusal follows from dry runs
//! of the controller's own writes. Events are never read: any user may write them.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    admitted,
    analysis::{self, JudgingRun},
    delay::Delay,
    failure::Failure,
    gates,
    group::Others,
    inventory::{Inventory, OptedIn, Scope, Snapshot, SourceKey, text},
    target::{Target, is_unanswered},
};
use crate::{
    annotations,
    cluster::ApiError,
    resolve::{
        AnalysisRun, ChangeVerdict, EndedWave, Health, Member, Observed, Plan, Present, Proof,
        RecordedFailure, RollOrder, RunState, Spread, SpreadPolicy, Standing, Use, Wait, Waiting,
        WorkloadView, order_of_namespace, roll_time,
    },
    snapshot::{ObjectName, SourceKind},
};

/// How many workloads a reason names.
const NAMED: usize = 3;

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
    if let Some(delay) = gates::of(target, inventory, workload, source, present, &BTreeMap::new()).await? {
        return Ok(Some(delay));
    }
    // The other namespaces of the group are not read here: there may be many.
    let settings = gates::settings(target, inventory, workload.namespace()).await?;
    let (group, policy) = (settings.group, present.spread_policy());
    let order = settings.order.map(|order| order_of_namespace(workload.namespace(), &order));
    let orders = order.map(|order| (workload.namespace().to_owned(), order)).into_iter().collect();
    let of_namespace = Others { orders, ..Others::default() };
    match turn(inventory, workload, source, (&present.into(), &policy), &of_namespace) {
        None => {}
        Some(Err(refused)) => return Ok(Some(refused)),
        Some(Ok(turn)) => {
            let delay = match &group {
                Some(_) => turn.in_group().delay(source),
                None => turn.analysed(target, inventory, (source, present)).await?,
            };
            if delay.is_some() {
                return Ok(delay);
            }
        }
    }
    // The controller asks in this order, too.
    if let Some(delay) = interval(workload, inventory.now()) {
        return Ok(Some(delay));
    }
    let refused = match tried(target, workload, None).await {
        Tried::Passes => snapshot_refused(target, inventory, workload, source, present).await,
        Tried::Delayed(delay) => Some(delay),
        Tried::Unknown => None,
    };
    let turn = group.filter(|_| policy.is_limited()).map(|group| {
        let see = format!("see kubectl confrev waves {}", source.name);
        Delay::Held(format!("waits for its turn in the group {group}, {see}"))
    });
    Ok(refused.or(turn))
}

/// The time that remains of the workload's `min-interval`.
pub(super) fn interval(workload: &OptedIn, now: Timestamp) -> Option<Delay> {
    workload.record.interval_left(now).map(Delay::Interval)
}

/// Why other workloads would hold this one from a content that the source may get.
pub(super) fn would_be_held(
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    of: (&Present, &SpreadPolicy),
) -> Option<Delay> {
    match turn(inventory, workload, source, of, &Others::default())? {
        Err(refused) => Some(refused),
        Ok(turn) => Turn { spread: turn.spread.analysed(analysis::assumed), ..turn }.delay(source),
    }
}

/// The turn of a workload among the others, as the controller counts them.
struct Turn<'w> {
    workload: &'w OptedIn,
    place: RollOrder,
    /// The workload has the content already.
    has_seen: bool,
    spread: Spread<String>,
    /// The AnalysisRun of the wave that ended.
    run: Option<JudgingRun>,
    /// The others of its group were not read.
    is_in_group: bool,
}

/// The turn of a workload that waits for a content. An error: the content is refused. `None`: the source lets it roll at once.
fn turn<'w>(
    inventory: &Inventory,
    workload: &'w OptedIn,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
    others: &Others,
) -> Option<Result<Turn<'w>, Delay>> {
    if !policy.is_limited() {
        return None;
    }
    let Standing::Waits(Waiting { place }) = standing(inventory, workload, source, (content, policy)) else {
        return None;
    };
    // A change of the mode alone, which no verdict on the content stops.
    let has_seen = workload.record.has_seen(source, &content.digests);
    let refused = refused(inventory, workload.namespace(), source, (content, policy));
    if let Some((snapshot, failed)) = refused.filter(|_| !has_seen) {
        return Some(Err(Delay::Refused(format!("{snapshot} was refused: {}", failed.reason))));
    }
    let spread = spread(inventory, workload.namespace(), source, (content, policy), others);
    Some(Ok(Turn { workload, place, has_seen, spread, run: None, is_in_group: false }))
}

impl Turn<'_> {
    /// The same in a group, whose other namespaces were not read: they decide about the order, and about the analysis.
    fn in_group(self) -> Self {
        Self { is_in_group: true, ..self }
    }

    /// Why it has not come, with the AnalysisRun that decides about it.
    async fn analysed(
        self,
        target: &Target,
        inventory: &Inventory,
        (source, present): (&ObjectName, &Observed),
    ) -> Result<Option<Delay>, Failure> {
        let (of, others) = ((self.workload.namespace(), present), Others::default());
        let (spread, run) = analysis::apply(target, inventory, source, of, &others, self.spread).await?;
        Ok(Self { spread, run, ..self }.delay(source))
    }

    /// Why it has not come; `None`: the workload may roll.
    fn delay(&self, source: &ObjectName) -> Option<Delay> {
        let has_failed = self.workload.record.health == Health::Failed;
        let wait = self.spread.wait(has_failed, self.place)?;
        let rolling: Vec<_> = self.spread.rolling(has_failed).cloned().collect();
        let described = |wait| describe(source, &self.spread, wait);
        Some(match (wait, &self.run) {
            (Wait::Turn | Wait::Analysis(_), _) if self.is_in_group => return None,
            (Wait::Bad(_) | Wait::Aborted | Wait::Refused, _) if self.has_seen => return None,
            (Wait::Full, _) => Delay::Held(format!("held by {}", listed(&rolling, NAMED))),
            (wait @ (Wait::Aborted | Wait::Invalid(_)), _) => Delay::Stopped(described(wait)),
            (wait @ Wait::Analysis(_), Some(run)) => {
                Delay::Analysed { reason: described(wait), run: run.clone() }
            }
            (other, _) => Delay::Held(described(other)),
        })
    }
}

/// Why workloads wait for their turn.
pub(super) fn describe(source: &ObjectName, spread: &Spread<String>, wait: Wait<String>) -> String {
    let wave = spread.progress().map(|progress| format!("wave {} of {}", progress.wave, progress.waves));
    let wave = wave.unwrap_or_default();
    let unhealthy = spread.progress().map_or(&[][..], |progress| &progress.unhealthy);
    match wait {
        Wait::Full => "held by workloads that are rolling (max-in-flight)".to_owned(),
        Wait::Bad(Proof::Workload { workload, rolled_back }) => {
            let by = workload.as_deref().unwrap_or("a workload of another namespace of the group");
            let how = if rolled_back { "was put back from" } else { "failed with" };
            format!("held by {by}, which {how} the change")
        }
        Wait::Bad(Proof::Verdict(reason)) => {
            let kind = source.kind.as_str().to_lowercase();
            format!("held: {reason}; to continue, run kubectl confrev waves retry {kind}/{}", source.name)
        }
        Wait::Invalid(why) => format!("held by the settings of {source}: {why}"),
        Wait::Refused => format!("refused, see kubectl confrev history {}", source.name),
        Wait::Aborted => {
            let kind = source.kind.as_str().to_lowercase();
            format!("aborted; to continue, run kubectl confrev waves retry {kind}/{}", source.name)
        }
        Wait::Unproven => format!("{wave}: held by {}, not healthy yet", listed(unhealthy, NAMED)),
        Wait::Bake(until) => format!("{wave}: bakes until {until:.0}"),
        Wait::Turn => format!("{wave}: others come first"),
        Wait::Analysis(run) if spread.ended().is_some_and(EndedWave::is_start) => {
            format!("{wave}: held by the analysis, which {}", run.state)
        }
        Wait::Analysis(run) if run.name.is_empty() => {
            format!("{wave}: waits for the analysis of the previous wave")
        }
        Wait::Analysis(AnalysisRun { name, state: state @ (RunState::Unknown | RunState::Running) }) => {
            format!("{wave}: waits for AnalysisRun {name}, which {state}")
        }
        Wait::Analysis(AnalysisRun { name, state }) => {
            format!("{wave}: held by AnalysisRun {name}, which {state}")
        }
    }
}

/// The first of these names, and the number of the others.
pub(super) fn listed(names: &[String], named: usize) -> String {
    let (named, more) = names.split_at(names.len().min(named));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}

/// How far a change of a source has spread, as the controller derives it. `others`: the same change in other namespaces.
pub(super) fn spread(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
    others: &Others,
) -> Spread<String> {
    let users = standings(inventory, namespace, source, (content, policy), others);
    spread_over(&users, inventory, namespace, source, (content, policy), others)
}

/// The same, from the states of the workloads, as [`standings`] returns them.
pub(super) fn spread_over(
    users: &[(String, Standing)],
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
    others: &Others,
) -> Spread<String> {
    let mut verdicts = Vec::new();
    let mut strictest = policy.clone();
    for (of, content, policy) in one_change(namespace, (content, policy), others) {
        let stored = inventory.judged(of, source, &content.digests).map(|(_, snapshot)| snapshot.verdict());
        let verdict = policy.verdict(source, &content.digests, stored);
        verdicts.push(if of == namespace { verdict } else { verdict.from_elsewhere() });
        if !strictest.has_settings_of(&policy) {
            strictest = strictest.strictest(&policy);
        }
    }
    if let Some(why) = others.invalid_order(namespace, inventory, source).filter(|_| strictest.is_ordered()) {
        strictest = strictest.but_invalid(why);
    }
    let members =
        users.iter().map(|(workload, standing)| Member { workload, standing: *standing, is_rolling: false });
    let verdict = verdicts.into_iter().reduce(ChangeVerdict::strictest).unwrap_or_default();
    Spread::of(&strictest, verdict, inventory.now(), members)
}

/// The namespaces of a change, each with the content and the policy of its source.
fn one_change<'c>(
    namespace: &'c str,
    (content, policy): (&Present, &SpreadPolicy),
    others: &'c Others,
) -> impl Iterator<Item = (&'c str, Present, SpreadPolicy)> {
    let present = others
        .present()
        .map(|(namespace, present)| (namespace, Present::from(present), present.spread_policy()));
    std::iter::once((namespace, content.clone(), policy.clone())).chain(present)
}

/// The state of each workload in the namespaces of a change. Those of other namespaces are named with their namespace.
pub(super) fn standings(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    of: (&Present, &SpreadPolicy),
    others: &Others,
) -> Vec<(String, Standing)> {
    let mut all = Vec::new();
    for (of, content, policy) in one_change(namespace, of, others) {
        let in_it = inventory.workloads.iter().filter(|workload| workload.namespace() == of);
        all.extend(in_it.map(|workload| {
            let prefix = if of == namespace { String::new() } else { format!("{of}/") };
            (prefix + &workload.reference(), standing(inventory, workload, source, (&content, &policy)))
        }));
    }
    all
}

/// The refusal of a content, with the refused snapshot.
pub(super) fn refused(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
) -> Option<(String, RecordedFailure)> {
    let (name, snapshot) =
        inventory.judged(namespace, source, &content.digests).filter(|_| policy.reverts)?;
    Some((name.to_owned(), snapshot.verdict()?.failed?))
}

/// The state of a workload towards a content of a source.
fn standing(
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
) -> Standing {
    let view = WorkloadView {
        kind: &workload.kind,
        path: [workload.namespace(), workload.name()],
        namespace_order: inventory.orders.get(workload.namespace()).copied(),
        health: workload.record.health,
        source,
        present: content,
        set: policy.set.as_deref(),
    };
    workload.record.standing(&view, |used: &Use| inventory.held_digest(workload, used))
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
            let answer = value.and_then(|value| OptedIn::read(&workload.kind, value, &target.rotated));
            let Some(answer) = answer else { return Tried::Unknown };
            let is_resolved = |secret: &ObjectName| {
                let mut uses = answer.record.uses.iter().filter(|used| used.source == *secret);
                uses.any(|used| used.snapshot.is_some() || used.live)
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

/// The delay of a roll to a change that is not written yet: the interval, or the turns that `max-in-flight` sets.
pub(super) fn of_change(
    workload: &OptedIn,
    limit: Option<usize>,
    rolling: usize,
    now: Timestamp,
) -> Option<String> {
    let interval = interval(workload, now).map(|delay| delay.to_string());
    let turns = limit.filter(|limit| rolling > *limit).map(|limit| {
        let verb = if limit == 1 { "workload rolls" } else { "workloads roll" };
        format!("at most {limit} {verb} at once (max-in-flight)")
    });
    let both: Vec<_> = interval.into_iter().chain(turns).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn delays_are_printed_as_reasons() {
        let left = |millis| Delay::Interval(SignedDuration::from_millis(millis)).to_string();
        assert_eq!(
            (left(40_200), left(200)),
            ("min-interval, 40 s left".to_owned(), "min-interval, 1 s left".to_owned())
        );
    }
}
