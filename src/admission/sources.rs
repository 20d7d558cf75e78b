//! `/mutate/configmaps` and `/mutate/secrets`: warns about the effects of a write of a source, refuses invalid settings of
//! waves, windows and sets and content that fails its schema, and writes nothing.
//!
//! A review is a hint: anyone who reaches the port can send one. Snapshots are made from live reads only, by the
//! controller after the write is stored and by the admission of a workload that needs a snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use memchr::memmem;

use super::{
    context::{Caller, Context, HandlerState},
    review::{Answer, Review},
};
use crate::{
    annotations,
    cluster::{Api, own_owners},
    gate_settings::Texts,
    gates::{About, ELSEWHERE, Why},
    resolve::{
        Analysis, Observed, Wait, invalid_schema_for, invalid_set, parse_keep, parse_max_in_flight,
        run_arguments, run_of_template,
    },
    snapshot::{Digest, MAX_CONTENT, ObjectName, SourceKind, content_size},
    telemetry::metrics::Limit,
    world::{Name, SourceRecord, WorkloadKey, objections::Objection},
};

/// Finds labels and annotations of confrev's.
static FIND_PREFIX: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new(annotations::PREFIX));

/// How many workloads a warning names.
const NAMED: usize = 3;

/// Answers a review of a source. The answer never changes it. It refuses settings of waves, windows, sets and schemas that cannot
/// be followed, and content that fails its schema.
pub(super) async fn mutate<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    kind: SourceKind,
    review: &Review<'_>,
) -> Answer {
    if review.namespace().is_empty() {
        return Answer::allowed();
    }
    let source = Name::new(review.namespace(), ObjectName::new(kind, &*review.display_name()));
    if context.shared.rotated().contains(&source.object) || (kind == SourceKind::Secret && !context.secrets) {
        return Answer::allowed();
    }
    // A review without a name is none of an API server, which calls validating webhooks with the generated name.
    let is_named = !review.name().is_empty();
    if review.is_deletion() {
        if is_named && !review.dry_run() {
            remember_bound(context, call, &source).await;
        }
        return Answer::allowed();
    }
    let Some(object) = review.object().filter(|_| review.is_write()) else {
        return Answer::allowed();
    };
    let used = is_named && context.shared.is_snapshotted(&source);
    // The common case: nothing opted in uses the source, and only a label or a setting could ask for more.
    if !used && FIND_PREFIX.find(object.as_bytes()).is_none() {
        return Answer::allowed();
    }
    if let Some(refusal) = too_large(kind, review, &source) {
        return Answer::denied(refusal);
    }
    // The API server itself refuses an object that cannot be read, and says why.
    let Ok(observed) = Observed::read(kind, object.as_bytes()) else {
        return Answer::allowed();
    };
    let observed = context.shared.inherited().source(&source.namespace, observed);
    // With such settings nothing would move, so the writer should know at once. A snapshot has none, and the Namespace's are not the
    // writer's.
    let alone = observed.has_unknown_strategy_of_namespace().then(|| observed.clone().alone());
    let invalid = invalid_setting(alone.as_ref().unwrap_or(&observed));
    if let Some(invalid) = invalid.filter(|_| observed.identity().is_none()) {
        return Answer::denied(format!("{}: {invalid}", source.object));
    }
    let mut unchecked = None;
    // That of a strategy is not the writer's.
    let own_analysis = observed.annotation(annotations::ANALYSIS).filter(|_| observed.identity().is_none());
    let analysis = own_analysis.and_then(|_| observed.spread_policy().analysis);
    if let Some(analysis) = analysis.filter(|_| is_new_analysis(kind, review, &observed)) {
        match analysis_failure(context, call, &source, &observed, &analysis).await {
            Ok(None) => {}
            Ok(Some(failure)) => {
                let key = annotations::ANALYSIS;
                return Answer::denied(format!("{}: annotation {key}: {failure}", source.object));
            }
            Err(warning) => unchecked = Some(warning),
        }
    }
    if observed.schema().is_some() && observed.identity().is_none() && needs_check(kind, review, &observed) {
        match schema_failure(context, call, &source, &observed).await {
            Ok(None) => {}
            Ok(Some(failure)) => return Answer::denied(format!("{}: {failure}", source.object)),
            Err(warning) => unchecked = unchecked.or(Some(warning)),
        }
    }
    let mut warnings =
        if is_named { warnings(context, &source, &observed, review, used) } else { odd_settings(&observed) };
    warnings.extend(unchecked);
    Answer::allowed().with_warnings(warnings)
}

