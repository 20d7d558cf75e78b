//! From a task to an action, by what is known at that moment; and from an action's outcome back to the state.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Action, Name, Outcome,
    agenda::Task,
    most::beside,
    objects::Wanted,
    records::Source,
    state::{RESTORE_DELAY, State, UNBIND_DELAY},
};
use crate::{
    cluster::{ApiError, Live, Precondition, WorkloadKey},
    few::FewSet,
    resolve::Record,
    telemetry::metrics::Reason,
};

/// How long a task waits for knowledge that is on its way.
const KNOWLEDGE_DELAY: SignedDuration = SignedDuration::from_millis(500);

/// How long a workload rests that had changed before it was rolled: others may write it all the time, and the less time passes
/// between the live read and the next write, the better.
const CONFLICT_DELAY: SignedDuration = SignedDuration::from_millis(50);

/// The longest that a roll waits for the snapshot of a source that it uses. When the snapshot is made sooner, so is the roll.
const SNAPSHOT_PATIENCE: SignedDuration = SignedDuration::from_millis(300);

/// The most users of a lost snapshot that are looked at one by one, before all of its namespace are.
const MOST_LOOKED_AT: usize = 3;

/// How long a snapshot that was bound is left after nothing wants it any more. Far beyond any watch's lag; and should it
/// be wanted again all the same, its content is the source's, and it is made again.
const RELEASED_GRACE: SignedDuration = SignedDuration::from_secs(15);

/// The most tasks that are decided under one lock.
const MOST_AT_ONCE: usize = 64;

/// What comes next.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and is never kept")]
pub enum Step {
    /// This action, of this task.
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

    /// The same, after at most a few tasks that come to no action: whoever holds the state's lock keeps admission waiting.
    pub fn next_step(&mut self, now: Timestamp) -> Step {
        for _ in 0..MOST_AT_ONCE {
            let Some(task) = self.agenda.pop(now, self.rolls_from()) else { return Step::Rest };
            if let Some(action) = self.action(&task, now) {
                return Step::Act(task, action);
            }
        }
        Step::More
    }

    /// What a task comes to now. Without an action, the task is handed back.
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

    /// Lets the workloads roll that waited for the snapshot of a source.
    fn evaluate_users(&mut self, source: &Name, now: Timestamp) {
        let users: Vec<_> = self.workloads_using(source).map(|(key, _)| key.clone()).collect();
        for key in users {
            self.evaluate(&key, now);
        }
    }

    /// From when on the global rate allows a roll: a second's worth may go at once.
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

