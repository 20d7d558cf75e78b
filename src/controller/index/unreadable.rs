//! Objects that cannot be read: nested too deep, not of the form of their kind, or with references to too many names. They
//! are skipped and reported, and do not block others.

use super::{
    Index,
    change::Change,
    records::User,
    skipped::{Skipped, Unreadable},
};
use crate::{kinds::REVISION_KINDS, uid::Uid};

impl Index {
    /// Records that an object cannot be read. Returns whether this is new.
    ///
    /// The object counts as no user of a snapshot in the index, but stays an owner of the snapshots that it owns: see
    /// [`crate::cluster::Usage`].
    pub(crate) fn set_unreadable(&mut self, object: &User, uid: &Uid, error: &Unreadable) -> bool {
        let names_limit = match error {
            Unreadable::Form(_) => None,
            Unreadable::Names { limit } => Some(*limit),
        };
        let skipped = Skipped { uid: uid.clone(), names_limit };
        self.unreadable.insert(object.clone(), skipped.clone()) != Some(skipped)
    }

    /// Forgets that an object could not be read.
    pub(crate) fn set_readable(&mut self, object: &User, changes: &mut Vec<Change>) {
        // The map is nearly always empty.
        if self.unreadable.is_empty() {
            return;
        }
        if let Some(Skipped { uid, .. }) = self.unreadable.remove(object) {
            self.findings.forget_owners(object.namespace(), std::iter::once(&uid), changes);
        }
    }

    /// The objects that cannot be read.
    pub(crate) fn unreadable(&self) -> impl ExactSizeIterator<Item = (&User, &Skipped)> {
        self.unreadable.iter()
    }

    /// What is known of an object, if it cannot be read.
    pub(crate) fn skipped(&self, object: &User) -> Option<&Skipped> {
        self.unreadable.get(object)
    }

    /// The `apiVersion` and kind of a user.
    pub(crate) fn kind_of_user(&self, user: &User) -> (String, String) {
        let known = match user {
            User::Workload(key) => self.kind(key).map(|kind| (kind.api_version(), kind.kind.clone())),
            User::Revision(key) => {
                REVISION_KINDS.get(key.kind).map(|kind| (kind.api_version(), kind.kind.to_owned()))
            }
        };
        known.unwrap_or_default()
    }

    /// A user's kind, namespace and name in messages.
    pub(crate) fn display_user(&self, user: &User) -> String {
        format!("{} {}/{}", self.kind_of_user(user).1, user.namespace(), user.name())
    }
}
