//! Turns changes of the world into queued tasks.

use std::sync::Arc;

use jiff::Timestamp;

use super::event_texts;
use crate::{
    controller::{
        memory::Fresh,
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    gates::listed,
    resolve::{NamespaceOptIn, REFUSED_CONTENTS, Record, RefusedContents},
    uid::Uid,
    world::{
        BoundRecord, Name, NamespaceSettings, Revision, RevisionKey, SnapshotRecord, SourceMeta, User,
        WorkloadKey, World, WorldChange,
    },
};

/// The capacity that the list of changes keeps.
const MAX_ROOM: usize = 32;

impl State {
    /// Updates the world, and queues the tasks that this requires.
    pub(in crate::controller) fn update(
        &mut self,
        now: Timestamp,
        update: impl FnOnce(&mut World, &mut Vec<WorldChange>),
    ) {
        let mut changes = std::mem::take(&mut self.changes);
        update(&mut self.world, &mut changes);
        self.enqueue_all(changes, now);
    }

    /// Queues the tasks that changes of the world require, in their order. Keeps the list's capacity for the next changes.
    pub(in crate::controller) fn enqueue_all(&mut self, mut changes: Vec<WorldChange>, now: Timestamp) {
        for change in changes.drain(..) {
            self.enqueue(change, now);
        }
        changes.shrink_to(MAX_ROOM);
        self.changes = changes;
    }

    fn enqueue(&mut self, change: WorldChange, now: Timestamp) {
        match change {
            WorldChange::Workload(key) => {
                self.enqueue_roll(&key, now);
                self.enqueue_judgement(&key, now);
                self.enqueue_analyses(&key, now);
            }
            WorldChange::Unresolved(key) => self.enqueue_missing_sources(&key, now),
            WorldChange::Source(name) => self.source_changed(&name, now),
            WorldChange::Judged(name) => self.enqueue_siblings(&name, now),
            WorldChange::Object(name) => self.object_changed(&name, now),
            WorldChange::Unproven(name) => self.queue.schedule(Task::Object(name, ObjectStep::Bind), now),
            WorldChange::Added(name) => self.enqueue_lost_beside(&name, now),
            WorldChange::Absent(name) => self.enqueue_restore(name, now),
            WorldChange::Deleted(name) => self.snapshot_deleted(name, now),
            WorldChange::Unbound { name, is_used } => {
                self.unused_since.remove(&name);
                self.queue.schedule(Task::Object(name.clone(), ObjectStep::Free), now);
                // Its owners may use it without a watch that reports them: the restore reads them live.
                if is_used {
                    self.enqueue_restore(name, now);
                }
            }
            WorldChange::Namespace(namespace) => self.namespace_changed(&namespace, now),
            WorldChange::Share(namespace) => self.share_changed(&namespace, now),
        }
    }

    fn source_changed(&mut self, name: &Name, now: Timestamp) {
        if self.world.source(name).is_none() && !self.world.is_watched(name) {
            return self.forget_source(name);
        }
        self.enqueue_source(name.clone(), now);
        if self.world.existing_source(name).is_none() {
            return;
        }
        self.held_workloads.source_changed(&self.world, name);
        self.enqueue_lost_of(name, now);
        self.enqueue_analysis(name, now);
        self.enqueue_group_judgements(name, now);
        self.enqueue_state(name, now);
        let released = self.held_workloads.release_replaced(&self.world, name, now);
        self.report(released, now);
    }

    /// Forgets a source on which nothing depends any more.
    fn forget_source(&mut self, name: &Name) {
        self.memory.fresh.take(name);
        self.world.analyses_mut().forget(name);
        self.queue.cancel(&Task::Analyse(name.clone()));
        self.held_workloads.forget_source(&self.world, name);
        self.counted_changes.forget(name);
        self.checked_schemas.forget(name);
        self.forget_state(name);
    }

    fn object_changed(&mut self, name: &Name, now: Timestamp) {
        if self.world.users().has_any(name) {
            // From now on it counts as used, whenever its owners are checked.
            self.unused_since.remove(name);
        }
        if self.world.exists(name) {
            self.missing.changed(name);
            self.enqueue_owners(name, now);
        }
    }

    fn snapshot_deleted(&mut self, name: Name, now: Timestamp) {
        self.missing.changed(&name);
        self.unused_since.remove(&name);
        for step in [ObjectStep::Bind, ObjectStep::Unbind, ObjectStep::Sweep] {
            self.queue.cancel(&Task::Object(name.clone(), step));
        }
        if self.world.users().has_any(&name) {
            self.queue.schedule(Task::Object(name, ObjectStep::Restore), now);
        }
    }

    fn namespace_changed(&mut self, namespace: &Arc<str>, now: Timestamp) {
        let joins = |world: &World, key: &WorkloadKey| {
            let record = world.workload(key);
            record.is_some_and(|record| world.opt_in_of(namespace).joins(record.is_marked))
        };
        self.drop_joining(now, |world, key| key.namespace == *namespace && !joins(world, key));
        let keys: Vec<_> = self.world.workloads_in(namespace).cloned().collect();
        for key in keys {
            self.enqueue_roll(&key, now);
        }
        let opt_in = Task::OptIn(Arc::clone(namespace));
        if self.world.opt_in_of(namespace).is_in() {
            self.queue.schedule(opt_in, now);
        } else {
            self.queue.cancel(&opt_in);
        }
    }

    /// Applies a workload as it is now; `None` if it is deleted, or no longer opted in.
    pub fn apply_workload(&mut self, key: &WorkloadKey, record: Option<Record>, now: Timestamp) {
        let mut changes = std::mem::take(&mut self.changes);
        let old = self.world.apply_workload(key, record, &mut changes);
        self.workload_changed(key, old.as_ref(), now);
        self.enqueue_all(changes, now);
    }

    /// Reports pins and holds that begin or end, and counts the next pending change from its own time, if the workload rolled.
    pub(in crate::controller) fn workload_changed(
        &mut self,
        key: &WorkloadKey,
        old: Option<&Record>,
        now: Timestamp,
    ) {
        self.enqueue_states(key, old, now);
        let idle = event_texts::idle_holds(&self.world, key, old, now);
        self.report(idle, now);
        let (Some(old), Some(record)) = (old, self.world.workload(key)) else { return };
        if old.uid != record.uid {
            return;
        }
        let mut pins = event_texts::unpins(&self.world, key, old, record, now);
        pins.extend(event_texts::pins(&self.world, key, old, record, now));
        pins.extend(event_texts::holds(&self.world, key, old, record, now));
        // A roll whose answer was lost shows only in its time. Any pending change is newer than that roll.
        if record.last_roll > old.last_roll {
            self.rolls.clear_pending(key);
        }
        self.report(pins, now);
    }

    /// Applies a revision as it is now; `None` if it is deleted.
    pub fn apply_revision(&mut self, key: &RevisionKey, revision: Option<Revision>, now: Timestamp) {
        self.update(now, |world, changes| world.apply_revision(key, revision, changes));
    }

    /// Applies a source as it is now; `None` if it is deleted. Sources on which nothing depends are not stored.
    pub fn apply_source(&mut self, name: &Name, meta: Option<&SourceMeta>, now: Timestamp) {
        if let Some(known) = self.world.existing_source(name)
            && meta.is_some_and(|meta| *known.resource_version != *meta.resource_version)
        {
            // The full delay starts when the new content is known.
            for (snapshot, _) in self.world.snapshots().with(name, &known.present.digests) {
                self.queue.cancel(&Task::Object(snapshot, ObjectStep::Unbind));
            }
        }
        self.update(now, |world, changes| world.apply_source(name, meta, changes));
        // A read in progress may have found the source before its deletion.
        let read = Task::Read(name.clone());
        if meta.is_none() && self.queue.is_working(&read) {
            self.queue.schedule(read, now);
        }
    }

    /// Records whether a source is labelled to be snapshotted at every change.
    pub fn set_labelled(&mut self, name: &Name, labelled: bool, now: Timestamp) {
        self.update(now, |world, changes| world.set_labelled(name, labelled, changes));
    }

    /// Applies a snapshot as it is now; `None` if it is deleted.
    pub fn apply_snapshot(&mut self, name: &Name, record: Option<SnapshotRecord>, now: Timestamp) {
        self.update(now, |world, changes| world.apply_snapshot(name, record, changes));
    }

    /// Applies a source in bind mode as it is now; `None` if it is deleted, or no longer in this mode.
    pub fn apply_bound(&mut self, name: &Name, record: Option<BoundRecord>, now: Timestamp) {
        self.update(now, |world, changes| world.apply_bound(name, record, changes));
        if let Some(record) = self.world.bound(name) {
            self.memory.forget_replaced(name, &record.version.uid);
        }
    }

    /// Applies what the label of a namespace says about its workloads.
    pub fn apply_namespace(&mut self, namespace: &Arc<str>, opt_in: NamespaceOptIn, now: Timestamp) {
        self.update(now, |world, changes| world.apply_namespace(namespace, opt_in, changes));
    }

    /// Applies the uid of a namespace; `None` if it is deleted.
    pub(in crate::controller) fn apply_namespace_uid(
        &mut self,
        namespace: &Arc<str>,
        uid: Option<Uid>,
        now: Timestamp,
    ) {
        self.update(now, |world, changes| world.set_namespace_uid(namespace, uid, changes));
    }

    /// Applies the settings of a namespace.
    pub fn apply_namespace_settings(
        &mut self,
        namespace: &Arc<str>,
        settings: NamespaceSettings,
        now: Timestamp,
    ) {
        let defaults = |state: &Self| {
            let settings = state.world.groups().settings(namespace);
            settings.map(|settings| settings.choice.defaults.of_workloads()).unwrap_or_default()
        };
        let before = defaults(self);
        self.update(now, |world, changes| world.apply_namespace_settings(namespace, settings, changes));
        // Before that, workloads are listed after the namespaces.
        if self.world.is_synced() && defaults(self) != before {
            self.inherits_anew = true;
        }
    }

    /// Applies the list of the contents that the installation refuses. `invalid`: its lines that name no content.
    pub fn set_refused_contents(&mut self, contents: RefusedContents, invalid: &[String], now: Timestamp) {
        let list = REFUSED_CONTENTS;
        if *self.world.config().refused.contents() != contents {
            tracing::info!(
                contents = contents.len(),
                "ConfigMap {list} was read: these contents are refused"
            );
        }
        if !invalid.is_empty() {
            tracing::warn!(
                lines = listed(invalid, 3),
                "ConfigMap {list} has lines without a digest of a ConfigMap, which refuse nothing: begin each line with sha256:, or with \
                 # if it is a comment"
            );
        }
        self.update(now, |world, changes| world.set_refused_contents(contents, changes));
    }

    /// Forgets that an object could not be read.
    pub(in crate::controller) fn set_readable(&mut self, object: &User, now: Timestamp) {
        self.update(now, |world, changes| world.set_readable(object, changes));
    }

    /// Queues everything for a check: at the start, and when this replica begins to lead. A replica that does not lead
    /// drops its tasks, so what it knows of sources may be old, and they are read again.
    pub fn reconcile_all(&mut self, now: Timestamp) {
        // Workloads that are pending count as pending from now on.
        self.rolls.clear_all_pending();
        self.held_workloads.release_all();
        self.world.analyses_mut().clear();
        let sources: Vec<_> = self.world.sources().map(|(name, _)| name.clone()).collect();
        for name in sources {
            self.world.set_source_unknown(&name);
            self.queue.schedule(Task::Read(name), now);
        }
        let workloads: Vec<_> = self.world.workloads().map(|(key, _)| key.clone()).collect();
        for key in workloads {
            self.enqueue_roll(&key, now);
        }
        let snapshots = self.world.snapshots().iter().map(|(name, _)| name);
        let owned: Vec<_> = snapshots.chain(self.world.all_bound()).cloned().collect();
        for name in owned {
            self.enqueue_owners(&name, now);
        }
        for namespace in self.world.opting_in() {
            self.queue.schedule(Task::OptIn(Arc::clone(namespace)), now);
        }
        self.report_all_unreadable(now);
        self.report_all_partly_known(now);
        let names = self.world.users().names();
        let missing: Vec<_> =
            names.filter(|name| self.world.is_referenced_and_missing(name)).cloned().collect();
        for name in missing {
            self.enqueue_restore(name, now);
        }
    }

    /// Drops the tasks that only the leader does. Any replica recreates a snapshot whose content it alone may remember,
    /// from an admission request that it answered.
    pub fn leave_to_the_leader(&mut self) {
        // The tasks that follow from this are dropped below.
        self.drop_joining(Timestamp::MIN, |_, _| true);
        self.events.clear();
        self.memory.fresh = Fresh::default();
        let memory = &self.memory;
        self.queue.retain(
            |task| matches!(task, Task::Object(name, ObjectStep::Restore) if memory.recall(name).is_some()),
        );
    }

    /// Forgets contents that were remembered for long enough.
    pub(in crate::controller) fn forget_old(&mut self, now: Timestamp) {
        let queue = &self.queue;
        self.memory.forget_old(now, |name| queue.has(&Task::Object(name.clone(), ObjectStep::Restore)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::SignedDuration;

    use super::*;
    use crate::{
        controller::reconcile::fixture::{at, moved_one, on, state},
        resolve::{AnalysisRun, Health, Observed, RunState},
        snapshot::SourceKind,
        world::fixture::{key, record, snapshot, source, used},
    };

    fn step(content: u8, step: ObjectStep) -> Task {
        Task::Object(source("a").sibling(snapshot("a", content)), step)
    }

    #[test]
    fn only_missing_snapshots_of_users_are_restored() {
        let mut state = state(&[]);
        for (content, due) in [(1, None), (4, Some(at(1) + SignedDuration::from_secs(2)))] {
            state.apply_workload(&key("web"), Some(on(content, Health::Settled)), at(1));
            assert_eq!(state.queue.due(&step(content, ObjectStep::Restore)), due, "content {content}");
        }
    }

    #[test]
    fn only_lost_sources_are_missed() {
        let report = Task::Report(key("web"));
        let web = record("web", &[used("a", None)]);
        let mut state = state(&[("web", &web)]);
        let other = crate::world::fixture::source_record("a", 3);
        state.update(at(1), |world, changes| world.set_read(&source("a"), Some(other), changes));
        assert_eq!(state.queue.due(&report), None, "its content changed");
        state.update(at(2), |world, changes| world.set_read(&source("a"), None, changes));
        assert_eq!(state.queue.due(&report), Some(at(12)));
    }

    /// Every list of a watch reports all sources.
    #[test]
    fn unchanged_source_is_not_read_again() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        for (version, is_read) in [("2", false), ("3", true)] {
            let meta = SourceMeta { resource_version: version.to_owned(), always: false };
            state.apply_source(&source("a"), Some(&meta), at(1));
            assert_eq!(state.queue.is_queued(&Task::Read(source("a"))), is_read, "version {version}");
        }
    }

    #[test]
    fn watch_of_a_namespace_ends_with_its_objects() {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        state.apply_workload(&key("web"), None, at(1));
        for (name, content) in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)] {
            assert_eq!(state.watched_namespaces().len(), 1, "{name} {content} is left");
            state.apply_snapshot(&source(name).sibling(snapshot(name, content)), None, at(1));
        }
        assert_eq!(state.watched_namespaces().len(), 0);
    }

    /// Another replica may have led since.
    #[test]
    fn new_leader_knows_no_analysis() {
        let mut state = moved_one(Health::Settled, &[("waves", "1"), ("analysis", "sound")]);
        let run = AnalysisRun { name: "run".into(), state: RunState::Successful };
        state.world.analyses_mut().set(&source("a"), run, at(1));
        state.reconcile_all(at(2));
        assert!(state.world.analyses().get(&source("a")).is_none());
    }

    #[test]
    fn old_content_is_kept_while_its_restore_waits() {
        let json = br#"{"metadata":{"name":"a","uid":"u"},"data":{}}"#;
        let content = Arc::new(Observed::read(SourceKind::ConfigMap, &json[..]).unwrap());
        for (waits, is_kept) in [(false, false), (true, true)] {
            let mut state = state(&[]);
            let name = source("a").sibling(snapshot("a", 4));
            state.memory.remember_endangered(name.clone(), Arc::clone(&content), at(0));
            if waits {
                state.queue.schedule(step(4, ObjectStep::Restore), at(100));
            }
            state.forget_old(at(59));
            assert!(state.memory.recall(&name).is_some());
            state.forget_old(at(61));
            assert_eq!(state.memory.recall(&name).is_some(), is_kept);
        }
    }
}
