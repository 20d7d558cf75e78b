//! Sources in bind mode (`enabled: "bind"`): a tool gives them a new name on each change, so they get no snapshot. They are
//! deleted with the revisions that use them.

use std::sync::Arc;

use confrev_core::{compact::CompactSet, kinds::REVISION_KINDS, resolve::Health};

use crate::{
    change::WorldChange,
    live_findings::{LiveFindings, Verified},
    name::Name,
    objects::Owner,
    records::{BoundRecord, RevisionKey},
    shares::{self, Class},
    world::World,
};

impl World {
    /// Applies a source in bind mode as it is now; `None` if it is deleted, or no longer in this mode.
    pub fn apply_bound(&mut self, name: &Name, record: Option<BoundRecord>, changes: &mut Vec<WorldChange>) {
        let record = record.filter(|_| self.config.served.contains(&name.namespace));
        let bytes = |record: Option<&BoundRecord>| {
            record.map_or(0, |known| shares::of_bound(&name.object.name, known))
        };
        let (old_bytes, new_bytes) = (bytes(self.bound.get(name)), bytes(record.as_ref()));
        let record =
            record.filter(|_| self.make_room(&name.namespace, Class::Other, (old_bytes, new_bytes), changes));
        let kept_bytes = if record.is_some() { new_bytes } else { 0 };
        self.shares.charge(&name.namespace, Class::Other, (old_bytes, kept_bytes));
        let (name, record) = (self.interner.intern(name.clone()), self.interner.intern(record));
        if let Some(record) = record {
            let old = self.bound.remove(&name);
            self.owners_changed(&name, old.as_ref().map(|old| &old.owners), Some(&record.owners));
            if old.is_none() {
                self.watch_namespace(&name.namespace);
            }
            self.bound.insert(name.clone(), record);
            changes.push(WorldChange::Object(name));
        } else if let Some(record) = self.bound.remove(&name) {
            self.owners_changed(&name, Some(&record.owners), None);
            self.unwatch_namespace(&name.namespace);
            let is_used = self.users.has_any(&name) || !record.owners.is_empty();
            changes.push(WorldChange::Unbound { name, is_used });
        }
    }

    /// The record of a source in bind mode.
    pub fn bound(&self, name: &Name) -> Option<&BoundRecord> {
        self.bound.get(name)
    }

    /// All sources in bind mode.
    pub fn all_bound(&self) -> impl Iterator<Item = &Name> {
        self.bound.keys()
    }

    /// What live reads found about owners.
    pub fn findings(&self) -> &LiveFindings {
        &self.findings
    }

    /// Records what a live read of owners found.
    pub fn add_findings(&mut self, name: &Name, verified: Verified) {
        self.findings.add(name, verified);
    }

    /// Applies a change of the owners of a snapshot or bound object to the findings.
    pub(super) fn owners_changed(
        &mut self,
        name: &Name,
        old: Option<&CompactSet<Owner>>,
        new: Option<&CompactSet<Owner>>,
    ) {
        let mut findings = std::mem::take(&mut self.findings);
        findings.owners_changed(name, old, new, || self.owners_by_use(name));
        self.findings = findings;
    }

    /// Whether nothing uses the object any more, and all its owners are former users that still exist. The garbage
    /// collector waits for these: the last ReplicaSet that used the object was deleted before they could be removed.
    pub fn is_released(&self, name: &Name) -> bool {
        let Some(record) = self.bound.get(name).filter(|_| !self.users.has_any(name)) else {
            return false;
        };
        if self.findings.used(name).next().is_some() {
            return false;
        }
        !record.owners.is_empty() && record.owners.iter().all(|owner| self.is_known(name, owner))
    }

    /// Whether an owner is a workload or revision that exists and is watched.
    pub fn is_known(&self, name: &Name, owner: &Owner) -> bool {
        let of_revision = |kind: usize| {
            let (namespace, name) = (Arc::clone(&name.namespace), Arc::clone(&owner.name));
            let revision = self.revisions.get(&RevisionKey { kind, namespace, name });
            revision.is_some_and(|revision| revision.uid == owner.uid)
        };
        self.workload_of(name, owner).is_some()
            || REVISION_KINDS.iter().enumerate().any(|(i, kind)| *kind.kind == *owner.kind && of_revision(i))
    }

    /// Whether an owner of this snapshot, or source in bind mode, is a workload whose own controller has not observed its
    /// present template. That controller may still create a revision of an earlier template, which refers to the object.
    pub fn has_unobserved_owner(&self, name: &Name) -> bool {
        let of_snapshot = self.snapshots.get(name).map(|record| &record.owners);
        let owners = of_snapshot.or_else(|| Some(&self.bound.get(name)?.owners)).into_iter().flatten();
        let mut workloads = owners.filter_map(|owner| self.workload_of(name, owner));
        workloads.any(|record| record.health == Health::Unobserved)
    }
}
