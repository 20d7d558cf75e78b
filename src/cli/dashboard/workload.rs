//! A workload: its revisions side by side, their snapshots, pods and differences.

use maud::{Markup, html};
use serde_json::Value;

use super::{
    action, compare,
    layout::{Live, Page},
    links::Links,
    model::View,
    rights::Right,
    settings::Settings,
};
use crate::{
    annotations,
    cli::{
        failure::Failure,
        history::History,
        objects::{OptedIn, label, revision_number, revision_template, sources_of, text},
        pauses, source_state, status,
        target::Target,
        tree,
    },
    snapshot::ObjectName,
    template::SourceMap,
};

/// How many revisions without pods are shown.
const PAST: usize = 2;

/// The page of a workload.
pub(super) async fn page<'p>(
    target: &Target,
    view: &'p View,
    workload: &'p OptedIn,
    title: &'p str,
    settings: &Settings,
    links: Links,
) -> Result<Page<'p>, Failure> {
    let inventory = &view.inventory;
    let sources = source_state::of_workload(target, inventory, workload).await?;
    let found = status::status(inventory, workload, sources, false);
    let pause = pauses::of(inventory, workload);
    let mut revisions: Vec<&Value> =
        workload.own_revision().into_iter().chain(inventory.revisions_of(workload)).collect();
    revisions.sort_by_key(|revision| std::cmp::Reverse(revision_number(revision).unwrap_or_default()));
    // The first that is older than the present one.
    let is_present =
        |revision: &Value| label(revision, annotations::REVISION).unwrap_or_default() == workload.revision();
    let previous = revisions.iter().position(|revision| is_present(revision)).map(|at| at + 1);
    let mut past = 0;
    let mut shown = Vec::new();
    for (i, revision) in revisions.iter().enumerate() {
        let pods = inventory.pods_of(workload, revision);
        if pods.is_empty() && !is_present(revision) {
            past += 1;
            if past > PAST {
                continue;
            }
        }
        let differences =
            differences(target, revision, revisions.get(i + 1).copied(), settings, links).await?;
        let role = tree::role(inventory, workload, revision);
        let role = role.or_else(|| (Some(i) == previous).then_some("previous"));
        shown.push(html! {
            article.revision {
                h3 { (revision_title(revision)) @if let Some(role) = role { " " span.role { (role) } } }
                p.quiet { code { (text(revision, "/metadata/name")) } @if let Some(config) = label(revision, annotations::REVISION) { " config " code { (config) } } }
                (health(&pods))
                h4 { "Snapshots" }
                (snapshots(workload, view, revision, links))
                h4 { "Differs from the previous revision" }
                (differences)
                @if !pods.is_empty() {
                    h4 { "Pods" }
                    ul.pods { @for pod in &pods { (pod_line(workload, pod, revision, links)) } }
                }
            }
        });
    }
    let right = if settings.read_only || links.is_report() {
        Right::Granted
    } else {
        settings.rights.patch_workload(target, workload).await
    };
    let namespace = workload.namespace();
    let candidates: Vec<_> = inventory.snapshots.iter().filter(|((of, _), _)| of == namespace).collect();
    let numbers: Vec<_> = revisions.iter().filter_map(|revision| revision_number(revision)).collect();
    let body = html! {
        dl.facts {
            dt { "State" } dd { (found.template.clone().unwrap_or_else(|| status::state(&found.sources))) }
            dt { "Rollout" } dd { (found.rollout) }
            @if !found.reasons.is_empty() { dt { "Reason" } dd { (found.reasons.join("; ")) } }
            @if let Some(pause) = &pause { dt { "To continue" } dd { (pause.then) } }
            dt { "Pods" } dd { (status::pods(&found.pods, &found.config)) }
        }
        h2 #sources { "Sources" }
        ul.plain {
            @for used in &found.sources {
                li {
                    a href=(links.source(namespace, &used.object)) { (used.source) }
                    " " b { (used.state.word()) }
                    @if let Some(snapshot) = &used.snapshot { " " code { (snapshot) } }
                    @if let Some(strategy) = &used.strategy { " (strategy " (strategy) ")" }
                    @if let Some(reason) = &used.reason { ": " (reason) }
                }
            }
        }
        @if !links.is_report() { (action::of_workload(workload, &found, &candidates, &numbers, &right, settings)) }
        h2 #revisions { "Revisions" }
        div.revisions { @for one in &shown { (one) } }
        @if shown.len() < revisions.len() {
            p.quiet { (revisions.len() - shown.len()) " older revisions without pods are left out: see kubectl confrev tree --all." }
        }
    };
    let above = vec![(namespace.to_owned(), format!("{}?namespace={namespace}", links.overview()))];
    Ok(Page { title, namespace, above, live: Live::Page, body })
}