/// Why the review is refused before its objects are parsed: the API server stores no such content, so it cannot have sent it for an
/// object that will exist.
fn too_large(kind: SourceKind, review: &Review<'_>, source: &Name) -> Option<String> {
    let objects = review.object().into_iter().chain(review.old_object());
    let sizes = objects.filter_map(|object| content_size(kind, object.as_bytes()).ok());
    let size = sizes.max().filter(|size| *size > MAX_CONTENT)?;
    Some(format!(
        "{}: the content has {size} bytes, and the API server stores {MAX_CONTENT} at most: the review is refused",
        source.object
    ))
}

/// Why no workload would move to a change of the source: settings that cannot be followed.
pub(crate) fn invalid_setting(observed: &Observed) -> Option<String> {
    let set = observed.annotation(annotations::SET);
    let waves = observed.spread_policy().invalid.map(String::from);
    let gates = || Texts::read(|key| observed.annotation(key)).invalid().into_iter().next();
    let schema_for = observed.annotation(annotations::SCHEMA_FOR);
    let schema_for = || schema_for.as_deref().and_then(invalid_schema_for);
    waves.or_else(gates).or_else(|| set.as_deref().and_then(invalid_set)).or_else(schema_for)
}

/// Whether a write changes the content, or the annotations that name its schema. Other writes must pass whatever becomes of
/// the schema: a finalizer must be removable.
fn needs_check(kind: SourceKind, review: &Review<'_>, observed: &Observed) -> bool {
    let Some(old) = review.old_object() else { return true };
    Observed::read(kind, old.as_bytes()).map_or(true, |old| {
        let is_other = |key| old.annotation(key) != observed.annotation(key);
        old.digest() != observed.digest()
            || is_other(annotations::SCHEMA)
            || is_other(annotations::SCHEMA_KEYS)
    })
}

/// Whether a write sets the annotation `analysis`. Other writes must pass whatever becomes of the template.
fn is_new_analysis(kind: SourceKind, review: &Review<'_>, observed: &Observed) -> bool {
    let old = review.old_object().and_then(|old| Observed::read(kind, old.as_bytes()).ok());
    old.is_none_or(|old| old.annotation(annotations::ANALYSIS) != observed.annotation(annotations::ANALYSIS))
}

/// Why no run can be created from the template of an analysis. An error is a warning: the template could not be read.
async fn analysis_failure<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    source: &Name,
    observed: &Observed,
    analysis: &Analysis,
) -> Result<Option<String>, String> {
    let share = context.reads.share(call.client.clone(), call.deadline);
    let api = context.api.metered(share.meter());
    let read = api.analysis_template(&source.namespace, analysis);
    let reason = match in_time(call, read).await {
        Ok(None) => return Ok(Some(format!("{analysis} does not exist"))),
        Ok(Some(template)) => {
            let name = &source.object.name;
            let given = run_arguments(name, &source.namespace, &observed.digest().to_string(), 1);
            let failure = run_of_template(&template, &given).err();
            return Ok(failure.map(|why| format!("{analysis} cannot be used: {why}")));
        }
        Err(reason) => reason,
    };
    tracing::warn!(%source, reason, "template of an analysis could not be read");
    Err(format!(
        "confrev: {analysis} could not be read ({reason}): until it can be read, no change of the source moves"
    ))
}

/// Why the content may not be written. An error is a warning: the check could not be made, and is made again at the roll.
async fn schema_failure<A: Api>(
    context: &HandlerState<A>,
    call: &Caller,
    source: &Name,
    observed: &Observed,
) -> Result<Option<String>, String> {
    let share = context.reads.share(call.client.clone(), call.deadline);
    let api = context.api.metered(share.meter());
    let check = context.schemas.failure(&api, share.whose(), &source.namespace, observed);
    // The check itself ends before the deadline, and says why: only a read of the schema may last that long.
    in_time(call, check).await.map_err(|reason| {
        tracing::warn!(%source, reason, "schema could not be read");
        format!(
            "confrev: the schema could not be read ({reason}): a roll to content that fails it will be refused"
        )
    })
}

/// What a read found before the deadline of the call. Otherwise, why there is no answer.
async fn in_time<T>(
    call: &Caller,
    read: impl Future<Output = Result<T, impl std::fmt::Display>>,
) -> Result<T, String> {
    match tokio::time::timeout_at(call.deadline, read).await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("the API server does not answer in time".to_owned()),
    }
}

