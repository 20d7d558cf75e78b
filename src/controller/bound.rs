//! Sources in bind mode (`enabled: "bind"`): a tool gives them a new name on each change, so they get no snapshot. They are
//! deleted with the revisions that use them.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Action, Name,
    agenda::Task,
    most::{MOST_OWNERS, at_most},
    state::{RESTORE_DELAY, State, UNBIND_DELAY},
};
use crate::{
    cluster::{Owner, Version},
    compact::CompactSet,
    kinds::REVISION_KINDS,
};

/// The record of a source in bind mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRecord {
    /// The uid and resourceVersion that writes require.
    pub version: Version,
    /// Its ownerReferences, including those that others added.
    pub owners: CompactSet<Owner>,
}

impl State {
    /// Applies a source in bind mode as it is now; `None` if it is deleted, or no longer in this mode.
    pub fn apply_bound(&mut self, name: &Name, record: Option<BoundRecord>, now: Timestamp) {
        let record = record.filter(|_| self.served.contains(&name.namespace));
        let (name, record) = (&self.texts.share(name.clone()), self.texts.share(record));
        if let Some(record) = record {
            self.forget_replaced(name, &record.version.uid);
            let old = self.bound.remove(name);
            self.forget_verified(name, old.as_ref().map(|old| &old.owners), Some(&record.owners));
            if old.is_none() {
                self.hold_namespace(&name.namespace);
            }
            self.bound.insert(name.clone(), record);
            self.agenda.schedule(Task::Bind(name.clone()), now);
        } else if let Some(record) = self.bound.remove(name) {
            self.unwanted_since.remove(name);
            self.forget_verified(name, None, None);
            self.release_namespace(&name.namespace);
            self.agenda.schedule(Task::Free(name.clone()), now);
            // Its owners may use it without a watch that reports them: the restore reads them live. The delay leaves time for a
            // tool that deletes an object in order to create it anew, as `kubectl replace --force` does.
            if self.users.contains_key(name) || !record.owners.is_empty() {
                self.agenda.schedule(Task::Restore(name.clone()), now + RESTORE_DELAY);
            }
        }
    }

    /// Whether a workload or revision refers to this object itself.
    pub fn is_in_use(&self, name: &Name) -> bool {
        self.users.contains_key(name)
    }

    /// Adds the missing owners; with `unbind`, also removes confrev's owners that no longer use the object, once a live read has
    /// shown it. Owners that others added stay. The last owner stays too: without owners, the object would never be deleted. An object that
    /// only former users own is released.
    pub(super) fn bind_itself(&mut self, name: &Name, unbind: bool, now: Timestamp) -> Option<Action> {
        let record = self.bound.get(name)?;
        let all: CompactSet<_> =
            self.owners_by_use(name).into_iter().chain(self.proven_owners(name).cloned()).collect();
        let stale = |owner: &&Owner| !all.contains(*owner) && self.is_known(name, owner);
        let has_stale = record.owners.iter().any(|owner| stale(&owner));
        if self.is_released(name) {
            let since = *self.unwanted_since.entry(name.clone()).or_insert(now);
            self.agenda.schedule(Task::Sweep(name.clone()), since + self.grace(true));
            return None;
        }
        if unbind && let Some(verify) = self.verify(name, record.owners.iter().filter(stale)) {
            return Some(verify);
        }
        let kept: Vec<_> = record.owners.iter().filter(|owner| !(unbind && stale(owner))).cloned().collect();
        let others = kept.iter().filter(|owner| !all.contains(*owner)).count();
        let wanted = at_most(MOST_OWNERS.saturating_sub(others), all.clone(), &record.owners);
        let owners: CompactSet<_> = kept.into_iter().chain(wanted.iter().cloned()).collect();
        let (version, changed) = (record.version.clone(), owners != record.owners && !owners.is_empty());
        if has_stale && !unbind && !all.is_empty() {
            self.agenda.schedule(Task::Unbind(name.clone()), now + UNBIND_DELAY);
        }
        let owners = owners.into_iter().collect();
        changed.then(|| Action::SetOwners {
            snapshot: name.clone(),
            version,
            owners,
            hazard: false,
            verify: None,
            own: unbind,
        })
    }

    /// Whether nothing uses the object any more, and all its owners are former users that still exist. The garbage
    /// collector waits for these: the last ReplicaSet that used the object was deleted before they could be removed.
    fn is_released(&self, name: &Name) -> bool {
        let Some(record) = self.bound.get(name).filter(|_| !self.users.contains_key(name)) else {
            return false;
        };
        if self.proven_owners(name).next().is_some() {
            return false;
        }
        !record.owners.is_empty() && record.owners.iter().all(|owner| self.is_known(name, owner))
    }

    /// Deletes a released object, as the garbage collector would if its owners did not exist.
    pub(super) fn release(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        let task = Task::Sweep(name.clone());
        let since = self.unwanted_since.get(name).copied().filter(|_| self.is_released(name));
        let (Some(record), Some(since)) = (self.bound.get(name), since) else {
            self.unwanted_since.remove(name);
            self.agenda.done(&task);
            return None;
        };
        let mut due = since + self.grace(true);
        if self.is_owned_by_one_behind(name) {
            due = due.max(now + UNBIND_DELAY);
        }
        if due > now {
            self.agenda.postpone(task, due);
            return None;
        }
        Some(Action::Release { object: name.clone(), version: record.version.clone() })
    }

    /// Whether an owner is a workload or revision that exists and is watched.
    pub(super) fn is_known(&self, name: &Name, owner: &Owner) -> bool {
        let of_revision = |kind: usize| {
            let key = super::RevisionKey {
                kind,
                namespace: Arc::clone(&name.namespace),
                name: Arc::clone(&owner.name),
            };
            self.revisions.get(&key).is_some_and(|revision| revision.uid == owner.uid)
        };
        self.workload_of(name, owner).is_some()
            || REVISION_KINDS.iter().enumerate().any(|(i, kind)| *kind.kind == *owner.kind && of_revision(i))
    }
}
