//! The frame of every page.

use maud::{DOCTYPE, Markup, html};

use super::links::Links;
use crate::text;

/// The policy of every page: everything comes from this server, nothing is inline, and no other page shows this one in a frame.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// How a page follows changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Live {
    /// It gets its changed rows.
    Rows,
    /// It is loaded again, and changed in place.
    Page,
    /// It stays as it is: a user decides by what it shows.
    Still,
}

/// A page.
pub(super) struct Page<'p> {
    /// The title, which the page's heading repeats.
    pub(super) title: &'p str,
    /// The namespace whose changes the page shows; empty for all.
    pub(super) namespace: &'p str,
    /// The pages above this one.
    pub(super) above: Vec<(String, String)>,
    /// How the page follows changes.
    pub(super) live: Live,
    /// The content.
    pub(super) body: Markup,
}

impl Page<'_> {
    /// The whole document. `about` names the cluster, and the time of a report.
    pub(super) fn render(&self, links: Links, about: &str) -> String {
        self.render_at(links, about, 0)
    }

    /// The whole document of a page that follows changes. `version`: the number of the last update that it has.
    pub(super) fn render_at(&self, links: Links, about: &str, version: u64) -> String {
        let live = match self.live {
            _ if links.is_report() => None,
            Live::Rows => Some("rows"),
            Live::Page => Some("page"),
            Live::Still => None,
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    @if links.is_report() { meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; base-uri 'none'; form-action 'none'"; }
                    title { (self.title) " · confrev" }
                    link rel="icon" href=(links.asset("icon.svg")) type="image/svg+xml";
                    link rel="stylesheet" href=(links.asset("style.css"));
                    @if !links.is_report() { script defer src=(links.asset("idiomorph.min.js")) {} }
                    script defer src=(links.asset("page.js")) {}
                }
                body data-live=[live] data-root=[live.map(|_| links.overview())] data-namespace=(self.namespace) data-version=[live.map(|_| version)] {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        nav aria-label="Breadcrumb" {
                            a href=(links.overview()) { "confrev" }
                            @for (text, to) in &self.above { span aria-hidden="true" { "/" } a href=(to) { (text) } }
                        }
                        span.about { (about) }
                        @if live.is_some() { span #live role="status" { "connecting" } }
                    }
                    main #main tabindex="-1" {
                        h1 { (self.title) }
                        (self.body)
                    }
                }
            }
        };
        to_text(page)
    }
}

/// The text of a page or of a part of one. maud escapes what HTML acts on, and this what the reader's eyes act on: marks of the
/// writing direction, invisible and control characters. No page has such a character of its own.
pub(super) fn to_text(page: Markup) -> String {
    text::block(&page.into_string()).into_owned()
}

/// A page about a request that cannot be answered.
pub(super) fn problem(links: Links, title: &str, message: &str) -> String {
    let body = html! { p.problem role="alert" { (message) } };
    let page = Page { title, namespace: "", above: Vec::new(), live: Live::Still, body };
    page.render(links, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::dashboard::links::RunPath;

    fn links() -> Links {
        Links::Server(RunPath::new(&"7".repeat(32)))
    }

    #[test]
    fn hostile_text_is_escaped() {
        let hostile =
            "</title><script>alert(1)</script>\" onload=\"x' & <img src=x onerror=y>\u{202e}\u{1b}[2J";
        let body = html! { p title=(hostile) { (hostile) } };
        let page = Page {
            title: hostile,
            namespace: hostile,
            above: vec![(hostile.to_owned(), hostile.to_owned())],
            live: Live::Page,
            body,
        };
        let shown = page.render(links(), hostile);
        assert!(!shown.chars().any(|c| text::is_active(c) && c != '\n'), "{shown:?}");
        assert!(shown.contains("\\u202e\\u001b[2J"), "{shown}");
        let text = shown;
        assert!(
            !text.contains("<script>alert") && !text.contains("<img") && !text.contains("\" onload"),
            "{text}"
        );
        assert_eq!(text.matches("&lt;script&gt;").count(), 8, "{text}");
    }

    #[test]
    fn pages_have_no_inline_script_or_style() {
        let text = problem(links(), "No", "nothing");
        assert!(
            !text.contains("style=") && !text.contains("<style") && !text.contains("javascript:"),
            "{text}"
        );
        assert!(
            text.split("<script")
                .skip(1)
                .all(|script| script.contains("src=") && script.contains("></script>")),
            "{text}"
        );
        assert!(POLICY.starts_with("default-src 'none'") && !POLICY.contains("unsafe"));
    }
}
