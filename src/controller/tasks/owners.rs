//! The owners of a snapshot, or of a source in bind mode: which ones it gets and loses.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::{Api, ApiError, Usage, owners_but_our_own, owners_of_others},
    compact::CompactSet,
    controller::{
        action::{Action, Outcome},
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    resolve::Observed,
    snapshot::Digest,
    world::{
        FOUND_USERS, KnownSource, MAX_OWNERS, Name, Owner, Verified, Version, World,
        owners::{self, WantedOwners, at_most},
    },
};

/// How long owners to add are collected before they are written: one write for many workloads.
const BIND_DELAY: SignedDuration = SignedDuration::from_millis(500);
/// Extra delay per existing owner: with many owners a write costs more and a single new owner matters less.
const BIND_DELAY_EACH: SignedDuration = SignedDuration::from_millis(5);
/// The most owners that add to the delay.
const MAX_DELAYING: usize = 1000;
/// How long a stale owner is kept: by then, a template's next owner is known.
pub(crate) const UNBIND_DELAY: SignedDuration = SignedDuration::from_secs(3);
/// The most owners that one live read checks before they are added; the others follow. More of them would be a list of the
/// whole namespace, which only slow tasks read, and with as many as a search finds, there might be further ones.
const MAX_DOUBTFUL: usize = FOUND_USERS - 1;

impl State {
    /// Queues a check of the owners of a snapshot or bound object.
    pub(in crate::controller) fn enqueue_owners(&mut self, name: &Name, now: Timestamp) {
        let bind = Task::Object(name.clone(), ObjectStep::Bind);
        if self.awaits_its_source(name) {
            self.world.snapshots_mut().rank_when_read(name);
        } else if let Some(record) = self.world.snapshot(name) {
            let more =
                BIND_DELAY_EACH * i32::try_from(record.owners.len().min(MAX_DELAYING)).unwrap_or_default();
            self.queue.schedule(bind, now + BIND_DELAY + more);
        } else if let Some(record) = self.world.bound(name) {
            // Until it has an owner, no deletion of its users removes it.
            let delay = if record.owners.is_empty() { SignedDuration::ZERO } else { BIND_DELAY };
            self.queue.schedule(bind, now + delay);
        }
    }

    /// Whether a snapshot will be checked anyway, once its source has been read.
    fn awaits_its_source(&self, name: &Name) -> bool {
        self.world.snapshot(name).is_some_and(|record| {
            let source = name.sibling(Arc::clone(&record.source));
            self.world.source(&source) == Some(&KnownSource::Unknown) && self.queue.has(&Task::Read(source))
        })
    }

