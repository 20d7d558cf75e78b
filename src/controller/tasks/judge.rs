//! The verdicts on contents: which failure is recorded, and which decision of a person is taken over.
//!
//! The verdict on the snapshot is the only record. If the source has `on-failure: revert`, workloads that use the snapshot are pending,
//! and admission takes them back; otherwise it holds the rest. So a restart or another leader continues at any point.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{decided::Decided, owners::is_sound};
use crate::{
    annotations,
    cluster::{Api, ApiError},
    controller::{
        action::{Action, Outcome, VerdictSet},
        queue::Task,
        reconcile::{event_texts, state::State},
    },
    resolve::{
        Health, MemberState, Moved, Record, RecordedFailure, Referrer, SpreadPolicy, UserDecision, Verdict,
        roll_time,
    },
    snapshot::Digest,
    world::{ChangedSources, Name, SnapshotRecord, WorkloadKey},
};

/// The reason of a refusal that comes from another namespace of the group. It names nothing of that namespace.
const FAILED_ELSEWHERE: &str = "the change failed in another namespace of the group";

impl State {
    /// Queues a check whether a workload failed because of a content, if that is possible.
    pub(in crate::controller) fn enqueue_judgement(&mut self, key: &WorkloadKey, now: Timestamp) {
        let Some(record) = self.world.workload(key) else {
            self.rested.forget(key);
            return;
        };
        let is_moved = record.ties.iter().filter(|(_, tie)| tie.moved.is_some()).any(|(source, _)| {
            let name = key.beside(source.clone());
            self.world
                .existing_source(&name)
                .is_some_and(|known| self.world.change(&name, known).policy().is_limited())
        });
        let health = self.world.health(key, record);
        if is_moved {
            self.rested.observe(key, (record.generation, health), now);
        } else {
            self.rested.forget(key);
        }
        if !health.is_at_rest() && is_moved {
            self.queue.schedule(Task::Judge(key.clone()), now);
        }
    }

    /// Queues that check for the workloads of sources without settings that are one change with this one, whose settings are new.
    pub(in crate::controller) fn enqueue_group_judgements(&mut self, source: &Name, now: Timestamp) {
        let limited = self.world.existing_source(source).filter(|known| known.spread.is_limited());
        let Some(known) = limited.filter(|_| self.world.is_grouped(source)) else { return };
        let change = self.world.change(source, known);
        let others = change.sources.into_iter().filter(|(_, other)| !other.spread.is_limited());
        for other in others.map(|(name, _)| name).collect::<Vec<_>>() {
            self.enqueue_judgements_of(&other, now);
        }
    }

    /// Queues that check for the workloads that use a source.
    fn enqueue_judgements_of(&mut self, source: &Name, now: Timestamp) {
        let users: Vec<_> = self.world.workloads_using(source).map(|(key, _)| key.clone()).collect();
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
        self.world.referrers_mut().apply(namespace, rollout, referrer);
        let Some(name) = target else { return };
        for kind in 0..self.world.config().kinds.iter().count() {
            let (namespace, name) = (Arc::clone(namespace), Arc::clone(&name));
            let key = WorkloadKey { kind, namespace, name };
            self.enqueue_judgement(&key, now);
            self.enqueue_analyses(&key, now);
        }
    }

