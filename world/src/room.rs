//! Room in the world: which records are left out, so that each namespace keeps to its share and all to the total.

use std::sync::Arc;

use confrev_core::uid::Uid;

use crate::{
    change::WorldChange,
    objects::Owner,
    records::User,
    shares::{Class, ListId, NAMESPACE, ShareLimits, Shares, of_unreadable},
    world::World,
};

impl World {
    /// What each namespace holds, and what is left out.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// What each namespace holds, for the watches.
    pub fn shares_mut(&mut self) -> &mut Shares {
        &mut self.shares
    }

    /// Records that a list is complete.
    pub fn list_ended(&mut self, list: &ListId, changes: &mut Vec<WorldChange>) {
        let known = self.shares.list_ended(list);
        changes.extend(known.into_iter().map(WorldChange::Share));
    }

    /// Records the uid of a namespace; `None` if it is deleted.
    pub fn set_namespace_uid(
        &mut self,
        namespace: &Arc<str>,
        uid: Option<Uid>,
        changes: &mut Vec<WorldChange>,
    ) {
        let new = uid.clone();
        let old = match uid {
            Some(uid) => self.namespace_uids.insert(Arc::clone(namespace), uid),
            None => self.namespace_uids.remove(namespace),
        };
        if old != new && self.shares.is_partly_known(namespace) {
            changes.push(WorldChange::Share(Arc::clone(namespace)));
        }
    }

    /// The namespaces that exist.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespace_uids.keys()
    }

    /// Whether a namespace is known to exist.
    pub fn knows_namespace(&self, namespace: &str) -> bool {
        self.namespace_uids.contains_key(namespace)
    }

    /// A namespace as an owner; `None` if its uid is not known.
    pub fn namespace_owner(&self, namespace: &str) -> Option<Owner> {
        let (name, uid) = self.namespace_uids.get_key_value(namespace)?;
        Some(Owner::new("v1", NAMESPACE, Arc::clone(name), uid.clone()))
    }

    /// The owner of each snapshot in use of a partly known namespace: as long as it exists, only confrev deletes the snapshot,
    /// after a live read. `None` in all other namespaces.
    pub fn keeper(&self, namespace: &str) -> Option<Owner> {
        self.namespace_owner(namespace).filter(|_| self.shares.is_partly_known(namespace))
    }

    /// Whether there is room for a record of `new` bytes in place of one of `old` bytes. If not, the namespace is partly known
    /// from now on. If only the total is exceeded, the namespace that holds most gives way.
    pub(super) fn make_room(
        &mut self,
        namespace: &Arc<str>,
        class: Class,
        sizes: (usize, usize),
        changes: &mut Vec<WorldChange>,
    ) -> bool {
        let (old, new) = sizes;
        if new <= old {
            return true;
        }
        let limits = self.config.shares;
        let is_within_share = self.shares.fits_namespace(&limits, namespace, class, sizes);
        if is_within_share && self.fit_total(namespace, &limits, sizes, changes) {
            if old == 0 {
                self.shares.note_room(namespace);
            }
            return true;
        }
        self.leave_out(namespace, is_within_share, changes);
        false
    }

    /// Makes namespaces that hold more give way, until the total has room.
    fn fit_total(
        &mut self,
        namespace: &Arc<str>,
        limits: &ShareLimits,
        (old, new): (usize, usize),
        changes: &mut Vec<WorldChange>,
    ) -> bool {
        while self.shares.total() + new > limits.total + old {
            let wanted = self.shares.of(namespace) + new - old;
            let Some((largest, bytes)) = self.shares.largest() else { return false };
            if *largest == *namespace || bytes <= wanted + limits.step() {
                return false;
            }
            let largest = Arc::clone(largest);
            if !self.give_way(&largest, limits.step(), changes) {
                return false;
            }
        }
        true
    }

    /// Leaves out some of a namespace's records, revisions first. Returns whether there were any.
    fn give_way(&mut self, namespace: &Arc<str>, bytes: usize, changes: &mut Vec<WorldChange>) -> bool {
        let before = self.shares.of(namespace);
        let is_enough = |world: &Self| world.shares.of(namespace) + bytes <= before;
        let of = |known: &Arc<str>| **known == **namespace;
        let revisions: Vec<_> = self.revisions.keys().filter(|key| of(&key.namespace)).cloned().collect();
        for key in revisions {
            if is_enough(self) {
                break;
            }
            self.apply_revision(&key, None, changes);
        }
        if !is_enough(self) {
            let workloads: Vec<_> = self.workloads.keys().filter(|key| of(&key.namespace)).cloned().collect();
            for key in workloads {
                if is_enough(self) {
                    break;
                }
                self.apply_workload(&key, None, changes);
            }
        }
        self.leave_out(namespace, true, changes);
        self.shares.of(namespace) < before
    }

    fn leave_out(&mut self, namespace: &Arc<str>, by_total: bool, changes: &mut Vec<WorldChange>) {
        if self.shares.leave_out(namespace, by_total) {
            changes.push(WorldChange::Share(Arc::clone(namespace)));
        }
    }

    /// Whether there is room for an object that cannot be read, beside the others.
    pub(super) fn make_room_for_unreadable(&mut self, user: &User, changes: &mut Vec<WorldChange>) -> bool {
        let bytes = of_unreadable(user);
        let sizes = (if self.unreadable.contains_key(user) { bytes } else { 0 }, bytes);
        let has_room = self.make_room(user.namespace(), Class::of(user), sizes, changes);
        if has_room {
            self.shares.charge(user.namespace(), Class::of(user), sizes);
        }
        has_room
    }

    /// Keeps nothing of a workload or revision that was left out, not even that it is being deleted.
    pub fn forget_left_out(&mut self, user: &User) {
        if self.shares.is_partly_known(user.namespace()) && self.uses_of(user).is_none() {
            self.set_being_deleted(user, false);
        }
    }

    /// No longer counts an object that could not be read.
    pub(super) fn forget_unreadable(&mut self, user: &User) {
        self.shares.charge(user.namespace(), Class::of(user), (of_unreadable(user), 0));
    }
}

