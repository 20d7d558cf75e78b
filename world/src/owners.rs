//! The owners that a snapshot should have, and their limit.

use std::sync::Arc;

use confrev_core::{
    compact::CompactSet,
    kinds::{REVISION_KINDS, RevisionKind},
};

use crate::{
    name::Name,
    objects::Owner,
    records::{KnownSource, SnapshotRecord},
    world::World,
};

/// The most owners that a snapshot gets. Each takes about 170 bytes in etcd, which refuses objects of more than 1.5 MiB;
/// the content may take 1 MiB of it. The garbage collector deletes a snapshot with its last owner. Other users replace
/// deleted owners, so the snapshot lives as long as anything uses it.
pub const MAX_OWNERS: usize = 2048;

/// The most owners that a snapshot gets if those of its namespace exceed their share. Those that it has stay.
const FEW_OWNERS: usize = 16;

/// The owners that a snapshot should have.
#[derive(Debug, PartialEq, Eq)]
pub enum WantedOwners {
    /// These owners.
    Owners(CompactSet<Owner>),
    /// Not known yet: its source has not been read.
    Unknown,
}

/// The users of an object as owners: those that the world knows, and those that a live read has proven. Users that a live
/// read has found to be deleted are none, even if a watch has not reported the deletion: the garbage collector would remove
/// such an owner repeatedly, and delete the object if it has no other.
pub fn users(world: &World, name: &Name) -> CompactSet<Owner> {
    let findings = world.findings();
    let known = world.owners_by_use(name).into_iter().chain(findings.used(name).cloned());
    known.filter(|owner| !findings.is_deleted(name, owner)).collect()
}

