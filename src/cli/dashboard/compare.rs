//! Two contents of a source side by side, key by key, with the words that differ.

use std::time::Duration;

use maud::{Markup, html};
use similar::{ChangeTag, DiffOp, TextDiff};

use crate::{
    cli::{
        diff::{self, ChangedValue, Content, KeyChange, Side},
        failure::Failure,
        history::History,
    },
    snapshot::SourceKind,
};

/// The word for the present content in addresses.
pub(super) const PRESENT: &str = "present";
/// The most lines of one key. A longer comparison is cut, and says so.
const MAX_LINES: usize = 2000;
/// How long one comparison may look for the smallest difference.
const LIMIT: Duration = Duration::from_millis(500);
/// Equal lines around each difference.
const CONTEXT: usize = 3;

/// A content of a source: a snapshot by name, digits or position, or the present content.
pub(super) fn side(history: &History, text: &str) -> Result<Side, Failure> {
    if text == PRESENT {
        let missing = || Failure::NotFound(format!("{} does not exist", history.source));
        let present = history.present.as_ref().ok_or_else(missing)?;
        let value = serde_json::from_slice(present.json()).unwrap_or_default();
        return Ok(Side { name: PRESENT.to_owned(), content: Content::of(history.source.kind, &value) });
    }
    let (name, snapshot) = history.find(text)?;
    Ok(Side { name: name.clone(), content: Content::of(history.source.kind, &snapshot.value) })
}

/// The differences.
pub(super) fn view(kind: SourceKind, old: &Side, new: &Side, show_values: bool) -> Markup {
    let mut changes = diff::changes(kind, old, new, show_values).peekable();
    html! {
        div.compare {
            @if changes.peek().is_none() { p { "The contents are equal." } }
            @else { p.sides { span { (old.name) } " → " span { (new.name) } } }
            @for KeyChange { key, values } in changes {
                figure.key {
                    figcaption { code { (key) } }
                    @match values {
                        ChangedValue::Texts(before, after) => (lines(before, after)),
                        ChangedValue::Summaries(before, after) => {
                            div.pair { del { (before) } ins { (after) } }
                        }
                    }
                }
            }
        }
    }
}

/// A part of a line, and whether it differs from the other side.
type Word = (bool, String);

fn lines(before: &str, after: &str) -> Markup {
    let diff = TextDiff::configure().timeout(LIMIT).diff_lines(before, after);
    let mut left = MAX_LINES;
    let groups = diff.grouped_ops(CONTEXT);
    html! {
        div.lines {
            @for (i, group) in groups.iter().enumerate() {
                @if i > 0 { div.gap aria-hidden="true" { "⋯" } }
                @for op in group {
                    @let pairs = pairs(&diff, op);
                    @for pair in pairs.into_iter().take(left) { (pair.0) }
                    @let () = { left = left.saturating_sub(op.old_range().len().max(op.new_range().len())); };
                }
            }
            @if left == 0 { p.problem { "The comparison is cut after " (MAX_LINES) " lines: see kubectl confrev diff." } }
        }
    }
}

struct Pair(Markup);

/// The lines of an operation: equal ones once per side, and others beside the line that replaces them.
fn pairs<'d>(diff: &TextDiff<'d, 'd, str>, op: &DiffOp) -> Vec<Pair> {
    let (mut old, mut new, mut equal) = (Vec::new(), Vec::new(), Vec::new());
    for change in diff.iter_inline_changes(op) {
        let words: Vec<Word> =
            change.iter_strings_lossy().map(|(differs, text)| (differs, text.into_owned())).collect();
        match change.tag() {
            ChangeTag::Equal => equal.push((change.old_index(), change.new_index(), words)),
            ChangeTag::Delete => old.push((change.old_index(), words)),
            ChangeTag::Insert => new.push((change.new_index(), words)),
        }
    }
    let mut out: Vec<_> = equal.into_iter().map(|(old, new, words)| Pair(html! {
        div.pair.same { span { (number(old)) (text(&words)) } span aria-hidden="true" { (number(new)) (text(&words)) } }
    })).collect();
    let count = old.len().max(new.len());
    let (mut old, mut new) = (old.into_iter(), new.into_iter());
    for _ in 0..count {
        let (old, new) = (old.next(), new.next());
        out.push(Pair(html! {
            div.pair {
                @if let Some((line, words)) = old { del { (number(line)) (text(&words)) } } @else { span.void {} }
                @if let Some((line, words)) = new { ins { (number(line)) (text(&words)) } } @else { span.void {} }
            }
        }));
    }
    out
}

fn number(line: Option<usize>) -> Markup {
    html! { @if let Some(line) = line { span.number aria-hidden="true" { (line + 1) } } }
}

fn text(words: &[Word]) -> Markup {
    html! { @for (differs, word) in words {
        @let word = word.trim_end_matches(['\n', '\r']);
        @if *differs { mark { (word) } } @else { (word) }
    } }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;

    fn of(kind: SourceKind, name: &str, key: &str, value: &str) -> Side {
        Side { name: name.to_owned(), content: Content::of(kind, &json!({"data": {key: value}})) }
    }

    #[test]
    fn words_that_differ_are_marked() {
        let kind = SourceKind::ConfigMap;
        let (old, new) = (
            of(kind, "a", "k", "same\ncolor: blue today\n"),
            of(kind, "b", "k", "same\ncolor: green today\n"),
        );
        let text = view(kind, &old, &new, false).into_string();
        assert!(
            text.contains("<mark>blue</mark> today") && text.contains("<mark>green</mark> today"),
            "{text}"
        );
        assert!(text.contains("same</span>") && !text.contains("<mark>color"), "{text}");
    }

    #[test]
    fn secret_values_stay_in_the_process() {
        let kind = SourceKind::Secret;
        let (old, new) = (BASE64_STANDARD.encode("hunter2"), BASE64_STANDARD.encode("hunter3"));
        let sides = || (of(kind, "a", "password", &old), of(kind, "b", "password", &new));
        let hidden = view(kind, &sides().0, &sides().1, false).into_string();
        assert!(
            hidden.contains("7 bytes, sha256") && !hidden.contains("hunter") && !hidden.contains(&old),
            "{hidden}"
        );
        assert!(view(kind, &sides().0, &sides().1, true).into_string().contains("hunter"));
    }

    #[test]
    fn hostile_content_is_escaped() {
        let kind = SourceKind::ConfigMap;
        let hostile = "<script>alert(1)</script>\n\"'&\n";
        let text =
            view(kind, &of(kind, "<b>", "<i>", ""), &of(kind, "\"", "<i>", hostile), false).into_string();
        assert!(!text.contains("<script>") && !text.contains("<i>") && !text.contains("<b>"), "{text}");
    }

    #[test]
    fn long_comparison_is_cut() {
        let kind = SourceKind::ConfigMap;
        let many = (0..5000).map(|i| format!("line {i}\n")).collect::<Vec<_>>().concat();
        let text = view(kind, &of(kind, "a", "k", ""), &of(kind, "b", "k", &many), false).into_string();
        assert!(text.contains("cut after 2000 lines") && !text.contains("line 2001"));
    }
}