    /// Records a failure of the workload with a content that the controller moved it to. It outlives the workload.
    pub(in crate::controller) fn judge(&mut self, key: &WorkloadKey, now: Timestamp) -> Decided {
        let Some(record) = self.world.workload(key) else { return Decided::Done };
        let mut again: Option<Timestamp> = None;
        for used in record.uses.iter().filter(|used| !used.on_hold) {
            let source = key.beside(used.source.clone());
            let Some(known) = self.world.existing_source(&source) else { continue };
            if used.excludes(&known.present.labels) {
                continue;
            }
            let change = self.world.change(&source, known);
            if !change.policy().is_limited() {
                continue;
            }
            let Some(snapshot) = used.snapshot.as_ref().map(|name| source.sibling(Arc::clone(name))) else {
                continue;
            };
            let Some(found) = self.world.snapshot(&snapshot) else { continue };
            let MemberState::Moved(moved) = self.world.member_state(key, record, &source, known) else {
                continue;
            };
            if !known.present.digests.contains(&found.digest)
                || self.world.failed_of(&source, known).is_some()
            {
                continue;
            }
            let policy = change.policy();
            let in_bake = self.fails_in_bake(key, &moved, &policy);
            let cause = if moved.fails_by_move(now) {
                Some(self.cause(key, record).to_owned())
            } else {
                let after = policy.unhealthy_after.as_secs();
                in_bake
                    .filter(|due| *due <= now)
                    .map(|_| format!("pods were not available for {after} s in its bake time"))
            };
            if let Some(cause) = cause {
                let reason = format!("{} failed: {cause}", self.world.display_short(key));
                let Some(action) = self.fail(&source, snapshot, &reason, now) else { continue };
                return Decided::Act(action);
            }
            let times = moved.deadline.into_iter().chain(in_bake).filter(|time| *time > now);
            again = times.chain(again).min();
        }
        again.map_or(Decided::Done, Decided::Later)
    }

    /// When a workload that the controller moved has failed, if its rollout has ended and its pods became unavailable in its bake time.
    fn fails_in_bake(&self, key: &WorkloadKey, moved: &Moved, policy: &SpreadPolicy) -> Option<Timestamp> {
        let is_by_move = moved.in_turn && !moved.written_since && !moved.was_unhealthy;
        let interruption = self.rested.interruption(key).filter(|_| is_by_move)?;
        let baked = moved.since?.saturating_add(SignedDuration::try_from(policy.bake).ok()?).ok()?;
        let failed = interruption.lasts(SignedDuration::try_from(policy.unhealthy_after).ok()?)?;
        (interruption.since < baked).then_some(failed)
    }

    /// Records the failed analysis of a change in the namespace of its first source, if it takes workloads back.
    pub(super) fn refuse_change(
        &self,
        change: &ChangedSources<'_>,
        reason: &str,
        now: Timestamp,
    ) -> Option<Action> {
        let (source, known) = change.sources.first().filter(|_| change.reverts(&self.world))?;
        if self.world.failed_of(source, known).is_some() {
            return None;
        }
        let (snapshot, _) = self.world.judged(source, &known.present.digests)?;
        self.fail(source, snapshot, reason, now)
    }

    /// Records a failure with the content of a snapshot.
    fn fail(&self, source: &Name, snapshot: Name, reason: &str, now: Timestamp) -> Option<Action> {
        let verdict = self.world.snapshot(&snapshot)?.verdict.as_deref();
        // It is later than what a person decided before, whose clock may be ahead.
        let at = roll_time(now, verdict.and_then(Verdict::last_decision));
        self.fail_as(source, snapshot, reason, &at.to_string())
    }

    fn fail_as(&self, source: &Name, snapshot: Name, reason: &str, at: &str) -> Option<Action> {
        let known = self.world.existing_source(source)?;
        let found = self.world.snapshot(&snapshot)?;
        let previous = self.world.newest_beside(source, &known.present.digests);
        let previous = previous.map(|name| (&*name).into());
        let failed = Some(RecordedFailure { reason: reason.into(), at: at.into(), previous });
        let before = found.verdict.as_deref().cloned().unwrap_or_default();
        Some(set_verdict(snapshot, found, Verdict { failed, ..before }, None))
    }

    /// Refuses a content with which a workload failed in another namespace of the group, if this namespace reverts with its group. The
    /// failure has the same time, so that it ends with the same decision. It does not have the same reason, which names a workload
    /// there.
    pub(super) fn refuse_with_group(&self, source: &Name) -> Option<Action> {
        let known = self.world.existing_source(source).filter(|known| known.spread.reverts)?;
        if !self.world.is_grouped(source) || self.world.refused(source).is_some() {
            return None;
        }
        let (snapshot, _) = self.world.judged(source, &known.present.digests)?;
        let failed = self.world.refused_elsewhere(source)?;
        self.fail_as(source, snapshot, FAILED_ELSEWHERE, &failed.at)
    }

