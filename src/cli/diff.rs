//! `kubectl confrev diff`: the differences between two contents, key by key.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::Value;
use similar::{
    DiffTag,
    algorithms::{Capture, Compact, Replace, myers},
    group_diff_ops,
    udiff::UnifiedHunkHeader,
};

use super::{
    content::Content,
    failure::Failure,
    history::History,
    inventory::Inventory,
    objects::{Scope, source_name},
    output::{self, Colour, Text},
    target::{Flags, Target},
};

/// Options of `diff`.
#[derive(Debug, Args)]
pub(super) struct DiffOptions {
    /// A source (NAME, configmap/NAME, secret/NAME), or a workload as kind/NAME.
    object: String,
    /// A snapshot of the source: its name, the digits at its end, or ~N, the Nth in its history, counted from 0. One snapshot
    /// is compared with the present source. Default: the newest snapshot that differs from the source.
    #[arg(num_args = 0..=2, value_name = "SNAPSHOT")]
    snapshots: Vec<String>,
    /// Show the values of Secrets.
    #[arg(long)]
    show_values: bool,
    #[command(flatten)]
    flags: Flags,
}

/// One side of a comparison.
pub(super) struct Side {
    /// Its name in the output.
    pub(super) name: String,
    /// Its content.
    pub(super) content: Content,
}

/// Runs the command.
pub(super) async fn run(options: &DiffOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let is_source = source_name(&options.object).is_ok();
    if !is_source {
        if !options.snapshots.is_empty() {
            return Err(Failure::Usage(
                "snapshots can be given only for a source, not for a workload".to_owned(),
            ));
        }
        return of_workload(&target, options).await;
    }
    let history = match History::read(&target, source_name(&options.object)?).await {
        Err(Failure::NotFound(message)) => {
            let scope = Scope::Namespace(target.namespace.clone());
            let hint = Inventory::read_workloads(&target, &scope).await;
            let hint = hint.map(|inventory| inventory.hint_at_workload(&options.object)).unwrap_or_default();
            return Err(Failure::NotFound(message + &hint));
        }
        other => other?,
    };
    let (old, new) = sides(&history, &options.snapshots, options.show_values)?;
    answer(&compare(&old, &new))
}

/// Prints the differences. If there are any, the exit code is 1, as with kubectl.
fn answer(differences: &Text) -> Result<(), Failure> {
    output::print(differences)?;
    if differences.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

/// The two contents to compare.
pub(super) fn sides(
    history: &History,
    snapshots: &[String],
    show_values: bool,
) -> Result<(Side, Side), Failure> {
    let of_snapshot = |text: &String| {
        history.find(text).map(|(name, snapshot)| Side {
            name: name.clone(),
            content: Content::of(history.source.kind, &snapshot.value, show_values),
        })
    };
    match snapshots {
        [old, new] => Ok((of_snapshot(old)?, of_snapshot(new)?)),
        [old] => Ok((of_snapshot(old)?, present(history, show_values)?)),
        _ => {
            let other = history.snapshots.iter().find(|(_, snapshot)| !history.is_present(snapshot));
            let (name, _) = other.ok_or_else(|| {
                Failure::NotFound(format!("{} has no snapshot with different content", history.source))
            })?;
            Ok((of_snapshot(name)?, present(history, show_values)?))
        }
    }
}

/// The current source.
fn present(history: &History, show_values: bool) -> Result<Side, Failure> {
    let observed = history.present.as_ref().ok_or_else(|| {
        Failure::NotFound(format!("{} does not exist: give two of its snapshots", history.source))
    })?;
    let value: Value = serde_json::from_slice(observed.json()).unwrap_or_default();
    let content = Content::of(history.source.kind, &value, show_values);
    Ok(Side { name: history.source.name.to_string(), content })
}

async fn of_workload(target: &Target, options: &DiffOptions) -> Result<(), Failure> {
    let inventory = Inventory::read_partly(target, &Scope::Namespace(target.namespace.clone())).await?;
    let workload = inventory.find(target, &options.object)?;
    let mut out = Text::default();
    // A template may refer to one source both as a whole and by keys.
    let uses = workload.record.uses.iter();
    let held: BTreeSet<_> = uses.filter_map(|used| Some((&used.source, used.snapshot.as_ref()?))).collect();
    for (source, snapshot) in held {
        let history = History::read(target, source.clone()).await?;
        if history.present.is_none() {
            continue;
        }
        let (old, new) = sides(&history, &[snapshot.to_string()], options.show_values)?;
        out.append("", &compare(&old, &new));
    }
    answer(&out)
}

/// The change of one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyChange<'s> {
    /// The key.
    pub(super) key: &'s str,
    /// The old and the new value.
    pub(super) values: ChangedValue<'s>,
}

