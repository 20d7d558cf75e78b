//! Objects that cannot be read: nested too deep, not of the form of their kind, or with references to too many names. They
//! are skipped and reported, and do not block others.

use confrev_core::{kinds::REVISION_KINDS, uid::Uid};

use crate::{
    change::WorldChange,
    records::User,
    skipped::{Skipped, Unreadable},
    world::World,
};

impl World {
    /// Records that an object cannot be read. Returns whether this is new.
    ///
    /// The object counts as no user of a snapshot in the world, but stays an owner of the snapshots that it owns: see
    /// `confrev::cluster::Usage`.
    pub fn set_unreadable(
        &mut self,
        object: &User,
        uid: &Uid,
        error: &Unreadable,
        changes: &mut Vec<WorldChange>,
    ) -> bool {
        if !self.make_room_for_unreadable(object, changes) {
            return false;
        }
        let names_limit = match error {
            Unreadable::Form(_) => None,
            Unreadable::Names { limit } => Some(*limit),
        };
        let skipped = Skipped { uid: uid.clone(), names_limit };
        self.unreadable.insert(object.clone(), skipped.clone()) != Some(skipped)
    }

    /// Forgets that an object could not be read.
    pub fn set_readable(&mut self, object: &User, changes: &mut Vec<WorldChange>) {
        // The map is nearly always empty.
        if self.unreadable.is_empty() {
            return;
        }
        if let Some(Skipped { uid, .. }) = self.unreadable.remove(object) {
            self.forget_unreadable(object);
            self.findings.forget_owners(object.namespace(), std::iter::once(&uid), changes);
        }
    }

    /// The objects that cannot be read.
    pub fn unreadable(&self) -> impl ExactSizeIterator<Item = (&User, &Skipped)> {
        self.unreadable.iter()
    }

    /// What is known of an object, if it cannot be read.
    pub fn skipped(&self, object: &User) -> Option<&Skipped> {
        self.unreadable.get(object)
    }

    /// The `apiVersion` and kind of a user.
    pub fn kind_of_user(&self, user: &User) -> (String, String) {
        let known = match user {
            User::Workload(key) => self.kind(key).map(|kind| (kind.api_version(), kind.kind.clone())),
            User::Revision(key) => {
                REVISION_KINDS.get(key.kind).map(|kind| (kind.api_version(), kind.kind.to_owned()))
            }
        };
        known.unwrap_or_default()
    }

    /// A user's kind, namespace and name in messages.
    pub fn display_user(&self, user: &User) -> String {
        format!("{} {}/{}", self.kind_of_user(user).1, user.namespace(), user.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{key, source, world},
        live_findings::Verified,
        objects::Owner,
        records::RevisionKey,
    };

    #[test]
    fn users_are_named_by_kind() {
        let world = world(&[]);
        let workload = User::Workload(key("web"));
        let kind = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
        let revision = User::Revision(RevisionKey { kind, namespace: "ns".into(), name: "web-1".into() });
        assert_eq!(world.kind_of_user(&workload), ("apps/v1".to_owned(), "Deployment".to_owned()));
        assert_eq!(world.kind_of_user(&revision), ("apps/v1".to_owned(), "ReplicaSet".to_owned()));
        assert_eq!(world.display_user(&workload), "Deployment ns/web");
        assert_eq!(world.display_user(&revision), "ReplicaSet ns/web-1");
        assert_eq!(world.display(&key("web")), "Deployment ns/web");
        assert_eq!(world.display_short(&key("web")), "Deployment/web");
    }

    /// What was found about an object while it could not be read is read again.
    #[test]
    fn readable_object_is_read_again() {
        let mut world = world(&[]);
        let (user, uid, mut changes) = (User::Workload(key("web")), Uid::from("1"), Vec::new());
        let error = Unreadable::Names { limit: 5 };
        assert!(world.set_unreadable(&user, &uid, &error, &mut changes));
        assert!(!world.set_unreadable(&user, &uid, &error, &mut changes), "this is known");
        let owner = Owner::new("apps/v1", "Deployment", "web", "1".to_owned());
        let snapshot = source("a").sibling("a-1000000000");
        world.add_findings(&snapshot, Verified { unused: vec![owner], ..Verified::default() });
        world.set_readable(&User::Workload(key("other")), &mut changes);
        assert!(changes.is_empty() && world.skipped(&user).is_some());
        world.set_readable(&user, &mut changes);
        assert!(world.skipped(&user).is_none());
        assert!(matches!(&changes[..], [WorldChange::Unproven(name)] if *name == snapshot), "{changes:?}");
    }
}