/// The warnings for the author of the write.
fn warnings<A: Api>(
    context: &Context<A>,
    source: &Name,
    observed: &Observed,
    review: &Review<'_>,
    used: bool,
) -> Vec<String> {
    let mut warnings: Vec<_> = odd_mode(observed).into_iter().collect();
    let is_snapshotted = used || observed.enabled() == Some("true");
    if !is_snapshotted || observed.identity().is_some() || observed.stays_as_written() {
        return warnings;
    }
    warnings.extend(odd_counts(observed));
    if is_new_content(source.object.kind, review, &observed.digest()) {
        if let Some(users) = context.users.as_ref().filter(|_| !review.dry_run()) {
            users.remember(source, observed, review.user());
        }
        warnings.extend(effects(context, source, observed));
        let count = context.shared.snapshot_count(source);
        if count >= context.limits.snapshots {
            context.metrics.limit_reached(Limit::Snapshots, 1);
            warnings.push(format!(
                "confrev: the source has {count} snapshots (--max-snapshots): this content gets a snapshot when a workload resolves to it"
            ));
        }
    }
    warnings
}

/// The warning about a label `enabled` that has no effect.
fn odd_mode(observed: &Observed) -> Option<String> {
    let odd = observed.enabled().filter(|value| !matches!(*value, "true" | "false" | "bind" | "live"))?;
    let key = annotations::ENABLED;
    Some(format!("label {key}: {odd:?} has no effect, use \"true\", \"false\", \"bind\" or \"live\""))
}

/// The warnings about counts that have no effect.
fn odd_counts(observed: &Observed) -> Vec<String> {
    let mut warnings = Vec::new();
    if parse_keep(observed.annotation(annotations::KEEP).as_deref()).is_none() {
        warnings.push(format!(
            "annotation {}: not a count from 0 to 1000, so the default applies",
            annotations::KEEP
        ));
    }
    let max = observed.annotation(annotations::MAX_IN_FLIGHT);
    if max.is_some_and(|text| parse_max_in_flight(&text).is_none()) {
        warnings.push(format!(
            "annotation {}: not a count of at least 1, so it does not count",
            annotations::MAX_IN_FLIGHT
        ));
    }
    let report = observed.annotation(annotations::REPORT);
    if report.is_some_and(|text| !["true", "false"].contains(&&*text)) {
        warnings.push(format!(
            "annotation {}: neither true nor false, so it counts as false",
            annotations::REPORT
        ));
    }
    warnings
}

/// The warnings about settings of a source that have no effect.
pub(crate) fn odd_settings(observed: &Observed) -> Vec<String> {
    odd_mode(observed).into_iter().chain(odd_counts(observed)).collect()
}

/// Remembers the content of a source in bind mode (`enabled: "bind"`) that is about to be deleted while in use: something is
/// known to use it, or it has owners that confrev added. Anyone who may edit a revision can hide its use from the watches, but
/// not its ownership. The controller recreates the source under its own name after the deletion. The content is read live,
/// while the source still exists.
async fn remember_bound<A: Api>(context: &HandlerState<A>, call: &Caller, source: &Name) {
    let share = context.reads.share(call.client.clone(), call.deadline);
    let api = context.api.metered(share.meter());
    match tokio::time::timeout_at(call.deadline, api.read(&source.namespace, &source.object)).await {
        Ok(Ok(Some(observed))) if observed.is_bound_itself() && observed.identity().is_none() => {
            if !own_owners(observed.json()).is_empty() || context.shared.lock().is_in_use(source) {
                context.shared.remember(source, &observed);
            }
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::warn!(%source, %error, "bound object could not be read before its deletion");
        }
        Err(_) => tracing::warn!(%source, "bound object could not be read in time before its deletion"),
    }
}

/// Whether the write changes the content at all.
fn is_new_content(kind: SourceKind, review: &Review<'_>, digest: &Digest) -> bool {
    let Some(old) = review.old_object() else { return true };
    Observed::read(kind, old.as_bytes()).is_ok_and(|old| old.digest() != *digest)
}