    /// How the workload failed.
    fn cause(&self, key: &WorkloadKey, record: &Record) -> &'static str {
        let kind = self.world.kind(key).map_or("", |kind| kind.kind.as_str());
        match (self.world.health(key, record), record.health, kind) {
            (Health::Failed, Health::Failed, "Deployment") => "ProgressDeadlineExceeded",
            (Health::Failed, Health::Failed, _) => "aborted or degraded",
            (Health::Failed, ..) => "its Rollout is aborted or degraded",
            _ => "not healthy within its progress-deadline",
        }
    }

    /// Takes over what a person decided about the present content, and ends what was decided about a content that was replaced.
    pub(super) fn take_over(&self, source: &Name) -> Option<Action> {
        let world = &self.world;
        let known = world.existing_source(source)?;
        let replaced = world.snapshots().of(source).find_map(|name| {
            let record = world.snapshot(&name)?;
            // With another key, the same content has another digest.
            let is_replaced =
                !known.present.digests.contains(&record.digest) && !world.config().is_unverifiable(record);
            if !is_replaced {
                return None;
            }
            let missed =
                known.spread.decision.as_deref().filter(|decision| *decision.snapshot == *name.object.name);
            let before = record.verdict.as_deref().cloned().unwrap_or_default();
            Some(set_verdict(name, record, before.after_replacement(missed)?, None))
        });
        replaced.or_else(|| {
            let decision = known.spread.decision_about(&source.object, &known.present.digests)?;
            let (snapshot, record) = world.judged(source, &known.present.digests)?;
            let before = record.verdict.as_deref().cloned().unwrap_or_default();
            let after = before.after(decision, Some(record.content_since()))?;
            Some(set_verdict(snapshot, record, after, Some(decision)))
        })
    }

    /// Queues what the verdict on the newest content of a source requires of the other sources of its group.
    pub(in crate::controller) fn enqueue_siblings(&mut self, source: &Name, now: Timestamp) {
        let others: Vec<_> = self.world.siblings(source).map(|(name, _)| name).collect();
        for other in others {
            self.enqueue_state(&other, now);
            self.queue.schedule(Task::Ensure(other), now);
        }
    }

    /// Applies a verdict that was written, and reports a refusal that begins or ends. Workloads go back at once, even if no watch
    /// reports the verdict.
    pub(super) fn verdict_was_set(&mut self, set: VerdictSet, now: Timestamp) {
        let VerdictSet { snapshot, before, after, verdict, had_failed, decision } = set;
        if let Some(decision) = decision {
            self.report(event_texts::decided(&self.world, &snapshot, &decision, now), now);
        }
        if verdict.failed.is_some() != had_failed {
            let event = event_texts::refused(&self.world, &snapshot, verdict.failed.as_ref(), now);
            self.report(event, now);
        }
        let is_retried = had_failed && verdict.failed.is_none();
        if let Some(known) = self.world.snapshot(&snapshot).filter(|_| is_retried) {
            let source = snapshot.sibling(Arc::clone(&known.source));
            self.world.workloads_using(&source).for_each(|(key, _)| self.rested.forgive(key));
        }
        // What a watch has reported since is newer than the answer: the write required the version before it.
        let known = self.world.snapshot(&snapshot).filter(|known| known.version() == before);
        if let Some(known) = known.cloned() {
            let judged = SnapshotRecord { resource_version: after.into(), verdict: Some(verdict), ..known };
            self.apply_snapshot(&snapshot, Some(judged), now);
        }
    }
}

/// Writes a verdict on a snapshot. `decision`: the decision that it takes over, if it does.
fn set_verdict(
    snapshot: Name,
    found: &SnapshotRecord,
    verdict: Verdict,
    decision: Option<&UserDecision>,
) -> Action {
    let (version, digest, had_failed) = (found.version(), found.digest, found.failed().is_some());
    let decision = decision.cloned().map(Box::new);
    Action::SetVerdict { snapshot, version, digest, verdict: Box::new(verdict), had_failed, decision }
}

