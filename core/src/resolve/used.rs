//! The keys that a request's references read, and whether a person asks for the newest content.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use super::Request;
use crate::{
    annotations,
    snapshot::{ObjectName, SourceKind},
    template::Reference,
};

/// The keys without which pods do not start, by the name in the reference.
pub(super) type RequiredKeys<'t> = BTreeMap<(SourceKind, &'t str), BTreeSet<&'t str>>;

pub(super) fn required_keys<'t>(references: &[Reference<'t>]) -> RequiredKeys<'t> {
    let mut required = RequiredKeys::new();
    for reference in references.iter().filter(|reference| !reference.optional) {
        // The API server refuses an empty key.
        for key in reference.keys.iter().flatten().filter(|key| !key.is_empty()) {
            required.entry((reference.kind, reference.name)).or_default().insert(key);
        }
    }
    required
}

/// The keys that a template reads of an object; `None` if it reads the whole object.
pub(super) type ReadKeys<'t> = Option<BTreeSet<&'t str>>;

/// The keys that a template reads.
pub(super) struct UsedKeys<'t> {
    by_name: BTreeMap<(SourceKind, &'t str), ReadKeys<'t>>,
    /// The keys by source, when they are first asked for: a template may have many references, and each may ask.
    by_source: OnceCell<BTreeMap<ObjectName, ReadKeys<'t>>>,
}

/// Adds more keys to those of the same object.
fn add<'t>(keys: &mut ReadKeys<'t>, more: Option<impl IntoIterator<Item = &'t str>>) {
    match (keys.as_mut(), more) {
        (Some(keys), Some(more)) => keys.extend(more),
        _ => *keys = None,
    }
}

impl<'t> UsedKeys<'t> {
    pub(super) fn of(references: &[Reference<'t>]) -> Self {
        let mut by_name = BTreeMap::new();
        for reference in references {
            let keys =
                by_name.entry((reference.kind, reference.name)).or_insert_with(|| Some(BTreeSet::new()));
            add(keys, reference.keys.as_ref().map(|keys| keys.iter().copied()));
        }
        Self { by_name, by_source: OnceCell::new() }
    }

    /// The names in the references.
    pub(super) fn names(&self) -> impl Iterator<Item = (SourceKind, &'t str)> {
        self.by_name.keys().copied()
    }

    /// Whether some reference has this name.
    pub(super) fn has_name(&self, object: &ObjectName) -> bool {
        self.by_name.contains_key(&(object.kind, &*object.name))
    }

    /// The keys of a source, under the source's name or `kept`.
    pub(super) fn of_names(&self, source: &ObjectName, kept: &str) -> ReadKeys<'t> {
        let mut keys = Some(BTreeSet::new());
        for name in [&*source.name, kept] {
            if let Some(more) = self.by_name.get(&(source.kind, name)) {
                add(&mut keys, more.as_ref().map(|more| more.iter().copied()));
            }
        }
        keys
    }

    /// The keys of a source, under all its names. `source_of` returns the source of a snapshot.
    pub(super) fn of_source<'s>(
        &self,
        source: &ObjectName,
        source_of: impl Fn(SourceKind, &str) -> Option<&'s ObjectName>,
    ) -> ReadKeys<'t> {
        let by_source = self.by_source.get_or_init(|| {
            let mut by_source = BTreeMap::new();
            for ((kind, name), more) in &self.by_name {
                let of = source_of(*kind, name).cloned().unwrap_or_else(|| ObjectName::new(*kind, *name));
                let keys = by_source.entry(of).or_insert_with(|| Some(BTreeSet::new()));
                add(keys, more.as_ref().map(|more| more.iter().copied()));
            }
            by_source
        });
        by_source.get(source).cloned().unwrap_or_else(|| Some(BTreeSet::new()))
    }
}

/// Whether `roll` differs from the stored workload's value.
pub(super) fn has_other_roll(request: &Request<'_>) -> bool {
    let roll = request.new.annotation(annotations::ROLL);
    roll.is_some() && request.old.as_ref().is_some_and(|old| roll != old.annotation(annotations::ROLL))
}

/// Whether a person or the controller has set a new value of `roll`: the workload must roll to the newest content.
///
/// `kubectl rollout undo` of a Deployment restores all annotations of the old ReplicaSet, including a stale `roll`. The
/// stale `state` beside it shows that.
pub(super) fn has_new_roll(request: &Request<'_>) -> bool {
    let Some(old) = &request.old else { return false };
    let has_state = request.new.annotation(annotations::STATE).is_some();
    has_other_roll(request) && !(has_state && request.new.restores_state(old))
}