/// The users that a bound object gets as owners. A workload is never the first one: the garbage collector deletes an object with its last
/// owner, and an object without owners never. So a person who may create and delete workloads could delete an object that nothing has
/// used. The first owner is a revision, which the workload's own controller makes to use the object. After that, each
/// owner more only protects the object, as between two Jobs of a CronJob.
///
/// In a partly known namespace, a revision that is left out may use the object. There, a workload may be the first owner.
pub fn binding(
    world: &World,
    name: &Name,
    users: CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> CompactSet<Owner> {
    let is_revision = |owner: &Owner| {
        let is_it =
            |kind: &RevisionKind| kind.kind == &*owner.kind && kind.api_version() == *owner.api_version;
        REVISION_KINDS.iter().any(is_it)
    };
    let is_used = users.iter().any(is_revision) || world.keeper(&name.namespace).is_some();
    if present.is_empty() && !is_used { CompactSet::default() } else { users }
}

/// The owners that a snapshot should have: every user of its name, and its source while it is among the newest `keep`, or a hold
/// names it. Such a workload may be deleted and created again from its own manifest, as `kubectl replace --force` does.
pub fn wanted(world: &World, name: &Name, record: &SnapshotRecord) -> WantedOwners {
    // There is always room for the source, which keeps the newest snapshots, and for the namespace of a partly known one.
    let keeper = world.keeper(&name.namespace);
    let by_use = users(world, name);
    let most = if world.shares().has_many_owners(&name.namespace) {
        let present = by_use.iter().filter(|owner| record.owners.contains(owner)).count();
        present.max(FEW_OWNERS)
    } else {
        MAX_OWNERS
    };
    let is_capped = by_use.len() >= most || world.findings().has_more(name);
    let mut owners =
        at_most(most.min(MAX_OWNERS - 1 - usize::from(keeper.is_some())), by_use, &record.owners);
    let source = name.sibling(Arc::clone(&record.source));
    match world.source(&source) {
        None | Some(KnownSource::Unknown) => return WantedOwners::Unknown,
        Some(KnownSource::Missing) => {}
        Some(KnownSource::Exists(known)) => {
            // A source in bind mode keeps no snapshots: it is bound itself.
            // A snapshot with more users than owners needs its source as an owner, or it could be deleted while in use.
            let is_revoked = known.revokes(&name.object.name, record);
            let is_needed = world.keeps(&source, name, known)
                || world.is_previous(&source, name, known)
                || world.keeps_failed(&source, name, known)
                || world.is_held(name);
            let is_kept = is_capped || (is_needed && !is_revoked);
            if !known.present.bound_itself && is_kept {
                let kind = name.object.kind.as_str();
                owners.insert(Owner::new("v1", kind, Arc::clone(&record.source), known.uid.clone()));
            }
        }
    }
    // Further users may be left out of the world. If nothing is known to need the snapshot, the sweep reads them live.
    if !owners.is_empty()
        && let Some(keeper) = keeper
    {
        owners.insert(keeper);
    }
    WantedOwners::Owners(owners)
}

/// At most `limit` of these owners, those already present first.
pub fn at_most(limit: usize, owners: CompactSet<Owner>, present: &CompactSet<Owner>) -> CompactSet<Owner> {
    if owners.len() <= limit {
        return owners;
    }
    let (there, new): (Vec<_>, Vec<_>) = owners.into_iter().partition(|owner| present.contains(owner));
    there.into_iter().chain(new).take(limit).collect()
}

/// The wanted owners, and as many of the present ones as there is room for.
pub fn beside(wanted: CompactSet<Owner>, present: CompactSet<Owner>) -> Vec<Owner> {
    let room = MAX_OWNERS.saturating_sub(wanted.len());
    let more: Vec<_> = present.into_iter().filter(|owner| !wanted.contains(owner)).take(room).collect();
    let all: CompactSet<_> = wanted.into_iter().chain(more).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use confrev_core::resolve::Health;

    use super::*;
    use crate::{
        FOUND_USERS, Verified,
        fixture::{self, digest, failed, held, reverting, snapshot, snapshot_record, source, used},
    };

    /// The content with which a workload failed may come back.
    #[test]
    fn limited_source_owns_failed_snapshot() {
        for (verdict, expected) in [(Some(failed(None)), 1), (None, 0)] {
            let mut world = fixture::world(&[]);
            world.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
            let name = source("a").sibling(snapshot("a", 1));
            let record = SnapshotRecord { verdict: verdict.map(Box::new), ..snapshot_record("a", 1) };
            world.apply_snapshot(&name, Some(record.clone()), &mut Vec::new());
            let WantedOwners::Owners(owners) = wanted(&world, &name, &record) else {
                panic!("its source is known")
            };
            assert_eq!(owners.len(), expected, "{owners:?}");
        }
    }

    /// The garbage collector would delete the snapshot of a hold before the workload is created again.
    #[test]
    fn source_owns_snapshot_on_hold() {
        for (by, is_kept) in [(held("a", 1), true), (used("a", Some(1)), false)] {
            let web = fixture::workload("web", 1, vec![by], digest(2), Health::Settled);
            let mut world = fixture::world(&[("web", &web)]);
            world.set_read(&source("a"), Some(fixture::source_record("a", 2)), &mut Vec::new());
            let name = source("a").sibling(snapshot("a", 1));
            let record = snapshot_record("a", 1);
            world.apply_snapshot(&name, Some(record.clone()), &mut Vec::new());
            let WantedOwners::Owners(owners) = wanted(&world, &name, &record) else { panic!("it is known") };
            assert_eq!(owners.iter().any(|owner| *owner.kind == *"ConfigMap"), is_kept, "{owners:?}");
        }
    }

    fn sets(numbers: std::ops::Range<usize>) -> Vec<Owner> {
        numbers.map(|i| Owner::new("apps/v1", "ReplicaSet", format!("set-{i}"), format!("uid-{i}"))).collect()
    }

    /// A world with a snapshot that only live reads show to be in use by so many, and that has these owners.
    fn found(used: usize, present: usize) -> (crate::World, Name, SnapshotRecord) {
        let mut world = fixture::world(&[]);
        world.set_read(&source("a"), Some(fixture::source_record("a", 2)), &mut Vec::new());
        let name = source("a").sibling(snapshot("a", 1));
        let owners = sets(0..present).into_iter().collect();
        let record = SnapshotRecord { owners, ..snapshot_record("a", 1) };
        world.apply_snapshot(&name, Some(record.clone()), &mut Vec::new());
        world.add_findings(&name, Verified { used: sets(0..used), ..Verified::default() });
        (world, name, record)
    }

    /// Where a read has stopped looking for users, some of them own nothing.
    #[test]
    fn source_owns_snapshots_with_unknown_users() {
        for (used, is_kept) in [(FOUND_USERS - 1, false), (FOUND_USERS, true)] {
            let (world, name, record) = found(used, 0);
            let WantedOwners::Owners(owners) = wanted(&world, &name, &record) else { panic!("it is known") };
            assert_eq!(owners.len(), used + usize::from(is_kept));
            assert_eq!(owners.iter().any(|owner| *owner.kind == *"ConfigMap"), is_kept);
        }
    }

    /// Otherwise the owners of one tenant's snapshots would fill the memory for all.
    #[test]
    fn namespace_with_many_owners_gets_few_more() {
        let (mut world, name, record) = found(200, 100);
        let count = |world: &crate::World| match wanted(world, &name, &record) {
            WantedOwners::Owners(owners) => owners.len(),
            WantedOwners::Unknown => panic!("its source is known"),
        };
        assert_eq!(count(&world), 201, "all of them, and the source");
        for content in 3..30 {
            let owners = sets(0..MAX_OWNERS).into_iter().collect();
            let other = SnapshotRecord { owners, ..snapshot_record("a", content) };
            world.apply_snapshot(&source("a").sibling(snapshot("a", content)), Some(other), &mut Vec::new());
        }
        assert_eq!(count(&world), 101, "those that it has, and the source");
    }

    #[test]
    fn existing_owners_stay_above_the_owner_limit() {
        let owners =
            |numbers: std::ops::Range<usize>| -> CompactSet<Owner> { sets(numbers).into_iter().collect() };
        let present = owners(90..95);
        let kept = at_most(10, owners(0..100), &present);
        assert_eq!(kept.len(), 10);
        assert!(present.is_subset(&kept) && kept.is_subset(&owners(0..100)));
        assert_eq!(at_most(10, owners(0..100), &kept), kept, "no second write is needed");
        assert_eq!(at_most(10, owners(0..10), &owners(5..50)), owners(0..10));
        let (wanted, stale) = (owners(0..MAX_OWNERS - 5), owners(5000..6000));
        let all: CompactSet<_> = beside(wanted.clone(), stale.clone()).into_iter().collect();
        assert_eq!(all.len(), MAX_OWNERS, "stale owners fill the remaining places");
        assert!(wanted.is_subset(&all) && !stale.is_disjoint(&all));
    }
}
