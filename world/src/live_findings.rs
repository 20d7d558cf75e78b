//! What live reads found about owners: an owner is removed from a snapshot or bound object only after it was read and
//! refers to something else, or no object with its uid exists.
//!
//! A watch selects by label and may lag, and an annotation records what a revision uses. Anyone who may edit the object can
//! remove both. So every owner is read live before it is removed, whatever the watches report.

use std::collections::{BTreeSet, HashMap};

use confrev_core::{compact::CompactSet, uid::Uid};

use crate::{change::WorldChange, name::Name, objects::Owner, shares::NAMESPACE};

/// How many users of an unused object a live read looks for. The watches do not report them, and a tenant may make thousands. So many
/// prove that the object is in use: while there may be more, its source owns the object, too.
pub const FOUND_USERS: usize = 16;

/// What live reads found, by snapshot or bound object, until a watch reports a change of these owners.
#[derive(Debug, Default)]
pub struct LiveFindings(HashMap<Name, LiveFinding>);

/// What live reads found about the owners of one object.
#[derive(Debug, Default)]
struct LiveFinding {
    /// Owners that use the snapshot.
    used: BTreeSet<Owner>,
    /// A read has found as many as it looks for: there may be more.
    has_more: bool,
    /// Owners that refer to something else.
    unused: BTreeSet<Owner>,
    /// Owners that are deleted. Their uids never come back, so they are not users, whatever a watch reports.
    deleted: BTreeSet<Owner>,
    /// Users that were owners until another client removed them. The garbage collector removes deleted owners, so these are
    /// read live before they are added again.
    removed: BTreeSet<Owner>,
}

impl LiveFinding {
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

impl LiveFindings {
    /// The owners of an object that a live read has proven to use it.
    pub fn used(&self, name: &Name) -> impl Iterator<Item = &Owner> {
        self.0.get(name).into_iter().flat_map(|finding| &finding.used)
    }

    /// Whether an object may have more users than live reads have found.
    pub fn has_more(&self, name: &Name) -> bool {
        self.0.get(name).is_some_and(|finding| finding.has_more)
    }

    /// Whether a live read has found this owner of an object to be deleted.
    pub fn is_deleted(&self, name: &Name, owner: &Owner) -> bool {
        self.0.get(name).is_some_and(|finding| finding.deleted.contains(owner))
    }

    /// Whether another client removed this owner of an object, and it was not read since.
    pub fn was_removed(&self, name: &Name, owner: &Owner) -> bool {
        self.0.get(name).is_some_and(|finding| finding.removed.contains(owner))
    }

    /// The owners among these that no live read has proven to be unused. The source, and the namespace of a partly known namespace,
    /// need no proof.
    pub fn doubtful<'o>(&self, name: &Name, owners: impl Iterator<Item = &'o Owner>) -> Vec<Owner> {
        let source = name.object.kind.as_str();
        let finding = self.0.get(name);
        let is_known = |owner: &Owner| {
            finding.is_some_and(|finding| finding.unused.contains(owner) || finding.deleted.contains(owner))
        };
        let needs_proof = |owner: &&Owner| *owner.kind != *source && *owner.kind != *NAMESPACE;
        owners.filter(needs_proof).filter(|owner| !is_known(owner)).cloned().collect()
    }

    /// Records what a live read of owners found.
    pub fn add(&mut self, name: &Name, Verified { used, unused, deleted }: Verified) {
        let finding = self.0.entry(name.clone()).or_default();
        finding.removed.retain(|owner| ![&used, &unused, &deleted].iter().any(|read| read.contains(owner)));
        finding.has_more |= used.len() >= FOUND_USERS;
        finding.used.extend(used);
        finding.unused.extend(unused);
        finding.deleted.extend(deleted);
    }

