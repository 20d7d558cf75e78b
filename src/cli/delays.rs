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
    gates::{self, Question},
    group::Others,
    inventory::{Inventory, OptedIn, Scope, Snapshot, SourceKey, text},
    target::{Target, is_unanswered},
};
use crate::{
    annotations,
    cluster::ApiError,
    gates::{About, Answer, Why},
    resolve::{
        ChangeVerdict, Health, Member, Observed, Plan, Present, RollOrder, Spread, SpreadPolicy, Standing,
        Use, Wait, Waiting, WorkloadView, order_of_namespace, roll_time,
    },
    snapshot::{ObjectName, SourceKind},
};

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
    if let Some(delay) = gated(target, inventory, workload, source, present).await? {
        return Ok(Some(delay));
    }
    // Those of one set move together or not at all.
    for member in gates::others_of_set(target, inventory, workload, source, present).await? {
        let (member, present) = member;
        if let Some(delay) = gated(target, inventory, workload, &member, &present).await? {
            return Ok(Some(delay));
        }
    }
    let group = gates::settings(target, inventory, workload.namespace()).await?.group;
    let policy = present.spread_policy();
    let refused = match tried(target, workload, None).await {
        Tried::Passes => snapshot_refused(target, inventory, workload, source, present).await,
        Tried::Delayed(delay) => Some(delay),
        Tried::Unknown => None,
    };
    let turn = group.filter(|_| policy.is_limited()).map(|group| {
        let see = format!("see kubectl confrev waves {}", source.name);
        let reason = format!("waits for its turn in the group {group}, {see}");
        Delay::Shut { why: Why::Others(Wait::Turn), reason, run: None }
    });
    Ok(refused.or(turn))
}

/// The gate that keeps the workload from the present content of a source, whatever its other sources do.
async fn gated(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    present: &Observed,
) -> Result<Option<Delay>, Failure> {
    // The other namespaces of the group are not read here: there may be many.
    let settings = gates::settings(target, inventory, workload.namespace()).await?;
    let policy = present.spread_policy();
    let order = settings.order.map(|order| order_of_namespace(workload.namespace(), &order));
    let orders = order.map(|order| (workload.namespace().to_owned(), order)).into_iter().collect();
    let of_namespace = Others { orders, ..Others::default() };
    let turn = match turn(inventory, workload, source, (&present.into(), &policy), &of_namespace) {
        Some(turn) if settings.group.is_some() => Some(turn.in_group()),
        Some(turn) => Some(turn.analysed(target, inventory, (source, present)).await?),
        None => None,
    };
    gate(target, inventory, workload, (source, present), turn.as_ref()).await
}

/// The gate that keeps the workload from the present content of a source. `turn`: among the others, if they hold it.
async fn gate(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    (source, present): (&ObjectName, &Observed),
    turn: Option<&Turn<'_>>,
) -> Result<Option<Delay>, Failure> {
    let question = Question::read(target, inventory, workload, source, present, &BTreeMap::new()).await?;
    let Some(mut question) = question else { return Ok(None) };
    question.wait = turn.and_then(Turn::wait);
    Ok(match question.answer() {
        Answer::Open => None,
        Answer::Wait(why) | Answer::Refuse(why) => Some(delay(source, turn, why)),
    })
}

/// Why a workload would not move at once to a content that the source may get; an error: it would not move at all. `given` replaces the
/// present sources, and `others` have the content in other namespaces. Unless the content is known, no verdict on it is.
pub(super) async fn of_content(
    (target, inventory, others): (&Target, &Inventory, &Others),
    workload: &OptedIn,
    source: &ObjectName,
    (content, is_known): (&Observed, bool),
    given: &BTreeMap<&ObjectName, &Observed>,
) -> Result<Result<Option<Delay>, Delay>, Failure> {
    let of = (&content.into(), &content.spread_policy());
    let turn = turn(inventory, workload, source, of, others);
    let turn = turn.map(|turn| Turn { spread: turn.spread.analysed(analysis::assumed), ..turn });
    let Some(mut question) = Question::read(target, inventory, workload, source, content, given).await?
    else {
        return Ok(Ok(None));
    };
    question.wait = turn.as_ref().and_then(Turn::wait);
    if !is_known {
        question.forget_verdict();
    }
    Ok(match question.answer() {
        Answer::Open => Ok(None),
        Answer::Wait(why) => Ok(Some(delay(source, turn.as_ref(), why))),
        Answer::Refuse(why) => Err(delay(source, turn.as_ref(), why)),
    })
}

/// Why a workload whose turn it is among the others does not move to the present content of a source; `None`: it may.
pub(super) async fn of_next(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    present: &Observed,
) -> Result<Option<Delay>, Failure> {
    gate(target, inventory, workload, (source, present), None).await
}

/// A reason of the gates, with its words.
fn delay(source: &ObjectName, turn: Option<&Turn<'_>>, why: Why<String>) -> Delay {
    let about = About {
        source,
        spread: turn.map(|turn| &turn.spread),
        has_failed: turn.is_some_and(Turn::has_failed),
    };
    let is_analysed = matches!(why, Why::Others(Wait::Analysis(_)));
    let run = turn.and_then(|turn| turn.run.clone()).filter(|_| is_analysed);
    Delay::Shut { reason: why.text(&about), why, run }
}

/// The turn of a workload among the others, as the controller counts them.
struct Turn<'w> {
    workload: &'w OptedIn,
    place: RollOrder,
    spread: Spread<String>,
    /// The AnalysisRun of the wave that ended.
    run: Option<JudgingRun>,
    /// The others of its group were not read.
    is_in_group: bool,
}

/// The turn of a workload that waits for a content. `None`: the source lets it roll at once.
fn turn<'w>(
    inventory: &Inventory,
    workload: &'w OptedIn,
    source: &ObjectName,
    (content, policy): (&Present, &SpreadPolicy),
    others: &Others,
) -> Option<Turn<'w>> {
    if !policy.is_limited() && !others.present().any(|(_, present)| present.spread_policy().is_limited()) {
        return None;
    }
    let Standing::Waits(Waiting { place }) = standing(inventory, workload, source, (content, policy)) else {
        return None;
    };
    let spread = spread(inventory, workload.namespace(), source, (content, policy), others);
    Some(Turn { workload, place, spread, run: None, is_in_group: false })
}

impl Turn<'_> {
    /// The same in a group, whose other namespaces were not read: they decide about the order, and about the analysis.
    fn in_group(self) -> Self {
        Self { is_in_group: true, ..self }
    }

    /// The same, with the AnalysisRun that decides about it.
    async fn analysed(
        self,
        target: &Target,
        inventory: &Inventory,
        (source, present): (&ObjectName, &Observed),
    ) -> Result<Self, Failure> {
        let (of, others) = ((self.workload.namespace(), present), Others::default());
        let (spread, run) = analysis::apply(target, inventory, source, of, &others, self.spread).await?;
        Ok(Self { spread, run, ..self })
    }

    /// Why others hold the workload.
    fn wait(&self) -> Option<Wait<String>> {
        let wait = self.spread.wait(self.has_failed(), self.place)?;
        (!self.is_in_group || !matches!(wait, Wait::Turn | Wait::Analysis(_))).then_some(wait)
    }

    fn has_failed(&self) -> bool {
        self.workload.record.health == Health::Failed
    }
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
