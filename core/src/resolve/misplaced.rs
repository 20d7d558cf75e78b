//! Warnings about labels and annotations under confrev's prefix that have no effect.
//!
//! A key that the stored object has already is not reported again: tools that apply every few minutes would repeat a warning
//! on which their user cannot act.

use std::collections::BTreeMap;

use super::{Request, decide::Resolver};
use crate::{
    json::Str,
    names::{self, PREFIX},
};

/// The annotations that users write on a workload.
const SETTINGS: [&str; 7] = [
    names::SECRETS,
    names::EXCLUDE,
    names::TRACK,
    names::MISSING,
    names::MIN_INTERVAL,
    names::ROLL,
    names::MOUNT,
];
/// The annotations that users write on a source.
const OF_SOURCES: [&str; 2] = [names::KEEP, names::MAX_IN_FLIGHT];
/// The keys that confrev writes on a workload.
const WRITTEN: [&str; 5] = [names::SEEN, names::UNHEALTHY, names::PINNED, names::ENABLED_BY, names::REVISION];
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
        names::ENABLED => None,
        _ if WRITTEN.contains(&key) => None,
        _ if SETTINGS.contains(&key) => Some("it is an annotation".to_owned()),
        _ => Some(right_place(key)),
    }
}

fn wrong_annotation(key: &str) -> Option<String> {
    match key {
        names::ENABLED => Some("it is a label".to_owned()),
        _ if SETTINGS.contains(&key) || WRITTEN.contains(&key) => None,
        _ => Some(right_place(key)),
    }
}

/// Where a key belongs, or how a similar one is spelled.
fn right_place(key: &str) -> String {
    if OF_SOURCES.contains(&key) {
        return "it is an annotation of a ConfigMap or Secret".to_owned();
    }
    let known = SETTINGS.iter().chain(&OF_SOURCES).chain([&names::ENABLED]);
    // A key may be long, and an object may have many.
    let similar = known
        .filter(|known| key.len().abs_diff(known.len()) <= TYPO)
        .map(|known| (distance(key, known), *known))
        .min();
    match similar {
        Some((letters, known)) if letters <= TYPO => format!("did you mean {known}?"),
        _ => format!("confrev has no such key; use {}", SETTINGS.join(", ")),
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

impl Resolver<'_> {
    /// Adds a warning for each name in `exclude` to which the template does not refer, if the annotation is new.
    pub(super) fn warn_unused_exclusions<'n>(
        &mut self,
        used: impl Iterator<Item = (crate::snapshot::SourceKind, &'n str)>,
    ) {
        let stored = self.request.old.as_ref().and_then(|old| old.annotation(names::EXCLUDE));
        if self.policy.exclude.is_empty() || stored == self.request.new.annotation(names::EXCLUDE) {
            return;
        }
        let mut unused = self.policy.exclude.clone();
        for (kind, name) in used {
            let of = [&self.prior, &self.stated].into_iter().find_map(|map| map.source_of(kind, name));
            unused.remove(&of.cloned().unwrap_or_else(|| crate::snapshot::ObjectName::new(kind, name)));
        }
        for name in unused {
            self.warnings.push(format!(
                "annotation {}: the template does not refer to {name}, so its exclusion has no effect",
                names::EXCLUDE
            ));
        }
    }
}
