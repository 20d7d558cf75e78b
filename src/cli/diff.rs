//! `kubectl confrev diff`: the differences between two contents, key by key.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::Value;
use similar::{
    DiffTag,
    algorithms::{Capture, Compact, Replace, myers},
    group_diff_ops,
    udiff::UnifiedHunkHeader,
};

use super::{
    failure::Failure,
    history::History,
    inventory::{Inventory, Scope, source_name},
    output::{self, Colour, paint},
    target::{Flags, Target},
};
use crate::snapshot::{Digest, SourceKind};

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

/// The values of a ConfigMap or Secret by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content(BTreeMap<String, Vec<u8>>);

impl Content {
    /// The values by key.
    pub(super) fn values(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.0.iter()
    }

    /// The content of an object.
    pub(super) fn of(kind: SourceKind, object: &Value) -> Self {
        let entries = |field: &str| object[field].as_object().into_iter().flatten();
        let decoded = |value: &Value| {
            let text: String = value.as_str().unwrap_or_default().split_whitespace().collect();
            BASE64_STANDARD.decode(text).unwrap_or_default()
        };
        let plain = entries("data").map(|(key, value)| {
            let bytes = match kind {
                SourceKind::ConfigMap => value.as_str().unwrap_or_default().as_bytes().to_vec(),
                SourceKind::Secret => decoded(value),
            };
            (key.clone(), bytes)
        });
        let binary = entries("binaryData").map(|(key, value)| (key.clone(), decoded(value)));
        Self(plain.chain(binary).collect())
    }
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
    let (old, new) = sides(&history, &options.snapshots)?;
    answer(&compare(history.source.kind, &old, &new, options.show_values))
}

/// Prints the differences. If there are any, the exit code is 1, as with kubectl.
fn answer(differences: &str) -> Result<(), Failure> {
    output::print(differences)?;
    if differences.is_empty() { Ok(()) } else { Err(Failure::Different) }
}

/// The two contents to compare.
pub(super) fn sides(history: &History, snapshots: &[String]) -> Result<(Side, Side), Failure> {
    let of_snapshot = |text: &String| {
        history.find(text).map(|(name, snapshot)| Side {
            name: name.clone(),
            content: Content::of(history.source.kind, &snapshot.value),
        })
    };
    match snapshots {
        [old, new] => Ok((of_snapshot(old)?, of_snapshot(new)?)),
        [old] => Ok((of_snapshot(old)?, present(history)?)),
        _ => {
            let other = history.snapshots.iter().find(|(_, snapshot)| !history.is_present(snapshot));
            let (name, _) = other.ok_or_else(|| {
                Failure::NotFound(format!("{} has no snapshot with different content", history.source))
            })?;
            Ok((of_snapshot(name)?, present(history)?))
        }
    }
}

/// The current source.
fn present(history: &History) -> Result<Side, Failure> {
    let observed = history.present.as_ref().ok_or_else(|| {
        Failure::NotFound(format!("{} does not exist: give two of its snapshots", history.source))
    })?;
    let value: Value = serde_json::from_slice(observed.json()).unwrap_or_default();
    Ok(Side { name: history.source.name.to_string(), content: Content::of(history.source.kind, &value) })
}

async fn of_workload(target: &Target, options: &DiffOptions) -> Result<(), Failure> {
    let inventory = Inventory::read_partly(target, &Scope::Namespace(target.namespace.clone())).await?;
    let workload = inventory.find(target, &options.object)?;
    let mut out = String::new();
    // A template may refer to one source both as a whole and by keys.
    let uses = workload.record.uses.iter();
    let held: BTreeSet<_> = uses.filter_map(|used| Some((&used.source, used.snapshot.as_ref()?))).collect();
    for (source, snapshot) in held {
        let history = History::read(target, source.clone()).await?;
        if history.present.is_none() {
            continue;
        }
        let (old, new) = sides(&history, &[snapshot.to_string()])?;
        out += &compare(source.kind, &old, &new, options.show_values);
    }
    answer(&out)
}

/// The keys whose values differ, or that only one side has.
pub(super) fn keys_that_differ<'s>(old: &'s Side, new: &'s Side) -> impl Iterator<Item = &'s String> {
    let keys: BTreeSet<_> = old.content.0.keys().chain(new.content.0.keys()).collect();
    keys.into_iter().filter(|&key| old.content.0.get(key) != new.content.0.get(key))
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
    /// Texts that may be shown; empty if a side lacks the key.
    Texts(&'s str, &'s str),
    /// The texts in place of values of a Secret, or of values that are not text.
    Summaries(String, String),
}

