//! Why a workload has not rolled to a pending change: refused, held, too soon after its last roll, or never.
//!
//! Nothing records this. The delay of a workload follows from its own state and that of the others; a refusal follows from the
//! Event of the controller, or from a dry run of the controller's own write.

use std::collections::BTreeMap;

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    admitted,
    analysis::{self, JudgingRun},
    delay::Delay,
    failure::Failure,
    gates,
    group::Others,
    inventory::{Inventory, OptedIn, Snapshot, SourceKey, text},
    target::{Target, is_unanswered},
};
use crate::{
    annotations,
    cluster::ApiError,
    resolve::{
        AnalysisRun, EndedWave, Health, Member, Observed, Refusal, RollOrder, RunState, Spread, SpreadPolicy,
        Standing, Use, Verdict, Wait, Waiting, WorkloadView, auto_roll_value, order_of_namespace,
    },
    snapshot::{Digests, ObjectName, SourceKind},
};

/// How many workloads a reason names.
const NAMED: usize = 3;
/// The beginning of the note of the Event about a refused roll.
const REFUSED: &str = "the roll to the present content was refused and will be retried: ";

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
    if let Some(delay) = interval(workload, Timestamp::now()) {
        return Ok(Some(delay));
    }
    // The other namespaces of the group are not read here: there may be many.
    let settings = gates::settings(target, inventory, workload.namespace()).await?;
    let (group, policy) = (settings.group, present.spread_policy());
    let order = settings.order.map(|order| order_of_namespace(workload.namespace(), &order));
    let orders = order.map(|order| (workload.namespace().to_owned(), order)).into_iter().collect();
    let of_namespace = Others { orders, ..Others::default() };
    match turn(inventory, workload, source, (present.digests(), &policy), &of_namespace) {
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
    if let Some(delay) = reported(target, workload, present).await? {
        return Ok(Some(delay));
    }
    if let Some(group) = group.filter(|_| policy.is_limited()) {
        let see = format!("see kubectl confrev waves {}", source.name);
        return Ok(Some(Delay::Held(format!("waits for its turn in the group {group}, {see}"))));
    }
    Ok(probe(target, workload, None).await)
}

/// The time that remains of the workload's `min-interval`.
pub(super) fn interval(workload: &OptedIn, now: Timestamp) -> Option<Delay> {
    let record = &workload.record;
    let interval = SignedDuration::try_from(record.min_interval).unwrap_or(SignedDuration::ZERO);
    let left = record.last_roll?.checked_add(interval).ok()?.duration_since(now);
    // A time too far ahead comes from a wrong clock.
    (left.is_positive() && left <= interval).then_some(Delay::Interval(left))
}

