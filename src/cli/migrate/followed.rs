//! The sources that other tools follow.

use std::collections::BTreeSet;

use crate::{
    resolve::reloader_reads_true,
    snapshot::{ObjectName, SourceKind, is_object_name},
};

/// What the sources' own annotations say to Reloader.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// Those that a workload with `search` follows.
    pub(super) matching: BTreeSet<ObjectName>,
    /// Those that no workload follows.
    pub(super) ignored: BTreeSet<ObjectName>,
    /// Those that confrev leaves alone, by their own label.
    pub(super) left_alone: BTreeSet<ObjectName>,
    /// The kinds of which the annotations are not known.
    pub(super) unread: BTreeSet<SourceKind>,
    /// If given, the annotations of these sources alone are known.
    pub(super) only: Option<BTreeSet<ObjectName>>,
}

/// The sources that one tool follows.
#[derive(Clone, Debug, Default)]
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
    /// Whether the annotations of the sources count.
    reads_marks: bool,
}

impl Followed {
    /// Every ConfigMap and every Secret, whatever their annotations say.
    pub(super) fn everything() -> Self {
        Self { all: [true; 2], ..Self::default() }
    }

    /// Reads an annotation of Reloader by the parts of its key, before and behind the domain. Whether it says which sources are followed.
    pub(super) fn read(&mut self, prefix: &str, name: &str, text: &str) -> bool {
        let is_true = reloader_reads_true(name, text);
        match (prefix, name) {
            ("" | "configmap" | "secret", "auto") if !is_true => return false,
            ("", "auto") => self.all = [true; 2],
            ("configmap", "auto") => self.all[0] = true,
            ("secret", "auto") => self.all[1] = true,
            ("", "search") => self.searches |= is_true,
            ("configmap", "reload") => self.name(SourceKind::ConfigMap, text),
            ("secret", "reload") => self.name(SourceKind::Secret, text),
            ("configmaps.exclude", "reload") => self.exclude(SourceKind::ConfigMap, text),
            ("secrets.exclude", "reload") => self.exclude(SourceKind::Secret, text),
            _ => return false,
        }
        self.reads_marks = true;
        true
    }

    /// Whether the source is followed; `None` if an annotation of it decides that, and is not known.
    pub(super) fn follows(&self, source: &ObjectName, marks: &Marks) -> Option<bool> {
        if self.excluded.contains(source) {
            return Some(false);
        }
        let is_read = !marks.unread.contains(&source.kind);
        let is_named =
            self.all[usize::from(source.kind == SourceKind::Secret)] || self.names.contains(source);
        if is_named && self.reads_marks {
            return is_read.then(|| !marks.ignored.contains(source));
        }
        if is_named || !self.searches {
            return Some(is_named);
        }
        let is_known = is_read && marks.only.as_ref().is_none_or(|only| only.contains(source));
        is_known.then(|| marks.matching.contains(source) && !marks.ignored.contains(source))
    }

    /// Whether it follows sources that the template does not use yet.
    pub(super) fn is_open(&self) -> bool {
        self.all != [false; 2]
    }

    /// Whether it says only what is not followed.
    pub(super) fn only_excludes(&self) -> bool {
        !self.is_open() && !self.searches && self.names.is_empty() && self.patterns.is_empty()
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
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}