/// The keys that differ, with their values. The values of a Secret are left out unless `show_values`.
pub(super) fn changes<'s>(
    kind: SourceKind,
    old: &'s Side,
    new: &'s Side,
    show_values: bool,
) -> impl Iterator<Item = KeyChange<'s>> {
    let hidden = kind == SourceKind::Secret && !show_values;
    keys_that_differ(old, new).map(move |key| {
        let (before, after) = (old.content.0.get(key), new.content.0.get(key));
        let texts = [before, after].map(|value| std::str::from_utf8(value.map_or(&[], Vec::as_slice)));
        let values = match texts {
            [Ok(before), Ok(after)] if !hidden => ChangedValue::Texts(before, after),
            _ => ChangedValue::Summaries(summary(before), summary(after)),
        };
        KeyChange { key, values }
    })
}

/// The differences in unified format, key by key; empty if there are none.
pub(super) fn compare(kind: SourceKind, old: &Side, new: &Side, show_values: bool) -> String {
    let mut out = String::new();
    for KeyChange { key, values } in changes(kind, old, new, show_values) {
        match values {
            ChangedValue::Texts(before, after) => {
                let hunks = unified(before, after);
                let heads = [("---", &old.name), ("+++", &new.name)]
                    .map(|(mark, name)| format!("{mark} {name} {key}"));
                // A value may be empty on one side, and missing on the other.
                let heads = heads.iter().filter(|_| !hunks.is_empty());
                out.extend(heads.chain(&hunks).map(|line| coloured(line) + "\n"));
            }
            ChangedValue::Summaries(before, after) => {
                let old_line = format!("-{key}: {before}");
                let new_line = format!("+{key}: {after}");
                let head = format!("--- {} {key}\n+++ {} {key}\n", old.name, new.name);
                out.extend([head, coloured(&old_line) + "\n", coloured(&new_line) + "\n"]);
            }
        }
    }
    out
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

fn coloured(line: &str) -> String {
    match line.as_bytes().first() {
        Some(b'-') => paint(Colour::Red, line),
        Some(b'+') => paint(Colour::Green, line),
        Some(b'@') => paint(Colour::Dim, line),
        _ => line.to_owned(),
    }
}

/// The text in place of a value that is not shown.
fn summary(value: Option<&Vec<u8>>) -> String {
    value.map_or_else(
        || "none".to_owned(),
        |bytes| format!("{} bytes, sha256 {}", bytes.len(), short_digest(bytes)),
    )
}

/// The first digits of the digest of a value that is not shown.
pub(super) fn short_digest(value: &[u8]) -> String {
    Digest::of_bytes(value).hex(12)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn side(kind: SourceKind, name: &str, object: &Value) -> Side {
        Side { name: name.to_owned(), content: Content::of(kind, object) }
    }

    #[test]
    fn diff_compares_lines_and_omits_equal_keys() {
        let old = side(SourceKind::ConfigMap, "demo-1", &json!({"data": {"a": "1\n2\n", "same": "x"}}));
        let new =
            side(SourceKind::ConfigMap, "demo", &json!({"data": {"a": "1\n3\n", "same": "x", "b": "n\n"}}));
        let text = compare(SourceKind::ConfigMap, &old, &new, false);
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

    /// The values themselves are shown only on request. Binary data is always shown by size and digest.
    #[test]
    fn diff_shows_size_and_digest_of_secret_values() {
        let secret = |value: &str| json!({"data": {"password": BASE64_STANDARD.encode(value)}});
        let (old, new) = (secret("hunter2"), secret("hunter3"));
        let sides = || (side(SourceKind::Secret, "s-1", &old), side(SourceKind::Secret, "s", &new));
        let text = compare(SourceKind::Secret, &sides().0, &sides().1, false);
        assert!(text.contains("password: 7 bytes, sha256 ") && !text.contains("hunter"), "{text}");
        assert!(compare(SourceKind::Secret, &sides().0, &sides().1, true).contains("+hunter3"));
        let bytes = |value: &str| side(SourceKind::ConfigMap, "b", &json!({"binaryData": {"k": value}}));
        let text = compare(SourceKind::ConfigMap, &bytes("/w=="), &bytes("/v8="), false);
        assert!(text.contains("-k: 1 bytes") && text.contains("+k: 2 bytes"), "{text}");
    }
}
