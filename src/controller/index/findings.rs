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
    /// Owners that are deleted, or refer to something else.
    unused: BTreeSet<Owner>,
}

impl Findings {
    /// The owners of an object that a live read has proven to use it.
    pub(crate) fn used(&self, name: &Name) -> impl Iterator<Item = &Owner> {
        self.0.get(name).into_iter().flat_map(|finding| &finding.used)
    }

    /// Those of these owners that no live read has proven to be unused. Only users are in doubt, the source is not.
    pub(crate) fn doubtful<'o>(&self, name: &Name, owners: impl Iterator<Item = &'o Owner>) -> Vec<Owner> {
        let source = name.object.kind.as_str();
        let unused = self.0.get(name).map(|finding| &finding.unused);
        let is_doubtful =
            |owner: &&Owner| *owner.kind != *source && unused.is_none_or(|unused| !unused.contains(*owner));
        owners.filter(is_doubtful).cloned().collect()
    }

    /// Records what a live read of owners found.
    pub(crate) fn add(&mut self, name: &Name, used: Vec<Owner>, unused: Vec<Owner>) {
        let finding = self.0.entry(name.clone()).or_default();
        finding.used.extend(used);
        finding.unused.extend(unused);
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
        for (name, finding) in &mut self.0 {
            if *name.namespace != *namespace {
                continue;
            }
            let before = finding.used.len() + finding.unused.len();
            finding.used.retain(|owner| !uids.contains(&owner.uid));
            finding.unused.retain(|owner| !uids.contains(&owner.uid));
            if finding.used.len() + finding.unused.len() < before {
                changes.push(Change::Unproven(name.clone()));
            }
        }
    }

    /// Forgets the findings about owners that the object no longer has; `None`: the object is not known.
    pub(crate) fn forget_former_owners(
        &mut self,
        name: &Name,
        old: Option<&CompactSet<Owner>>,
        new: Option<&CompactSet<Owner>>,
    ) {
        let Some(finding) = self.0.get_mut(name) else { return };
        let Some(new) = new else {
            self.0.remove(name);
            return;
        };
        // An owner that was just found, and is not bound yet, was no owner before.
        let left = |owner: &Owner| old.is_some_and(|old| old.contains(owner)) && !new.contains(owner);
        finding.used.retain(|owner| !left(owner));
        finding.unused.retain(|owner| new.contains(owner));
        if finding.used.is_empty() && finding.unused.is_empty() {
            self.0.remove(name);
        }
    }
}