fn revision_title(revision: &Value) -> String {
    revision_number(revision).map_or_else(
        || format!("{}/{}", text(revision, "/kind"), text(revision, "/metadata/name")),
        |number| format!("Revision {number}"),
    )
}

/// Pods by health.
fn health(pods: &[&Value]) -> Markup {
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for pod in pods {
        *counts.entry(pod_state(pod)).or_default() += 1;
    }
    html! {
        ul.health aria-label="Pods by health" {
            @if counts.is_empty() { li { "no pods" } }
            @for (state, count) in counts { li data-health=(state) { b { (count) } " " (state) } }
        }
    }
}

/// The state of a pod: the reason why a container does not run, if there is one.
fn pod_state(pod: &Value) -> String {
    let waiting = text(pod, "/status/waiting");
    if waiting.is_empty() { tree::pod_state(pod) } else { waiting.to_owned() }
}

fn pod_line(workload: &OptedIn, pod: &Value, revision: &Value, links: Links) -> Markup {
    let started = text(pod, "/status/startTime");
    let sources = sources_of(revision_template(revision));
    html! {
        li {
            code { (text(pod, "/metadata/name")) } " " span { (pod_state(pod)) }
            @if !started.is_empty() { ", started " time datetime=(started) { (started) } }
            @for (i, (source, snapshot)) in sources.iter().enumerate() {
                @if i == 0 { ", reads " } @else { ", " }
                a href=(links.compare(workload.namespace(), source, snapshot, compare::PRESENT)) { (snapshot) }
            }
        }
    }
}

fn snapshots(workload: &OptedIn, view: &View, revision: &Value, links: Links) -> Markup {
    let sources: SourceMap<String> = sources_of(revision_template(revision));
    let live = tree::live_of(revision_template(revision));
    let namespace = workload.namespace();
    html! {
        ul.plain {
            @if sources.is_empty() && live.iter().next().is_none() { li { "none: references stay as written" } }
            @for (source, snapshot) in sources.iter() {
                @let key = workload.key(&ObjectName::new(source.kind, snapshot.clone()));
                @let is_there = **snapshot == *source.name || view.inventory.snapshots.contains_key(&key);
                li {
                    a href=(links.compare(namespace, source, snapshot, compare::PRESENT)) { code { (snapshot) } }
                    @if !is_there { " " strong { "not found" } }
                }
            }
            @for (source, digest) in live.iter() { li { code { (source.name) } " live, " code { (digest.short(10)) } } }
        }
    }
}

/// The keys that differ between the contents of two revisions.
async fn differences(
    target: &Target,
    revision: &Value,
    before: Option<&Value>,
    settings: &Settings,
    links: Links,
) -> Result<Markup, Failure> {
    let Some(before) = before else { return Ok(html! { p.quiet { "No previous revision is left." } }) };
    let (new, old) = (sources_of(revision_template(revision)), sources_of(revision_template(before)));
    let mut changed = Vec::new();
    for (source, snapshot) in new.iter() {
        let previous = old.iter().find(|(of, _)| *of == source).map(|(_, name)| name);
        if previous == Some(snapshot) {
            continue;
        }
        let Some(previous) = previous else {
            changed.push(html! { p { "New source " (source.name) "." } });
            continue;
        };
        let shown = match History::read(target, source.clone()).await {
            Ok(history) => match (
                compare::side(&history, previous, settings),
                compare::side(&history, snapshot, settings),
            ) {
                (Ok(old), Ok(new)) => compare::view(&old, &new),
                (Err(error), _) | (_, Err(error)) => html! { p.problem { (error) } },
            },
            Err(Failure::Refused(message) | Failure::NotFound(message)) => html! { p.problem { (message) } },
            Err(error) => return Err(error),
        };
        let to = links.compare(&target.namespace, source, previous, snapshot);
        changed.push(html! { h5 { a href=(to) { (source.name) } } (shown) });
    }
    for (source, _) in old.iter().filter(|(source, _)| new.iter().all(|(of, _)| of != *source)) {
        changed.push(html! { p { "No longer uses " (source.name) "." } });
    }
    Ok(
        html! { @if changed.is_empty() { p.quiet { "Nothing in its config." } } @for one in &changed { (one) } },
    )
}
