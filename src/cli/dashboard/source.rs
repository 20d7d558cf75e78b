//! A source: the timeline of its snapshots, a comparison, the impact of its present content, and its waves.

use maud::{Markup, html};
use serde::Deserialize;

use super::{
    action, compare,
    layout::{Live, Page},
    links::Links,
    rights::Right,
    settings::Settings,
};
use crate::{
    cli::{
        failure::Failure,
        history::{self, History, Line},
        impact,
        inventory::Inventory,
        objects::OptedIn,
        output,
        target::Target,
        waves::{self, WavesStatus},
    },
    snapshot::ObjectName,
};

/// The two contents to compare, as in the address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Compared {
    from: String,
    to: String,
}

/// The page of a source.
pub(super) async fn page<'p>(
    target: &'p Target,
    inventory: &Inventory,
    source: &ObjectName,
    title: &'p str,
    compared: &Compared,
    settings: &Settings,
    links: Links,
) -> Result<Page<'p>, Failure> {
    let history = History::read(target, source.clone()).await?;
    let lines = history::lines(&history, inventory);
    let namespace = &target.namespace;
    let waves = waves::status(target, source).await;
    let right = if settings.read_only || links.is_report() {
        Right::Granted
    } else if history.present.is_some() {
        settings.rights.patch_source(target, source).await
    } else {
        settings.rights.create_source(target, source).await
    };
    let refusal = waves.as_ref().err().map(ToString::to_string);
    let has_waves = refusal.as_deref().map_or(Ok(()), Err);
    let body = html! {
        @if history.present.is_none() { p.problem { "The source does not exist. Its snapshots remain." } }
        h2 #timeline { "Snapshots" }
        (timeline(&lines, inventory, namespace, links))
        h2 #compare { "Compare" }
        (comparison(&history, &lines, compared, settings, links))
        h2 #impact { "Impact of the present content" }
        (impact_of(target, &history).await)
        @match &waves {
            Ok(status) => { h2 #waves { "Waves" } (progress(status, moved(inventory, source, status), links)) }
            Err(Failure::NotFound(_)) => {}
            Err(error) => { h2 #waves { "Waves" } p.problem { (error) } }
        }
        @if !links.is_report() { (action::of_source(&history, &lines, &right, has_waves, settings)) }
    };
    let above = vec![(namespace.clone(), format!("{}?namespace={namespace}", links.overview()))];
    Ok(Page { title, namespace, above, live: Live::Page, body })
}

fn timeline(lines: &[Line], inventory: &Inventory, namespace: &str, links: Links) -> Markup {
    let is_workload = |user: &str| inventory.workloads.iter().any(|workload| workload.reference() == user);
    html! {
        @if lines.is_empty() { p { "No snapshot exists: no opted-in workload has used the source." } }
        ol.timeline {
            @for line in lines {
                li data-present=(line.present) data-refused=(line.refused) {
                    p {
                        code { (line.snapshot) }
                        @if line.present { " " strong.tag { "present" } }
                        @if line.failed.is_some() { " " strong.tag.bad { (if line.refused { "refused" } else { "failed" }) } }
                    }
                    @if let Some(why) = &line.failed { p { (if line.refused { "Refused: " } else { "Failed: " }) (why) } }
                    p.quiet {
                        @let at = line.changed_at.clone().unwrap_or_else(|| line.created.to_string());
                        time datetime=(at) { (at) }
                        " by " (line.changed_by.as_deref().unwrap_or("an unknown author"))
                        @if let Some(size) = line.size { ", " (size) " B" }
                        @if !line.short.is_empty() { ", digest " code { (line.short) } }
                    }
                    p { "Used by "
                        @if line.used_by.is_empty() { "nothing" }
                        @let (shown, more) = line.used_by.split_at(line.used_by.len().min(output::MOST_NAMES));
                        @for (i, user) in shown.iter().enumerate() {
                            @if i > 0 { ", " }
                            @if is_workload(user) { a href=(links.workload(namespace, user)) { (user) } } @else { (user) }
                        }
                        @if !more.is_empty() { " and " (more.len()) " more" }
                    }
                }
            }
        }
    }
}

fn comparison(
    history: &History,
    lines: &[Line],
    compared: &Compared,
    settings: &Settings,
    links: Links,
) -> Markup {
    let other = lines.iter().find(|line| !line.present).map_or("", |line| line.snapshot.as_str());
    let newest = lines.first().map_or(compare::PRESENT, |line| line.snapshot.as_str());
    let present = if history.present.is_some() { compare::PRESENT } else { newest };
    let from = if compared.from.is_empty() { other } else { &compared.from };
    let to = if compared.to.is_empty() { present } else { &compared.to };
    let choice = |name: &str, text: &str, chosen: &str| {
        html! {
            label { (text) select name=(name) {
                @if history.present.is_some() { option value=(compare::PRESENT) selected[chosen == compare::PRESENT] { "present content" } }
                @for line in lines { option value=(line.snapshot) selected[chosen == line.snapshot] { (line.snapshot) } }
            } }
        }
    };
    html! {
        @if !links.is_report() {
            form.choose method="get" action="#compare" { (choice("from", "From", from)) (choice("to", "To", to)) button { "Compare" } }
        }
        @if from.is_empty() { p.quiet { "No other content is left to compare with." } }
        @else {
            @match (compare::side(history, from, settings), compare::side(history, to, settings)) {
                (Ok(old), Ok(new)) => (compare::view(&old, &new)),
                (Err(error), _) | (_, Err(error)) => p.problem { (error) },
            }
        }
    }
}

/// Which workloads would roll to the present content, and which have it.
async fn impact_of(target: &Target, history: &History) -> Markup {
    let change = (history.source.clone(), target.namespace.clone(), history.present.clone());
    match impact::effects(target, &[change]).await {
        Err(error) => html! { p.problem { (error) } },
        Ok(effects) => html! {
            @if effects.is_empty() { p { "No opted-in workload uses the source." } }
            ul.plain {
                @for effect in &effects {
                    li { b { (effect.workload) } " rolls: " (effect.word()) ", " (effect.why)
                        @if let Some(delay) = &effect.delay { "; " (delay) } }
                }
            }
        },
    }
}

/// The workloads of the source's namespace that have moved to the snapshot, and the others that follow its changes.
fn moved(inventory: &Inventory, source: &ObjectName, status: &WavesStatus) -> (Vec<String>, Vec<String>) {
    let follows = |workload: &&OptedIn| {
        let record = &workload.record;
        let mut uses = record.uses.iter();
        workload.kind.rolls && record.track && uses.any(|used| used.source == *source && !used.on_hold)
    };
    let has_moved = |workload: &&OptedIn| {
        let mut uses = workload.record.uses.iter().filter(|used| used.source == *source);
        uses.any(|used| used.snapshot.as_deref() == Some(&*status.snapshot))
    };
    let (moved, rest): (Vec<_>, Vec<_>) = inventory.workloads.iter().filter(follows).partition(has_moved);
    let names = |workloads: Vec<&OptedIn>| workloads.into_iter().map(OptedIn::reference).collect();
    (names(moved), names(rest))
}

fn progress(status: &WavesStatus, (moved, rest): (Vec<String>, Vec<String>), links: Links) -> Markup {
    let names = |names: &[String]| {
        html! {
            @if names.is_empty() { "none" }
            @for (i, name) in names.iter().enumerate() {
                @if i > 0 { ", " }
                a href=(links.workload(&status.namespace, name)) { (name) }
            }
        }
    };
    html! {
        p { label for="moved" { (status.moved) " of " (status.workloads) " workloads moved, up to " (status.limit) " in this wave " }
            progress #moved max=(status.workloads.max(1)) value=(status.moved) {} }
        dl.facts {
            dt { "Snapshot" } dd { code { (status.snapshot) } }
            @if let Some(strategy) = &status.strategy { dt { "Strategy" } dd { (strategy) } }
            dt { "Wave" } dd { (status.wave) " of " (status.waves) }
            dt { "Moved" } dd { (names(&moved)) }
            dt { "Still to move" } dd { (names(&rest)) }
            dt { "Next" } dd { (names(&status.next)) }
            dt { "Rolling" } dd { (names(&status.rolling)) }
            dt { "Unhealthy" } dd { (names(&status.unhealthy)) }
            @if let Some(run) = &status.analysis { dt { "Analysis" } dd { (run.line()) } }
            @if let Some(reason) = &status.reason { dt { "Waits" } dd { (reason) } }
        }
    }
}

/// The page of a source that cannot be read.
pub(super) fn unreadable<'p>(
    title: &'p str,
    namespace: &'p str,
    failure: &Failure,
    links: Links,
) -> Page<'p> {
    let above = vec![(namespace.to_owned(), links.overview())];
    let body = html! { p.problem { (failure) } };
    Page { title, namespace, above, live: Live::Page, body }
}
