//! When a content is refused, and when the mark is removed: sources with `on-failure: revert`.
//!
//! The mark on the snapshot is the only record. Workloads that use the snapshot are then pending, and admission takes them
//! back. So a restart or another leader continues at any point.

use std::sync::Arc;

use jiff::Timestamp;

use super::{event_texts, held::standing, reconciled::Reconciled, state::State};
use crate::{
    cluster::WorkloadKey,
    controller::{
        action::{Action, RefusedSet},
        index::{changed_sources::ChangedSources, records::SnapshotRecord},
        name::Name,
        queue::Task,
    },
    resolve::{Health, Record, Referrer, Refusal, Standing},
};

/// The reason of a refusal that comes from another namespace of the group. It names nothing of that namespace.
const FAILED_ELSEWHERE: &str = "the change failed in another namespace of the group";

impl State {
    /// Queues a check whether a workload failed because of a content, if that is possible.
    pub(super) fn enqueue_judgement(&mut self, key: &WorkloadKey, now: Timestamp) {
        let Some(record) = self.index.workload(key).filter(|record| !record.moved.is_empty()) else { return };
        let is_moved = || {
            record.moved.iter().any(|(source, _)| {
                let name = Name::new(Arc::clone(&key.namespace), source.clone());
                self.index
                    .existing_source(&name)
                    .is_some_and(|known| self.index.change(&name, known).policy().reverts)
            })
        };
        if self.index.health(key, record) != Health::Settled && is_moved() {
            self.queue.schedule(Task::Judge(key.clone()), now);
        }
    }

    /// Queues that check for the workloads that moved to a new snapshot. A workload may fail before the watch reports the
    /// snapshot, and only a known snapshot can be marked.
    pub(super) fn enqueue_judgements(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.index.snapshot(snapshot) else { return };
        let source = snapshot.sibling(Arc::clone(&record.source));
        let reverts = |known| self.index.change(&source, known).policy().reverts;
        if !self.index.existing_source(&source).is_some_and(reverts) {
            return;
        }
        let users: Vec<_> = self.index.workloads_using(&source).map(|(key, _)| key.clone()).collect();
        for key in users {
            self.enqueue_judgement(&key, now);
        }
    }

    /// Applies a Rollout that uses the template of another workload; `None` if it is deleted, or has its own template.
    pub(in crate::controller) fn apply_referrer(
        &mut self,
        namespace: &Arc<str>,
        rollout: &Arc<str>,
        referrer: Option<Referrer>,
        now: Timestamp,
    ) {
        let target = referrer.as_ref().map(|referrer| Arc::<str>::from(referrer.target_name()));
        self.index.referrers_mut().apply(namespace, rollout, referrer);
        let Some(name) = target else { return };
        for kind in 0..self.index.config().kinds.iter().count() {
            let (namespace, name) = (Arc::clone(namespace), Arc::clone(&name));
            let key = WorkloadKey { kind, namespace, name };
            self.enqueue_judgement(&key, now);
            self.enqueue_analyses(&key, now);
        }
    }

    /// Refuses a content with which the workload failed.
    pub(super) fn judge(&mut self, key: &WorkloadKey, now: Timestamp) -> Reconciled {
        let Some(record) = self.index.workload(key) else { return Reconciled::Done };
        let mut again: Option<Timestamp> = None;
        for used in record.uses.iter().filter(|used| !used.on_hold && !used.excluded) {
            let source = Name::new(Arc::clone(&key.namespace), used.source.clone());
            let Some(known) = self.index.existing_source(&source) else { continue };
            let change = self.index.change(&source, known);
            if !change.policy().reverts {
                continue;
            }
            let Some(snapshot) = used.snapshot.as_ref().map(|name| source.sibling(Arc::clone(name))) else {
                continue;
            };
            let Some(found) = self.index.snapshot(&snapshot) else { continue };
            let Standing::Moved(moved) = standing(&self.index, key, record, &source, known) else { continue };
            if !known.present.digests.contains(&found.digest) || change.to_refuse(&self.index).is_none() {
                continue;
            }
            if moved.fails_by_move(now) {
                let reason = format!("{} failed: {}", self.index.display_short(key), self.cause(key, record));
                let Some(action) = self.refuse_change(&change, Some(snapshot), &reason, now) else {
                    continue;
                };
                return Reconciled::Act(action);
            }
            again = moved.deadline.filter(|deadline| *deadline > now).into_iter().chain(again).min();
        }
        again.map_or(Reconciled::Done, Reconciled::Later)
    }