#[cfg(test)]
use crate::shares::{of_bound, of_owners, of_revision, of_workload};

#[cfg(test)]
impl World {
    /// The bytes of all records, from the records themselves.
    pub(super) fn counted_bytes(&self) -> usize {
        let revisions = self.revisions.iter().map(|(key, revision)| of_revision(key, revision));
        let workloads = self.workloads().map(|(key, record)| of_workload(key, record));
        let bound = self.bound.iter().map(|(name, record)| of_bound(&name.object.name, record));
        let owners = self.snapshots().iter().map(|(_, record)| of_owners(record.owners.len()));
        let unreadable = self.unreadable().map(|(user, _)| of_unreadable(user));
        revisions.chain(workloads).chain(bound).chain(owners).chain(unreadable).sum()
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::kinds::Kinds;

    use super::*;
    use crate::{
        config::WorldConfig,
        fixture::{object, record, snapshot_record, source, used},
        name::Name,
        objects::{Version, WorkloadKey},
        records::{BoundRecord, Revision, RevisionKey, SnapshotRecord},
        skipped::Unreadable,
    };

    fn world(limits: ShareLimits) -> World {
        let mut config = WorldConfig::new(Arc::new(Kinds::default()));
        config.shares = limits;
        World::new(config)
    }

    fn revision_key(namespace: &str, number: usize) -> RevisionKey {
        RevisionKey { kind: 0, namespace: namespace.into(), name: format!("set-{number:03}").into() }
    }

    fn workload_key(namespace: &str, number: usize) -> WorkloadKey {
        WorkloadKey { kind: 0, namespace: namespace.into(), name: format!("web-{number:03}").into() }
    }

    fn revision(number: usize) -> Revision {
        Revision { uid: format!("uid-{number}").as_str().into(), uses: vec![used("a", Some(1))] }
    }

    /// The bytes of one revision.
    fn one() -> usize {
        of_revision(&revision_key("a", 0), &revision(0))
    }

    fn add(world: &mut World, namespace: &str, numbers: std::ops::Range<usize>) -> Vec<WorldChange> {
        let mut changes = Vec::new();
        for number in numbers {
            world.apply_revision(&revision_key(namespace, number), Some(revision(number)), &mut changes);
        }
        changes
    }

    fn remove(world: &mut World, namespace: &str, numbers: std::ops::Range<usize>) {
        for number in numbers {
            world.shares_mut().note_room(namespace);
            world.apply_revision(&revision_key(namespace, number), None, &mut Vec::new());
        }
    }

    /// How many revisions of a namespace are kept.
    fn kept(world: &World, namespace: &str) -> usize {
        world.revisions().filter(|key| *key.namespace == *namespace).count()
    }

    /// The namespaces whose share changed, and how much of each is known now.
    fn marks(world: &World, changes: &[WorldChange]) -> Vec<String> {
        let mark = |change: &WorldChange| match change {
            WorldChange::Share(namespace) if world.shares().is_partly_known(namespace) => {
                Some(format!("partly {namespace}"))
            }
            WorldChange::Share(namespace) => Some(format!("fully {namespace}")),
            _ => None,
        };
        changes.iter().filter_map(mark).collect()
    }

    /// The same, after these revisions were added.
    fn added(world: &mut World, namespace: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
        let changes = add(world, namespace, numbers);
        marks(world, &changes)
    }

    /// Room for this many revisions of a namespace, and in total.
    fn limits(each: usize, total: usize) -> ShareLimits {
        ShareLimits { namespace: each * one(), revisions: each * one(), total: total * one() }
    }

    const LIST: fn(usize) -> ListId = |kind| ("revisions", kind, None);

    #[test]
    fn shares_fit_the_documented_sizes() {
        let key = |name: &str| WorkloadKey { kind: 0, namespace: "production".into(), name: name.into() };
        let uses = [used("settings-of-1234", Some(1))];
        let workload = of_workload(&key("service-1234"), &record("service-1234", &uses));
        let set =
            RevisionKey { kind: 0, namespace: "production".into(), name: "service-1234-7d4b8c9f61".into() };
        let set = of_revision(&set, &Revision { uid: "uid".into(), uses: uses.to_vec() });
        let each = workload + 2 * set + of_owners(4);
        println!("{workload} for a workload, {set} for a revision, {each} for all");
        let ShareLimits { namespace, revisions, total } = ShareLimits::default();
        assert!(10_000 * each <= total && 2000 * each <= namespace && 4000 * set <= revisions, "{each}");
        assert!(
            2000 * workload <= namespace - revisions,
            "a namespace full of revisions has room for workloads"
        );
    }

    #[test]
    fn namespace_keeps_only_its_share() {
        let mut world = world(limits(3, 100));
        assert_eq!(added(&mut world, "a", 0..3), Vec::<String>::new());
        assert_eq!(added(&mut world, "a", 3..9), ["partly a"], "it is reported once");
        assert_eq!(kept(&world, "a"), 3);
        assert!(world.shares().of("a") <= world.config().shares.namespace);
        // A known revision may change, within its size. One that grows beyond the share is left out.
        let changed = Revision { uses: vec![used("b", Some(2))], ..revision(0) };
        world.apply_revision(&revision_key("a", 0), Some(changed), &mut Vec::new());
        assert_eq!(kept(&world, "a"), 3);
        let grown = Revision { uses: vec![used("a", Some(1)), used("b", Some(1))], ..revision(0) };
        world.apply_revision(&revision_key("a", 0), Some(grown), &mut Vec::new());
        assert_eq!(kept(&world, "a"), 2);
        assert_eq!(added(&mut world, "b", 0..3), Vec::<String>::new(), "others have their own share");
        assert_eq!(kept(&world, "b"), 3);
        assert_eq!(world.shares().partly_known(), ["a".into()]);
    }

    #[test]
    fn revisions_leave_room_for_workloads() {
        let uses = [used("a", Some(1))];
        let workload = record("web", &uses);
        let each = of_workload(&workload_key("a", 0), &workload);
        let mut limits = limits(5, 100);
        limits.namespace += 3 * each;
        let mut world = world(limits);
        add(&mut world, "a", 0..50);
        let changes = &mut Vec::new();
        for number in 0..9 {
            world.apply_workload(&workload_key("a", number), Some(workload.clone()), changes);
        }
        assert_eq!((kept(&world, "a"), world.workloads().len()), (5, 3));
        // What was left out of the share has no other trace in the world.
        assert!(world.workload(&workload_key("a", 8)).is_none());
        assert_eq!(world.users().of(&source("a")).count(), 0, "they are in another namespace");
    }

    /// Records that become smaller leave room, as deleted ones do.
    #[test]
    fn smaller_records_let_the_namespace_list_again() {
        let mut world = world(limits(3, 100));
        add(&mut world, "a", 0..3);
        let name = Name::new(Arc::from("a"), object("demo-1"));
        let owned = |owners: usize| {
            let owner =
                |number: usize| Owner::new("apps/v1", "ReplicaSet", number.to_string(), number.to_string());
            let owners = (0..owners).map(owner).collect();
            Some(SnapshotRecord { owners, ..snapshot_record("demo", 1) })
        };
        world.apply_snapshot(&name, owned(50), &mut Vec::new());
        add(&mut world, "a", 3..4);
        assert_eq!(world.shares().partly_known(), ["a".into()]);
        let limits = world.config().shares;
        assert!(!world.shares().may_fit(&limits));
        world.apply_snapshot(&name, owned(1), &mut Vec::new());
        assert!(world.shares().may_fit(&limits));
    }

    #[test]
    fn largest_namespace_gives_way() {
        let mut world = world(limits(100, 80));
        add(&mut world, "large", 0..79);
        let changes = add(&mut world, "small", 0..20);
        assert_eq!(marks(&world, &changes), ["partly large"]);
        assert_eq!(kept(&world, "small"), 20);
        assert!(world.shares().total() <= world.config().shares.total);
        assert!(kept(&world, "large") >= 57, "no more is left out than needed: {}", kept(&world, "large"));
        // Two of the same size share the total, and neither displaces the other repeatedly.
        add(&mut world, "small", 20..100);
        let counts = ["large", "small"].map(|namespace| kept(&world, namespace));
        assert!(counts.iter().all(|count| (36..=42).contains(count)), "{counts:?}");
        assert_eq!(added(&mut world, "other", 0..10), Vec::<String>::new());
        assert_eq!(kept(&world, "other"), 10);
        add(&mut world, "large", 0..100);
        assert_eq!(kept(&world, "other"), 10);
    }

    #[test]
    fn namespace_is_known_again_after_complete_round() {
        let mut world = world(limits(3, 100));
        let list = |world: &mut World, kind: usize, objects: std::ops::Range<usize>| {
            world.shares_mut().list_began(LIST(kind));
            let mut changes = add(world, "a", objects);
            world.list_ended(&LIST(kind), &mut changes);
            marks(world, &changes)
        };
        let limits = world.config().shares;
        let may_fit = |world: &World| world.shares().may_fit(&limits);
        list(&mut world, 1, 0..0);
        assert_eq!(list(&mut world, 0, 0..5), ["partly a"]);
        assert!(!may_fit(&world), "nothing was deleted");
        // One that is left out was deleted: it is unknown how many others there are.
        remove(&mut world, "a", 4..5);
        assert!(may_fit(&world));
        world.shares_mut().begin_round();
        assert!(!may_fit(&world));
        assert_eq!(list(&mut world, 0, 0..4), Vec::<String>::new(), "it is still too much");
        assert_eq!(list(&mut world, 1, 0..0), Vec::<String>::new());
        remove(&mut world, "a", 0..2);
        world.shares_mut().begin_round();
        assert_eq!(list(&mut world, 0, 2..4), Vec::<String>::new(), "the other watch has not listed");
        assert!(world.shares().is_partly_known("a"));
        assert_eq!(list(&mut world, 1, 0..0), ["fully a"]);
        assert!(!world.shares().is_partly_known("a") && kept(&world, "a") == 2);
        // A list without a round says nothing: another watch may have left something out.
        add(&mut world, "a", 0..9);
        assert_eq!(list(&mut world, 0, 0..1), Vec::<String>::new());
        assert_eq!(list(&mut world, 1, 0..0), Vec::<String>::new());
    }

    #[test]
    fn room_in_the_total_lets_others_list_again() {
        let mut world = world(limits(100, 80));
        add(&mut world, "a", 0..60);
        add(&mut world, "b", 0..60);
        let limits = world.config().shares;
        assert!(!world.shares().may_fit(&limits));
        assert_eq!(world.shares().partly_known().len(), 2);
        for number in 0..60 {
            world.apply_revision(&revision_key("a", number), None, &mut Vec::new());
        }
        assert!(world.shares().may_fit(&limits), "b has room, although nothing of it was deleted");
    }

    #[test]
    fn unreadable_and_bound_objects_count() {
        let mut world = world(limits(3, 100));
        let error = || Unreadable::Names { limit: 5 };
        let changes = &mut Vec::new();
        let users = (0..100).map(|number| User::Revision(revision_key("a", number)));
        let told = users.filter(|user| world.set_unreadable(user, &"1".into(), &error(), changes)).count();
        assert!((3..10).contains(&told), "{told}");
        assert_eq!(world.unreadable().len(), told);
        let owner = |number: usize| Owner::new("v1", "Pod", format!("p{number}"), format!("{number}"));
        let version = Version { uid: "1".into(), resource_version: "1".into() };
        let large = BoundRecord { version, owners: (0..1000).map(owner).collect() };
        world.apply_bound(&source("large"), Some(large), changes);
        assert!(world.bound(&source("large")).is_none());
        assert_eq!(world.shares().partly_known(), ["a".into(), "ns".into()]);
        assert_eq!(world.shares().total(), world.counted_bytes());
        for number in 0..100 {
            world.set_readable(&User::Revision(revision_key("a", number)), changes);
        }
        assert_eq!(world.shares().total(), 0);
    }
}
