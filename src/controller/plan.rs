//! Decides the action of a task from the state at that moment, and applies the action's outcome to the state.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Action, Name, Outcome,
    agenda::Task,
    events::Loss,
    most::beside,
    objects::Wanted,
    records::Source,
    state::{State, UNBIND_DELAY},
};
use crate::{
    cluster::{ApiError, Live, Precondition, WorkloadKey},
    compact::CompactSet,
    resolve::Record,
};

/// How long a task waits while the watches have not listed their objects.
const KNOWLEDGE_DELAY: SignedDuration = SignedDuration::from_millis(500);

/// The pause of a workload that had changed before its roll. Others may write it all the time, so the next write should
/// follow the live read quickly.
const CONFLICT_DELAY: SignedDuration = SignedDuration::from_millis(50);

/// The longest that a roll waits for the snapshot of a source that it uses. It starts as soon as the snapshot is made.
const SNAPSHOT_PATIENCE: SignedDuration = SignedDuration::from_millis(300);

/// The most users of a lost snapshot that are read one by one, before the whole namespace is searched.
const MOST_LOOKED_AT: usize = 3;

/// How long a snapshot that was bound is kept after its last use: far beyond any watch's lag. If it is needed again after
/// all, it is recreated from the source.
const RELEASED_GRACE: SignedDuration = SignedDuration::from_secs(15);

/// The most tasks that are decided under one lock.
const MOST_AT_ONCE: usize = 64;

/// The next step of the controller's loop.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and is never kept")]
pub enum Step {
    /// Run this action for this task.
    Act(Task, Action),
    /// Further tasks are due, and may wait for a moment.
    More,
    /// Nothing is due.
    Rest,
}

impl State {
    /// The next action that is due. The caller must give its outcome to [`State::finish`], with the same task.
    pub fn next_action(&mut self, now: Timestamp) -> Option<(Task, Action)> {
        loop {
            match self.next_step(now) {
                Step::Act(task, action) => return Some((task, action)),
                Step::More => {}
                Step::Rest => return None,
            }
        }
    }

    /// Like [`State::next_action`], but stops after a few tasks without an action: holding the state's lock delays admission.
    pub fn next_step(&mut self, now: Timestamp) -> Step {
        for _ in 0..MOST_AT_ONCE {
            let Some(task) = self.agenda.pop(now, self.rolls_from()) else { return Step::Rest };
            if let Some(action) = self.action(&task, now) {
                return Step::Act(task, action);
            }
        }
        Step::More
    }

    /// The action of a task at this moment. A task without an action is ended or postponed.
    fn action(&mut self, task: &Task, now: Timestamp) -> Option<Action> {
        if !self.synced && !matches!(task, Task::Read(_)) {
            self.agenda.postpone(task.clone(), now + KNOWLEDGE_DELAY);
            return None;
        }
        let action = match task {
            Task::Read(name) => self.is_watched(name).then(|| self.read(name)),
            Task::Roll(key) => return self.roll(key, now),
            Task::Ensure(name) => self.ensure(name),
            Task::Bind(name) => self.bind(name, now),
            Task::Unbind(name) if self.is_owned_by_one_behind(name) => {
                self.agenda.postpone(task.clone(), now + UNBIND_DELAY);
                return None;
            }
            Task::Unbind(name) => self.unbind(name, now),
            Task::Free(name) => Some(Action::Free(name.clone())),
            Task::Restore(name) => self.restore(name),
            Task::Sweep(name) => return self.sweep(name, now),
            Task::Report(key) => {
                self.report(key, now);
                None
            }
            Task::Tell => return self.next_event(now),
            Task::OptIn(namespace) => {
                let enabled = self.namespaces.as_ref().is_some_and(|known| known.contains(namespace));
                enabled.then(|| Action::OptIn(Arc::clone(namespace)))
            }
        };
        if action.is_none() {
            self.agenda.done(task);
            if let Task::Ensure(name) = task {
                self.evaluate_users(name, now);
            }
        }
        action
    }

