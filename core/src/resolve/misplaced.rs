//! Warnings about labels and annotations under confrev's prefix that have no effect.
//!
//! A key that the stored object has already is not reported again: tools that apply every few minutes would repeat a warning
//! on which their user cannot act.

use std::collections::{BTreeMap, BTreeSet};

use super::Request;
use crate::{
    annotations::{self, On, PREFIX, is_record, is_setting, records, settings},
    json::Str,
    snapshot::{ObjectName, SourceKind},
};

/// The most letters in which a misspelled key differs from the right one.
const TYPO: usize = 2;

/// One warning for each label and annotation of the workload that is new and has no effect.
pub(super) fn warnings(request: &Request<'_>) -> Vec<String> {
    let old = request.old.as_ref();
    let labels = added(request.new.labels(), old.and_then(super::Workload::labels));
    let annotations = added(request.new.annotations(), old.and_then(super::Workload::annotations));
    let labels =
        labels.filter_map(|key| wrong_label(key).map(|why| format!("label {key} has no effect: {why}")));
    let annotations = annotations
        .filter_map(|key| wrong_annotation(key).map(|why| format!("annotation {key} has no effect: {why}")));
    labels.chain(annotations).collect()
}

/// The keys of confrev that are new.
fn added<'a>(
    new: Option<&'a BTreeMap<Str<'_>, Str<'_>>>,
    old: Option<&'a BTreeMap<Str<'_>, Str<'_>>>,
) -> impl Iterator<Item = &'a str> {
    let keys = new.into_iter().flatten().map(|(key, _)| &**key);
    keys.filter(move |key| key.starts_with(PREFIX) && !old.is_some_and(|old| old.contains_key(*key)))
}

fn wrong_label(key: &str) -> Option<String> {
    match key {
        annotations::ENABLED => None,
        _ if is_written(key) => None,
        _ if is_setting(key, On::Workload) => Some("it is an annotation".to_owned()),
        _ => Some(right_place(key)),
    }
}

fn wrong_annotation(key: &str) -> Option<String> {
    match key {
        annotations::ENABLED => Some("it is a label".to_owned()),
        _ if is_setting(key, On::Workload) || is_written(key) => None,
        _ => Some(right_place(key)),
    }
}

/// Whether confrev writes the key on workloads.
fn is_written(key: &str) -> bool {
    key == annotations::REVISION || is_record(key, On::Workload)
}

/// Where a key belongs, or how a similar one is spelled.
fn right_place(key: &str) -> String {
    if is_setting(key, On::Source) || is_record(key, On::Source) {
        return "it is an annotation of a ConfigMap or Secret".to_owned();
    }
    if is_setting(key, On::Namespace) {
        return "it is an annotation of a Namespace".to_owned();
    }
    let known = settings(On::Workload)
        .chain(settings(On::Source))
        .chain(records(On::Source))
        .chain([annotations::ENABLED]);
    // A key may be long, and an object may have many.
    let similar = known
        .filter(|known| key.len().abs_diff(known.len()) <= TYPO)
        .map(|known| (distance(key, known), known))
        .min();
    match similar {
        Some((letters, known)) if letters <= TYPO => format!("did you mean {known}?"),
        _ => {
            format!("confrev has no such key; use {}", settings(On::Workload).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The Levenshtein distance of two keys.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// One warning for each source that a new annotation names, and to which the template does not refer. `used` are the names in the
/// template; `source_of` finds the source of a snapshot by `sources`.
pub(super) fn unused_names<'n, 't>(
    request: &Request<'_>,
    (key, named, what): (&str, impl Iterator<Item = &'n ObjectName>, &str),
    used: impl Iterator<Item = (SourceKind, &'t str)>,
    source_of: impl Fn(SourceKind, &str) -> Option<ObjectName>,
) -> Vec<String> {
    let mut unused: BTreeSet<_> = named.cloned().collect();
    let stored = request.old.as_ref().and_then(|old| old.annotation(key));
    if unused.is_empty() || stored == request.new.annotation(key) {
        return Vec::new();
    }
    for (kind, name) in used {
        unused.remove(&source_of(kind, name).unwrap_or_else(|| ObjectName::new(kind, name)));
    }
    let warning = |name: &ObjectName| {
        format!("annotation {key}: the template does not refer to {name}, so {what} has no effect")
    };
    unused.iter().map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_inserted_deleted_and_replaced_letters() {
        for (a, b, letters) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ac", 1),
            ("ac", "abc", 1),
            ("abcd", "badc", 3),
            ("kitten", "sitting", 3),
            ("saturday", "sunday", 3),
            ("aaaa", "b", 4),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (letters, letters), "{a:?} and {b:?}");
        }
    }
}
