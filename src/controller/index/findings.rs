//! What live reads found about owners: an owner is removed from a snapshot or bound object only after it was read and
//! refers to something else, or no object with its uid exists.
//!
//! A watch selects by label and may lag, and an annotation records what a revision uses. Anyone who may edit the object can
//! remove both. So every owner is read live before it is removed, whatever the watches report.

use std::collections::{BTreeSet, HashMap};

use super::change::Change;
use crate::{cluster::Owner, compact::CompactSet, controller::name::Name, uid::Uid};

/// What live reads found, by snapshot or bound object, until a watch reports a change of these owners.
#[derive(Debug, Default)]
pub(crate) struct Findings(HashMap<Name, Finding>);

/// What live reads found about the owners of one object.
#[derive(Debug, Default)]
struct Finding {
    /// Owners that use the snapshot.
    used: BTreeSet<Owner>,
    /// Owners that refer to something else.
    unused: BTreeSet<Owner>,
    /// Owners that are deleted. Their uids never come back, so they are not users, whatever a watch reports.
    deleted: BTreeSet<Owner>,
    /// Users that were owners until another client removed them. The garbage collector removes deleted owners, so these are
    /// read live before they are added again.
    removed: BTreeSet<Owner>,
}

impl Finding {
    fn sets(&mut self) -> [&mut BTreeSet<Owner>; 4] {
        [&mut self.used, &mut self.unused, &mut self.deleted, &mut self.removed]
    }

    fn len(&mut self) -> usize {
        self.sets().map(|set| set.len()).iter().sum()
    }
}

/// The result of a live read of owners.
#[derive(Debug, Default)]
pub struct Verified {
    /// The owners that use the object.
    pub used: Vec<Owner>,
    /// The owners that refer to something else.
    pub unused: Vec<Owner>,
    /// The owners that are deleted.
    pub deleted: Vec<Owner>,
}

impl Findings {
    /// The owners of an object that a live read has proven to use it.
    pub(crate) fn used(&self, name: &Name) -> impl Iterator<Item = &Owner> {
        self.0.get(name).into_iter().flat_map(|finding| &finding.used)
    }

    /// Whether a live read has found this owner of an object to be deleted.
    pub(crate) fn is_deleted(&self, name: &Name, owner: &Owner) -> bool {
        self.0.get(name).is_some_and(|finding| finding.deleted.contains(owner))
    }

    /// Whether another client removed this owner of an object, and it was not read since.
    pub(crate) fn was_removed(&self, name: &Name, owner: &Owner) -> bool {
        self.0.get(name).is_some_and(|finding| finding.removed.contains(owner))
    }

    /// The owners among these that no live read has proven to be unused. The source needs no proof.
    pub(crate) fn doubtful<'o>(&self, name: &Name, owners: impl Iterator<Item = &'o Owner>) -> Vec<Owner> {
        let source = name.object.kind.as_str();
        let finding = self.0.get(name);
        let is_known = |owner: &Owner| {
            finding.is_some_and(|finding| finding.unused.contains(owner) || finding.deleted.contains(owner))
        };
        owners.filter(|owner| *owner.kind != *source && !is_known(owner)).cloned().collect()
    }

    /// Records what a live read of owners found.
    pub(crate) fn add(&mut self, name: &Name, Verified { used, unused, deleted }: Verified) {
        let finding = self.0.entry(name.clone()).or_default();
        finding.removed.retain(|owner| ![&used, &unused, &deleted].iter().any(|read| read.contains(owner)));
        finding.used.extend(used);
        finding.unused.extend(unused);
        finding.deleted.extend(deleted);
    }

    /// Forgets the findings about an object that changed or was deleted: the object is read again before anything follows
    /// from it. It has a second uid if it was recreated.
    pub(crate) fn forget_owners<'u>(
        &mut self,
        namespace: &str,
        uids: impl Iterator<Item = &'u Uid>,
        changes: &mut Vec<Change>,
    ) {
        // There are nearly always no findings, and every event of a watch calls this.
        if self.0.is_empty() {
            return;
        }
        let uids: BTreeSet<_> = uids.collect();
        self.0.retain(|name, finding| {
            if *name.namespace != *namespace {
                return true;
            }
            let before = finding.len();
            for set in finding.sets() {
                set.retain(|owner| !uids.contains(&owner.uid));
            }
            let after = finding.len();
            if after < before {
                changes.push(Change::Unproven(name.clone()));
            }
            after > 0
        });
    }

    /// Applies a change of an object's owners; none of an object that does not exist. `users`: the users of the object that
    /// the watches report.
    ///
    /// The findings about owners that the object no longer has are forgotten. Only what concerns users remains.
    pub(crate) fn owners_changed(
        &mut self,
        name: &Name,
        old: Option<&CompactSet<Owner>>,
        new: Option<&CompactSet<Owner>>,
        users: impl FnOnce() -> CompactSet<Owner>,
    ) {
        let is_new = |owner: &Owner| new.is_some_and(|new| new.contains(owner));
        let left: Vec<_> = old.into_iter().flatten().filter(|owner| !is_new(owner)).collect();
        if left.is_empty() && !self.0.contains_key(name) {
            return;
        }
        let users = users();
        let finding = self.0.entry(name.clone()).or_default();
        // An owner that was just found, and is not bound yet, was no owner before.
        finding.used.retain(|owner| new.is_some() && !left.contains(&owner));
        finding.unused.retain(is_new);
        finding.deleted.retain(|owner| is_new(owner) || users.contains(owner));
        finding.removed.retain(|owner| !is_new(owner) && users.contains(owner));
        let removed: Vec<_> = left
            .into_iter()
            .filter(|owner| users.contains(owner) && !finding.deleted.contains(*owner))
            .collect();
        finding.removed.extend(removed.into_iter().cloned());
        if finding.len() == 0 {
            self.0.remove(name);
        }
    }
}
