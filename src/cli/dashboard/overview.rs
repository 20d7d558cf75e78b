//! The overview: all workloads by namespace, with filters and counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use maud::{Markup, PreEscaped, html};
use serde::Deserialize;

use super::{
    digest_id,
    layout::{Live, Page},
    links::Links,
    model::View,
    row::{Row, STATES},
};

/// The filters, as in the address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Filter {
    namespace: String,
    state: String,
    source: String,
    words: String,
}

impl Filter {
    fn shows(&self, row: &Row) -> bool {
        (self.namespace.is_empty() || self.namespace == row.status.namespace)
            && row.has_state(&self.state)
            && row.has_source(&self.source)
            && row.has_words(&self.words)
    }

    fn is_empty(&self) -> bool {
        [&self.namespace, &self.state, &self.source, &self.words].iter().all(|text| text.is_empty())
    }
}

/// The overview of these namespaces.
pub(super) fn page<'p>(
    views: &BTreeMap<String, Arc<View>>,
    filter: &Filter,
    unread: &BTreeSet<String>,
    links: Links,
) -> Page<'p> {
    let rows = || views.values().flat_map(|view| view.rows.values());
    let sources: BTreeSet<_> =
        rows().flat_map(|row| row.status.sources.iter().map(|used| used.source.as_str())).collect();
    let shown = rows().filter(|row| filter.shows(row)).count();
    let body = html! {
        (counts(rows()))
        @if !unread.is_empty() {
            p.problem { "You may not list " (unread.iter().map(String::as_str).collect::<Vec<_>>().join(", ")) ": left out." }
        }
        form #filter role="search" method="get" action=(links.overview()) {
            label { "Filter" input #words type="search" name="words" value=(filter.words) autocomplete="off" placeholder="name, namespace or source"; }
            label { "Namespace" select name="namespace" {
                option value="" { "all" }
                @for namespace in views.keys() { option value=(namespace) selected[*namespace == filter.namespace] { (namespace) } }
            } }
            label { "State" select name="state" {
                option value="" { "all" }
                @for state in STATES { option value=(state) selected[state == filter.state] { (state) } }
            } }
            label { "Source" select name="source" {
                option value="" { "all" }
                @for source in sources { option value=(source) selected[source == filter.source] { (source) } }
            } }
            noscript { button { "Filter" } }
            output #shown for="words" { (shown) " shown" }
        }
        p #none hidden[shown > 0] { "No workload matches. A workload is listed if its label confrev.dev/enabled is true." }
        div #namespaces {
            @for (namespace, view) in views { (section(namespace, view, filter, links)) }
        }
    };
    Page { title: "Workloads", namespace: "", above: Vec::new(), live: Live::Rows, body }
}

/// The workloads of a namespace.
pub(super) fn section(namespace: &str, view: &View, filter: &Filter, links: Links) -> Markup {
    let id = digest_id::of(&format!("namespace {namespace}"));
    let is_empty = !view.rows.values().any(|row| filter.shows(row));
    html! {
        section.namespace id=(id) aria-labelledby=(format!("{id}-name")) hidden[is_empty] {
            h2 id=(format!("{id}-name")) { (namespace) }
            ul.rows {
                @for row in view.rows.values() {
                    // The rows of the unfiltered page are rendered once for all readers.
                    @if !links.is_report() && filter.is_empty() { (PreEscaped(&row.html)) }
                    @else { (row.render(links, filter.shows(row))) }
                }
            }
        }
    }
}

/// How many workloads are in each state.
pub(super) fn counts<'r>(rows: impl Iterator<Item = &'r Row>) -> Markup {
    let (mut total, mut of) = (0, BTreeMap::<_, usize>::new());
    for row in rows {
        total += 1;
        for state in &row.states {
            *of.entry(*state).or_default() += 1;
        }
    }
    html! {
        ul #counts aria-label="Workloads by state" {
            li { b { (total) } " in all" }
            @for state in STATES {
                li data-state=(state) { span.mark data-state=(state) aria-hidden="true" {} b { (of.get(state).unwrap_or(&0)) } " " (state) }
            }
        }
    }
}