    /// Adds the owners that a snapshot lacks. Stale owners are left for [`State::unbind`].
    pub(in crate::controller) fn bind(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        let record = self.world.snapshot(name)?;
        let wanted = owners::wanted(&self.world, name, record);
        let (version, present, digest) = (record.version(), record.owners.clone(), record.digest);
        let source = name.sibling(Arc::clone(&record.source));
        let WantedOwners::Owners(wanted) = wanted else {
            self.enqueue_source(source, now);
            self.world.snapshots_mut().rank_when_read(name);
            return None;
        };
        if wanted.is_empty() {
            self.enqueue_sweep(name, !present.is_empty(), now);
            return None;
        }
        self.unused_since.remove(name);
        if !present.is_subset(&wanted) {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Unbind), now + UNBIND_DELAY);
        }
        if wanted.is_subset(&present) {
            return None;
        }
        if let Some(verify) = verify_removed(&self.world, name, &wanted, &present) {
            return Some(verify);
        }
        let hazard = !present.is_empty() && present.is_disjoint(&wanted);
        // A snapshot with none of these owners may be any object with the labels.
        let verify = present.is_disjoint(&wanted).then_some(digest);
        let owners = owners::beside(wanted, present);
        Some(Action::SetOwners { snapshot: name.clone(), version, owners, hazard, verify, own: false })
    }

    /// Removes a snapshot's stale owners.
    pub(in crate::controller) fn unbind(&mut self, name: &Name) -> Option<Action> {
        let record = self.world.snapshot(name)?;
        let WantedOwners::Owners(wanted) = owners::wanted(&self.world, name, record) else {
            self.world.snapshots_mut().rank_when_read(name);
            return None;
        };
        // An unused snapshot is left to the sweep, which checks everything that may use it.
        if wanted.is_empty() || record.owners.is_subset(&wanted) {
            return None;
        }
        let stale = record.owners.iter().filter(|owner| !wanted.contains(owner));
        if let Some(verify) = verify(&self.world, name, stale) {
            return Some(verify);
        }
        let hazard = record.owners.is_disjoint(&wanted);
        let verify = hazard.then_some(record.digest);
        let (snapshot, version, owners) = (name.clone(), record.version(), wanted.into_iter().collect());
        Some(Action::SetOwners { snapshot, version, owners, hazard, verify, own: false })
    }

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

    /// Applies the outcome of a write of owners.
    pub(super) fn owners_finished(&mut self, name: &Name, outcome: Outcome, now: Timestamp) {
        match outcome {
            // Another version may exist by now.
            Outcome::Impostor(version)
                if self.world.snapshot(name).is_some_and(|record| record.version() == version) =>
            {
                self.apply_snapshot(name, None, now);
            }
            Outcome::OwnersSet(observed) => {
                self.memory.remember_endangered(name.clone(), Arc::new(*observed), now);
            }
            _ => {}
        }
    }

    /// Records what a live read of owners found. `step`: the step that needed it.
    pub(super) fn owners_were_verified(
        &mut self,
        step: ObjectStep,
        name: &Name,
        verified: Verified,
        now: Timestamp,
    ) {
        if !self.world.exists(name) {
            return;
        }
        let is_used = !verified.used.is_empty();
        self.world.add_findings(name, verified);
        if is_used {
            self.unused_since.remove(name);
        }
        let binds = step == ObjectStep::Bind;
        if is_used || binds {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Bind), now);
        }
        if !binds {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Unbind), now);
        }
    }
}

