//! Two contents of a source side by side, key by key, with the words that differ.

use std::time::Duration;

use maud::{Markup, html};
use serde_json::Value;
use similar::{ChangeTag, DiffOp, TextDiff};

use super::settings::Settings;
use crate::cli::{
    content::Content,
    diff::{self, ChangedValue, Changes, KeyChange, Side},
    failure::Failure,
    history::History,
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
pub(super) fn side(history: &History, text: &str, settings: &Settings) -> Result<Side, Failure> {
    let content = |value: &Value| Content::of(history.source.kind, value, settings.show_values);
    if text == PRESENT {
        let missing = || Failure::NotFound(format!("{} does not exist", history.source));
        let present = history.present.as_ref().ok_or_else(missing)?;
        let value: Value = serde_json::from_slice(present.json()).unwrap_or_default();
        return Ok(Side { name: PRESENT.to_owned(), content: content(&value) });
    }
    let (name, snapshot) = history.find(text)?;
    Ok(Side { name: name.clone(), content: content(&snapshot.value) })
}

/// The differences.
pub(super) fn view(old: &Side, new: &Side) -> Markup {
    let changes = diff::changes(old, new);
    let keys = if let Changes::Keys(keys) = &changes { keys.as_slice() } else { &[] };
    html! {
        div.compare {
            @if changes == Changes::None { p { "The contents are equal." } }
            @else { p.sides { span { (old.name) } " → " span { (new.name) } } }
            @if changes == Changes::Hidden { p { (diff::CHANGED) } }
            @for KeyChange { key, values } in keys {
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
    use crate::{cli::dashboard::layout::to_text, snapshot::SourceKind};

    fn of(kind: SourceKind, name: &str, key: &str, value: &str) -> Side {
        let content = Content::of(kind, &json!({"data": {key: value}}), false);
        Side { name: name.to_owned(), content }
    }

    #[test]
    fn words_that_differ_are_marked() {
        let kind = SourceKind::ConfigMap;
        let (old, new) = (
            of(kind, "a", "k", "same\ncolor: blue today\n"),
            of(kind, "b", "k", "same\ncolor: green today\n"),
        );
        let text = to_text(view(&old, &new));
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
        let hidden = to_text(view(&of(kind, "a", "password", &old), &of(kind, "b", "password", &new)));
        let expected = "<p class=\"sides\"><span>a</span> → <span>b</span></p><p>changed</p>";
        assert_eq!(hidden, format!("<div class=\"compare\">{expected}</div>"));
        let shown = |name: &str, value: &str| Side {
            name: name.to_owned(),
            content: Content::of(kind, &json!({"data": {"password": value}}), true),
        };
        assert!(to_text(view(&shown("a", &old), &shown("b", &new))).contains("hunter"));
    }

    #[test]
    fn hostile_content_is_escaped() {
        let kind = SourceKind::ConfigMap;
        let hostile = "<script>alert(1)</script>\n\"'&\nnot \u{202e}eurt\u{202c}\n";
        let text = to_text(view(&of(kind, "<b>", "<i>", ""), &of(kind, "\"", "<i>", hostile)));
        assert!(!text.contains("<script>") && !text.contains("<i>") && !text.contains("<b>"), "{text}");
        assert!(text.contains("not \\u202eeurt\\u202c"), "{text}");
    }

    #[test]
    fn long_comparison_is_cut() {
        let kind = SourceKind::ConfigMap;
        let many = (0..5000).map(|i| format!("line {i}\n")).collect::<Vec<_>>().concat();
        let text = to_text(view(&of(kind, "a", "k", ""), &of(kind, "b", "k", &many)));
        assert!(text.contains("cut after 2000 lines") && !text.contains("line 2001"));
    }
}