/// What a person should act on, if the source gets this content. The rolls themselves are Events.
///
/// For a Secret, neither the digest nor what a workload has seen decides the answer: a forged review could otherwise
/// test guesses of a Secret's content.
fn effects<A: Api>(context: &Context<A>, source: &Name, observed: &Observed) -> Vec<String> {
    let (is_secret, now) = (source.object.kind == SourceKind::Secret, jiff::Timestamp::now());
    let content = SourceRecord::of(observed);
    let state = context.shared.lock();
    let mut warnings = Vec::new();
    for Objection { why, workloads } in state.objections(source, &content, now) {
        let workloads = listed(workloads.into_iter().map(|key| state.display_short(key)).collect());
        warnings.extend(objection(source, &why, &workloads, |key| state.display_short(key)));
    }
    let (mut pinned, mut lacking) = (Vec::new(), BTreeMap::<(String, bool), BTreeSet<String>>::new());
    for (key, record) in state.workloads_using(source).filter(|(_, record)| record.track) {
        let is_known = !is_secret && record.has_seen(&source.object, observed.digests());
        if is_known || record.is_on_hold(&source.object) {
            continue;
        }
        let uses = || record.uses.iter().filter(|used| used.source == source.object);
        if uses().all(|used| used.excludes(observed.labels())) {
            continue;
        }
        // The gate keeps the snapshot of a workload that has one. Whether it has one may follow from a stored Secret.
        let has_snapshot = !is_secret && uses().any(|used| used.snapshot.is_some());
        let reads = record.reads(&source.object).map_or(&[][..], |reads| &reads.keys);
        for read in reads.iter().filter(|read| read.required && !observed.has_key(&read.key)) {
            if !has_snapshot {
                let waits = !is_secret && !uses().any(|used| used.live);
                // No message has the name of a key of a Secret.
                let what = if is_secret { "a key".to_owned() } else { format!("the key {:?}", read.key) };
                lacking.entry((what, waits)).or_default().insert(state.display_short(key));
            }
        }
        if let Some(pin) = state.pin(key, source).filter(|_| !is_secret) {
            pinned.push((state.display_short(key), pin));
        }
    }
    // What follows reads the content, and all clients wait for the state.
    drop(state);
    let pinned: Vec<_> =
        pinned.into_iter().filter(|(_, pin)| pin.ends_with(observed)).map(|(name, _)| name).collect();
    for ((key, waits), workloads) in lacking {
        let then = if waits {
            "its pods do not start until the source has the key"
        } else {
            "new pods will not start"
        };
        warnings.push(format!(
            "confrev: the content lacks {key}, required by {}: {then}",
            listed(workloads.into_iter().collect())
        ));
    }
    if !pinned.is_empty() {
        let workloads = listed(pinned);
        warnings.push(format!(
            "confrev: this change ends an undo or a pin: {workloads} will roll to this content"
        ));
    }
    warnings
}

/// What the writer of a content learns about workloads that do not move to it; `None` if the change needs no person.
/// `name`: the name of a workload of the source's namespace.
fn objection(
    source: &Name,
    why: &Why<WorkloadKey>,
    workloads: &str,
    name: impl Fn(&WorkloadKey) -> String,
) -> Option<String> {
    let name = |key: &WorkloadKey| {
        if key.namespace == source.namespace { name(key) } else { ELSEWHERE.to_owned() }
    };
    let text = why.text(&About { name: &name, ..About::alone(&source.object) });
    match why {
        Why::Held { .. } => Some(format!(
            "confrev: {workloads} will not roll to this content: held by annotation {}",
            annotations::HOLD
        )),
        // The same is said of all workloads that require the key of a Secret.
        Why::RequiredKey { key } => {
            let key = key.as_ref()?;
            Some(format!(
                "confrev: the content lacks the key {key:?}, required by {workloads}: the roll will be refused (annotation {} is \
                 not \"allow\")",
                annotations::MISSING
            ))
        }
        Why::Closed(closed) => {
            Some(format!("confrev: {workloads} will roll later: {text} (annotation {})", closed.key()))
        }
        why if why.is_refusal() || why.needs_a_person() => {
            Some(format!("confrev: {workloads} will not roll to this content: {text}"))
        }
        Why::Others(Wait::Bad(_)) => {
            Some(format!("confrev: {workloads} will not roll to this content: {text}"))
        }
        _ => None,
    }
}

/// The names of the first workloads, and the number of the others.
fn listed(mut workloads: Vec<String>) -> String {
    workloads.sort();
    let (named, more) = workloads.split_at(workloads.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", named.join(", "))
}
