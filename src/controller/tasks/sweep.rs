//! The deletion of unused snapshots, and of sources in bind mode that nothing uses any more.

use jiff::{SignedDuration, Timestamp};

use super::owners::{UNBIND_DELAY, has_content, warn_of_impostor};
use crate::{
    cluster::{Api, ApiError, owners_of_others},
    compact::CompactSet,
    controller::{
        action::{Action, Outcome},
        queue::{ObjectStep, Task},
        reconcile::{
            event_texts::{self},
            state::State,
        },
        tasks::decided::Decided,
    },
    resolve::Observed,
    snapshot::Digest,
    world::{
        Name, Verified, Version,
        owners::{self, WantedOwners},
    },
};

/// How long a snapshot that was bound is kept after its last use: far beyond any watch's lag. If it is needed again after
/// all, it is recreated from the source.
pub(super) const RELEASED_GRACE: SignedDuration = SignedDuration::from_secs(15);
/// How long a snapshot that was never bound is kept if it does not fit into the limit of bytes: longer than the API server
/// works on the write that the snapshot was created for.
const CROWDED_GRACE: SignedDuration = SignedDuration::from_secs(60);

impl State {
    /// Queues the deletion of an unused object.
    pub(super) fn enqueue_sweep(&mut self, name: &Name, was_bound: bool, now: Timestamp) {
        let since = *self.unused_since.entry(name.clone()).or_insert(now);
        self.queue
            .schedule(Task::Object(name.clone(), ObjectStep::Sweep), since + self.grace(name, was_bound));
    }

    /// How long an unused snapshot is kept. A snapshot that was never bound may be waiting for the write that it was
    /// created for; one that lost its last user waits only for the watches to agree.
    fn grace(&self, name: &Name, was_bound: bool) -> SignedDuration {
        let most = if was_bound {
            RELEASED_GRACE
        } else if self
            .world
            .source_of_snapshot(name)
            .is_some_and(|source| self.world.exceeds_bytes(&source, name))
        {
            CROWDED_GRACE
        } else {
            self.config.orphan_grace
        };
        self.config.orphan_grace.min(most)
    }

    /// Reports a snapshot that is deleted although it is among the newest that its source keeps.
    fn report_dropped_snapshots(&mut self, name: &Name, now: Timestamp) {
        let Some(source) = self.world.source_of_snapshot(name) else { return };
        let world = &self.world;
        let Some(known) = world.existing_source(&source) else { return };
        if world.snapshots().is_among_newest(&source, name, known) && world.exceeds_bytes(&source, name) {
            self.dropped_snapshots += 1;
            let event = event_texts::snapshots_dropped(world, &source, now);
            self.report(event, now);
        }
    }

    /// When an object that is unused since then may be deleted.
    fn sweep_due(&self, name: &Name, since: Timestamp, was_bound: bool, now: Timestamp) -> Timestamp {
        let due = since + self.grace(name, was_bound);
        if self.world.has_unobserved_owner(name) { due.max(now + UNBIND_DELAY) } else { due }
    }

    /// Deletes an unused snapshot.
    pub(in crate::controller) fn sweep(&mut self, name: &Name, now: Timestamp) -> Decided {
        let since = self.unused_since.get(name).copied();
        let (Some(record), Some(since)) = (self.world.snapshot(name), since) else { return Decided::Done };
        let wanted = owners::wanted(&self.world, name, record);
        if wanted != WantedOwners::Owners(CompactSet::default()) {
            if wanted == WantedOwners::Unknown {
                self.world.snapshots_mut().rank_when_read(name);
            }
            return Decided::Done;
        }
        let due = self.sweep_due(name, since, !record.owners.is_empty(), now);
        if due > now {
            return Decided::Later(due);
        }
        let (version, digest) = (record.version(), record.digest);
        self.report_dropped_snapshots(name, now);
        Decided::Act(Action::Sweep { snapshot: name.clone(), version, digest })
    }

    /// Deletes a released object, as the garbage collector would if its owners did not exist.
    pub(in crate::controller) fn release(&mut self, name: &Name, now: Timestamp) -> Decided {
        let since = self.unused_since.get(name).copied().filter(|_| self.world.is_released(name));
        let (Some(record), Some(since)) = (self.world.bound(name), since) else {
            self.unused_since.remove(name);
            return Decided::Done;
        };
        let due = self.sweep_due(name, since, true, now);
        if due > now {
            return Decided::Later(due);
        }
        Decided::Act(Action::Release { object: name.clone(), version: record.version.clone() })
    }
}

