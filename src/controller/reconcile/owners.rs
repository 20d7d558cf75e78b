//! The owners that a snapshot should have, and their limit.

use std::sync::Arc;

use crate::{
    cluster::Owner,
    compact::CompactSet,
    controller::{
        action::Action,
        index::{
            Index,
            records::{KnownSource, SnapshotRecord},
        },
        name::Name,
    },
    kinds::{REVISION_KINDS, RevisionKind},
};

/// The most owners that a snapshot gets. Each takes about 170 bytes in etcd, which refuses objects of more than 1.5 MiB;
/// the content may take 1 MiB of it. The garbage collector deletes a snapshot with its last owner. Other users replace
/// deleted owners, so the snapshot lives as long as anything uses it.
pub const MAX_OWNERS: usize = 2048;

/// The owners that a snapshot should have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WantedOwners {
    /// These owners.
    Owners(CompactSet<Owner>),
    /// Not known yet: its source has not been read.
    Unknown,
}

/// The users of an object as owners: those that the index knows, and those that a live read has proven. Users that a live
/// read has found to be deleted are none, even if a watch has not reported the deletion: the garbage collector would remove
/// such an owner repeatedly, and delete the object if it has no other.
pub(crate) fn users(index: &Index, name: &Name) -> CompactSet<Owner> {
    let findings = index.findings();
    let known = index.owners_by_use(name).into_iter().chain(findings.used(name).cloned());
    known.filter(|owner| !findings.is_deleted(name, owner)).collect()
}

/// The users that a bound object gets as owners. A workload is never the first one: the garbage collector deletes an object with its last
/// owner, and an object without owners never. So a person who may create and delete workloads could delete an object that nothing has
/// used. The first owner is a revision, which the workload's own controller makes to use the object. After that, each
/// owner more only protects the object, as between two Jobs of a CronJob.
///
/// In a partly known namespace, a revision that is left out may use the object. There, a workload may be the first owner.
pub(crate) fn binding(
    index: &Index,
    name: &Name,
    users: CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> CompactSet<Owner> {
    let is_revision = |owner: &Owner| {
        let is_it =
            |kind: &RevisionKind| kind.kind == &*owner.kind && kind.api_version() == *owner.api_version;
        REVISION_KINDS.iter().any(is_it)
    };
    let is_used = users.iter().any(is_revision) || index.keeper(&name.namespace).is_some();
    if present.is_empty() && !is_used { CompactSet::default() } else { users }
}

/// The live read that is needed before these owners are added to those that the object has; `None` if none of them is in
/// doubt.
pub(crate) fn verify_removed(
    index: &Index,
    name: &Name,
    wanted: &CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> Option<Action> {
    let is_doubtful = |owner: &&Owner| !present.contains(*owner) && index.findings().was_removed(name, owner);
    let owners: Vec<_> = wanted.iter().filter(is_doubtful).cloned().collect();
    (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
}

/// The owners that a snapshot should have: every user of its name, and its source while it is among the newest `keep`.
pub(crate) fn wanted(index: &Index, name: &Name, record: &SnapshotRecord) -> WantedOwners {
    // There is always room for the source, which keeps the newest snapshots, and for the namespace of a partly known one.
    let keeper = index.keeper(&name.namespace);
    let by_use = users(index, name);
    let is_capped = by_use.len() >= MAX_OWNERS;
    let mut owners = at_most(MAX_OWNERS - 1 - usize::from(keeper.is_some()), by_use, &record.owners);
    let source = name.sibling(Arc::clone(&record.source));
    match index.source(&source) {
        None | Some(KnownSource::Unknown) => return WantedOwners::Unknown,
        Some(KnownSource::Missing) => {}
        Some(KnownSource::Exists(known)) => {
            // A source in bind mode keeps no snapshots: it is bound itself.
            // A snapshot with more users than owners needs its source as an owner, or it could be deleted while in use.
            let is_revoked = known.revokes(&name.object.name, record);
            let is_needed = index.keeps(&source, name, known)
                || index.is_previous(&source, name, known)
                || index.keeps_failed(&source, name, known);
            let is_kept = is_capped || (is_needed && !is_revoked);
            if !known.present.bound_itself && is_kept {
                let kind = name.object.kind.as_str();
                owners.insert(Owner::new("v1", kind, Arc::clone(&record.source), known.uid.clone()));
            }
        }
    }
    // Further users may be left out of the index. If nothing is known to need the snapshot, the sweep reads them live.
    if !owners.is_empty()
        && let Some(keeper) = keeper
    {
        owners.insert(keeper);
    }
    WantedOwners::Owners(owners)
}

/// At most `limit` of these owners, those already present first.
pub(crate) fn at_most(
    limit: usize,
    owners: CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> CompactSet<Owner> {
    if owners.len() <= limit {
        return owners;
    }
    let (there, new): (Vec<_>, Vec<_>) = owners.into_iter().partition(|owner| present.contains(owner));
    there.into_iter().chain(new).take(limit).collect()
}

/// The wanted owners, and as many of the present ones as there is room for.
pub(crate) fn beside(wanted: CompactSet<Owner>, present: CompactSet<Owner>) -> Vec<Owner> {
    let room = MAX_OWNERS.saturating_sub(wanted.len());
    let more: Vec<_> = present.into_iter().filter(|owner| !wanted.contains(owner)).take(room).collect();
    let all: CompactSet<_> = wanted.into_iter().chain(more).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::index::fixture::{self, failed, reverting, snapshot, snapshot_record, source};

    /// The content with which a workload failed may come back.
    #[test]
    fn limited_source_owns_failed_snapshot() {
        for (verdict, expected) in [(Some(failed(None)), 1), (None, 0)] {
            let mut index = fixture::index(&[]);
            index.set_read(&source("a"), Some(reverting("a", 2)), &mut Vec::new());
            let name = source("a").sibling(snapshot("a", 1));
            let record = SnapshotRecord { verdict: verdict.map(Box::new), ..snapshot_record("a", 1) };
            index.apply_snapshot(&name, Some(record.clone()), &mut Vec::new());
            let WantedOwners::Owners(owners) = wanted(&index, &name, &record) else {
                panic!("its source is known")
            };
            assert_eq!(owners.len(), expected, "{owners:?}");
        }
    }

    #[test]
    fn existing_owners_stay_above_the_owner_limit() {
        let owners = |numbers: std::ops::Range<usize>| -> CompactSet<Owner> {
            numbers
                .map(|i| Owner::new("apps/v1", "ReplicaSet", format!("set-{i}"), format!("uid-{i}")))
                .collect()
        };
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