    /// Queues the workloads whose roll waited for the snapshot of a source.
    fn evaluate_users(&mut self, source: &Name, now: Timestamp) {
        let users: Vec<_> = self.workloads_using(source).map(|(key, _)| key.clone()).collect();
        for key in users {
            self.evaluate(&key, now);
        }
    }

    /// When the global rate allows the next roll. The rolls of one second may run at once.
    pub(super) fn rolls_from(&self) -> Timestamp {
        self.next_roll.saturating_sub(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MIN)
    }

    fn roll(&mut self, key: &WorkloadKey, now: Timestamp) -> Option<Action> {
        let task = Task::Roll(key.clone());
        let Some(record) = self.workloads.get(key).filter(|_| self.is_pending(key)) else {
            self.agenda.done(&task);
            return None;
        };
        let record = record.clone();
        let due = self.roll_due(key, now);
        let was_held = self.held.contains(key);
        let mut free = due.max(self.held_until(key, now).unwrap_or(now));
        if free <= now && self.awaits_snapshot(key, &record) {
            free = due + SNAPSHOT_PATIENCE;
        }
        if free > now {
            self.agenda.postpone(task, free);
            return None;
        }
        self.rate_waits += u64::from(!was_held && due < self.rolls_from());
        self.next_roll = self.next_roll.max(now) + self.config.roll_pause();
        let since = self.pending_since.get(key).copied().unwrap_or(now);
        let version = || Precondition::Version(record.resource_version.clone());
        let condition = self.joining.get(key).cloned().unwrap_or_else(version);
        self.rolling.insert(key.clone(), (since, record));
        Some(Action::Poke { workload: key.clone(), condition })
    }

    /// Reads a source, and the snapshots to compare it with if their keys are lost.
    fn read(&self, source: &Name) -> Action {
        let snapshots = self.unverifiable_of(source);
        if snapshots.is_empty() {
            Action::Read(source.clone())
        } else {
            Action::Compare { source: source.clone(), snapshots }
        }
    }

    fn ensure(&mut self, source: &Name) -> Option<Action> {
        let content = self.fresh.take(source);
        let Some(Source::Found(found)) = self.sources.get(source) else { return None };
        let content = content.filter(|content| content.resource_version == found.resource_version);
        self.lacks_snapshot(source).then(|| Action::Ensure { source: source.clone(), content })
    }

    /// Whether the present content of a source should have a snapshot, and has none.
    fn lacks_snapshot(&self, source: &Name) -> bool {
        let Some(Source::Found(found)) = self.sources.get(source) else { return false };
        // Workloads that read the source live need no snapshot of it.
        let is_used =
            |record: &Record| record.uses.iter().any(|used| used.source == source.object && !used.live);
        let is_used = self.workloads_using(source).any(|(_, record)| is_used(record));
        // With `keep: 0`, an unused snapshot would be deleted again; an admission that needs it creates it.
        let wanted =
            (is_used || self.labelled.contains(source)) && !found.present.stays_as_written && found.keep > 0;
        wanted
            && !found.present.is_snapshot
            && !self.has_snapshot_of(source, found)
            && self.snapshot_count(source) < self.config.max_snapshots
    }

    /// Whether the snapshot of a source that a workload uses is about to be created. A later roll finds it.
    fn awaits_snapshot(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.uses.iter().any(|used| {
            let ensure = Task::Ensure(Name::new(Arc::clone(&key.namespace), used.source.clone()));
            self.agenda.has(&ensure) && self.agenda.failures(&ensure) == 0
        })
    }

