//! The sources that another tool follows.

use std::collections::BTreeSet;

use crate::snapshot::{ObjectName, SourceKind, is_object_name};

/// What the sources' own annotations say to Reloader; `None`: this is not known of all of them.
pub(super) type Matching = Option<BTreeSet<ObjectName>>;

/// The sources that a tool follows.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// All ConfigMaps, and all Secrets.
    all: [bool; 2],
    /// Those with the annotation `match`.
    searches: bool,
    /// These.
    pub(super) names: BTreeSet<ObjectName>,
    /// Never these.
    excluded: BTreeSet<ObjectName>,
    /// Names that are regular expressions.
    pub(super) patterns: Vec<String>,
}

impl Followed {
    /// Every ConfigMap and every Secret.
    pub(super) fn everything() -> Self {
        Self { all: [true; 2], ..Self::default() }
    }

    /// Reads an annotation by the parts of its key, before and behind the domain. Whether it says which sources are followed.
    pub(super) fn read(&mut self, prefix: &str, name: &str, text: &str) -> bool {
        let is_true = text == "true";
        match (prefix, name) {
            ("", "auto") if text == "false" => return false,
            ("", "auto") => self.every([is_true; 2]),
            ("configmap", "auto") => self.every([is_true, false]),
            ("secret", "auto") => self.every([false, is_true]),
            ("", "search") => self.searches |= is_true,
            ("configmap", "reload") => self.name(SourceKind::ConfigMap, text),
            ("secret", "reload") => self.name(SourceKind::Secret, text),
            ("configmaps.exclude", "reload") => self.exclude(SourceKind::ConfigMap, text),
            ("secrets.exclude", "reload") => self.exclude(SourceKind::Secret, text),
            _ => return false,
        }
        true
    }

    fn every(&mut self, all: [bool; 2]) {
        self.all = [self.all[0] || all[0], self.all[1] || all[1]];
    }

    fn name(&mut self, kind: SourceKind, list: &str) {
        for item in items(list) {
            if is_object_name(item) {
                self.names.insert(ObjectName::new(kind, item));
            } else {
                self.patterns.push(item.to_owned());
            }
        }
    }

    fn exclude(&mut self, kind: SourceKind, list: &str) {
        self.excluded.extend(items(list).map(|item| ObjectName::new(kind, item)));
    }

    fn is_one_of_all(&self, source: &ObjectName) -> bool {
        self.all[usize::from(source.kind == SourceKind::Secret)]
    }

    /// Whether the source's own annotations decide.
    pub(super) fn depends_on_marks(&self, source: &ObjectName) -> bool {
        self.searches && !self.is_one_of_all(source) && !self.names.contains(source)
    }

    /// Whether the source is followed.
    pub(super) fn contains(&self, source: &ObjectName, matching: &Matching) -> bool {
        let is_marked = |source: &ObjectName| matching.as_ref().is_some_and(|marked| marked.contains(source));
        !self.excluded.contains(source)
            && (self.is_one_of_all(source)
                || self.names.contains(source)
                || (self.searches && is_marked(source)))
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}