    /// Refuses the content of a change that failed in the namespace of its first source, if [`ChangedSources::to_refuse`] says so.
    /// `failed`: the snapshot that failed, if it is known. The reason is for that namespace alone.
    pub(super) fn refuse_change(
        &self,
        change: &ChangedSources<'_>,
        failed: Option<Name>,
        reason: &str,
        now: Timestamp,
    ) -> Option<Action> {
        let (source, known) = change.to_refuse(&self.index)?;
        let is_own = change.sources.first().is_some_and(|(own, _)| own == source);
        let newest =
            || self.index.snapshots().with(source, &known.present.digests).next().map(|(name, _)| name);
        let snapshot = failed.filter(|_| is_own).or_else(newest)?;
        self.refuse(source, snapshot, if is_own { reason } else { FAILED_ELSEWHERE }, &now.to_string())
    }

    /// Marks a snapshot of a source as refused.
    fn refuse(&self, source: &Name, snapshot: Name, reason: &str, at: &str) -> Option<Action> {
        let known = self.index.existing_source(source)?;
        let found = self.index.snapshot(&snapshot)?;
        let previous = self.index.newest_beside(source, &known.present.digests);
        let previous = previous.map(|name| (&*name).into());
        let refusal = Some(Box::new(Refusal { reason: reason.into(), at: at.into(), previous }));
        let (version, digest) = (found.version(), found.digest);
        Some(Action::SetRefused { snapshot, version, digest, refusal })
    }

    /// Refuses a content that is refused in another namespace of the group, if this namespace reverts with its group. The mark has the
    /// same time, so that it ends with the same decision. It does not have the same reason, which names a workload there.
    pub(super) fn refuse_with_group(&self, source: &Name) -> Option<Action> {
        let known = self.index.existing_source(source).filter(|known| known.spread.reverts)?;
        if !self.index.is_grouped(source) || self.index.refused(source).is_some() {
            return None;
        }
        let (snapshot, _) = self.index.snapshots().with(source, &known.present.digests).next()?;
        let refusal = self.index.refused_elsewhere(source, &snapshot.object.name)?;
        self.refuse(source, snapshot, FAILED_ELSEWHERE, &refusal.at)
    }