/// The two values of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChangedValue<'s> {
    /// Texts; empty if a side lacks the key.
    Texts(&'s str, &'s str),
    /// The texts in place of values that are not text.
    Summaries(String, String),
}

/// The differences between two contents.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changes<'s> {
    /// There are none.
    None,
    /// There are some, of which nothing may be shown.
    Hidden,
    /// The keys that differ, or that only one side has.
    Keys(Vec<KeyChange<'s>>),
}

/// The word for a change whose values are hidden.
pub(super) const CHANGED: &str = "changed";

/// The differences between two contents.
pub(super) fn changes<'s>(old: &'s Side, new: &'s Side) -> Changes<'s> {
    if old.content == new.content {
        return Changes::None;
    }
    let (Some(before), Some(after)) = (old.content.shown(), new.content.shown()) else {
        return Changes::Hidden;
    };
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter_map(|key| {
        let (before, after) = (before.get(key), after.get(key));
        let texts = [before, after].map(|value| std::str::from_utf8(value.map_or(&[], Vec::as_slice)));
        let values = match texts {
            [Ok(before), Ok(after)] => ChangedValue::Texts(before, after),
            _ => ChangedValue::Summaries(old.content.summary(before), new.content.summary(after)),
        };
        (before != after).then_some(KeyChange { key, values })
    });
    Changes::Keys(changed.collect())
}

/// The differences in unified format, key by key; empty if there are none.
pub(super) fn compare(old: &Side, new: &Side) -> Text {
    let mut out = Text::default();
    let keys = match changes(old, new) {
        Changes::None => return out,
        Changes::Hidden => {
            for line in [format!("--- {}", old.name), format!("+++ {}", new.name), CHANGED.to_owned()] {
                push(&mut out, &line);
            }
            return out;
        }
        Changes::Keys(keys) => keys,
    };
    for KeyChange { key, values } in keys {
        let heads = [format!("--- {} {key}", old.name), format!("+++ {} {key}", new.name)];
        let lines = match values {
            ChangedValue::Texts(before, after) => unified(before, after),
            ChangedValue::Summaries(before, after) => {
                vec![format!("-{key}: {before}"), format!("+{key}: {after}")]
            }
        };
        // A value may be empty on one side, and missing on the other.
        let heads = heads.iter().filter(|_| !lines.is_empty());
        heads.chain(&lines).for_each(|line| push(&mut out, line));
    }
    out
}

fn push(out: &mut Text, line: &str) {
    let colour = match line.as_bytes().first() {
        Some(b'-') => Some(Colour::Red),
        Some(b'+') => Some(Colour::Green),
        Some(b'@') => Some(Colour::Dim),
        _ => None,
    };
    out.push_content_line(colour, line);
}