    /// Forgets the findings about an object that changed or was deleted: the object is read again before anything follows
    /// from it. It has a second uid if it was recreated.
    pub fn forget_owners<'u>(
        &mut self,
        namespace: &str,
        uids: impl Iterator<Item = &'u Uid>,
        changes: &mut Vec<WorldChange>,
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
                finding.has_more = false;
                changes.push(WorldChange::Unproven(name.clone()));
            }
            after > 0
        });
    }

    /// Applies a change of an object's owners; none of an object that does not exist. `users`: the users of the object that
    /// the watches report.
    ///
    /// The findings about owners that the object no longer has are forgotten. Only what concerns users remains.
    pub fn owners_changed(
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
        // They are looked for again once nothing else is known to use the object.
        finding.has_more &= left.is_empty();
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

#[cfg(test)]
mod tests {
    use confrev_core::snapshot::{ObjectName, SourceKind};

    use super::*;

    fn name(namespace: &str) -> Name {
        Name::new(namespace, ObjectName::new(SourceKind::ConfigMap, "demo-0123456789"))
    }

    fn owner(uid: &str) -> Owner {
        Owner::new("apps/v1", "ReplicaSet", "web", uid.to_owned())
    }

    fn owners(uids: &[&str]) -> CompactSet<Owner> {
        uids.iter().map(|uid| owner(uid)).collect()
    }

    /// Findings of one live read: an owner in use, one that is not, and one that is deleted.
    fn found() -> LiveFindings {
        let mut findings = LiveFindings::default();
        let read = Verified {
            used: vec![owner("used")],
            unused: vec![owner("unused")],
            deleted: vec![owner("deleted")],
        };
        findings.add(&name("ns"), read);
        findings
    }

    fn doubtful(findings: &LiveFindings) -> Vec<String> {
        let owners = owners(&["used", "unused", "deleted", "new"]);
        findings.doubtful(&name("ns"), owners.iter()).iter().map(|owner| owner.uid.to_string()).collect()
    }

    #[test]
    fn read_owners_are_no_longer_doubtful() {
        let findings = found();
        assert_eq!(doubtful(&findings), ["new", "used"]);
        assert_eq!(findings.used(&name("ns")).collect::<Vec<_>>(), [&owner("used")]);
        let deleted = ["used", "unused", "deleted"].map(|uid| findings.is_deleted(&name("ns"), &owner(uid)));
        assert_eq!(deleted, [false, false, true]);
        assert_eq!(findings.used(&name("other")).count(), 0);
        assert!(!findings.is_deleted(&name("other"), &owner("deleted")));
    }

    /// An owner that another client removed is read before it is added again.
    #[test]
    fn removed_user_is_remembered_until_it_is_read() {
        let mut findings = LiveFindings::default();
        let (old, new) = (owners(&["user", "other", "stays"]), owners(&["stays"]));
        findings.owners_changed(&name("ns"), Some(&old), Some(&new), || owners(&["user", "stays"]));
        let removed = |findings: &LiveFindings, uid: &str| findings.was_removed(&name("ns"), &owner(uid));
        assert!(removed(&findings, "user"));
        assert!(!removed(&findings, "other") && !removed(&findings, "stays"));
        assert!(!findings.was_removed(&name("other"), &owner("user")));
        for read in [
            Verified { used: vec![owner("user")], ..Verified::default() },
            Verified { unused: vec![owner("user")], ..Verified::default() },
            Verified { deleted: vec![owner("user")], ..Verified::default() },
        ] {
            let mut findings = LiveFindings(HashMap::new());
            findings.owners_changed(&name("ns"), Some(&old), Some(&new), || owners(&["user"]));
            findings.add(&name("ns"), Verified { used: vec![owner("another")], ..Verified::default() });
            assert!(removed(&findings, "user"), "another owner was read");
            findings.add(&name("ns"), read);
            assert!(!removed(&findings, "user"));
        }
    }

    /// The findings that are left after a change of the owners, as used, unused, deleted and removed.
    #[test]
    fn findings_about_former_owners_are_forgotten() {
        type Uids = &'static [&'static str];
        /// The owners before and after the change, the users that the watches report, and what is left.
        type Case = (Option<Uids>, Option<Uids>, Uids, [Uids; 4]);
        let all: Uids = &["used", "unused", "deleted"];
        let cases: [Case; 7] = [
            // Nothing changes for the findings.
            (Some(all), Some(all), &["used"], [&["used"], &["unused"], &["deleted"], &[]]),
            // An owner that was just found in use is not bound yet.
            (Some(&["unused"]), Some(&["unused"]), &[], [&["used"], &["unused"], &[], &[]]),
            // Owners that left: one that a watch still reports as a user was removed by another client.
            (Some(all), Some(&["unused", "deleted"]), &["used"], [&[], &["unused"], &["deleted"], &["used"]]),
            (Some(all), Some(&["unused", "deleted"]), &[], [&[], &["unused"], &["deleted"], &[]]),
            // A deleted object is no user, whatever a watch reports.
            (Some(all), Some(&["used", "unused"]), &["deleted"], [&["used"], &["unused"], &["deleted"], &[]]),
            (Some(all), Some(&["used"]), &[], [&["used"], &[], &[], &[]]),
            // The object does not exist.
            (Some(all), None, &["deleted"], [&[], &[], &["deleted"], &[]]),
        ];
        for (old, new, users, left) in cases {
            let mut findings = found();
            let (before, after) = (old.map(owners), new.map(owners));
            findings.owners_changed(&name("ns"), before.as_ref(), after.as_ref(), || owners(users));
            let mut finding = findings.0.remove(&name("ns")).unwrap_or_default();
            let uids =
                finding.sets().map(|set| set.iter().map(|owner| owner.uid.to_string()).collect::<Vec<_>>());
            assert_eq!(uids, left.map(<[&str]>::to_vec), "{old:?} {new:?} {users:?}");
        }
        // Nothing is kept for an object without findings.
        let mut findings = found();
        findings.owners_changed(&name("ns"), Some(&owners(all)), None, CompactSet::default);
        assert!(findings.0.is_empty());
    }

    /// An owner that comes back is no longer one that was removed.
    #[test]
    fn returned_owner_was_not_removed() {
        let mut findings = LiveFindings::default();
        let (with, without) = (owners(&["user"]), owners(&[]));
        findings.owners_changed(&name("ns"), Some(&with), Some(&without), || owners(&["user"]));
        findings.owners_changed(&name("ns"), Some(&without), Some(&with), || owners(&["user"]));
        assert!(findings.0.is_empty());
        findings.owners_changed(&name("ns"), Some(&with), Some(&without), || owners(&["user"]));
        findings.owners_changed(&name("ns"), Some(&without), Some(&without), || owners(&[]));
        assert!(findings.0.is_empty(), "it is no user any more");
    }

    #[test]
    fn changed_object_is_read_again() {
        let uid = |text: &str| Uid::from(text);
        for (namespace, text, reported) in [
            ("ns", "used", true),
            ("ns", "unused", true),
            ("ns", "deleted", true),
            ("ns", "new", false),
            ("other", "used", false),
        ] {
            let (mut findings, mut changes) = (found(), Vec::new());
            findings.forget_owners(namespace, [uid(text)].iter(), &mut changes);
            let unproven =
                |change: &WorldChange| matches!(change, WorldChange::Unproven(of) if *of == name("ns"));
            assert_eq!(changes.len(), usize::from(reported), "{namespace} {text}");
            assert!(changes.iter().all(unproven), "{namespace} {text}");
            let left = findings.0.get_mut(&name("ns")).unwrap().len();
            assert_eq!(left, if reported { 2 } else { 3 }, "{namespace} {text}");
        }
        let (mut findings, mut changes) = (found(), Vec::new());
        findings.forget_owners("ns", ["used", "unused", "deleted"].map(uid).iter(), &mut changes);
        assert!(findings.0.is_empty());
        assert_eq!(changes.len(), 1);
    }
}
