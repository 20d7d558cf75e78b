//! A workload in the overview.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{digest_id, layout, links::Links};
use crate::cli::status::{self, WorkloadStatus};

/// The states that people filter by, in the order of the page. All others are `other`.
pub(super) const STATES: [&str; 8] =
    ["current", "pending", "held", "pinned", "paused", "refused", "missing", "other"];

/// A workload with its row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The status that the row shows.
    pub(super) status: WorkloadStatus,
    /// Its states, of [`STATES`].
    pub(super) states: BTreeSet<&'static str>,
    /// The id of the row in the page.
    pub(super) id: String,
    /// The row.
    pub(super) html: String,
}

impl Row {
    /// The row of a workload.
    pub(super) fn new(status: WorkloadStatus, is_paused: bool, links: Links) -> Self {
        let states = states(&status, is_paused);
        let id = digest_id::of(&format!("{}/{}", status.namespace, status.workload));
        let mut row = Self { status, states, id, html: String::new() };
        row.html = layout::to_text(row.render(links, true));
        row
    }

    /// Whether the row passes a filter by state.
    pub(super) fn has_state(&self, state: &str) -> bool {
        state.is_empty() || self.states.contains(state)
    }

    /// Whether the row passes a filter by source.
    pub(super) fn has_source(&self, source: &str) -> bool {
        source.is_empty() || self.status.sources.iter().any(|used| used.source == source)
    }

    /// Whether the row passes a filter by words.
    pub(super) fn has_words(&self, words: &str) -> bool {
        let text = self.text();
        words.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    /// The text that the filter by words searches.
    fn text(&self) -> String {
        let status = &self.status;
        let sources = status.sources.iter().map(|used| used.source.as_str());
        let parts = [status.namespace.as_str(), &status.workload].into_iter().chain(sources);
        parts.collect::<Vec<_>>().join(" ").to_lowercase()
    }

    /// The state in words.
    pub(super) fn state(&self) -> String {
        self.status.template.clone().unwrap_or_else(|| status::state(&self.status.sources))
    }

    /// The row as HTML.
    pub(super) fn render(&self, links: Links, is_shown: bool) -> Markup {
        let status = &self.status;
        let sources: Vec<_> = status.sources.iter().map(|used| used.source.as_str()).collect();
        let states: Vec<_> = self.states.iter().copied().collect();
        html! {
            li.row id=(self.id) data-states=(states.join(" ")) data-sources=(sources.join(" ")) data-text=(self.text())
                hidden[!is_shown] {
                a.name href=(links.workload(&status.namespace, &status.workload)) { (status.workload) }
                span.state { (badge(&states)) " " (self.state()) }
                span.rollout { span.label { "rollout " } (status.rollout) }
                span.pods { span.label { "pods " } (pods(status)) }
                @if !status.reasons.is_empty() { span.reasons { (status.reasons.join("; ")) } }
                span.sources {
                    span.label { "sources " }
                    @for used in &status.sources {
                        a href=(links.source(&status.namespace, &used.object)) { (used.source) }
                        " "
                    }
                }
            }
        }
    }
}

/// The pods by config.
fn pods(status: &WorkloadStatus) -> String {
    let text = status::pods(&status.pods, &status.config);
    if text.is_empty() { "none".to_owned() } else { text }
}

/// A mark of the most urgent state. Its word follows, so the colour is never the only sign.
fn badge(states: &[&str]) -> Markup {
    let urgent = ["refused", "missing", "pending", "held", "pinned", "paused", "other", "current"];
    let state = urgent.iter().find(|state| states.contains(state)).copied().unwrap_or("current");
    html! { span.mark data-state=(state) aria-hidden="true" {} }
}

fn states(status: &WorkloadStatus, is_paused: bool) -> BTreeSet<&'static str> {
    let words = status.sources.iter().filter(|used| !used.state.is_plain()).map(|used| used.state.word());
    let known = |word: &str| STATES.iter().find(|state| **state == word).copied().unwrap_or("other");
    let mut states: BTreeSet<_> = words.map(known).collect();
    if is_paused {
        states.insert("paused");
    }
    if states.is_empty() {
        states.insert("current");
    }
    states
}