    /// Adds the owners that a snapshot lacks. Stale owners are left for [`State::unbind`].
    fn bind(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        let Some(record) = self.snapshots.get(name) else { return self.bind_itself(name, false, now) };
        let wanted = self.wanted_owners(name, record);
        let (version, present, digest) = (record.version(), record.owners.clone(), record.digest);
        let source = name.sibling(Arc::clone(&record.source));
        let Wanted::Owners(wanted) = wanted else {
            self.want_source(source, now);
            self.look_again(name);
            return None;
        };
        if wanted.is_empty() {
            let since = *self.unwanted_since.entry(name.clone()).or_insert(now);
            self.agenda.schedule(Task::Sweep(name.clone()), since + self.grace(!present.is_empty()));
            return None;
        }
        self.unwanted_since.remove(name);
        if !present.is_subset(&wanted) {
            self.agenda.schedule(Task::Unbind(name.clone()), now + UNBIND_DELAY);
        }
        if wanted.is_subset(&present) {
            return None;
        }
        let hazard = !present.is_empty() && present.is_disjoint(&wanted);
        // A snapshot with none of these owners may be any object with the labels.
        let verify = present.is_disjoint(&wanted).then_some(digest);
        let owners = beside(wanted, present);
        Some(Action::SetOwners { snapshot: name.clone(), version, owners, hazard, verify, own: false })
    }

    /// How long an unused snapshot is kept. A snapshot that was never bound may be waiting for the write that it was
    /// created for; one that lost its last user waits only for the watches to agree.
    pub(super) fn grace(&self, was_bound: bool) -> SignedDuration {
        if was_bound { self.config.orphan_grace.min(RELEASED_GRACE) } else { self.config.orphan_grace }
    }

    /// Removes a snapshot's stale owners.
    fn unbind(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        let Some(record) = self.snapshots.get(name) else { return self.bind_itself(name, true, now) };
        let Wanted::Owners(wanted) = self.wanted_owners(name, record) else {
            self.look_again(name);
            return None;
        };
        let record = self.snapshots.get(name)?;
        // An unused snapshot is left to the sweep, which checks everything that may use it.
        if wanted.is_empty() || record.owners.is_subset(&wanted) {
            return None;
        }
        let stale = record.owners.iter().filter(|owner| !wanted.contains(owner));
        if let Some(verify) = self.verify(name, stale) {
            return Some(verify);
        }
        let hazard = record.owners.is_disjoint(&wanted);
        let verify = hazard.then_some(record.digest);
        let (snapshot, version, owners) = (name.clone(), record.version(), wanted.into_iter().collect());
        Some(Action::SetOwners { snapshot, version, owners, hazard, verify, own: false })
    }

    fn restore(&self, name: &Name) -> Option<Action> {
        // Nothing is known of a kind that is not watched, and every read would fail without the right to it.
        if self.is_there(name) || !self.config.source_kinds().contains(&name.object.kind) {
            return None;
        }
        let content = self.remembered(name).map(Arc::clone);
        // No watch may report the users of a bound object: its owners are read live.
        let is_bound = content.as_ref().is_some_and(|content| content.is_bound_itself());
        let entered = self.source_of_referenced(name).or_else(|| is_bound.then_some(&*name.object.name))?;
        // A template records the second snapshot of a source under its own name: the snapshot's own identity takes
        // precedence.
        let remembered = content.as_ref().and_then(|content| content.identity());
        let source = remembered.map_or(entered, |identity| &identity.source).to_owned();
        // A source in bind mode is recreated from memory only: its snapshots may hold any earlier content.
        let bound_itself = *source == *name.object.name;
        let copies = if bound_itself { Vec::new() } else { self.twins(name, &source) };
        let owners = if bound_itself { self.owners_by_use(name).into_iter().collect() } else { Vec::new() };
        let users =
            self.staying_users(name).filter_map(|user| self.owner(user)).take(MOST_LOOKED_AT).collect();
        Some(Action::Restore { snapshot: name.clone(), source, copies, content, owners, users })
    }

