//! Users' objects that are bound themselves (`enabled: "bind"`): a tool names them anew on each change, so no snapshot is
//! taken, and the object goes with the revisions that use it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    Action, Name,
    agenda::Task,
    state::{State, UNBIND_DELAY},
};
use crate::{
    cluster::{Owner, Version},
    kinds::REVISION_KINDS,
};

/// The little that is kept of an object that is bound itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRecord {
    /// The state on which writes are conditional.
    pub version: Version,
    /// Its ownerReferences, those of others included.
    pub owners: BTreeSet<Owner>,
}

impl State {
    /// An object labelled to be bound itself, as it is now; `None`: it is gone, or not so labelled any more.
    pub fn apply_bound(&mut self, name: &Name, record: Option<BoundRecord>, now: Timestamp) {
        if let Some(record) = record {
            if self.bound.insert(name.clone(), record).is_none() {
                self.hold_namespace(&name.namespace);
            }
            self.agenda.schedule(Task::Bind(name.clone()), now);
        } else if self.bound.remove(name).is_some() {
            self.release_namespace(&name.namespace);
            if self.users.contains_key(name) {
                self.agenda.schedule(Task::Restore(name.clone()), now);
            }
        }
    }

    /// Whether a live revision or workload reads this very object.
    pub fn is_in_use(&self, name: &Name) -> bool {
        self.users.contains_key(name)
    }

    /// Adds the owners that the object lacks; with `unbind`, also takes away those of confrev's that use it no longer. An
    /// owner that someone else entered stays, and so does the last one: an object without owners would never go.
    pub(super) fn bind_itself(&mut self, name: &Name, unbind: bool, now: Timestamp) -> Option<Action> {
        let record = self.bound.get(name)?;
        let users = self.users.get(name).into_iter().flatten();
        let wanted: BTreeSet<_> = users.filter_map(|user| self.owner(user)).collect();
        let stale = |owner: &&Owner| !wanted.contains(*owner) && self.is_known(name, owner);
        let has_stale = record.owners.iter().any(|owner| stale(&owner));
        let kept = record.owners.iter().filter(|owner| !(unbind && stale(owner))).cloned();
        let owners: BTreeSet<_> = kept.chain(wanted.iter().cloned()).collect();
        let (version, changed) = (record.version.clone(), owners != record.owners && !owners.is_empty());
        if has_stale && !unbind && !wanted.is_empty() {
            self.agenda.schedule(Task::Unbind(name.clone()), now + UNBIND_DELAY);
        }
        let owners = owners.into_iter().collect();
        changed.then(|| Action::SetOwners {
            snapshot: name.clone(),
            version,
            owners,
            hazard: false,
            verify: None,
        })
    }

    /// Whether an owner is a workload or revision that lives, and is watched.
    fn is_known(&self, name: &Name, owner: &Owner) -> bool {
        let of_workload = |kind: usize| {
            let key = crate::cluster::WorkloadKey {
                kind,
                namespace: std::sync::Arc::clone(&name.namespace),
                name: owner.name.as_str().into(),
            };
            self.workloads.get(&key).is_some_and(|record| record.uid == owner.uid)
        };
        let of_revision = |kind: usize| {
            let key = super::RevisionKey {
                kind,
                namespace: std::sync::Arc::clone(&name.namespace),
                name: owner.name.as_str().into(),
            };
            self.revisions.get(&key).is_some_and(|revision| revision.uid == owner.uid)
        };
        self.kinds.iter().enumerate().any(|(i, kind)| kind.kind == owner.kind && of_workload(i))
            || REVISION_KINDS.iter().enumerate().any(|(i, kind)| kind.kind == owner.kind && of_revision(i))
    }
}