/// The live read that is needed before these owners are removed; `None` if no owner needs one.
pub(crate) fn verify<'o>(
    world: &World,
    name: &Name,
    stale: impl Iterator<Item = &'o Owner>,
) -> Option<Action> {
    let owners = world.findings().doubtful(name, stale);
    (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
}

/// The live read that is needed before these owners are added to those that the object has; `None` if none of them is in
/// doubt.
fn verify_removed(
    world: &World,
    name: &Name,
    wanted: &CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> Option<Action> {
    let is_doubtful = |owner: &&Owner| !present.contains(*owner) && world.findings().was_removed(name, owner);
    let owners: Vec<_> = wanted.iter().filter(is_doubtful).take(MAX_DOUBTFUL).cloned().collect();
    (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
}

/// Whether the object's content matches its labels; false if the object is missing. What is no snapshot is left unchanged.
pub(super) async fn is_sound<A: Api>(api: &A, snapshot: &Name, digest: &Digest) -> Result<bool, ApiError> {
    let observed = api.read(&snapshot.namespace, &snapshot.object).await?;
    let is_sound = observed.is_some_and(|observed| has_content(&observed, digest));
    if !is_sound {
        warn_of_impostor(snapshot);
    }
    Ok(is_sound)
}

/// Whether the object states that it is a snapshot of this content, and is one.
pub(super) fn has_content(observed: &Observed, digest: &Digest) -> bool {
    observed.identity().is_some_and(|identity| observed.is_snapshot_of(&identity.source, digest))
}

/// Logs that an object stays as it is.
pub(super) fn warn_of_impostor(snapshot: &Name) {
    tracing::warn!(%snapshot, "object has the labels of a snapshot but is not one: left unchanged");
}

/// These owners, and those that others added. The object's managedFields show who added which.
async fn beside_others<A: Api>(api: &A, object: &Name, owners: Vec<Owner>) -> Result<Vec<Owner>, ApiError> {
    let Some(observed) = api.read(&object.namespace, &object.object).await? else { return Ok(owners) };
    let others = owners_but_our_own(observed.json());
    let more: Vec<_> =
        others.into_iter().filter(|other| owners.iter().all(|owner| owner.uid != other.uid)).collect();
    Ok(owners.into_iter().chain(more).collect())
}

/// Sets a snapshot's owners. If the collector may be deleting it, it is read again: older collectors delete what they
/// judged before the owners changed (kubernetes#132632). A watch then reports the deletion while the content is remembered.
async fn set_owners<A: Api>(
    api: &A,
    snapshot: &Name,
    version: &Version,
    owners: &[Owner],
    hazard: bool,
) -> Result<Outcome, ApiError> {
    let observed = api.set_owners(&snapshot.namespace, &snapshot.object, version, owners).await?;
    if !hazard {
        return Ok(Outcome::Done);
    }
    if api.read(&snapshot.namespace, &snapshot.object).await?.is_none()
        && let Some(identity) = observed.identity()
    {
        api.create_snapshot(&snapshot.namespace, &snapshot.object, identity, observed.json(), owners).await?;
    }
    Ok(Outcome::OwnersSet(Box::new(observed)))
}

/// Reads owners live, and checks whether they use a snapshot.
pub(super) async fn read_owners<A: Api>(
    api: &A,
    snapshot: &Name,
    owners: Vec<Owner>,
) -> Result<Outcome, ApiError> {
    let mut verified = Verified::default();
    let usages = api.usages(&snapshot.namespace, &owners, &snapshot.object).await?;
    for (owner, usage) in owners.into_iter().zip(usages) {
        let same = match usage {
            Usage::Used | Usage::Leaving => &mut verified.used,
            Usage::Unused => &mut verified.unused,
            Usage::Gone => &mut verified.deleted,
        };
        same.push(owner);
    }
    Ok(Outcome::Verified(verified))
}

/// Removes confrev's owners from a user's object that has left bind mode: otherwise it would be deleted with the workloads
/// that used it. The object's managedFields show who added which.
pub(super) async fn free<A: Api>(api: &A, name: &Name) -> Result<Outcome, ApiError> {
    let Some(observed) = api.read(&name.namespace, &name.object).await? else { return Ok(Outcome::Done) };
    if observed.is_bound_itself() || observed.identity().is_some() {
        return Ok(Outcome::Done);
    }
    if let Some(others) = owners_of_others(observed.json()) {
        let version =
            Version { uid: observed.uid.clone(), resource_version: observed.resource_version.clone() };
        api.set_owners(&name.namespace, &name.object, &version, &others).await?;
    }
    Ok(Outcome::Done)
}

/// What a write of owners takes care of.
pub(super) struct Care {
    /// The garbage collector may be about to delete the object.
    pub hazard: bool,
    /// The digest that the object must state and hold to be a snapshot, unless this was checked before.
    pub verify: Option<Digest>,
    /// Remove no owners but confrev's: the object is a user's.
    pub own: bool,
}

/// Sets the owners of an object.
pub(super) async fn run<A: Api>(
    api: &A,
    snapshot: &Name,
    version: Version,
    mut owners: Vec<Owner>,
    care: Care,
) -> Result<Outcome, ApiError> {
    if let Some(digest) = &care.verify
        && !is_sound(api, snapshot, digest).await?
    {
        return Ok(Outcome::Impostor(version));
    }
    if care.own {
        owners = beside_others(api, snapshot, owners).await?;
    }
    set_owners(api, snapshot, &version, &owners, care.hazard).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, on, state},
        resolve::{Health, Record},
        world::{
            SnapshotRecord, SourceRecord,
            fixture::{digest, snapshot, snapshot_record, source, source_record},
        },
    };

    /// The snapshot of a content of a.
    fn of_a(content: u8) -> Name {
        source("a").sibling(snapshot("a", content))
    }

    fn step(step: ObjectStep) -> Task {
        Task::Object(of_a(1), step)
    }

    /// A ReplicaSet, as an owner.
    fn set(name: &str) -> Owner {
        Owner::new("apps/v1", "ReplicaSet", name, name)
    }

    /// A state with these workloads on the content 1 of a, whose snapshot has these owners.
    fn owned(workloads: &[&str], owners: &[&Owner]) -> State {
        let on = on(1, Health::Settled);
        let records: Vec<_> =
            workloads.iter().map(|name| Record { uid: (*name).into(), ..on.clone() }).collect();
        let workloads: Vec<_> = workloads.iter().copied().zip(&records).collect();
        let mut state = state(&workloads);
        let owners = owners.iter().copied().cloned().collect();
        let record = SnapshotRecord { owners, ..snapshot_record("a", 1) };
        state.world.apply_snapshot(&of_a(1), Some(record), &mut Vec::new());
        state
    }

    fn owner(name: &str) -> Owner {
        Owner::new("apps/v1", "Deployment", name, name)
    }

    /// The owners to set, whether the collector may be about to delete the snapshot, and whether it is verified.
    fn bind(state: &mut State) -> Option<(Vec<String>, bool, bool)> {
        match state.bind(&of_a(1), at(10))? {
            Action::SetOwners { owners, hazard, verify, own: false, .. } => {
                assert!(verify.is_none_or(|stated| stated == digest(1)));
                Some((owners.iter().map(|owner| owner.name.to_string()).collect(), hazard, verify.is_some()))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn users_become_owners_beside_the_present_ones() {
        let (web, old) = (owner("web"), set("old"));
        for (what, workloads, owners, expected, unbinds) in [
            ("it has no owner", &["web"][..], &[][..], Some((vec!["web"], false, true)), false),
            ("it has all", &["web"], &[&web], None, false),
            ("it has more", &["web"], &[&web, &old], None, true),
            ("it has others", &["web"], &[&old], Some((vec!["web", "old"], true, true)), true),
            ("it has some", &["web", "x"], &[&web], Some((vec!["web", "x"], false, false)), false),
            ("nothing uses it", &[], &[&old], None, false),
        ] {
            let mut state = owned(workloads, owners);
            let expected = expected.map(|(names, hazard, verified): (Vec<&str>, _, _)| {
                (names.into_iter().map(str::to_owned).collect::<Vec<_>>(), hazard, verified)
            });
            assert_eq!(bind(&mut state), expected, "{what}");
            let due = unbinds.then(|| at(10) + UNBIND_DELAY);
            assert_eq!(state.queue.due(&step(ObjectStep::Unbind)), due, "{what}");
            let sweep =
                workloads.is_empty().then(|| at(10) + crate::controller::tasks::sweep::RELEASED_GRACE);
            assert_eq!(state.queue.due(&step(ObjectStep::Sweep)), sweep, "{what}");
        }
    }

    /// The garbage collector removes deleted owners, before a watch reports that they are deleted.
    #[test]
    fn removed_users_are_read_before_they_return() {
        let mut state = owned(&["web"], &[&owner("web")]);
        state.apply_snapshot(&of_a(1), Some(snapshot_record("a", 1)), at(9));
        let action = state.bind(&of_a(1), at(10));
        let Some(Action::Verify { owners, .. }) = action else { panic!("{action:?}") };
        assert_eq!(owners, [owner("web")]);
        let verified = Verified { used: owners, ..Verified::default() };
        state.owners_were_verified(ObjectStep::Bind, &of_a(1), verified, at(10));
        assert_eq!(bind(&mut state), Some((vec!["web".to_owned()], false, true)));
    }

    #[test]
    fn many_removed_users_return_after_several_reads() {
        let names: Vec<_> = (0..40).map(|number| format!("web-{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let owners: Vec<_> = names.iter().map(|name| owner(name)).collect();
        let mut state = owned(&names, &owners.iter().collect::<Vec<_>>());
        state.apply_snapshot(&of_a(1), Some(snapshot_record("a", 1)), at(9));
        let mut reads = Vec::new();
        while let Some(Action::Verify { owners, .. }) = state.bind(&of_a(1), at(10)) {
            reads.push(owners.len());
            let verified = Verified { used: owners, ..Verified::default() };
            state.owners_were_verified(ObjectStep::Bind, &of_a(1), verified, at(10));
        }
        assert_eq!(reads, [15, 15, 10]);
        assert_eq!(bind(&mut state).map(|(owners, ..)| owners.len()), Some(40));
    }

    #[test]
    fn found_users_are_bound_at_once() {
        use ObjectStep::{Bind, Sweep, Unbind};
        for (by, is_used, expected) in [
            (Bind, true, [true, false]),
            (Bind, false, [true, false]),
            (Unbind, true, [true, true]),
            (Unbind, false, [false, true]),
            (Sweep, true, [true, true]),
            (Sweep, false, [false, true]),
        ] {
            let mut state = owned(&[], &[&set("old")]);
            state.unused_since.insert(of_a(1), at(0));
            let used = is_used.then(|| set("old")).into_iter().collect();
            state.owners_were_verified(by, &of_a(1), Verified { used, ..Verified::default() }, at(5));
            let is_due = |of| state.queue.due(&step(of)) == Some(at(5));
            assert_eq!([Bind, Unbind].map(is_due), expected, "{by:?} {is_used}");
            assert_eq!(state.unused_since.contains_key(&of_a(1)), !is_used, "{by:?} {is_used}");
        }
    }

    /// Of a source with many snapshots, only the newest are checked at each read, and those for which the read was needed.
    #[test]
    fn doubtful_snapshots_are_checked_after_the_read() {
        let check = |what: &str, state: &mut State| match what {
            "owners" => {
                state.queue.schedule(Task::Read(source("a")), at(9));
                state.enqueue_owners(&of_a(1), at(1));
                assert_eq!(state.queue.due(&step(ObjectStep::Bind)), None, "it waits for the read");
            }
            "bind" => assert!(state.bind(&of_a(1), at(1)).is_none()),
            "unbind" => assert!(state.unbind(&of_a(1)).is_none()),
            "sweep" => assert_eq!(brief(&state.sweep(&of_a(1), at(1000))), "done"),
            _ => {}
        };
        for what in ["nothing", "owners", "bind", "unbind", "sweep"] {
            let mut state = owned(&[], &[]);
            for content in 4..=9 {
                let new = snapshot_record("a", content);
                state.world.apply_snapshot(&of_a(content), Some(new), &mut Vec::new());
            }
            state.unused_since.insert(of_a(1), at(0));
            let known = SourceRecord { keep: 1, ..source_record("a", 9) };
            state.world.set_read(&source("a"), Some(known.clone()), &mut Vec::new());
            state.world.set_source_unknown(&source("a"));
            check(what, &mut state);
            state.update(at(10), |world, changes| world.set_read(&source("a"), Some(known), changes));
            let is_checked = state.queue.due(&step(ObjectStep::Bind)).is_some();
            assert_eq!(is_checked, what != "nothing", "{what}");
        }
        // A snapshot of a source that is known is checked after a moment: more owners may follow.
        let mut state = owned(&["web"], &[&owner("web"), &set("old")]);
        state.enqueue_owners(&of_a(1), at(1));
        let delay = BIND_DELAY + BIND_DELAY_EACH * 2;
        assert_eq!(state.queue.due(&step(ObjectStep::Bind)), Some(at(1) + delay));
    }
}
