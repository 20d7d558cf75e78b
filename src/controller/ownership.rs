//! Live checks of owners: an owner is removed from a snapshot or bound object only after it was read and refers to something
//! else, or no object with its uid exists.
//!
//! A watch selects by label and may lag, and an annotation records what a revision uses. Anyone who may edit the object can
//! remove both. So every owner is read live before it is removed, whatever the watches report.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Action, Name, agenda::Task, state::State};
use crate::{cluster::Owner, compact::CompactSet, uid::Uid};

/// What live reads found about the owners of a snapshot or bound object, until a watch reports a change of these owners.
#[derive(Debug, Default)]
pub(super) struct Verified {
    /// Owners that use the snapshot.
    used: BTreeSet<Owner>,
    /// Owners that are deleted, or refer to something else.
    unused: BTreeSet<Owner>,
}

impl State {
    /// The owners of an object that a live read has proven to use it.
    pub(super) fn proven_owners(&self, name: &Name) -> impl Iterator<Item = &Owner> {
        self.verified.get(name).into_iter().flat_map(|verified| &verified.used)
    }

    /// The live read that is needed before these owners are removed; `None` if none of them is in doubt.
    pub(super) fn verify<'o>(&self, name: &Name, stale: impl Iterator<Item = &'o Owner>) -> Option<Action> {
        let source = name.object.kind.as_str();
        let unused = self.verified.get(name).map(|verified| &verified.unused);
        let is_doubtful =
            |owner: &&Owner| *owner.kind != *source && unused.is_none_or(|unused| !unused.contains(*owner));
        let owners: Vec<_> = stale.filter(is_doubtful).cloned().collect();
        (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
    }

    /// Records what a live read of owners found.
    pub(super) fn owners_were_verified(
        &mut self,
        name: &Name,
        used: Vec<Owner>,
        unused: Vec<Owner>,
        now: Timestamp,
    ) {
        if !self.is_there(name) {
            return;
        }
        if !used.is_empty() {
            self.unwanted_since.remove(name);
            self.agenda.schedule(Task::Bind(name.clone()), now);
        }
        let verified = self.verified.entry(name.clone()).or_default();
        verified.used.extend(used);
        verified.unused.extend(unused);
        self.agenda.schedule(Task::Unbind(name.clone()), now);
    }

    /// Forgets the findings about an object that changed or was deleted: the object is read again before anything follows
    /// from it. It has a second uid if it was recreated.
    pub(super) fn verify_again<'u>(
        &mut self,
        namespace: &str,
        uids: impl Iterator<Item = &'u Uid>,
        now: Timestamp,
    ) {
        // There are nearly always no findings, and every event of a watch calls this.
        if self.verified.is_empty() {
            return;
        }
        let uids: BTreeSet<_> = uids.collect();
        let mut changed = Vec::new();
        for (name, verified) in &mut self.verified {
            if *name.namespace != *namespace {
                continue;
            }
            let before = verified.used.len() + verified.unused.len();
            verified.used.retain(|owner| !uids.contains(&owner.uid));
            verified.unused.retain(|owner| !uids.contains(&owner.uid));
            if verified.used.len() + verified.unused.len() < before {
                changed.push(name.clone());
            }
        }
        for name in changed {
            self.agenda.schedule(Task::Bind(name), now);
        }
    }

    /// Forgets the findings about owners that the object no longer has; `None`: the object is not known.
    pub(super) fn forget_verified(
        &mut self,
        name: &Name,
        old: Option<&CompactSet<Owner>>,
        new: Option<&CompactSet<Owner>>,
    ) {
        let Some(verified) = self.verified.get_mut(name) else { return };
        let Some(new) = new else {
            self.verified.remove(name);
            return;
        };
        // An owner that was just found, and is not bound yet, was no owner before.
        let left = |owner: &Owner| old.is_some_and(|old| old.contains(owner)) && !new.contains(owner);
        verified.used.retain(|owner| !left(owner));
        verified.unused.retain(|owner| new.contains(owner));
        if verified.used.is_empty() && verified.unused.is_empty() {
            self.verified.remove(name);
        }
    }
}
