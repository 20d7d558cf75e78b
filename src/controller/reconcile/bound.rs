//! Sources in bind mode: which owners one gets and loses, and when an unused one is deleted.

use jiff::Timestamp;

use super::{
    reconciled::Reconciled,
    snapshot::{UNBIND_DELAY, verify, verify_removed},
};
use crate::{
    compact::CompactSet,
    controller::{
        action::Action,
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    world::{
        MAX_OWNERS, Name, Owner,
        owners::{self, at_most},
    },
};

impl State {
    /// Adds the missing owners, of which the first is a revision; with `unbind`, also removes confrev's owners that no longer use the object, once a live read has
    /// shown it. Owners that others added stay. The last owner stays too: without owners, the object would never be deleted. An object that
    /// only former users own is released.
    pub(super) fn bind_bound(&mut self, name: &Name, unbind: bool, now: Timestamp) -> Option<Action> {
        let world = &self.world;
        let record = world.bound(name)?;
        let all = owners::users(world, name);
        let stale = |owner: &&Owner| !all.contains(*owner) && world.is_known(name, owner);
        let has_stale = record.owners.iter().any(|owner| stale(&owner));
        if world.is_released(name) {
            self.enqueue_sweep(name, true, now);
            return None;
        }
        if unbind && let Some(verify) = verify(world, name, record.owners.iter().filter(stale)) {
            return Some(verify);
        }
        let kept: Vec<_> = record.owners.iter().filter(|owner| !(unbind && stale(owner))).cloned().collect();
        let others = kept.iter().filter(|owner| !all.contains(*owner)).count();
        let binding = owners::binding(&self.world, name, all.clone(), &record.owners);
        let wanted = at_most(MAX_OWNERS.saturating_sub(others), binding, &record.owners);
        let owners: CompactSet<_> = kept.into_iter().chain(wanted.iter().cloned()).collect();
        if let Some(verify) = verify_removed(world, name, &wanted, &record.owners) {
            return Some(verify);
        }
        let (version, changed) = (record.version.clone(), owners != record.owners && !owners.is_empty());
        if has_stale && !unbind && !all.is_empty() {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Unbind), now + UNBIND_DELAY);
        }
        let owners = owners.into_iter().collect();
        changed.then(|| Action::SetOwners {
            snapshot: name.clone(),
            version,
            owners,
            hazard: false,
            verify: None,
            own: unbind,
        })
    }

    /// Deletes a released object, as the garbage collector would if its owners did not exist.
    pub(super) fn release(&mut self, name: &Name, now: Timestamp) -> Reconciled {
        let since = self.unused_since.get(name).copied().filter(|_| self.world.is_released(name));
        let (Some(record), Some(since)) = (self.world.bound(name), since) else {
            self.unused_since.remove(name);
            return Reconciled::Done;
        };
        let due = self.sweep_due(name, since, true, now);
        if due > now {
            return Reconciled::Later(due);
        }
        Reconciled::Act(Action::Release { object: name.clone(), version: record.version.clone() })
    }
}