/// Reads an object live that is to be deleted. If it is missing, or used after all, that is the outcome.
async fn unused<A: Api>(api: &A, object: &Name) -> Result<Result<Observed, Outcome>, ApiError> {
    let Some(observed) = api.read(&object.namespace, &object.object).await? else {
        return Ok(Err(Outcome::Done));
    };
    // Each watch may lag or stall, and none reports a revision without its label.
    let used = api.users_of(&object.namespace, &object.object).await?;
    Ok(if used.is_empty() {
        Ok(observed)
    } else {
        Err(Outcome::Verified(Verified { used, ..Verified::default() }))
    })
}

/// Deletes a snapshot after a last live read: an object that only has the labels of one is left alone.
pub(super) async fn sweep<A: Api>(
    api: &A,
    snapshot: &Name,
    version: &Version,
    digest: &Digest,
) -> Result<Outcome, ApiError> {
    let observed = match unused(api, snapshot).await? {
        Ok(observed) => observed,
        Err(ended) => return Ok(ended),
    };
    if has_content(&observed, digest) && observed.uid == version.uid {
        api.delete_snapshot(&snapshot.namespace, &snapshot.object, version).await?;
    } else {
        warn_of_impostor(snapshot);
    }
    Ok(Outcome::Done)
}

/// Deletes a source in bind mode after a last live read: it must be unchanged since it was found to be unused.
pub(super) async fn release<A: Api>(api: &A, object: &Name, version: &Version) -> Result<Outcome, ApiError> {
    let observed = match unused(api, object).await? {
        Ok(observed) => observed,
        Err(ended) => return Ok(ended),
    };
    // Without an owner that confrev added, or with an owner that others added, deleting it is left to others.
    if !observed.is_bound_itself()
        || owners_of_others(observed.json()).is_none_or(|others| !others.is_empty())
    {
        return Ok(Outcome::Done);
    }
    api.delete_snapshot(&object.namespace, &object.object, version).await?;
    Ok(Outcome::Released(Box::new(observed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, on, state},
        resolve::{Health, Record},
        world::{
            Owner, SnapshotRecord,
            fixture::{key, snapshot, snapshot_record, source},
        },
    };

    fn of_a() -> Name {
        source("a").sibling(snapshot("a", 1))
    }

    /// A state whose snapshot of the content 1 of a has this owner, and no user.
    fn owned(owner: Option<(&str, &str)>) -> State {
        let mut state = state(&[]);
        let owners = owner.into_iter().map(|(kind, name)| Owner::new("apps/v1", kind, name, name)).collect();
        let record = SnapshotRecord { owners, ..snapshot_record("a", 1) };
        state.world.apply_snapshot(&of_a(), Some(record), &mut Vec::new());
        state
    }

    #[test]
    fn unused_snapshot_is_kept_for_its_grace() {
        let sweep = |state: &mut State, second| brief(&state.sweep(&of_a(), at(second)));
        for (owner, grace) in [(None, 600), (Some(("ReplicaSet", "old")), 15)] {
            let mut state = owned(owner);
            state.enqueue_sweep(&of_a(), owner.is_some(), at(100));
            state.enqueue_sweep(&of_a(), owner.is_some(), at(105));
            assert_eq!(
                state.queue.due(&Task::Object(of_a(), ObjectStep::Sweep)),
                Some(at(100 + grace)),
                "since its last use"
            );
            assert_eq!(sweep(&mut state, 100 + grace - 1), format!("later {}000", 100 + grace));
            assert_eq!(sweep(&mut state, 100 + grace), "Sweep");
        }
        // The controller of its former user may still create a revision of the former template.
        let mut state = owned(Some(("Deployment", "web")));
        let moved = Record { uid: "web".into(), ..on(2, Health::Unobserved) };
        state.world.apply_workload(&key("web"), Some(moved.clone()), &mut Vec::new());
        state.unused_since.insert(of_a(), at(0));
        assert_eq!(sweep(&mut state, 20), "later 23000");
        let observed = Record { health: Health::Progressing, ..moved };
        state.world.apply_workload(&key("web"), Some(observed), &mut Vec::new());
        assert_eq!(sweep(&mut state, 20), "Sweep");
    }
}
