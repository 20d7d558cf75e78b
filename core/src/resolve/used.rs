//! The keys that a request's references read, and whether a person asks for the newest content.

use std::collections::{BTreeMap, BTreeSet};

use super::{Request, policy::auto_roll_time};
use crate::{
    names,
    snapshot::{ObjectName, SourceKind},
    template::Reference,
};

/// The keys without which pods do not start, by the name in the reference.
pub(super) type RequiredKeys<'t> = BTreeMap<(SourceKind, &'t str), BTreeSet<&'t str>>;

pub(super) fn required_keys<'t>(references: &[Reference<'t>]) -> RequiredKeys<'t> {
    let mut required = RequiredKeys::new();
    for reference in references.iter().filter(|reference| !reference.optional) {
        for key in reference.keys.iter().flatten() {
            required.entry((reference.kind, reference.name)).or_default().insert(key);
        }
    }
    required
}

/// The keys that a template reads, by the name in the reference; `None` if it reads the whole object.
pub(super) type UsedKeys<'t> = BTreeMap<(SourceKind, &'t str), Option<BTreeSet<&'t str>>>;

pub(super) fn used_keys<'t>(references: &[Reference<'t>]) -> UsedKeys<'t> {
    let mut used = UsedKeys::new();
    for reference in references {
        let keys = used.entry((reference.kind, reference.name)).or_insert_with(|| Some(BTreeSet::new()));
        match (keys.as_mut(), &reference.keys) {
            (Some(keys), Some(more)) => keys.extend(more),
            _ => *keys = None,
        }
    }
    used
}

/// The keys that the template reads of a source, under the source's name or `held`; `None` if it reads the whole object.
pub(super) fn keys_of<'k>(source: &ObjectName, held: &str, used: &UsedKeys<'k>) -> Option<BTreeSet<&'k str>> {
    let mut keys = BTreeSet::new();
    for name in [&*source.name, held] {
        match used.get(&(source.kind, name)) {
            None => {}
            Some(None) => return None,
            Some(Some(some)) => keys.extend(some),
        }
    }
    Some(keys)
}

/// Whether `roll` differs from the stored workload's value.
pub(super) fn has_other_roll(request: &Request<'_>) -> bool {
    let roll = request.new.annotation(names::ROLL);
    roll.is_some() && request.old.as_ref().is_some_and(|old| roll != old.annotation(names::ROLL))
}

/// Whether a person or the controller has set a new value of `roll`: the workload must roll to the newest content.
///
/// `kubectl rollout undo` of a Deployment restores all annotations of the old ReplicaSet, including a stale `roll`. The
/// stale `seen` beside it shows that.
pub(super) fn has_new_roll(request: &Request<'_>) -> bool {
    let Some(old) = &request.old else { return false };
    let restored =
        request.new.annotation(names::SEEN).is_some_and(|seen| Some(seen) != old.annotation(names::SEEN));
    has_other_roll(request) && !restored
}

/// Whether a person wrote a new value of `roll`.
pub(super) fn asks_for_newest(request: &Request<'_>) -> bool {
    let by_person = |roll| auto_roll_time(roll).is_none();
    has_new_roll(request) && request.new.annotation(names::ROLL).is_some_and(by_person)
}