/// Writes a verdict on a snapshot, unless the object is none.
pub(in crate::controller) async fn run<A: Api>(
    api: &A,
    set: VerdictSet,
    digest: &Digest,
) -> Result<Outcome, ApiError> {
    let VerdictSet { snapshot, before, verdict, .. } = &set;
    if !is_sound(api, snapshot, digest).await? {
        return Ok(Outcome::Done);
    }
    let change = (annotations::VERDICT, verdict.text());
    let after = api.set_annotation(&snapshot.namespace, &snapshot.object, before, change).await?;
    Ok(Outcome::VerdictSet(VerdictSet { after, ..set }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::reconcile::fixture::{
            at, brief, limited, moved_one, on, set_group_that, set_source, state,
        },
        resolve::{Pace, Use},
        world::{
            NamespaceSettings,
            fixture::{
                digest, failed, held, key, object, reverting, snapshot, snapshot_record, source, used,
            },
        },
    };

    const REVERTS: [(&str, &str); 1] = [("on-failure", "revert")];

    /// A workload that moved to the content 2 of a at the start.
    fn moved(health: Health) -> Record {
        on(2, health).tied(&object("a"), |tie| tie.moved = Some(at(0)))
    }

    fn bad() -> Name {
        source("a").sibling(snapshot("a", 2))
    }

    fn refuse(state: &mut State) {
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        state.world.apply_snapshot(&bad(), Some(refused), &mut Vec::new());
    }

    /// A watch may report the snapshot after the failure.
    #[test]
    fn unhealthy_moved_workloads_are_judged() {
        let task = Task::Judge(key("moved"));
        for (what, record, annotations, is_judged) in [
            ("it failed", moved(Health::Failed), &REVERTS[..], true),
            ("it progresses", moved(Health::Progressing), &REVERTS, true),
            ("it is healthy", moved(Health::Settled), &REVERTS, false),
            ("its source does not revert", moved(Health::Failed), &[("max-in-flight", "1")], true),
            ("its source has no limit", moved(Health::Failed), &[], false),
            ("it moved by itself", on(2, Health::Failed), &REVERTS, false),
        ] {
            let mut state = moved_one(Health::Settled, annotations);
            state.apply_workload(&key("moved"), Some(record), at(5));
            assert_eq!(state.queue.is_queued(&task), is_judged, "{what}");
            state.queue.cancel(&task);
            state.apply_snapshot(&bad(), None, at(6));
            assert!(!state.queue.is_queued(&task), "{what}, and nothing can get a verdict");
            state.apply_snapshot(&bad(), Some(snapshot_record("a", 2)), at(7));
            assert_eq!(state.queue.is_queued(&task), is_judged, "{what}, and its snapshot is reported");
        }
    }

    /// The limits of another namespace of the group are read after the failure, or the namespaces join later.
    #[test]
    fn limits_of_a_group_have_failures_judged() {
        let task = Task::Judge(key("moved"));
        for joins_later in [false, true] {
            let mut state = moved_one(Health::Failed, &[]);
            let other = WorkloadKey { namespace: "other".into(), ..key("web") };
            state.apply_workload(&other, Some(on(1, Health::Settled)), at(1));
            let limits = Name::new("other", object("a"));
            if !joins_later {
                set_group_that(&mut state, "other", false);
            }
            assert!(!state.queue.is_queued(&task), "nothing limits the change");
            let read = limited("a", 2, &[("max-in-flight", "1")]);
            state.update(at(2), |world, changes| world.set_read(&limits, Some(read), changes));
            state.world.referrers_mut().set_listed("ns");
            if joins_later {
                assert!(!state.queue.is_queued(&task), "the limits are not those of its group");
                for namespace in ["ns", "other"] {
                    let settings =
                        NamespaceSettings { group: Some("group".into()), ..NamespaceSettings::default() };
                    state.apply_namespace_settings(&namespace.into(), settings, at(3));
                }
            }
            assert!(state.queue.is_queued(&task), "the group limits the change");
        }
    }

    #[test]
    fn content_is_refused_if_its_move_failed() {
        let with = |used: Use| Record { uses: vec![used], ..moved(Health::Failed) };
        let written = Pace { written: Some(at(1)), ..Pace::default() };
        for (what, record, expected) in [
            ("it failed", moved(Health::Failed), "SetVerdict"),
            ("it progresses", moved(Health::Progressing), "done"),
            ("it is on hold", with(held("a", 2)), "done"),
            ("its reference is excluded", with(Use { excluded: true, ..used("a", Some(2)) }), "done"),
            ("it was rolled back", with(used("a", Some(1))), "done"),
            ("it was deployed since", Record { pace: written, ..moved(Health::Failed) }, "done"),
        ] {
            let mut state = moved_one(Health::Settled, &REVERTS);
            state.world.apply_workload(&key("moved"), Some(record), &mut Vec::new());
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
        let was_unhealthy = late.clone().tied(&object("a"), |tie| tie.unhealthy = true);
        for (what, record, second, expected) in [
            ("it has time", &late, 59, "later 60000"),
            ("its time is over", &late, 60, "SetVerdict"),
            ("it was unhealthy before", &was_unhealthy, 59, "later 60000"),
            ("it was unhealthy before, and its time is over", &was_unhealthy, 60, "done"),
        ] {
            let mut state = state(&[]);
            state.world.apply_workload(&key, Some(record.clone()), &mut Vec::new());
            set_source(&mut state, "a", limited("a", 2, &REVERTS));
            assert_eq!(brief(&state.judge(&key, at(second))), expected, "{what}");
        }
    }

    /// The pods become unavailable 8 s after the move.
    #[test]
    fn workload_that_breaks_in_its_bake_has_failed() {
        let waves = |bake| [("waves", "1"), ("bake", bake), ("unhealthy-after", "5s")];
        let was_unhealthy = moved(Health::Unavailable).tied(&object("a"), |tie| tie.unhealthy = true);
        let broken = moved(Health::Unavailable);
        for (what, record, bake, second, expected) in [
            ("it may recover", &broken, "10s", 12, "later 13000"),
            ("it does not", &broken, "10s", 13, "SetVerdict"),
            ("it had baked before", &broken, "8s", 13, "done"),
            ("it was unhealthy before", &was_unhealthy, "10s", 13, "done"),
        ] {
            let mut state = moved_one(Health::Settled, &waves(bake));
            state.apply_workload(&key("moved"), Some(record.clone()), at(1));
            assert_eq!(brief(&state.judge(&key("moved"), at(9))), "done", "{what}, in its rollout");
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(2));
            let scaled = Record { generation: Some(2), ..record.clone() };
            state.apply_workload(&key("moved"), Some(scaled), at(3));
            assert_eq!(brief(&state.judge(&key("moved"), at(9))), "done", "{what}, and is scaled");
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(7));
            state.apply_workload(&key("moved"), Some(record.clone()), at(8));
            assert_eq!(brief(&state.judge(&key("moved"), at(second))), expected, "{what}");
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(9));
            state.apply_workload(&key("moved"), Some(record.clone()), at(11));
            assert_eq!(
                brief(&state.judge(&key("moved"), at(60))),
                "done",
                "{what}, and again after its bake"
            );
        }
    }

    /// A container that crashes is available after each start.
    #[test]
    fn workload_that_crashes_in_its_bake_has_failed() {
        let waves = [("waves", "1"), ("bake", "1m"), ("unhealthy-after", "5s")];
        let mut state = moved_one(Health::Settled, &waves);
        for second in [10, 20, 30] {
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(second - 8));
            state.apply_workload(&key("moved"), Some(moved(Health::Unavailable)), at(second));
            let expected = if second == 30 { "later 31000" } else { "later" };
            let judged = brief(&state.judge(&key("moved"), at(second)));
            assert!(judged.starts_with(expected), "after {second} s: {judged}");
        }
        assert_eq!(brief(&state.judge(&key("moved"), at(31))), "SetVerdict");
    }

    /// Without that, the first interruption after a retry would repeat the failure.
    #[test]
    fn retry_ends_the_count_of_interruptions() {
        let waves = [("waves", "1"), ("bake", "1m"), ("unhealthy-after", "5s")];
        for (is_retried, expected) in [(true, "later 25000"), (false, "later 21000")] {
            let mut state = moved_one(Health::Settled, &waves);
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(1));
            state.apply_workload(&key("moved"), Some(moved(Health::Unavailable)), at(10));
            state.apply_workload(&key("moved"), Some(moved(Health::Settled)), at(14));
            if is_retried {
                let before = state.world.snapshot(&bad()).unwrap().version();
                let (after, verdict) = ("2".to_owned(), Box::default());
                let snapshot = bad();
                let set = VerdictSet { snapshot, before, after, verdict, had_failed: true, decision: None };
                state.verdict_was_set(set, at(15));
            }
            state.apply_workload(&key("moved"), Some(moved(Health::Unavailable)), at(20));
            assert_eq!(brief(&state.judge(&key("moved"), at(20))), expected, "retried: {is_retried}");
        }
    }

    /// After a start, the health of a workload is not known before the Rollouts of its namespace are.
    #[test]
    fn workload_may_break_after_a_restart() {
        let mut state = state(&[("moved", &moved(Health::Settled))]);
        let waves = [("waves", "1"), ("bake", "10s"), ("unhealthy-after", "5s")];
        state.world.set_read(&source("a"), Some(limited("a", 2, &waves)), &mut Vec::new());
        state.set_referrers_listed("ns", at(2));
        state.apply_workload(&key("moved"), Some(moved(Health::Unavailable)), at(3));
        assert_eq!(brief(&state.judge(&key("moved"), at(8))), "SetVerdict");
    }

    /// A later write requires the version after the verdict.
    #[test]
    fn written_verdict_counts_unless_a_watch_is_ahead() {
        for (before, expected) in [("1", ("2", true)), ("0", ("1", false))] {
            let mut state = state(&[("web", &moved(Health::Failed))]);
            set_source(&mut state, "a", reverting("a", 2));
            let before = crate::world::Version { resource_version: before.to_owned(), uid: "1".to_owned() };
            let verdict = failed(None).into();
            let set = VerdictSet {
                snapshot: bad(),
                before,
                after: "2".to_owned(),
                verdict,
                had_failed: false,
                decision: None,
            };
            state.verdict_was_set(set, at(10));
            let known = state.world.snapshot(&bad()).unwrap();
            assert_eq!((&*known.resource_version, known.failed().is_some()), expected);
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
        state.world.set_read(&other, Some(reverting("a", 2)), &mut Vec::new());
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 2) };
        state.world.apply_snapshot(&other.sibling(snapshot("a", 2)), Some(refused), &mut Vec::new());
        state.world.apply_snapshot(&bad(), None, &mut Vec::new());
        state.queue.cancel(&Task::Ensure(source("a")));
        assert!(state.decide_ensure(&source("a")).is_none(), "{:?} is not known", digest(2));
        state.apply_snapshot(&bad(), Some(snapshot_record("a", 2)), at(1));
        assert_eq!(state.queue.due(&Task::Ensure(source("a"))), Some(at(1)));
        let reconciled = state.decide_ensure(&source("a"));
        let Some(Action::SetVerdict { verdict, .. }) = reconciled else {
            assert!(!reverts, "{reconciled:?}");
            return;
        };
        assert!(reverts, "a failure elsewhere refuses nothing here");
        assert_eq!(
            &*verdict.failed.unwrap().reason,
            FAILED_ELSEWHERE,
            "the reason names nothing of the other namespace"
        );
    }

    /// The source a with these annotations, and with the verdict on its present content.
    fn judged(annotations: &[(&str, &'static str)], verdict: Option<Verdict>) -> State {
        let mut state = moved_one(Health::Settled, annotations);
        let record = SnapshotRecord { verdict: verdict.map(Box::new), ..snapshot_record("a", 2) };
        state.world.apply_snapshot(&bad(), Some(record), &mut Vec::new());
        state
    }

    fn taken_over(state: &State) -> Option<Verdict> {
        match state.take_over(&source("a"))? {
            Action::SetVerdict { verdict, .. } => Some(*verdict),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn decision_about_present_content_is_taken_over() {
        let aborted = || Some(true);
        for (what, decision, verdict, expected) in [
            ("an abort", "abort a-2000000000 1970-01-02T00:00:00Z", None, aborted()),
            ("after a failure", "abort a-2000000000 1970-01-02T00:00:00Z", Some(failed(None)), aborted()),
            ("of another content", "abort a-4000000000 1970-01-02T00:00:00Z", None, None),
            ("older than the snapshot", "abort a-2000000000 1970-01-01T00:00:00Z", None, None),
            ("malformed", "abort", None, None),
        ] {
            let state = judged(&[("waves", "1"), ("decision", decision)], verdict.clone());
            let found = taken_over(&state);
            assert_eq!(found.as_ref().map(|found| found.aborted), expected, "{what}");
            if let Some(found) = found {
                assert_eq!(found.failed, verdict.and_then(|verdict| verdict.failed), "{what}");
                let state = judged(&[("waves", "1"), ("decision", decision)], Some(found));
                assert_eq!(taken_over(&state), None, "{what}, once");
            }
        }
    }

    /// Without a leader, the snapshot comes after the decision.
    #[test]
    fn decision_may_come_before_a_late_snapshot() {
        for (late, expected) in [(0, None), (59, None), (60, Some(true)), (3600, Some(true))] {
            let mut state =
                judged(&[("waves", "1"), ("decision", "abort a-2000000000 1970-01-01T01:59:00Z")], None);
            let record = SnapshotRecord { late, ..snapshot_record("a", 2) };
            assert_eq!(record.created, at(2 * 3600));
            state.world.apply_snapshot(&bad(), Some(record), &mut Vec::new());
            assert_eq!(taken_over(&state).map(|found| found.aborted), expected, "{late} s late");
        }
    }

    /// The source had other content before the decision was taken over. It does not count when the content comes back.
    #[test]
    fn missed_decision_has_no_effect() {
        let abort = "abort a-2000000000 1970-01-02T00:00:00Z";
        let settings = [("waves", "1"), ("decision", abort)];
        let mut state = judged(&settings, None);
        set_source(&mut state, "a", limited("a", 3, &settings));
        let missed = taken_over(&state).expect("it is missed");
        assert!(!missed.aborted && missed.decided.is_some(), "{missed:?}");
        assert_eq!(taken_over(&judged(&settings, Some(missed))), None);
    }

    /// A failure stays: the content may come back.
    #[test]
    fn decisions_end_with_other_content() {
        let verdict = Verdict { aborted: true, promoted: Some("all".into()), ..failed(None) };
        let mut state = judged(&[("waves", "1")], Some(verdict));
        assert_eq!(taken_over(&state), None);
        set_source(&mut state, "a", limited("a", 3, &[("waves", "1")]));
        assert_eq!(taken_over(&state), Some(failed(None)));
    }

    /// The failed workload is deleted or opted out, or starts no pods any more.
    #[test]
    fn recorded_failure_outlives_its_workload() {
        let mut state = moved_one(Health::Settled, &[("waves", "1")]);
        state.world.apply_workload(&key("moved"), Some(moved(Health::Failed)), &mut Vec::new());
        let Decided::Act(Action::SetVerdict { verdict, .. }) = state.judge(&key("moved"), at(10)) else {
            panic!("the failure is not recorded")
        };
        let scaled_to_zero = || Some(moved(Health::Settled));
        for (what, failed, verdict, is_held) in [
            ("deleted, recorded", None, Some(*verdict.clone()), true),
            ("deleted, not recorded", None, None, false),
            ("without pods, recorded", scaled_to_zero(), Some(*verdict), true),
            ("without pods, not recorded", scaled_to_zero(), None, false),
        ] {
            let mut state = judged(&[("waves", "1")], verdict);
            state.world.apply_workload(&key("moved"), failed, &mut Vec::new());
            state.world.apply_workload(&key("other"), None, &mut Vec::new());
            let turn =
                state.held_workloads.check(&state.world, &key("waits"), |_, _, _| false, (at(20), at(20)));
            assert_eq!(turn.held.is_some(), is_held, "{what}");
        }
    }
}