    /// Reads a source, and what it takes to compare it with digests under lost keys.
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
        // Workloads that read it live have no snapshot of it.
        let is_used =
            |record: &Record| record.uses.iter().any(|used| used.source == source.object && !used.live);
        let is_used = self.workloads_using(source).any(|(_, record)| is_used(record));
        // With `keep: 0` a snapshot that nothing uses yet would only be swept again; an admission that needs it makes it.
        let wanted =
            (is_used || self.labelled.contains(source)) && !found.present.stays_as_written && found.keep > 0;
        wanted
            && !found.present.is_snapshot
            && !self.has_snapshot_of(source, found)
            && self.snapshot_count(source) < self.config.max_snapshots
    }

    /// Whether the snapshot of a source that a workload uses is about to be made. A roll that comes after it finds it.
    fn awaits_snapshot(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.uses.iter().any(|used| {
            let ensure = Task::Ensure(Name::new(Arc::clone(&key.namespace), used.source.clone()));
            self.agenda.has(&ensure) && self.agenda.failures(&ensure) == 0
        })
    }

    /// Adds the owners that a snapshot lacks. Owners too many are left for [`State::unbind`].
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
        // What none of those owns may be anything that bears the labels.
        let verify = present.is_disjoint(&wanted).then_some(digest);
        let owners = beside(wanted, present);
        Some(Action::SetOwners { snapshot: name.clone(), version, owners, hazard, verify, own: false })
    }

    /// How long a snapshot that nothing wants is left. One that was never bound may be waiting for the write that it was
    /// made for; one whose last user is gone waits only for the watches to agree.
    pub(super) fn grace(&self, was_bound: bool) -> SignedDuration {
        if was_bound { self.config.orphan_grace.min(RELEASED_GRACE) } else { self.config.orphan_grace }
    }

    /// Takes away the owners that a snapshot has too many.
    fn unbind(&mut self, name: &Name, now: Timestamp) -> Option<Action> {
        let Some(record) = self.snapshots.get(name) else { return self.bind_itself(name, true, now) };
        let Wanted::Owners(wanted) = self.wanted_owners(name, record) else {
            self.look_again(name);
            return None;
        };
        let record = self.snapshots.get(name)?;
        // One that nothing wants is left to the sweep, which looks at everything that may use it.
        if wanted.is_empty() || record.owners.is_subset(&wanted) {
            return None;
        }
        if let Some(verify) = self.verify(name, record, &wanted) {
            return Some(verify);
        }
        let hazard = record.owners.is_disjoint(&wanted);
        let verify = hazard.then_some(record.digest);
        let (snapshot, version, owners) = (name.clone(), record.version(), wanted.into_iter().collect());
        Some(Action::SetOwners { snapshot, version, owners, hazard, verify, own: false })
    }

    fn restore(&self, name: &Name) -> Option<Action> {
        // Of a kind that is not watched nothing is known, and without the right to read it each look would fail for ever.
        if self.is_there(name) || !self.config.source_kinds().contains(&name.object.kind) {
            return None;
        }
        let entered = self.source_of_referenced(name)?;
        let content = self.memory.recall(name);
        // The second snapshot of one source in a template is entered under its own name: what it says of itself counts more.
        let remembered = content.as_ref().and_then(|content| content.identity());
        let source = remembered.map_or(entered, |identity| &identity.source).to_owned();
        // What was bound itself was snapshotted when its deletion was admitted.
        let bound_itself = *source == *name.object.name;
        let copies = if bound_itself { self.snapshots_of(name) } else { self.twins(name, &source) };
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
        if wanted != Wanted::Owners(FewSet::default()) {
            if wanted == Wanted::Unknown {
                self.look_again(name);
            }
            self.agenda.done(&task);
            return None;
        }
        let mut due = since + self.grace(!record.owners.is_empty());
        // The copy of an object that is bound itself, and is about to be made again from it.
        if self.agenda.has(&Task::Restore(name.sibling(Arc::clone(&record.source)))) {
            due = due.max(now + RESTORE_DELAY);
        }
        if self.is_owned_by_one_behind(name) {
            due = due.max(now + UNBIND_DELAY);
        }
        if due > now {
            self.agenda.postpone(task, due);
            return None;
        }
        Some(Action::Sweep { snapshot: name.clone(), version: record.version(), digest: record.digest })
    }

    /// Takes in what came of an action.
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
            // Another one may be there since.
            (Task::Bind(name) | Task::Unbind(name), Outcome::Impostor(version))
                if self.snapshots.get(name).is_some_and(|record| record.version() == version) =>
            {
                self.apply_snapshot(name, None, now);
            }
            (Task::Bind(name) | Task::Unbind(name), Outcome::OwnersSet(observed))
            | (Task::Sweep(name), Outcome::Released(observed)) => {
                self.memory.remember(name.clone(), Arc::new(*observed), now);
            }
            (Task::Unbind(name) | Task::Sweep(name), Outcome::Verified { used, unused }) => {
                self.agenda.done(task);
                return self.owners_were_verified(name, used, unused, now);
            }
            (Task::Restore(name), Outcome::Lost) => {
                if let Some(again) = self.lose(name, now) {
                    return self.agenda.postpone(task.clone(), again);
                }
            }
            (Task::Restore(name), outcome) => {
                self.missing_since.remove(name);
                if matches!(outcome, Outcome::Restored) {
                    self.tell_of_loss(name, Reason::SnapshotRestored, now);
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
                "the webhook did not see the workload, which is not opted in"
            );
            self.agenda.failed_in_vain(task.clone(), now);
            return;
        }
        // What a watch has told since is newer than the answer: the poke was on condition of what stood here before.
        let is_told =
            self.workloads.get(key).is_some_and(|known| known.resource_version != before.resource_version);
        if !is_told {
            self.pending_since.remove(key);
            self.apply_workload(key, Some(record.clone()), now);
        }
        self.tell_roll(key, &before, record, now);
        // Where it took effect, a source that changed again at that moment is a roll of its own.
        if in_vain && self.is_pending(key) {
            // Admission did not take it up: the webhook is not in force for it. Each try is a write, so rest longer.
            tracing::warn!(
                workload = self.display(key),
                "a roll had no effect: is the webhook configuration in place?"
            );
            self.agenda.failed_in_vain(task.clone(), now);
        } else {
            self.agenda.done(task);
        }
    }

    /// A workload had changed before it was poked: its live state is decided on, unless a watch has reported a later one.
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
            // Each look is at lists, and what is in its way may last: as long as a watch is silent, or a revision lives.
            ApiError::Conflict { .. } if matches!(task, Task::Restore(_) | Task::Sweep(_)) => {
                self.agenda.failed(task.clone(), now);
            }
            // The watches tell what is there instead; a look at that decides anew.
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
            // Each try is a write, and webhooks may leave the namespace out, or not be in force yet.
            ApiError::InVain { .. } => {
                let pause = self.agenda.failed_in_vain(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "had no effect, to be tried again");
            }
            _ => {
                let pause = self.agenda.failed(task.clone(), now);
                tracing::warn!(?task, %error, ?pause, "failed, to be tried again");
            }
        }
    }

    /// A workload as in messages to those who work in its namespace.
    pub fn display_short(&self, key: &WorkloadKey) -> String {
        let kind = self.kinds.iter().nth(key.kind).map_or("", |kind| kind.kind.as_str());
        format!("{kind} {}", key.name)
    }

    /// A workload as in messages.
    pub fn display(&self, key: &WorkloadKey) -> String {
        let kind = self.kinds.iter().nth(key.kind).map_or("", |kind| kind.kind.as_str());
        format!("{kind} {}/{}", key.namespace, key.name)
    }
}