    /// How the workload failed.
    fn cause(&self, key: &WorkloadKey, record: &Record) -> &'static str {
        let kind = self.index.kind(key).map_or("", |kind| kind.kind.as_str());
        match (self.index.health(key, record), record.health, kind) {
            (Health::Failed, Health::Failed, "Deployment") => "ProgressDeadlineExceeded",
            (Health::Failed, Health::Failed, _) => "aborted or degraded",
            (Health::Failed, ..) => "its Rollout is aborted or degraded",
            _ => "not healthy within its progress-deadline",
        }
    }

    /// Removes the mark of the present content, if a person asked to try the content again.
    pub(super) fn forgive(&self, source: &Name) -> Option<Action> {
        let known = self.index.existing_source(source).filter(|known| known.spread.retried.is_some())?;
        let (snapshot, record) = self.index.marked_with(source, &known.present.digests)?;
        let is_retried = record.refused.as_deref().is_some_and(|refusal| {
            known.spread.retried.as_deref() == Some(&*refusal.retry_text(&snapshot.object.name))
        });
        let (version, digest) = (record.version(), record.digest);
        is_retried.then_some(Action::SetRefused { snapshot, version, digest, refusal: None })
    }

    /// Queues what a mark on a snapshot requires.
    pub(super) fn enqueue_refused(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.index.snapshot(snapshot).filter(|record| record.refused.is_some()) else {
            return;
        };
        let source = snapshot.sibling(Arc::clone(&record.source));
        if self.index.existing_source(&source).is_some() {
            self.queue.schedule(Task::Ensure(source.clone()), now);
            let others: Vec<_> = self.index.siblings(&source).map(|(name, _)| name).collect();
            for other in others {
                self.queue.schedule(Task::Ensure(other), now);
            }
            self.enqueue_users(&source, now);
        }
    }

    /// Applies a mark that was written or removed, and reports it. Workloads go back at once, even if no watch reports the
    /// mark.
    pub(in crate::controller) fn refusal_was_set(&mut self, set: RefusedSet, now: Timestamp) {
        let RefusedSet { snapshot, before, after, refusal } = set;
        let event = event_texts::refused(&self.index, &snapshot, refusal.as_deref(), now);
        self.report(event, now);
        // What a watch has reported since is newer than the answer: the write required the version before it.
        let known = self.index.snapshot(&snapshot).filter(|known| known.version() == before);
        if let Some(known) = known.cloned() {
            let marked = SnapshotRecord { resource_version: after, refused: refusal, ..known };
            self.apply_snapshot(&snapshot, Some(marked), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{
            index::fixture::{
                digest, held, key, object, refusal, reverting, snapshot, snapshot_record, source, used,
            },
            reconcile::fixture::{at, brief, limited, moved_one, on, set_group_that, set_source, state},
        },
        resolve::{Pace, Use},
    };

    const REVERTS: [(&str, &str); 1] = [("on-failure", "revert")];

    /// A workload that moved to the content 2 of a at the start.
    fn moved(health: Health) -> Record {
        Record { moved: [(object("a"), at(0))].into_iter().collect(), ..on(2, health) }
    }

    fn bad() -> Name {
        source("a").sibling(snapshot("a", 2))
    }

    fn refuse(state: &mut State) {
        let refused = SnapshotRecord { refused: Some(refusal(None).into()), ..snapshot_record("a", 2) };
        state.index.apply_snapshot(&bad(), Some(refused), &mut Vec::new());
    }

    /// A watch may report the snapshot after the failure.
    #[test]
    fn unhealthy_moved_workloads_are_judged() {
        let task = Task::Judge(key("moved"));
        for (what, record, annotations, is_judged) in [
            ("it failed", moved(Health::Failed), &REVERTS[..], true),
            ("it progresses", moved(Health::Progressing), &REVERTS, true),
            ("it is healthy", moved(Health::Settled), &REVERTS, false),
            ("its source does not revert", moved(Health::Failed), &[("max-in-flight", "1")], false),
            ("it moved by itself", on(2, Health::Failed), &REVERTS, false),
        ] {
            let mut state = moved_one(Health::Settled, annotations);
            state.apply_workload(&key("moved"), Some(record), at(5));
            assert_eq!(state.queue.is_queued(&task), is_judged, "{what}");
            state.queue.cancel(&task);
            state.apply_snapshot(&bad(), None, at(6));
            assert!(!state.queue.is_queued(&task), "{what}, and nothing can be marked");
            state.apply_snapshot(&bad(), Some(snapshot_record("a", 2)), at(7));
            assert_eq!(state.queue.is_queued(&task), is_judged, "{what}, and its snapshot is reported");
        }
    }

    #[test]
    fn content_is_refused_if_its_move_failed() {
        let with = |used: Use| Record { uses: vec![used], ..moved(Health::Failed) };
        let written = Pace { written: Some(at(1)), ..Pace::default() };
        for (what, record, expected) in [
            ("it failed", moved(Health::Failed), "SetRefused"),
            ("it progresses", moved(Health::Progressing), "done"),
            ("it is on hold", with(held("a", 2)), "done"),
            ("its reference is excluded", with(Use { excluded: true, ..used("a", Some(2)) }), "done"),
            ("it was rolled back", with(used("a", Some(1))), "done"),
            ("it was deployed since", Record { pace: written, ..moved(Health::Failed) }, "done"),
        ] {
            let mut state = moved_one(Health::Settled, &REVERTS);
            state.index.apply_workload(&key("moved"), Some(record), &mut Vec::new());
            assert_eq!(brief(&state.judge(&key("moved"), at(10))), expected, "{what}");
            refuse(&mut state);
            assert_eq!(brief(&state.judge(&key("moved"), at(10))), "done", "{what}, and it is refused");
        }
    }

    /// No controller of a StatefulSet reports that its rollout takes too long.
    #[test]
    fn deadline_of_a_move_is_waited_for() {
        let kind = crate::kinds::Kinds::default().iter().position(|kind| kind.kind == "StatefulSet").unwrap();
        let key = WorkloadKey { kind, ..key("moved") };
        let pace = Pace { deadline_seconds: 60, ..Pace::default() };
        let late = Record { pace, ..moved(Health::Progressing) };
        let was_unhealthy =
            Record { taken_unhealthy: std::iter::once(object("a")).collect(), ..late.clone() };
        for (what, record, second, expected) in [
            ("it has time", &late, 59, "later 60000"),
            ("its time is over", &late, 60, "SetRefused"),
            ("it was unhealthy before", &was_unhealthy, 59, "later 60000"),
            ("it was unhealthy before, and its time is over", &was_unhealthy, 60, "done"),
        ] {
            let mut state = state(&[]);
            state.index.apply_workload(&key, Some(record.clone()), &mut Vec::new());
            set_source(&mut state, "a", limited("a", 2, &REVERTS));
            assert_eq!(brief(&state.judge(&key, at(second))), expected, "{what}");
        }
    }

    /// A later write requires the version after the mark.
    #[test]
    fn written_mark_counts_unless_a_watch_is_ahead() {
        for (before, expected) in [("1", ("2", true)), ("0", ("1", false))] {
            let mut state = state(&[("web", &moved(Health::Failed))]);
            set_source(&mut state, "a", reverting("a", 2));
            let before = crate::cluster::Version { resource_version: before.to_owned(), uid: "1".to_owned() };
            let refusal = Some(refusal(None).into());
            let set = RefusedSet { snapshot: bad(), before, after: "2".to_owned(), refusal };
            state.refusal_was_set(set, at(10));
            let known = state.index.snapshot(&bad()).unwrap();
            assert_eq!((&*known.resource_version, known.refused.is_some()), expected);
        }
    }

    /// The other namespace refused the content before this one knew its snapshot.
    #[test]
    fn new_snapshot_is_refused_with_its_group() {
        for reverts in [false, true] {
            new_snapshot_in_group(reverts);
        }
    }

    fn new_snapshot_in_group(reverts: bool) {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        set_source(&mut state, "a", reverting("a", 2));
        set_group_that(&mut state, "other", reverts);
        let other = Name::new("other", object("a"));
        state.index.set_read(&other, Some(reverting("a", 2)), &mut Vec::new());
        let refused = SnapshotRecord { refused: Some(refusal(None).into()), ..snapshot_record("a", 2) };
        state.index.apply_snapshot(&other.sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        state.index.apply_snapshot(&bad(), None, &mut Vec::new());
        state.queue.cancel(&Task::Ensure(source("a")));
        assert!(state.reconcile_source(&source("a")).is_none(), "{:?} is not known", digest(2));
        state.apply_snapshot(&bad(), Some(snapshot_record("a", 2)), at(1));
        assert_eq!(state.queue.due(&Task::Ensure(source("a"))), Some(at(1)));
        let reconciled = state.reconcile_source(&source("a"));
        let Some(Action::SetRefused { refusal: Some(refusal), .. }) = reconciled else {
            assert!(!reverts, "{reconciled:?}");
            return;
        };
        assert!(reverts, "a failure elsewhere refuses nothing here");
        assert_eq!(&*refusal.reason, FAILED_ELSEWHERE, "the reason names nothing of the other namespace");
    }
}