/// Why other workloads would hold this one from a content that the source may get.
pub(super) fn would_be_held(
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    of: (&Digests, &SpreadPolicy),
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
    (content, policy): (&Digests, &SpreadPolicy),
    others: &Others,
) -> Option<Result<Turn<'w>, Delay>> {
    if !policy.is_limited() {
        return None;
    }
    let Standing::Waits(Waiting { place, .. }) = standing(inventory, workload, source, (content, policy))
    else {
        return None;
    };
    if let Some((snapshot, refusal)) = refused(inventory, workload.namespace(), source, (content, policy)) {
        return Some(Err(Delay::Refused(format!("{snapshot} was refused: {}", refusal.reason))));
    }
    let spread = spread(inventory, workload.namespace(), source, (content, policy), others);
    Some(Ok(Turn { workload, place, spread, run: None, is_in_group: false }))
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
        Wait::Bad(proof) => {
            let by = proof.workload.as_deref().unwrap_or("a workload of another namespace of the group");
            let how = if proof.rolled_back { "was put back from" } else { "failed with" };
            format!("held by {by}, which {how} the change")
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
    (content, policy): (&Digests, &SpreadPolicy),
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
    (content, policy): (&Digests, &SpreadPolicy),
    others: &Others,
) -> Spread<String> {
    let mut verdicts = Vec::new();
    let mut strictest = policy.clone();
    for (of, content, policy) in one_change(namespace, (content, policy), others) {
        let refused = refused(inventory, of, source, (content, &policy)).is_some();
        let verdict = Verdict { refused, ..policy.verdict(source, content) };
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
    let verdict = verdicts.into_iter().reduce(Verdict::strictest).unwrap_or_default();
    Spread::of(&strictest, verdict, Timestamp::now(), members)
}

/// The namespaces of a change, each with the content and the policy of its source.
fn one_change<'c>(
    namespace: &'c str,
    (content, policy): (&'c Digests, &SpreadPolicy),
    others: &'c Others,
) -> impl Iterator<Item = (&'c str, &'c Digests, SpreadPolicy)> {
    let present =
        others.present().map(|(namespace, present)| (namespace, present.digests(), present.spread_policy()));
    std::iter::once((namespace, content, policy.clone())).chain(present)
}

/// The state of each workload in the namespaces of a change. Those of other namespaces are named with their namespace.
pub(super) fn standings(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    of: (&Digests, &SpreadPolicy),
    others: &Others,
) -> Vec<(String, Standing)> {
    let mut all = Vec::new();
    for (of, content, policy) in one_change(namespace, of, others) {
        let in_it = inventory.workloads.iter().filter(|workload| workload.namespace() == of);
        all.extend(in_it.map(|workload| {
            let prefix = if of == namespace { String::new() } else { format!("{of}/") };
            (prefix + &workload.reference(), standing(inventory, workload, source, (content, &policy)))
        }));
    }
    all
}

/// The refusal of a content that is in force, with the refused snapshot.
pub(super) fn refused(
    inventory: &Inventory,
    namespace: &str,
    source: &ObjectName,
    (content, policy): (&Digests, &SpreadPolicy),
) -> Option<(String, Refusal)> {
    let is_its = |(key, snapshot): &(&SourceKey, &Snapshot)| {
        key.0 == namespace
            && snapshot.source == *source
            && snapshot.digest.is_some_and(|digest| content.contains(&digest))
    };
    let found = inventory
        .snapshots
        .iter()
        .filter(is_its)
        .find_map(|(key, snapshot)| Some((key.1.name.to_string(), snapshot.refusal()?)));
    found.filter(|(name, refusal)| policy.heeds(name, refusal))
}

/// The state of a workload towards a content of a source.
fn standing(
    inventory: &Inventory,
    workload: &OptedIn,
    source: &ObjectName,
    (content, policy): (&Digests, &SpreadPolicy),
) -> Standing {
    let view = WorkloadView {
        kind: &workload.kind,
        path: [workload.namespace(), workload.name()],
        namespace_order: inventory.orders.get(workload.namespace()).copied(),
        health: workload.record.health,
        source,
        content,
        set: policy.set.as_deref(),
    };
    workload.record.standing(&view, |used: &Use| {
        let holds_other = |name: &str| {
            let held = inventory.snapshots.get(&workload.key(&ObjectName::new(source.kind, name)));
            held.and_then(|held| held.digest).is_some_and(|digest| !content.contains(&digest))
        };
        used.snapshot.as_deref().is_some_and(holds_other)
    })
}

/// The refusal of the present content that the controller has reported.
async fn reported(target: &Target, workload: &OptedIn, present: &Observed) -> Result<Option<Delay>, Failure> {
    let uid = text(&workload.value, "/metadata/uid");
    let selector = format!("involvedObject.uid%3D{uid}%2Creason%3DRollRefused");
    let path = format!("/api/v1/namespaces/{}/events?fieldSelector={selector}", workload.namespace());
    let found = match target.get(&path).await {
        // The user may not read Events.
        Err(Failure::Refused(_)) | Ok(None) => return Ok(None),
        Ok(Some(found)) => found,
        Err(error) => return Err(error),
    };
    let changed = changed_at(present);
    let events = found["items"].as_array().into_iter().flatten();
    let of_change = events.filter(|event| event_time(event) >= changed);
    let newest = of_change.max_by_key(|event| event_time(event));
    Ok(newest.map(|event| {
        let note = text(event, "/message");
        Delay::Refused(note.strip_prefix(REFUSED).unwrap_or(note).to_owned())
    }))
}

/// When an Event was last seen, in whole seconds like the times of writes.
fn event_time(event: &Value) -> Option<Timestamp> {
    let fields = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let times = fields.iter().filter_map(|field| text(event, field).parse::<Timestamp>().ok());
    times.max().and_then(|time| Timestamp::from_second(time.as_second()).ok())
}

/// When the source was last written.
fn changed_at(source: &Observed) -> Option<Timestamp> {
    let value: Value = serde_json::from_slice(source.json()).ok()?;
    let writes = value["metadata"]["managedFields"].as_array().into_iter().flatten();
    let writes = writes.filter_map(|entry| text(entry, "/time").parse().ok());
    writes.max().or_else(|| text(&value, "/metadata/creationTimestamp").parse().ok())
}

/// Makes the controller's write as a dry run, with the rights of the user. `None` if it would succeed, or if the user may not
/// make it. With a Secret, a success shows whether references to it are resolved.
pub(super) async fn probe(target: &Target, workload: &OptedIn, secret: Option<&ObjectName>) -> Option<Delay> {
    // Admission writes this annotation again, so that its answer differs from that of an API server that did not call confrev.
    let stale = json!({"configmaps": {"confrev-dry-run": "confrev-dry-run-0"}}).to_string();
    let mut body = json!({"metadata": {"annotations": {annotations::SOURCES: stale}}});
    for field in workload.kind.template.iter().rev() {
        body = json!({field.clone(): body});
    }
    body["metadata"] = json!({
        "uid": text(&workload.value, "/metadata/uid"),
        "annotations": {annotations::ROLL: auto_roll_value(Timestamp::now(), None)},
    });
    let path = format!("{}?fieldManager=kubectl-confrev&dryRun=All", workload.path());
    let call = target.api.call(
        "patch",
        Method::PATCH,
        path,
        "application/merge-patch+json",
        body.to_string().into(),
    );
    match call.await {
        Ok(answer) => {
            let value: Value = serde_json::from_slice(&answer).ok()?;
            let answer = OptedIn::read(&workload.kind, value, &target.rotated)?;
            if !admitted::is_resolved(&answer) {
                let unanswered = "the API server does not call confrev, see kubectl confrev check";
                return Some(Delay::Unanswered(unanswered.to_owned()));
            }
            let is_resolved = |secret: &ObjectName| {
                let mut uses = answer.record.uses.iter().filter(|used| used.source == *secret);
                uses.any(|used| used.snapshot.is_some() || used.live)
            };
            secret.filter(|secret| !is_resolved(secret)).map(|_| Delay::SecretsOff)
        }
        Err(ApiError::Refused { message, .. }) if is_unanswered(&message) => {
            Some(Delay::Unanswered("confrev does not answer, see kubectl confrev check".to_owned()))
        }
        Err(error) if error.is_missing_right() => None,
        Err(ApiError::Refused { code, message, .. })
            if code == 429 || code >= 500 || message.contains("failed calling webhook") =>
        {
            Some(Delay::Unanswered(message))
        }
        Err(ApiError::Refused { message, .. }) => Some(Delay::Refused(message)),
        Err(_) => None,
    }
}

/// The delay of a roll to a change that is not written yet: the interval, or the turns that `max-in-flight` sets.
pub(super) fn of_change(workload: &OptedIn, limit: Option<usize>, rolling: usize) -> Option<String> {
    let interval = interval(workload, Timestamp::now()).map(|delay| delay.to_string());
    let turns = limit.filter(|limit| rolling > *limit).map(|limit| {
        let verb = if limit == 1 { "workload rolls" } else { "workloads roll" };
        format!("at most {limit} {verb} at once (max-in-flight)")
    });
    let both: Vec<_> = interval.into_iter().chain(turns).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_printed_as_reasons() {
        let left = |millis| Delay::Interval(SignedDuration::from_millis(millis)).to_string();
        assert_eq!(
            (left(40_200), left(200)),
            ("min-interval, 40 s left".to_owned(), "min-interval, 1 s left".to_owned())
        );
    }

    #[test]
    fn event_times_have_whole_seconds() {
        let event = json!({"eventTime": "2026-01-01T00:00:01.500000Z", "series": {"lastObservedTime": "2026-01-01T00:00:03.2Z"}});
        assert_eq!(event_time(&event), "2026-01-01T00:00:03Z".parse().ok());
    }
}
