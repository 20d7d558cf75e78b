//! What a request says beyond its references' names: the keys it reads, and whether a person asks for the newest content.

use std::collections::{BTreeMap, BTreeSet};

use super::{Request, policy::auto_roll_time};
use crate::{
    names,
    snapshot::{ObjectName, SourceKind},
    template::Reference,
};

/// The keys that a template reads, by the name it refers by; `None` where it takes the whole.
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

/// The keys that the template reads of a source, by whichever name; `None` where some reference takes the whole.
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

/// Whether a person wrote a new value of `roll`.
///
/// `kubectl rollout undo` of a Deployment puts back all annotations of the old ReplicaSet, a stale `roll` among them;
/// that is told by the stale `seen` beside it.
pub(super) fn asks_for_newest(request: &Request<'_>) -> bool {
    let Some(old) = &request.old else { return false };
    let Some(roll) = request.new.annotation(names::ROLL) else { return false };
    let restored =
        request.new.annotation(names::SEEN).is_some_and(|seen| Some(seen) != old.annotation(names::SEEN));
    Some(roll) != old.annotation(names::ROLL) && auto_roll_time(roll).is_none() && !restored
}
