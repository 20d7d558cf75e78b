//! The workloads and revisions that refer to each source, snapshot and bound object.

use std::collections::{HashMap, HashSet};

use confrev_core::compact::CompactSet;

use crate::{interner::Interner, name::Name, records::User};

/// The users of each name.
#[derive(Debug, Default)]
pub struct Users {
    by_name: HashMap<Name, CompactSet<User>>,
    /// Workloads and revisions that are being deleted.
    being_deleted: HashSet<User>,
}

impl Users {
    /// The users of a name.
    pub fn of(&self, name: &Name) -> impl Iterator<Item = &User> {
        self.by_name.get(name).into_iter().flatten()
    }

    /// The users of an object that are not being deleted. A user that is being deleted starts no pods, so nothing is
    /// recreated for it. Until it is deleted, it still owns what it uses.
    pub fn staying(&self, name: &Name) -> impl Iterator<Item = &User> {
        self.of(name).filter(|user| !self.being_deleted.contains(*user))
    }

    /// Whether any user refers to the name.
    pub fn has_any(&self, name: &Name) -> bool {
        self.by_name.contains_key(name)
    }

    /// The names to which any user refers.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.by_name.keys()
    }

    /// Adds a user of a name.
    pub fn add(&mut self, name: Name, user: User) {
        self.by_name.entry(name).or_default().insert(user);
    }

    /// Removes a user of a name.
    pub fn remove(&mut self, name: &Name, user: &User) {
        if let Some(users) = self.by_name.get_mut(name) {
            users.remove(user);
            if users.is_empty() {
                self.by_name.remove(name);
            }
        }
    }

    /// Records whether a workload or revision is being deleted.
    pub(crate) fn set_being_deleted(&mut self, user: &User, is_being_deleted: bool, interner: &mut Interner) {
        if !is_being_deleted {
            self.being_deleted.remove(user);
        } else if !self.being_deleted.contains(user) {
            self.being_deleted.insert(interner.intern(user.clone()));
        }
    }
}
