//! The limit on the owners of an object.

use crate::{cluster::Owner, compact::CompactSet};

/// The most owners that a snapshot gets. Each takes about 170 bytes in etcd, which refuses objects of more than 1.5 MiB;
/// the content may take 1 MiB of it. The garbage collector deletes a snapshot with its last owner. Other users replace
/// deleted owners, so the snapshot lives as long as anything uses it.
pub const MOST_OWNERS: usize = 2048;

/// At most `most` of these owners, those already present first.
pub(super) fn at_most(
    most: usize,
    owners: CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> CompactSet<Owner> {
    if owners.len() <= most {
        return owners;
    }
    let (there, new): (Vec<_>, Vec<_>) = owners.into_iter().partition(|owner| present.contains(owner));
    there.into_iter().chain(new).take(most).collect()
}

/// The wanted owners, and as many of the present ones as there is room for.
pub(super) fn beside(wanted: CompactSet<Owner>, present: CompactSet<Owner>) -> Vec<Owner> {
    let room = MOST_OWNERS.saturating_sub(wanted.len());
    let more: Vec<_> = present.into_iter().filter(|owner| !wanted.contains(owner)).take(room).collect();
    let all: CompactSet<_> = wanted.into_iter().chain(more).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (wanted, stale) = (owners(0..MOST_OWNERS - 5), owners(5000..6000));
        let all: CompactSet<_> = beside(wanted.clone(), stale.clone()).into_iter().collect();
        assert_eq!(all.len(), MOST_OWNERS, "stale owners fill the remaining places");
        assert!(wanted.is_subset(&all) && !stale.is_disjoint(&all));
    }
}