    fn sweep(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        if self.bound.contains_key(name) {
            return self.release(name, now);
        }
        let task = Task::Sweep(name.clone());
        let since = self.unwanted_since.get(name).copied();
        let (Some(record), Some(since)) = (self.snapshots.get(name), since) else {
            self.agenda.done(&task);
            return None;
        };
        let wanted = self.wanted_owners(name, record);
        if wanted != Wanted::Owners(CompactSet::default()) {
            if wanted == Wanted::Unknown {
                self.look_again(name);
            }
            self.agenda.done(&task);
            return None;
        }
        let mut due = since + self.grace(!record.owners.is_empty());
        if self.is_owned_by_one_behind(name) {
            due = due.max(now + UNBIND_DELAY);
        }
        if due > now {
            self.agenda.postpone(task, due);
            return None;
        }
        Some(Action::Sweep { snapshot: name.clone(), version: record.version(), digest: record.digest })
    }

    /// Applies the outcome of an action.
    pub fn finish(&mut self, task: &Task, outcome: Result<Outcome, ApiError>, now: Timestamp) {
        if *task == Task::Tell {
            return self.told(outcome.as_ref().map(|_| ()), now);
        }
        let rolling = if let Task::Roll(key) = task { self.rolling.remove(key) } else { None };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.failed(task, &error, now),
        };
        match (task, outcome) {
            (Task::Roll(key), Outcome::Poked(record)) => return self.poked(task, key, rolling, &record, now),
            (Task::Roll(key), Outcome::Changed(live)) => {
                return self.changed(task, key, rolling.as_ref(), live, now);
            }
            (Task::OptIn(_), Outcome::Unlabelled(found)) => self.join(found, now),
            (Task::Read(name), Outcome::Read(observed)) => {
                self.source_was_read(name, observed.as_deref(), now);
                let ensures = self.agenda.is_entered(&Task::Ensure(name.clone()));
                if let Some(observed) = observed.filter(|_| ensures && self.lacks_snapshot(name)) {
                    self.fresh.put(name, Arc::new(*observed));
                }
            }
            (Task::Ensure(name), _) => {
                self.agenda.done(task);
                return self.evaluate_users(name, now);
            }
            // Another version may exist by now.
            (Task::Bind(name) | Task::Unbind(name), Outcome::Impostor(version))
                if self.snapshots.get(name).is_some_and(|record| record.version() == version) =>
            {
                self.apply_snapshot(name, None, now);
            }
            (Task::Bind(name) | Task::Unbind(name), Outcome::OwnersSet(observed)) => {
                self.remember_endangered(name.clone(), Arc::new(*observed), now);
            }
            (Task::Sweep(name), Outcome::Released(observed)) => {
                self.remember_deleted(name.clone(), Arc::new(*observed), now);
            }
            (Task::Unbind(name) | Task::Sweep(name), Outcome::Verified { used, unused }) => {
                self.agenda.done(task);
                return self.owners_were_verified(name, used, unused, now);
            }
            (Task::Restore(name), outcome @ (Outcome::Lost | Outcome::Taken)) => {
                let is_taken = matches!(outcome, Outcome::Taken);
                if let Some(again) = self.lose(name, is_taken, now) {
                    return self.agenda.postpone(task.clone(), again);
                }
                if is_taken {
                    // No watch reports the deletion of the object that has the name.
                    self.agenda.failed(task.clone(), now);
                    return;
                }
            }
            (Task::Restore(name), outcome) => {
                self.missing_since.remove(name);
                if matches!(outcome, Outcome::Restored) {
                    self.tell_of_loss(name, Loss::Restored, now);
                }
            }
            _ => {}
        }
        self.agenda.done(task);
    }

    fn poked(
        &mut self,
        task: &Task,
        key: &WorkloadKey,
        rolling: Option<(Timestamp, Record)>,
        record: &Record,
        now: Timestamp,
    ) {
        let Some((_, before)) = rolling.filter(|_| self.workloads.contains_key(key)) else {
            return self.agenda.done(task);
        };
        let joins = self.joining.contains_key(key);
        let in_vain = if joins {
            !record.by_namespace
        } else {
            (&before.seen, &before.uses) == (&record.seen, &record.uses)
        };
        if joins && in_vain {
            // The API server learns of a namespace's new label with a delay, and may not have asked the webhook yet.
            tracing::warn!(
                workload = self.display(key),
                "the webhook was not called for the workload, which is not opted in"
            );
            self.agenda.failed_in_vain(task.clone(), now);
            return;
        }
        // What a watch has reported since is newer than the answer: the poke required the version before it.
        let is_told =
            self.workloads.get(key).is_some_and(|known| known.resource_version != before.resource_version);
        if !is_told {
            self.pending_since.remove(key);
            self.apply_workload(key, Some(record.clone()), now);
        }
        self.tell_roll(key, &before, record, now);
        // If the roll took effect, a source that changed again at that moment requires another roll.
        if in_vain && self.is_pending(key) {
            // Admission did not resolve the references: no webhook is in force for them. Each try is a write, so pause longer.
            tracing::warn!(
                workload = self.display(key),
                "a roll had no effect: is the webhook configuration in place?"
            );
            self.agenda.failed_in_vain(task.clone(), now);
        } else {
            self.agenda.done(task);
        }
    }

    /// Decides on the live state of a workload that had changed before the poke, unless a watch has reported a later one.
    fn changed(
        &mut self,
        task: &Task,
        key: &WorkloadKey,
        rolling: Option<&(Timestamp, Record)>,
        live: Live,
        now: Timestamp,
    ) {
        tracing::debug!(workload = self.display(key), "changed before it was rolled");
        let known = self.workloads.get(key).map(|known| &known.resource_version);
        if known == rolling.map(|(_, before)| &before.resource_version) {
            match live {
                Live::Enabled(record) => self.apply_workload(key, Some(*record), now),
                Live::Unlabelled(candidate) => {
                    self.apply_workload(key, None, now);
                    self.join([(key.clone(), *candidate)], now);
                }
                Live::Apart => self.apply_workload(key, None, now),
            }
        }
        self.agenda.postpone(task.clone(), now + CONFLICT_DELAY);
    }

    fn failed(&mut self, task: &Task, error: &ApiError, now: Timestamp) {
        if let (Task::Roll(key), ApiError::Refused { code, message, .. }, false) =
            (task, error, error.may_pass())
        {
            self.tell_refusal(key, *code, message, now);
        }
        match error {
            // Each try lists objects, and the cause may last: as long as a watch is silent, or a revision exists.
            ApiError::Conflict { .. } if matches!(task, Task::Restore(_) | Task::Sweep(_)) => {
                self.agenda.failed(task.clone(), now);
            }
            // The watches report the present object; the next try decides by that.
            ApiError::Conflict { .. } => {
                tracing::debug!(?task, %error, "changed in the meantime");
                self.agenda.conflicted(task.clone(), now);
            }
            ApiError::NotFound { .. } | ApiError::Terminating { .. } => {
                self.agenda.done(task);
                if let Task::Roll(key) = task {
                    self.drop_joining(now, |joining| joining == key);
                }
            }
            // Each try is a write, and webhooks may exclude the namespace, or not be in force yet.
            ApiError::InVain { .. } => {
                let pause = self.agenda.failed_in_vain(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "task had no effect and will be retried");
            }
            _ => {
                let pause = self.agenda.failed(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "task failed and will be retried");
            }
        }
    }

    /// The workload's name in messages to users of its namespace.
    pub fn display_short(&self, key: &WorkloadKey) -> String {
        let kind = self.kinds.iter().nth(key.kind).map_or("", |kind| kind.kind.as_str());
        format!("{kind} {}", key.name)
    }

    /// The workload's name in messages, with its namespace.
    pub fn display(&self, key: &WorkloadKey) -> String {
        let kind = self.kinds.iter().nth(key.kind).map_or("", |kind| kind.kind.as_str());
        format!("{kind} {}/{}", key.namespace, key.name)
    }
}