/// The hunks of the unified format, by lines. `similar::TextDiff` would link five algorithms, which are half a megabyte.
fn unified(before: &str, after: &str) -> Vec<String> {
    let [old, new] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let mut diff = Compact::new(Replace::new(Capture::new()), &old, &new);
    let Ok(()) = myers::diff(&mut diff, &old, 0..old.len(), &new, 0..new.len());
    let mut out = Vec::new();
    for hunk in group_diff_ops(diff.into_inner().into_inner().into_ops(), 3) {
        if hunk.is_empty() {
            continue;
        }
        out.push(UnifiedHunkHeader::new(&hunk).to_string());
        for (tag, before, after) in hunk.iter().map(similar::DiffOp::as_tag_tuple) {
            let lines = |mark: char, lines: &[&str]| {
                lines
                    .iter()
                    .flat_map(|line| line.lines())
                    .map(|line| format!("{mark}{line}"))
                    .collect::<Vec<_>>()
            };
            if tag == DiffTag::Equal {
                out.extend(lines(' ', &old[before]));
            } else {
                out.extend(lines('-', &old[before]));
                out.extend(lines('+', &new[after]));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde_json::json;

    use super::*;
    use crate::snapshot::SourceKind;

    fn side(kind: SourceKind, name: &str, object: &Value) -> Side {
        Side { name: name.to_owned(), content: Content::of(kind, object, false) }
    }

    #[test]
    fn diff_compares_lines_and_omits_equal_keys() {
        let old = side(SourceKind::ConfigMap, "demo-1", &json!({"data": {"a": "1\n2\n", "same": "x"}}));
        let new =
            side(SourceKind::ConfigMap, "demo", &json!({"data": {"a": "1\n3\n", "same": "x", "b": "n\n"}}));
        let text = compare(&old, &new).to_string();
        assert!(text.contains("--- demo-1 a\n+++ demo a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n"), "{text}");
        assert!(text.contains("+++ demo b\n") && text.contains("+n\n"), "{text}");
        assert!(!text.contains("same"), "{text}");
    }

    proptest::proptest! {
        /// The hunks are those of the library's own writer.
        #[test]
        fn hunks_equal_those_of_the_library(before in "([ab]\r?\n|c){0,24}", after in "([ab]\r?\n|c){0,24}") {
            let diff = similar::TextDiff::from_lines(&before, &after);
            let theirs = diff.unified_diff().missing_newline_hint(false).to_string();
            let theirs: Vec<_> = theirs.lines().map(str::to_owned).collect();
            proptest::prop_assert_eq!(unified(&before, &after), theirs);
        }
    }

    /// A reader of a pipeline's log could find a short password by its size and hash.
    #[test]
    fn diff_of_secret_prints_one_word() {
        let secret = |key: &str, value: &str| json!({"data": {key: BASE64_STANDARD.encode(value)}});
        let of = |name: &str, object: &Value, show_values| Side {
            name: name.to_owned(),
            content: Content::of(SourceKind::Secret, object, show_values),
        };
        let old = secret("password", "hunter2");
        for new in [secret("password", "hunter3"), secret("passphrase", "hunter2"), json!({})] {
            let text = compare(&of("s-1", &old, false), &of("s", &new, false)).to_string();
            assert_eq!(text, "--- s-1\n+++ s\nchanged\n");
        }
        assert!(compare(&of("s-1", &old, false), &of("s", &old, false)).is_empty());
        let new = secret("password", "hunter3");
        let text = compare(&of("s-1", &old, true), &of("s", &new, true)).to_string();
        assert!(text.contains("+++ s password\n") && text.contains("+hunter3\n"), "{text}");
    }

    #[test]
    fn binary_values_are_shown_by_size_and_digest() {
        let bytes = |value: &str| side(SourceKind::ConfigMap, "b", &json!({"binaryData": {"k": value}}));
        let text = compare(&bytes("/w=="), &bytes("/v8=")).to_string();
        assert!(text.contains("-k: 1 bytes, sha256 ") && text.contains("+k: 2 bytes, sha256 "), "{text}");
    }

    #[test]
    fn diff_escapes_what_a_terminal_acts_on() {
        let kind = SourceKind::ConfigMap;
        let old = side(kind, "demo-1", &json!({"data": {"a": "1\n"}}));
        let new = side(kind, "demo", &json!({"data": {"a": "1\n\u{1b}[2Jx\ty\u{202e}\n"}}));
        let text = compare(&old, &new).to_string();
        assert!(text.contains("\n 1\n+\\u001b[2Jx\ty\\u202e\n"), "{text:?}");
    }
}
