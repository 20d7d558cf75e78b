//! Snapshots: which owners one gets and loses, when a missing one is restored, and when an unused one is deleted.
//!
//! [`State::reconcile_object`] calls these functions.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    event_texts::{self, Loss},
    missing_snapshots::Conclusion,
    reconciled::Reconciled,
};
use crate::{
    compact::CompactSet,
    controller::{
        action::Action,
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    world::{
        FOUND_USERS, KnownSource, Name, Owner, Verified, World,
        owners::{self, WantedOwners},
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
/// How long a referenced snapshot may be unknown, because the watches are not in step with each other.
const RESTORE_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// How long a snapshot that was bound is kept after its last use: far beyond any watch's lag. If it is needed again after
/// all, it is recreated from the source.
const RELEASED_GRACE: SignedDuration = SignedDuration::from_secs(15);
/// How long a snapshot that was never bound is kept if it does not fit into the limit of bytes: longer than the API server
/// works on the write that the snapshot was created for.
const CROWDED_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// The most owners that one live read checks before they are added; the others follow. More of them would be a list of the
/// whole namespace, which only slow tasks read, and with as many as a search finds, there might be further ones.
const MAX_DOUBTFUL: usize = FOUND_USERS - 1;
/// The most users of a lost snapshot that are read one by one, before the whole namespace is searched.
const MAX_USERS_READ: usize = 3;

/// The live read that is needed before these owners are removed; `None` if no owner needs one.
pub(crate) fn verify<'o>(
    world: &World,
    name: &Name,
    stale: impl Iterator<Item = &'o Owner>,
) -> Option<Action> {
    let owners = world.findings().doubtful(name, stale);
    (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
}

impl State {
    /// Queues a check of the owners of a snapshot or bound object.
    pub(super) fn enqueue_owners(&mut self, name: &Name, now: Timestamp) {
        if self.awaits_its_source(name) {
            self.world.snapshots_mut().rank_when_read(name);
        } else if self.world.exists(name) {
            let owners = self.world.snapshot(name).map_or(0, |record| record.owners.len().min(MAX_DELAYING));
            let more = BIND_DELAY_EACH * i32::try_from(owners).unwrap_or_default();
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Bind), now + BIND_DELAY + more);
        }
    }

    /// Whether a snapshot will be checked anyway, once its source has been read.
    fn awaits_its_source(&self, name: &Name) -> bool {
        self.world.snapshot(name).is_some_and(|record| {
            let source = name.sibling(Arc::clone(&record.source));
            self.world.source(&source) == Some(&KnownSource::Unknown) && self.queue.has(&Task::Read(source))
        })
    }

    /// Queues a restore of an object that may only be unknown yet. The delay also leaves time for a tool that deletes an
    /// object in order to create it again, as `kubectl replace --force` does.
    pub(super) fn enqueue_restore(&mut self, name: Name, now: Timestamp) {
        self.queue.schedule(Task::Object(name, ObjectStep::Restore), now + RESTORE_DELAY);
    }

    /// Adds the owners that a snapshot lacks. Stale owners are left for [`State::unbind`].
    pub(super) fn bind(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
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
    pub(super) fn unbind(&mut self, name: &Name) -> Option<Action> {
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

    /// Records what a live read of owners found. `step`: the step that needed it.
    pub(in crate::controller) fn owners_were_verified(
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

    /// Recreates a snapshot, or source in bind mode, that is referenced but missing.
    pub(super) fn restore(&self, name: &Name) -> Option<Action> {
        let world = &self.world;
        // Nothing is known of a kind that is not watched, and every read would fail without the right to it.
        if !self.config.source_kinds().contains(&name.object.kind) {
            return None;
        }
        let content = self.memory.recall(name).map(Arc::clone);
        // No watch may report the users of a bound object: its owners are read live.
        let is_bound = content.as_ref().is_some_and(|content| content.is_bound_itself());
        let referenced =
            world.source_of_referenced(name).or_else(|| is_bound.then_some(&*name.object.name))?;
        // A template records the second snapshot of a source under its own name: the snapshot's own identity takes
        // precedence.
        let remembered = content.as_ref().and_then(|content| content.identity());
        let source = remembered.map_or(referenced, |identity| &identity.source).to_owned();
        // A source in bind mode is recreated from memory only: its snapshots may hold any earlier content.
        let bound_itself = *source == *name.object.name;
        let copies = if bound_itself { Vec::new() } else { world.snapshots().twins(name, &source) };
        let owners = if bound_itself { world.owners_by_use(name).into_iter().collect() } else { Vec::new() };
        let staying = world.users().staying(name);
        let users = staying.filter_map(|user| world.owner(user)).take(MAX_USERS_READ).collect();
        Some(Action::Restore { snapshot: name.clone(), source, copies, content, owners, users })
    }

    /// Records a restore that found no content: the snapshot is lost, or another object has its name. Returns when to try
    /// again; `None` once the loss is reported.
    pub(in crate::controller) fn lose(
        &mut self,
        snapshot: &Name,
        is_taken: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match self.missing.not_found(snapshot, now) {
            Conclusion::KnownLost => return None,
            Conclusion::Again(at) => return Some(at),
            Conclusion::Lost => {}
        }
        if is_taken {
            tracing::error!(%snapshot, "referenced snapshot is missing and another object has its name: pods of the \
                 revisions that refer to it read that object");
        } else {
            tracing::error!(%snapshot, "referenced snapshot is missing and its content is lost: pods of the revisions \
                 that refer to it do not start");
        }
        self.report_loss(snapshot, if is_taken { Loss::Taken } else { Loss::Lost }, now);
        None
    }

    /// Reports a referenced snapshot that was missing, and was recreated or is lost.
    pub(in crate::controller) fn report_loss(&mut self, snapshot: &Name, loss: Loss, now: Timestamp) {
        let events = event_texts::loss(&self.world, snapshot, loss, now);
        self.report(events, now);
    }

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
    pub(super) fn sweep_due(
        &self,
        name: &Name,
        since: Timestamp,
        was_bound: bool,
        now: Timestamp,
    ) -> Timestamp {
        let due = since + self.grace(name, was_bound);
        if self.world.has_unobserved_owner(name) { due.max(now + UNBIND_DELAY) } else { due }
    }

    /// Deletes an unused snapshot.
    pub(super) fn sweep(&mut self, name: &Name, now: Timestamp) -> Reconciled {
        let since = self.unused_since.get(name).copied();
        let (Some(record), Some(since)) = (self.world.snapshot(name), since) else { return Reconciled::Done };
        let wanted = owners::wanted(&self.world, name, record);
        if wanted != WantedOwners::Owners(CompactSet::default()) {
            if wanted == WantedOwners::Unknown {
                self.world.snapshots_mut().rank_when_read(name);
            }
            return Reconciled::Done;
        }
        let due = self.sweep_due(name, since, !record.owners.is_empty(), now);
        if due > now {
            return Reconciled::Later(due);
        }
        let (version, digest) = (record.version(), record.digest);
        self.report_dropped_snapshots(name, now);
        Reconciled::Act(Action::Sweep { snapshot: name.clone(), version, digest })
    }
}

/// The live read that is needed before these owners are added to those that the object has; `None` if none of them is in
/// doubt.
pub(super) fn verify_removed(
    world: &World,
    name: &Name,
    wanted: &CompactSet<Owner>,
    present: &CompactSet<Owner>,
) -> Option<Action> {
    let is_doubtful = |owner: &&Owner| !present.contains(*owner) && world.findings().was_removed(name, owner);
    let owners: Vec<_> = wanted.iter().filter(is_doubtful).take(MAX_DOUBTFUL).cloned().collect();
    (!owners.is_empty()).then(|| Action::Verify { snapshot: name.clone(), owners })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, brief, on, state},
        resolve::{Health, Record},
        world::{
            SnapshotRecord, SourceRecord,
            fixture::{digest, key, snapshot, snapshot_record, source, source_record},
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
            let sweep = workloads.is_empty().then(|| at(10) + RELEASED_GRACE);
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

    #[test]
    fn unused_snapshot_is_kept_for_its_grace() {
        let sweep = |state: &mut State, second| brief(&state.sweep(&of_a(1), at(second)));
        for (owners, grace) in [(&[][..], 600), (&[&set("old")], 15)] {
            let mut state = owned(&[], owners);
            state.enqueue_sweep(&of_a(1), !owners.is_empty(), at(100));
            state.enqueue_sweep(&of_a(1), !owners.is_empty(), at(105));
            assert_eq!(
                state.queue.due(&step(ObjectStep::Sweep)),
                Some(at(100 + grace)),
                "since its last use"
            );
            assert_eq!(sweep(&mut state, 100 + grace - 1), format!("later {}000", 100 + grace));
            assert_eq!(sweep(&mut state, 100 + grace), "Sweep");
        }
        // The controller of its former user may still create a revision of the former template.
        let mut state = owned(&[], &[&owner("web")]);
        let moved = Record { uid: "web".into(), ..on(2, Health::Unobserved) };
        state.world.apply_workload(&key("web"), Some(moved.clone()), &mut Vec::new());
        state.unused_since.insert(of_a(1), at(0));
        assert_eq!(sweep(&mut state, 20), "later 23000");
        let observed = Record { health: Health::Progressing, ..moved };
        state.world.apply_workload(&key("web"), Some(observed), &mut Vec::new());
        assert_eq!(sweep(&mut state, 20), "Sweep");
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
