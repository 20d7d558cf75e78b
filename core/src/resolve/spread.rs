//! How far a change of a source may spread before the first workloads prove it sound.
//!
//! The controller, admission and the commands share this rule. The annotation `state` of the workloads shows which of them have
//! taken the content into account, when the controller moved them, and which were unhealthy before; their status shows their health.
//! The verdict on the snapshot shows which failure outlives its workload, and what people decided. So a restart or another leader
//! skips and repeats nothing.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    AnalysisRun, ChangeVerdict, EndedWave, Health, Present, Record, RunState, SpreadPolicy, Use, Values,
    Waves, has_deadline,
};
use crate::{
    kinds::WorkloadKind,
    snapshot::{CLOCK_TOLERANCE, Digest, ObjectName},
    tie::Tie,
};

/// A workload that uses a source.
#[derive(Clone, Copy, Debug)]
pub struct Member<'m, K> {
    /// The workload, to name it in a reason.
    pub workload: &'m K,
    /// Its state towards the present content.
    pub member_state: MemberState,
    /// A roll of it is in progress, or may still take effect. For a workload that waits, only a roll to the present content counts.
    pub is_rolling: bool,
}

/// The state of a workload towards the present content of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It takes the content by itself, and has not yet.
    Waits(Waiting),
    /// It has taken the content into account.
    Moved(Moved),
    /// The content has the same values in all keys that it reads.
    Unaffected,
    /// It does not follow changes.
    Apart,
}

impl MemberState {
    /// The same, without the time of a move that is later than `now`. It comes from a wrong clock, or from a tenant that wrote the plan:
    /// the wave would bake until then, and all others of the change would wait.
    fn until(self, now: Timestamp) -> Self {
        match self {
            Self::Moved(moved)
                if moved.since.is_some_and(|since| since.duration_since(now) > CLOCK_TOLERANCE) =>
            {
                Self::Moved(Moved { since: None, ..moved })
            }
            other => other,
        }
    }
}

/// A workload that takes the present content by itself, and has not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place among the others.
    pub place: RollOrder,
}

/// A workload that has taken the present content into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own origin")]
pub struct Moved {
    /// Its health.
    pub health: Health,
    /// It was unhealthy when it took the content. Its failure does not show that the content is bad.
    pub was_unhealthy: bool,
    /// It was put back to other content.
    pub rolled_back: bool,
    /// Its controller gives up a rollout that takes too long.
    pub gives_up: bool,
    /// When it moved, as far as this is known.
    pub since: Option<Timestamp>,
    /// The controller moved it. Otherwise a write of a user did, or this is not known.
    pub in_turn: bool,
    /// When its rollout counts as failed, if its controller does not decide that.
    pub deadline: Option<Timestamp>,
    /// Its spec was written after the controller moved it. Its failure may have another cause.
    pub written_since: bool,
}

impl Moved {
    /// Whether the workload proves the content bad.
    fn is_bad(self, now: Timestamp) -> bool {
        self.rolled_back || (self.has_failed(now) && !self.was_unhealthy)
    }

    /// Whether the workload failed because the controller moved it to the content. A failure that may have another cause does
    /// not count: a deployment since then, or pods that became unavailable long after the rollout.
    pub fn fails_by_move(self, now: Timestamp) -> bool {
        let may_be_later = self.health == Health::Unavailable
            && self.deadline.is_some_and(|deadline| {
                let rollout = self.since.map_or(SignedDuration::ZERO, |since| deadline.duration_since(since));
                deadline.checked_add(rollout).is_ok_and(|end| end <= now)
            });
        self.in_turn && !self.written_since && !self.was_unhealthy && self.has_failed(now) && !may_be_later
    }

    fn has_failed(self, now: Timestamp) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        self.health == Health::Failed || (is_late && self.is_under_way())
    }

    /// Whether the workload had moved when the controller made the last of its moves. The time of a user's write has whole seconds,
    /// so one within that second may be later.
    fn is_by_turn(self, last: Timestamp) -> bool {
        self.in_turn || self.since.is_none_or(|since| since.as_second() < last.as_second())
    }

    /// Whether the outcome of its rollout is open.
    fn is_under_way(self) -> bool {
        !self.health.is_at_rest() && self.health != Health::Failed
    }

    /// Whether it may stay as unhealthy as it was, without an end.
    fn may_last(self) -> bool {
        self.was_unhealthy && !self.gives_up
    }
}

/// The place of a workload in the order in which a change moves workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RollOrder {
    /// Workloads without pods come after all others: they prove nothing.
    idle: bool,
    /// The annotation `order`.
    order: i32,
    /// Workloads that failed with the content that they have come first: the change may repair them. Those that were unhealthy
    /// anyway prove nothing, and come last.
    class: u8,
    /// Breaks ties.
    hash: u64,
}

impl RollOrder {
    /// The place of a workload for a change. `path` identifies the workload, for instance by namespace, kind and name; the hash
    /// over it and the seed, which differs from change to change, lets another workload be the first each time.
    pub fn of(order: i32, health: Health, was_unhealthy: bool, seed: &[u8], path: &[&str]) -> Self {
        let class = match health {
            Health::Failed if !was_unhealthy => 0,
            Health::Failed | Health::Unavailable => 2,
            Health::Idle | Health::Settled | Health::Progressing | Health::Unobserved => 1,
        };
        Self { idle: health == Health::Idle, order, class, hash: hash(seed, path) }
    }
}

/// What the record of a workload does not hold of its state towards a source.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadView<'v> {
    /// The workload's kind.
    pub kind: &'v WorkloadKind,
    /// Its namespace and name.
    pub path: [&'v str; 2],
    /// The annotation `order` of its namespace.
    pub namespace_order: Option<i32>,
    /// Its health, with that of the Rollouts that use its template.
    pub health: Health,
    /// The source.
    pub source: &'v ObjectName,
    /// The present content of the source, and its mode.
    pub present: &'v Present,
    /// The annotation `set` of the source.
    pub set: Option<&'v str>,
}

impl Record {
    /// The state of the workload towards the present content of a source. `held`: the digest of the snapshot in a reference, if it
    /// is known.
    pub fn member_state(
        &self,
        view: &WorkloadView<'_>,
        held: impl Fn(&Use) -> Option<Digest>,
    ) -> MemberState {
        let WorkloadView { kind, path: [namespace, name], namespace_order, health, source, present, set } =
            *view;
        let content = &present.digests;
        // A reference that is to be left as written from now on moves like one whose source has another mode.
        let is_left = |used: &Use| used.snapshot.is_none() && used.excludes(&present.labels);
        let uses = || self.uses.iter().filter(|used| used.source == *source && !is_left(used));
        if !kind.rolls || uses().next().is_none() {
            return MemberState::Apart;
        }
        let none = Tie::default();
        let tie = self.ties.get(source).unwrap_or(&none);
        let was_unhealthy = tie.unhealthy;
        // A change of the mode alone moves workloads one after the other, too. Meanwhile, a rollout that is under way counts.
        let changes_mode = || {
            self.track
                && health.is_at_rest()
                && uses().any(|used| !used.on_hold && tie.relation(used, present, None).is_pending())
        };
        if !tie.has_seen(content) || changes_mode() {
            // A hold is a decision about this workload alone: it takes no place that the others wait for.
            if !self.track || uses().any(|used| used.on_hold) {
                return MemberState::Apart;
            }
            let path = [namespace, kind.kind.as_str(), name];
            let order = self.pace.order.or(namespace_order).unwrap_or_default();
            // A workload moves to all contents of a set at once. It must be the next one in each source, so its place must not depend
            // on the source.
            let was_unhealthy =
                if set.is_some() { self.ties.iter().any(|(_, tie)| tie.unhealthy) } else { was_unhealthy };
            let digest = content.current();
            let seed = match set {
                Some(set) => set.as_bytes(),
                None => &digest.as_bytes()[..],
            };
            let place = RollOrder::of(order, health, was_unhealthy, seed, &path);
            return MemberState::Waits(Waiting { place });
        }
        let values = uses().map(|used| tie.values(used, content, held(used).as_ref()));
        let values = values.max().unwrap_or(Values::Present);
        let rejects = values == Values::Rejected;
        match (values, self.track) {
            // No verdict on the content: the workload never had it.
            (Values::Rejected, _) if tie.unused => return MemberState::Apart,
            // A workload that does not track keeps its snapshot whatever the content.
            (Values::Equal | Values::Rejected, false) => return MemberState::Apart,
            (Values::Equal, true) => return MemberState::Unaffected,
            (Values::Present | Values::Rejected, _) => {}
        }
        // It does not use the content.
        if tie.lacking && uses().all(|used| used.snapshot.is_none()) {
            return MemberState::Apart;
        }
        let turn = tie.moved;
        let gives_up = has_deadline(&kind.kind);
        let started = turn.max(self.pace.written).max(self.last_roll).filter(|_| !gives_up);
        let limit = SignedDuration::from_secs(self.pace.deadline_seconds.into());
        MemberState::Moved(Moved {
            health,
            was_unhealthy,
            rolled_back: rejects,
            gives_up,
            since: turn.or(self.pace.written),
            in_turn: turn.is_some(),
            deadline: started.and_then(|started| started.checked_add(limit).ok()),
            written_since: self.pace.written > turn,
        })
    }
}

/// FNV-1a, with the last step of splitmix64: it spreads similar names well. Source: the definitions of both.
fn hash(seed: &[u8], path: &[&str]) -> u64 {
    let separated = path.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = seed.iter().copied().chain(separated).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// What proved a content bad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof<K> {
    /// A workload.
    Workload {
        /// The workload; `None` if only its namespace is known to be another one of the group.
        workload: Option<K>,
        /// It was rolled back from the content. Otherwise it failed with the content.
        rolled_back: bool,
    },
    /// The verdict on the snapshot: a workload failed with the content, and how. The workload may not exist any more.
    Verdict(Box<str>),
}

/// Why a workload may not roll to a content yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait<K> {
    /// As many workloads as allowed are rolling.
    Full,
    /// A workload that rolled to the content proved it bad.
    Bad(Proof<K>),
    /// The settings of waves cannot be followed.
    Invalid(Box<str>),
    /// A person stopped the change.
    Aborted,
    /// A workload failed with the content, so no workload resolves to it.
    Refused,
    /// All workloads of the wave have moved, and some are not healthy.
    Unproven,
    /// All workloads of the wave have moved and are healthy. The next wave may begin then.
    Bake(Timestamp),
    /// The analysis of the wave is not successful.
    Analysis(AnalysisRun),
    /// Others of the wave come first.
    Wave,
}

/// The progress of a change in waves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress<K> {
    /// The wave, counted from 1.
    pub wave: usize,
    /// The number of waves, with the rest.
    pub waves: usize,
    /// How many workloads use the source and take part.
    pub total: usize,
    /// How many may have moved in this wave.
    pub limit: usize,
    /// How many have moved.
    pub moved: usize,
    /// The workloads that may move now, in no order.
    pub next: Vec<K>,
    /// Workloads that have moved and are not healthy, or whose roll is in progress.
    pub unhealthy: Vec<K>,
    /// When the bake time of the moved workloads ends, if it has not.
    pub bakes_until: Option<Timestamp>,
    /// No workload has moved in this wave yet.
    pub begins: bool,
    /// All workloads have moved, are healthy and have baked.
    is_over: bool,
    /// A person let this wave begin, whatever the state of the workloads.
    pub is_promoted: bool,
    /// The last place that may move now.
    last: Option<RollOrder>,
    /// The wave that ended last, until a workload moves in the next one.
    ended: Option<EndedWave>,
    /// The analysis of that wave, as long as it does not let the next one begin.
    analysis: Option<AnalysisRun>,
}

/// How far a change has spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread<K> {
    max_in_flight: Option<usize>,
    invalid: Option<Box<str>>,
    aborted: bool,
    refused: bool,
    bad: Option<Proof<K>>,
    /// The workloads that are rolling, each with whether it may stay unhealthy without an end.
    rolling: Vec<(K, bool)>,
    /// The progress, if the source has waves.
    progress: Option<Progress<K>>,
}

impl<K: Clone> Spread<K> {
    /// Derives how far a change has spread, in one pass over the workloads that use the source. The workload that asks for its
    /// turn does not count as rolling.
    pub fn of<'m>(
        policy: &SpreadPolicy,
        verdict: ChangeVerdict,
        now: Timestamp,
        members: impl IntoIterator<Item = Member<'m, K>>,
    ) -> Self
    where
        K: 'm,
    {
        let mut spread = Self {
            max_in_flight: policy.max_in_flight,
            invalid: policy.invalid.clone(),
            aborted: verdict.aborted && policy.has_waves(),
            refused: verdict.refused,
            bad: None,
            rolling: Vec::new(),
            progress: None,
        };
        let mut count = Count::default();
        for Member { workload, member_state, is_rolling } in members {
            let member_state = member_state.until(now);
            let moved = if let MemberState::Moved(moved) = member_state { Some(moved) } else { None };
            if let Some(bad) = moved.filter(|moved| spread.bad.is_none() && moved.is_bad(now)) {
                let (workload, rolled_back) = (Some(workload.clone()), bad.rolled_back);
                spread.bad = Some(Proof::Workload { workload, rolled_back });
            }
            if moved.is_some_and(Moved::is_under_way) || is_rolling {
                let may_last = !is_rolling && moved.is_some_and(Moved::may_last);
                spread.rolling.push((workload.clone(), may_last));
            }
            if policy.waves.is_some() {
                count.add(workload, member_state, is_rolling);
            }
        }
        // The failed workload may have gone back, may be repaired or deleted: nothing else shows its failure then.
        let elsewhere =
            || verdict.failed_elsewhere.then_some(Proof::Workload { workload: None, rolled_back: false });
        spread.bad = spread.bad.or(verdict.failed.map(Proof::Verdict)).or_else(elsewhere);
        let progress = |waves| count.progress(waves, policy.bake, verdict.promoted, now);
        spread.progress = policy.waves.as_ref().map(progress);
        if let Some(progress) = &mut spread.progress {
            progress.ended = progress.ended.filter(|_| policy.analysis.is_some());
            progress.analysis = progress.ended.map(|_| AnalysisRun::default());
        }
        spread
    }

    /// The wave whose analysis decides about the next one, or the start of the change; `None` if there is none, or if nothing
    /// moves anyway.
    pub fn ended(&self) -> Option<EndedWave> {
        let is_stopped = self.invalid.is_some() || self.refused || self.bad.is_some();
        self.progress.as_ref().and_then(|progress| progress.ended).filter(|_| !is_stopped)
    }

    /// Whether a person stopped the change.
    pub fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Applies the analysis of the wave that ended. Without it, the next wave does not begin.
    #[must_use]
    pub fn analysed(mut self, run: impl FnOnce(EndedWave) -> AnalysisRun) -> Self {
        if let Some(ended) = self.ended()
            && let Some(progress) = &mut self.progress
        {
            let run = Some(run(ended)).filter(|run| run.state != RunState::Successful);
            if run.is_some() {
                if !ended.is_start() {
                    // The wave lasts until then.
                    (progress.wave, progress.limit) = (ended.wave, progress.moved);
                }
                progress.next.clear();
            }
            progress.analysis = run;
        }
        self
    }

    /// The progress of the change, if the source has waves.
    pub fn progress(&self) -> Option<&Progress<K>> {
        self.progress.as_ref()
    }

    /// Whether the change has reached all workloads, and nothing speaks against it: they are healthy, have baked and are analysed.
    pub fn is_complete(&self) -> bool {
        let is_over = |progress: &Progress<K>| progress.is_over && progress.analysis.is_none();
        let is_stopped = self.invalid.is_some() || self.refused || self.aborted || self.bad.is_some();
        !is_stopped && self.progress.as_ref().is_some_and(is_over)
    }

    /// Why no further workload may roll now; `None` if some may.
    pub fn reason(&self) -> Option<Wait<K>> {
        let last = RollOrder { idle: true, order: i32::MAX, class: u8::MAX, hash: u64::MAX };
        self.wait(false, last).filter(|wait| !matches!(wait, Wait::Wave))
    }

    /// The workload that proved the content bad.
    pub fn bad(&self) -> Option<&Proof<K>> {
        self.bad.as_ref()
    }

    /// Why a waiting workload may not roll yet; `None`: it may. Without waves, a workload that has failed is not held by
    /// another that failed: the content may be its cure, and the other may have been unhealthy before.
    pub fn wait(&self, has_failed: bool, place: RollOrder) -> Option<Wait<K>> {
        if let Some(invalid) = &self.invalid {
            return Some(Wait::Invalid(invalid.clone()));
        }
        if self.refused {
            return Some(Wait::Refused);
        }
        if self.aborted {
            return Some(Wait::Aborted);
        }
        let is_exempt = self.progress.as_ref().map_or(has_failed, |progress| progress.is_promoted);
        if let Some(bad) = self.bad.as_ref().filter(|_| !is_exempt) {
            return Some(Wait::Bad(bad.clone()));
        }
        if let Some(wait) = self.progress.as_ref().and_then(|progress| progress.wait(place)) {
            return Some(wait);
        }
        let is_full = self.max_in_flight.is_some_and(|limit| self.rolling(has_failed).count() >= limit);
        is_full.then_some(Wait::Full)
    }

    /// The workloads that are rolling, as far as they count for a workload that waits.
    pub fn rolling(&self, has_failed: bool) -> impl Iterator<Item = &K> {
        let counts = move |(_, may_last): &&(K, bool)| has_failed || !may_last;
        self.rolling.iter().filter(counts).map(|(workload, _)| workload)
    }
}

impl<K: Clone> Progress<K> {
    fn wait(&self, place: RollOrder) -> Option<Wait<K>> {
        if let Some(run) = &self.analysis {
            return Some(Wait::Analysis(run.clone()));
        }
        match self.last {
            Some(last) if place <= last => None,
            Some(_) => Some(Wait::Wave),
            None if !self.unhealthy.is_empty() => Some(Wait::Unproven),
            None => self.bakes_until.map(Wait::Bake).or(Some(Wait::Wave)),
        }
    }
}

/// The workloads of a change in waves, counted.
struct Count<'m, K> {
    total: usize,
    moved: Vec<Moved>,
    /// Workloads that have not moved, and whose roll is in progress.
    coming: usize,
    /// Each with whether it has pods.
    unhealthy: Vec<(&'m K, bool)>,
    waiting: Vec<(RollOrder, &'m K)>,
}

impl<K> Default for Count<'_, K> {
    fn default() -> Self {
        Self { total: 0, moved: Vec::new(), coming: 0, unhealthy: Vec::new(), waiting: Vec::new() }
    }
}

impl<'m, K: Clone> Count<'m, K> {
    fn add(&mut self, workload: &'m K, member_state: MemberState, is_rolling: bool) {
        self.total += usize::from(member_state != MemberState::Apart);
        match member_state {
            MemberState::Moved(moved) => {
                self.moved.push(moved);
                if is_rolling || !moved.health.is_at_rest() {
                    self.unhealthy.push((workload, moved.health != Health::Idle));
                }
            }
            MemberState::Waits(Waiting { place }) if is_rolling => {
                self.coming += 1;
                self.unhealthy.push((workload, !place.idle));
            }
            MemberState::Waits(Waiting { place }) => self.waiting.push((place, workload)),
            MemberState::Unaffected | MemberState::Apart => {}
        }
    }

    /// The wave, and the workloads that may move in it.
    ///
    /// While all moved workloads are healthy and have baked, the next wave may begin. Otherwise the wave is the one in which
    /// the controller last moved a workload: workloads that users moved since do not begin the next one.
    fn progress(mut self, waves: &Waves, bake: Duration, promoted: usize, now: Timestamp) -> Progress<K> {
        let all_moved = self.moved.len();
        // A workload without pods proves nothing, so it takes no place of one that has some.
        let with_pods = self.waiting.iter().filter(|(place, _)| !place.idle).count();
        if with_pods > 0 {
            self.moved.retain(|moved| moved.health != Health::Idle);
        }
        let last_turn = self.moved.iter().filter(|moved| moved.in_turn).filter_map(|moved| moved.since).max();
        let (total, moved) = (self.total, self.moved.len() + self.coming);
        // Nor does it delay the others once some with pods have moved: its own move needs no proof.
        let has_proof = self.moved.iter().any(|moved| moved.health != Health::Idle);
        let proving = self.moved.iter().filter(|moved| !has_proof || moved.health != Health::Idle);
        let last_move = proving.filter_map(|moved| moved.since).max();
        let is_healthy = !self.unhealthy.iter().any(|(_, has_pods)| !has_proof || *has_pods);
        let bake = SignedDuration::try_from(bake).unwrap_or(SignedDuration::MAX);
        let bakes_until = last_move.map(|last| last.checked_add(bake).unwrap_or(Timestamp::MAX));
        let bakes_until = bakes_until.filter(|until| *until > now);
        let is_proven = is_healthy && bakes_until.is_none();
        let by_then = last_turn.map(|turn| self.moved.iter().filter(|moved| moved.is_by_turn(turn)).count());
        let in_turn = by_then.unwrap_or_default() + self.coming;
        // A wave counts from 0 here. This one is the last in which the controller moved a workload, if it moved any.
        let begun = waves.first_beyond(in_turn.saturating_sub(1), total);
        let wave = if is_proven { waves.first_beyond(moved, total) } else { begun };
        let wave = wave.max(promoted.saturating_sub(1)).min(waves.count(total) - 1);
        let limit = waves.limit(wave, total);
        let free = limit.saturating_sub(moved).min(self.waiting.len());
        // Workloads without pods come when the others have proven the content.
        let is_unproven = !is_proven && has_proof;
        let free = match with_pods {
            0 if is_unproven && wave >= promoted => 0,
            0 => free,
            with_pods => free.min(with_pods),
        };
        if free > 0 && free < self.waiting.len() {
            self.waiting.select_nth_unstable_by_key(free - 1, |(place, _)| *place);
        }
        let next = &self.waiting[..free];
        // Users may have moved more workloads than the last wave of the controller has: it has ended all the same.
        let begins = in_turn == 0 || begun < wave;
        let completed = waves.first_beyond(in_turn, total).min(waves.count(total) - 1);
        // If nothing waits, the present wave has ended too, unless users made all moves.
        let ended = match (last_turn, self.waiting.is_empty()) {
            (Some(_), is_last) => (begins || is_last).then(|| completed.max(begun + 1)),
            (None, true) => None,
            (None, false) => begins.then_some(wave),
        };
        let ended = ended.filter(|ended| is_proven && wave >= promoted && *ended > 0);
        // Nothing moves into a wave that cannot be analysed, whatever users moved.
        let is_start = wave == 0 && promoted == 0 && last_turn.is_none() && !self.waiting.is_empty();
        let ended = ended.or(is_start.then_some(0));
        Progress {
            wave: wave + 1,
            waves: waves.count(total),
            total,
            limit,
            moved: all_moved,
            last: next.iter().map(|(place, _)| *place).max(),
            next: next.iter().map(|(_, workload)| (*workload).clone()).collect(),
            unhealthy: self.unhealthy.into_iter().map(|(workload, _)| workload.clone()).collect(),
            bakes_until,
            begins,
            is_over: is_proven && self.waiting.is_empty() && self.coming == 0,
            is_promoted: wave < promoted,
            ended: ended.map(|wave| EndedWave { wave, moved: last_turn.or(last_move).filter(|_| wave > 0) }),
            analysis: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{annotations, resolve::Analysis, snapshot::Digest};

    const HEALTHS: [Health; 5] =
        [Health::Settled, Health::Unavailable, Health::Progressing, Health::Unobserved, Health::Failed];

    fn limited(count: usize) -> SpreadPolicy {
        SpreadPolicy { max_in_flight: Some(count), ..SpreadPolicy::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn place(number: usize) -> RollOrder {
        RollOrder { idle: false, order: 0, class: 1, hash: u64::try_from(number).unwrap() }
    }

    fn waits(number: usize) -> MemberState {
        MemberState::Waits(Waiting { place: place(number) })
    }

    /// Moved by the controller at that second.
    fn moved(health: Health, second: i64) -> MemberState {
        MemberState::Moved(Moved { health, since: Some(at(second)), in_turn: true, ..Moved::default() })
    }

    fn member<K>(workload: &K, member_state: MemberState, is_rolling: bool) -> Member<'_, K> {
        Member { workload, member_state, is_rolling }
    }

    /// Why the next workload waits beside a single other workload, with the limit 1.
    fn beside(member_state: MemberState, is_rolling: bool, has_failed: bool) -> Option<Wait<&'static str>> {
        let spread = Spread::of(
            &limited(1),
            ChangeVerdict::default(),
            at(0),
            [member(&"web", member_state, is_rolling)],
        );
        spread.wait(has_failed, place(9))
    }

    /// The time of a user's write has no fraction: in the second of the controller's last move, it may be later.
    #[test]
    fn later_write_in_same_second_begins_no_wave() {
        let keys = [0, 1, 2, 3];
        let turn = at(100) + SignedDuration::from_millis(500);
        for (second, limit) in [(99, 2), (100, 1), (101, 1)] {
            let by_user = Moved { since: Some(at(second)), health: Health::Progressing, ..Moved::default() };
            let in_turn = Moved { since: Some(turn), in_turn: true, ..Moved::default() };
            let states = [MemberState::Moved(in_turn), MemberState::Moved(by_user), waits(2), waits(3)];
            let members = keys.iter().zip(states).map(|(key, member_state)| member(key, member_state, false));
            let spread = Spread::of(&in_waves("1, 50%", 30), ChangeVerdict::default(), at(102), members);
            assert_eq!(spread.progress().unwrap().limit, limit, "a write in second {second}");
        }
    }

    #[test]
    fn wave_waits_for_no_wrong_clock() {
        for (since, expected) in [(100, Some(at(130))), (162, Some(at(192))), (163, None), (86_400, None)] {
            let states = [moved(Health::Settled, since), waits(1)];
            let members =
                states.iter().zip(&[0, 1]).map(|(member_state, key)| member(key, *member_state, false));
            let spread = Spread::of(&in_waves("1, 50%", 30), ChangeVerdict::default(), at(102), members);
            let progress = spread.progress().unwrap();
            assert_eq!((progress.moved, progress.bakes_until), (1, expected), "moved at {since}");
        }
    }

    /// They come when all others have proven the content.
    #[test]
    fn workloads_without_pods_wait_for_the_proof() {
        let idle = |number| MemberState::Waits(Waiting { place: RollOrder { idle: true, ..place(number) } });
        let rolling = moved(Health::Progressing, 100);
        for (states, next) in [
            ([waits(1), waits(2), idle(3), idle(4)], &["a", "b"][..]),
            ([rolling, waits(2), idle(3), idle(4)], &["b"]),
            ([rolling, rolling, idle(3), idle(4)], &[]),
            ([moved(Health::Settled, 50), moved(Health::Settled, 50), idle(3), idle(4)], &["c"]),
            // The move of one of them delays no other.
            ([moved(Health::Settled, 50), moved(Health::Idle, 101), idle(3), idle(4)], &["c"]),
        ] {
            let members = ["a", "b", "c", "d"].iter().zip(states).map(|(key, of)| member(key, of, false));
            let spread = Spread::of(&in_waves("75%", 30), ChangeVerdict::default(), at(102), members);
            let mut found = spread.progress().unwrap().next.clone();
            found.sort_unstable();
            assert_eq!(found, next, "{states:?}");
        }
    }

    /// Nothing waits, and nothing speaks against the content.
    #[test]
    fn change_is_complete_after_its_last_bake() {
        let settled = moved(Health::Settled, 50);
        let failed = ChangeVerdict { failed: Some("it failed".into()), ..ChangeVerdict::default() };
        for (what, last, verdict, expected) in [
            ("all have moved", settled, ChangeVerdict::default(), true),
            ("one is unaffected", MemberState::Unaffected, ChangeVerdict::default(), true),
            ("one waits", waits(1), ChangeVerdict::default(), false),
            ("one rolls", moved(Health::Progressing, 50), ChangeVerdict::default(), false),
            ("one bakes", moved(Health::Settled, 80), ChangeVerdict::default(), false),
            ("one had failed", settled, failed, false),
        ] {
            let members = ["a", "b"].iter().zip([settled, last]).map(|(key, of)| member(key, of, false));
            let spread = Spread::of(&in_waves("1", 30), verdict, at(102), members);
            assert_eq!(spread.is_complete(), expected, "{what}");
        }
    }

    /// It proves nothing, so another one comes first. If none has pods, they are as good as any.
    #[test]
    fn workload_without_pods_takes_no_place() {
        let idle = |number| MemberState::Waits(Waiting { place: RollOrder { idle: true, ..place(number) } });
        for (others, next, bakes_until) in [
            ([waits(3), waits(2)], &["c"][..], None),
            ([idle(1), waits(2)], &["c"], None),
            ([idle(1), idle(2)], &[], Some(at(130))),
        ] {
            let states = [moved(Health::Idle, 100), others[0], others[1]];
            let members = ["a", "b", "c"].iter().zip(states).map(|(key, of)| member(key, of, false));
            let spread = Spread::of(&in_waves("1", 30), ChangeVerdict::default(), at(102), members);
            let progress = spread.progress().unwrap();
            assert_eq!((&progress.next[..], progress.bakes_until), (next, bakes_until), "{others:?}");
            assert_eq!((progress.wave, progress.moved), (1, 1), "{others:?}");
        }
    }

    /// A limit holds only those for which it leaves no place.
    #[test]
    fn reason_is_given_when_no_workload_may_move() {
        let reason = |first: MemberState| {
            let members = [first, waits(1), waits(2)];
            let members = ["a", "b", "c"].iter().zip(members).map(|(key, of)| member(key, of, false));
            Spread::of(&limited(1), ChangeVerdict::default(), at(9), members).reason()
        };
        assert_eq!(reason(waits(0)), None);
        assert_eq!(reason(moved(Health::Settled, 1)), None);
        assert_eq!(reason(moved(Health::Progressing, 1)), Some(Wait::Full));
        let proof = Proof::Workload { workload: Some("a"), rolled_back: false };
        assert_eq!(reason(moved(Health::Failed, 1)), Some(Wait::Bad(proof)));
    }

    #[test]
    fn waits_for_workloads_with_open_outcome() {
        let (full, failed, back) = (
            Some(Wait::Full),
            Some(Wait::Bad(Proof::Workload { workload: Some("web"), rolled_back: false })),
            Some(Wait::Bad(Proof::Workload { workload: Some("web"), rolled_back: true })),
        );
        let moved = |health| Moved { health, ..Moved::default() };
        let unwell = |health| Moved { was_unhealthy: true, ..moved(health) };
        let gives_up = |of| Moved { gives_up: true, ..of };
        let late = |second| Moved { deadline: Some(at(second)), ..moved(Health::Progressing) };
        for (state, is_rolling, well, sick) in [
            (None, false, &None, &None),
            (None, true, &full, &full),
            (Some(moved(Health::Settled)), false, &None, &None),
            (Some(moved(Health::Settled)), true, &full, &full),
            (Some(moved(Health::Progressing)), false, &full, &full),
            (Some(moved(Health::Unobserved)), false, &full, &full),
            (Some(moved(Health::Unavailable)), false, &full, &full),
            (Some(moved(Health::Failed)), false, &failed, &None),
            (Some(moved(Health::Failed)), true, &failed, &full),
            (Some(late(1)), false, &full, &full),
            (Some(late(0)), false, &failed, &full),
            (Some(Moved { health: Health::Settled, ..late(0) }), false, &None, &None),
            // It was unhealthy before: only the end of its rollout is waited for, if there is one.
            (Some(unwell(Health::Failed)), false, &None, &None),
            (Some(unwell(Health::Progressing)), false, &None, &full),
            (Some(gives_up(unwell(Health::Progressing))), false, &full, &full),
            (Some(Moved { rolled_back: true, ..moved(Health::Settled) }), false, &back, &None),
        ] {
            let member_state = state.map_or(waits(1), MemberState::Moved);
            assert_eq!(beside(member_state, is_rolling, false), *well, "{state:?} {is_rolling}");
            assert_eq!(
                beside(member_state, is_rolling, true),
                *sick,
                "{state:?} {is_rolling}, and has failed"
            );
        }
    }

    fn in_waves(waves: &str, bake: i64) -> SpreadPolicy {
        let bake = format!("{bake}s");
        SpreadPolicy::read(|key| match key {
            annotations::WAVES => Some(waves),
            annotations::BAKE => Some(bake.as_str()),
            _ => None,
        })
    }

    #[test]
    fn next_wave_waits_for_successful_analysis() {
        let policy = SpreadPolicy { analysis: Analysis::parse("sound"), ..in_waves("1, 50%", 60) };
        let of = |states: &[MemberState], verdict, second| {
            let names: Vec<_> = (0..states.len()).collect();
            let members =
                names.iter().zip(states).map(|(name, member_state)| member(name, *member_state, false));
            Spread::of(&policy, verdict, at(second), members)
        };
        let none = ChangeVerdict::default;
        let first = [moved(Health::Settled, 0), waits(1), waits(2), waits(3)];
        let ended = Some(EndedWave { wave: 1, moved: Some(at(0)) });
        let spread = of(&first, none(), 100);
        assert_eq!(spread.ended(), ended);
        // A caller that knows no run moves nothing.
        assert_eq!(spread.wait(false, place(1)), Some(Wait::Analysis(AnalysisRun::default())));
        for state in [
            RunState::Unknown,
            RunState::Running,
            RunState::Failed("failed".into()),
            RunState::Undecided("is inconclusive".into()),
            RunState::Unavailable("no".into()),
        ] {
            let run = AnalysisRun { name: "run".into(), state };
            let held = spread.clone().analysed(|_| run.clone());
            assert_eq!(held.wait(false, place(1)), Some(Wait::Analysis(run)));
            let progress = held.progress().unwrap();
            assert_eq!((progress.wave, progress.limit, progress.next.len()), (1, 1, 0));
        }
        let open = spread.analysed(|_| AnalysisRun { name: "run".into(), state: RunState::Successful });
        assert_eq!([1, 2].map(|number| open.wait(false, place(number))), [None, Some(Wait::Wave)]);
        assert_eq!(open.progress().unwrap().wave, 2);
        let users = |second| MemberState::Moved(Moved { since: Some(at(second)), ..Moved::default() });
        // Before the controller moves the first workload, the wave must be possible to analyse.
        let start = Some(EndedWave { wave: 0, moved: None });
        for (states, verdict, second, expected) in [
            (&[waits(0), waits(1)][..], none(), 100, start),
            (&[waits(0), waits(1)], ChangeVerdict { promoted: 1, ..none() }, 100, None),
            (&[waits(0), waits(1)], ChangeVerdict { refused: true, ..none() }, 100, None),
            (&[users(5)], none(), 100, None),
            (&first, none(), 50, None),
            (&[moved(Health::Unavailable, 0), waits(1), waits(2), waits(3)], none(), 100, None),
            (&first, ChangeVerdict { promoted: 2, ..none() }, 100, None),
            (&first, ChangeVerdict { promoted: 1, ..none() }, 100, ended),
            (&first, ChangeVerdict { refused: true, ..none() }, 100, None),
            (&first, ChangeVerdict { failed_elsewhere: true, ..none() }, 100, None),
            (
                &[moved(Health::Settled, 0), moved(Health::Progressing, 90), waits(2), waits(3)],
                none(),
                100,
                None,
            ),
            (
                &[users(5), waits(1), waits(2), waits(3)],
                none(),
                100,
                Some(EndedWave { wave: 1, moved: Some(at(5)) }),
            ),
        ] {
            assert_eq!(of(states, verdict.clone(), second).ended(), expected, "{states:?} {verdict:?}");
        }
        let before = of(&[waits(0), waits(1), waits(2), waits(3)], none(), 100);
        let no = AnalysisRun { name: "start".into(), state: RunState::Unavailable("no".into()) };
        let held = before.clone().analysed(|_| no.clone());
        assert_eq!(held.wait(false, place(0)), Some(Wait::Analysis(no)));
        assert_eq!(held.progress().map(|held| (held.wave, held.limit, held.next.len())), Some((1, 1, 0)));
        let open = before.analysed(|_| AnalysisRun { name: "start".into(), state: RunState::Successful });
        assert_eq!([0, 1].map(|number| open.wait(false, place(number))), [None, Some(Wait::Wave)]);
        // The last wave is judged too, unless users made its moves.
        let all = [moved(Health::Settled, 0), moved(Health::Settled, 1), moved(Health::Settled, 2)];
        assert_eq!(of(&all, none(), 100).ended().map(|ended| ended.wave), Some(3));
        let all = [moved(Health::Settled, 0), users(1), users(2)];
        assert_eq!(of(&all, none(), 100).ended().map(|ended| ended.wave), Some(2));
        assert_eq!(of(&all[1..], none(), 100).ended(), None);
        let unlimited = Spread::of(&in_waves("1", 0), none(), at(100), [member(&0, first[0], false)]);
        assert_eq!(unlimited.ended(), None);
    }

    #[test]
    fn invalid_settings_of_waves_move_nothing() {
        for (waves, bake, says) in [
            (Some("x"), None, "confrev.dev/waves: \"x\""),
            (Some("1"), Some("soon"), "confrev.dev/bake: \"soon\""),
            (None, Some("5m"), "confrev.dev/bake has no effect without confrev.dev/waves"),
            (None, Some("x"), "confrev.dev/bake: \"x\""),
        ] {
            let policy = SpreadPolicy::read(|key| match key {
                annotations::WAVES => waves,
                annotations::BAKE => bake,
                _ => None,
            });
            assert!(policy.is_limited(), "{waves:?} {bake:?}");
            let wait = Spread::of(&policy, ChangeVerdict::default(), at(0), [member(&0, waits(1), false)])
                .wait(true, place(1));
            assert!(matches!(&wait, Some(Wait::Invalid(why)) if why.contains(says)), "{wait:?}");
        }
        assert_eq!(
            SpreadPolicy::read(|key| (key == annotations::BAKE).then_some("0s")),
            SpreadPolicy::default()
        );
    }

    /// Ten workloads and the waves `1, 30%` with a bake time of 10 s, of which some have moved. The wave, the limit, who may move
    /// now, and why the others wait.
    #[test]
    fn waves_follow_each_other_after_bake() {
        use Health::{Progressing, Settled};
        let by_user = |second| MemberState::Moved(Moved { since: Some(at(second)), ..Moved::default() });
        let bake = |until| Some(Wait::Bake(at(until)));
        let unproven = || Some(Wait::Unproven);
        for (first, now, wave, limit, next, wait) in [
            (vec![], 100, 1, 1, vec![0], Some(Wait::Wave)),
            (vec![moved(Progressing, 95)], 200, 1, 1, vec![], unproven()),
            (vec![moved(Settled, 95)], 104, 1, 1, vec![], bake(105)),
            (vec![moved(Settled, 95)], 105, 2, 3, vec![1, 2], Some(Wait::Wave)),
            // The wave continues while its first workload is under way.
            (vec![moved(Settled, 95), moved(Progressing, 105)], 106, 2, 3, vec![2], Some(Wait::Wave)),
            (
                vec![moved(Settled, 95), moved(Settled, 105), moved(Progressing, 106)],
                200,
                2,
                3,
                vec![],
                unproven(),
            ),
            (
                vec![moved(Settled, 95), moved(Settled, 105), moved(Settled, 106)],
                115,
                2,
                3,
                vec![],
                bake(116),
            ),
            (
                vec![moved(Settled, 95), moved(Settled, 105), moved(Settled, 106)],
                116,
                3,
                10,
                (3..10).collect(),
                None,
            ),
            // Workloads that users move begin no wave, but count.
            (vec![by_user(100), by_user(100)], 105, 1, 1, vec![], bake(110)),
            (vec![by_user(100), by_user(100)], 110, 2, 3, vec![2], Some(Wait::Wave)),
            (vec![moved(Settled, 95), by_user(105), by_user(105)], 106, 1, 1, vec![], bake(115)),
            (vec![MemberState::Moved(Moved::default())], 0, 2, 3, vec![1, 2], Some(Wait::Wave)),
        ] {
            let mut states = first.clone();
            states.extend((states.len()..10).map(waits));
            let keys: Vec<_> = (0..10_usize).collect();
            let members =
                keys.iter().zip(&states).map(|(key, member_state)| member(key, *member_state, false));
            let spread = Spread::of(&in_waves("1, 30%", 10), ChangeVerdict::default(), at(now), members);
            let progress = spread.progress().unwrap();
            let mut found = progress.next.clone();
            found.sort_unstable();
            assert_eq!(
                (progress.wave, progress.waves, progress.limit),
                (wave, 3, limit),
                "{first:?} at {now}"
            );
            assert_eq!(
                (found, progress.moved, progress.total),
                (next.clone(), first.len(), 10),
                "{first:?} at {now}"
            );
            for number in first.len()..10 {
                let may = next.contains(&number);
                let expected = if may { None } else { wait.clone() };
                assert_eq!(spread.wait(false, place(number)), expected, "{first:?} at {now}: {number}");
            }
        }
    }

    #[test]
    fn promoted_wave_begins_despite_failures() {
        let failed = moved(Health::Failed, 0);
        let may = |count: usize, promoted, aborted| {
            let states: Vec<_> =
                (0..10).map(|number| if number < count { failed } else { waits(number) }).collect();
            let keys: Vec<_> = (0..10).collect();
            let members =
                keys.iter().zip(&states).map(|(key, member_state)| member(key, *member_state, false));
            let spread = Spread::of(
                &in_waves("1, 30%", 10),
                ChangeVerdict { promoted, aborted, ..ChangeVerdict::default() },
                at(1),
                members,
            );
            let progress = spread.progress().unwrap();
            let next = progress.next.len();
            // Those that may move, and whether nothing else holds them.
            (progress.wave, next, next > 0 && spread.wait(false, place(count)).is_none())
        };
        for (count, promoted, wanted) in [
            (1, 0, (1, 0, false)),
            (1, 1, (1, 0, false)),
            (1, 2, (2, 2, true)),
            (2, 0, (2, 1, false)),
            (2, 1, (2, 1, false)),
            (2, 2, (2, 1, true)),
            (3, 2, (2, 0, false)),
            (3, 3, (3, 7, true)),
            (1, usize::MAX, (3, 9, true)),
        ] {
            assert_eq!(may(count, promoted, false), wanted, "{count} moved, {promoted} promoted");
            assert!(!may(count, promoted, true).2, "{count} moved, {promoted} promoted, aborted");
        }
    }

    /// The failed workload was scaled to 0, opted out or deleted.
    #[test]
    fn recorded_failure_holds_the_rest() {
        let verdict = |promoted| ChangeVerdict {
            failed: Some("a failed".into()),
            promoted,
            ..ChangeVerdict::default()
        };
        let members = || [0, 1].map(|number| (number, waits(number)));
        for policy in [limited(1), in_waves("1", 0)] {
            for (promoted, expected) in [(0, true), (1, policy.waves.is_none())] {
                let keys = members();
                let members = keys.iter().map(|(key, member_state)| member(key, *member_state, false));
                let spread = Spread::of(&policy, verdict(promoted), at(9), members);
                let wait = spread.wait(false, place(0));
                assert_eq!(
                    wait == Some(Wait::Bad(Proof::Verdict("a failed".into()))),
                    expected,
                    "{policy:?}"
                );
            }
        }
    }

    #[test]
    fn lower_order_moves_first_and_hash_breaks_ties() {
        let [a, b] = ["a", "b"].map(Digest::of_bytes);
        let of = |order, health, content: &Digest, name: &str| {
            RollOrder::of(order, health, false, content.as_bytes(), &["ns", "Deployment", name])
        };
        let settled = |order, name| of(order, Health::Settled, &a, name);
        assert!(settled(-1, "web") < settled(0, "api") && settled(0, "api") < settled(1, "web"));
        // A workload that failed with its content may need the change; one that was unhealthy anyway proves nothing.
        let failed = |was| RollOrder::of(0, Health::Failed, was, a.as_bytes(), &["x"]);
        assert!(failed(false) < settled(0, "web") && settled(0, "web") < failed(true));
        let names: Vec<_> = (0..100).map(|number| format!("web-{number}")).collect();
        let first =
            |content: &Digest| names.iter().min_by_key(|name| of(0, Health::Settled, content, name)).unwrap();
        assert_ne!(first(&a), first(&b), "another workload is the first with another content");
        let firsts: std::collections::BTreeSet<_> =
            (0..50).map(|n| first(&Digest::of_bytes(format!("{n}")))).collect();
        assert!(firsts.len() > 20, "{firsts:?}");
        assert_ne!(
            RollOrder::of(0, Health::Settled, false, a.as_bytes(), &["a", "bc"]),
            RollOrder::of(0, Health::Settled, false, a.as_bytes(), &["ab", "c"])
        );
    }

    /// Replicas and commands of several versions work on one change while an upgrade is in progress.
    #[test]
    fn hash_is_the_same_in_every_version() {
        let hashes =
            [("a", vec!["ns", "Deployment", "web"]), ("b", vec!["ns", "Deployment", "web"]), ("", vec![])];
        let found = hashes.map(|(content, path)| hash(Digest::of_bytes(content).as_bytes(), &path));
        assert_eq!(found, [0x745a_d30f_f086_a2ea, 0xf134_c95c_0639_d4ea, 0x0366_9c00_9227_a502]);
    }

    /// A workload that a user moves ends no wave that is not analysed.
    #[test]
    fn wave_is_analysed_whatever_users_move() {
        let policy = SpreadPolicy { analysis: Analysis::parse("sound"), ..in_waves("1, 50%", 10) };
        let by_user = |second| MemberState::Moved(Moved { since: Some(at(second)), ..Moved::default() });
        let settled = |second| moved(Health::Settled, second);
        for (states, expected) in [
            (vec![settled(5)], Some(1)),
            (vec![settled(5), by_user(7)], Some(1)),
            (vec![settled(5), by_user(7), by_user(8), by_user(9)], Some(1)),
            (vec![settled(5), by_user(7), by_user(8), by_user(9), by_user(9), by_user(9)], Some(1)),
            // The wave has begun after its analysis.
            (vec![settled(5), by_user(7), settled(8)], None),
            (vec![settled(5), settled(8), settled(8), settled(8), by_user(8)], Some(2)),
            (vec![settled(5), settled(8), settled(8), settled(8), settled(8)], Some(2)),
            // Before the first move, users moved more than the first wave has.
            (vec![by_user(7), by_user(8)], Some(1)),
        ] {
            let mut all = states.clone();
            all.extend((all.len()..10).map(waits));
            let keys: Vec<_> = (0..10).collect();
            let members = keys.iter().zip(&all).map(|(key, member_state)| member(key, *member_state, false));
            let spread = Spread::of(&policy, ChangeVerdict::default(), at(99), members);
            assert_eq!(spread.ended().map(|ended| ended.wave), expected, "{states:?}");
            let may = (0..10).any(|number| spread.wait(false, place(number)).is_none());
            assert_eq!(may, expected.is_none(), "{states:?}");
        }
    }

    /// Two waves that end with the same workload are one.
    #[test]
    fn waves_with_one_end_are_analysed_as_one() {
        let policy = SpreadPolicy { analysis: Analysis::parse("sound"), ..in_waves("3, 100%", 0) };
        let keys = [0, 1, 2];
        let members = keys.iter().map(|key| member(key, moved(Health::Settled, 5), false));
        let spread = Spread::of(&policy, ChangeVerdict::default(), at(9), members);
        assert_eq!(spread.ended().map(|ended| ended.wave), Some(1));
    }

    #[test]
    fn wave_begins_with_its_first_workload() {
        for (waves, moved_before, wave, begins) in [
            ("3, 50%", 0, 1, true),
            ("3, 50%", 1, 1, false),
            ("3, 50%", 2, 1, false),
            ("3, 50%", 3, 2, true),
            ("3, 50%", 4, 2, false),
            ("3, 50%", 5, 3, true),
            ("3, 50%", 6, 3, false),
        ] {
            let states: Vec<_> = (0..10)
                .map(|n| if n < moved_before { moved(Health::Settled, 0) } else { waits(n) })
                .collect();
            let keys: Vec<_> = (0..10).collect();
            let members =
                keys.iter().zip(&states).map(|(key, member_state)| member(key, *member_state, false));
            let spread = Spread::of(&in_waves(waves, 0), ChangeVerdict::default(), at(1), members);
            let progress = spread.progress().unwrap();
            assert_eq!((progress.wave, progress.begins), (wave, begins), "{moved_before} of {waves}");
        }
    }

    #[test]
    fn unaffected_workloads_prove_nothing() {
        let states =
            [MemberState::Unaffected, MemberState::Unaffected, MemberState::Apart, waits(1), waits(2)];
        let members = || {
            states.iter().zip(&[0, 1, 2, 3, 4]).map(|(member_state, key)| member(key, *member_state, false))
        };
        let spread = Spread::of(&in_waves("1", 0), ChangeVerdict::default(), at(0), members());
        let progress = spread.progress().unwrap();
        assert_eq!((progress.wave, progress.total, progress.moved, &progress.next[..]), (1, 4, 0, &[3][..]));
    }

    fn state() -> impl Strategy<Value = (MemberState, bool)> {
        let moved = (0..HEALTHS.len(), any::<[bool; 4]>(), proptest::option::of(0..50_i64));
        let moved =
            moved.prop_map(|(health, [was_unhealthy, rolled_back, gives_up, in_turn], since)| Moved {
                health: HEALTHS[health],
                was_unhealthy,
                rolled_back,
                gives_up,
                in_turn,
                since: since.map(at),
                deadline: None,
                written_since: false,
            });
        let member_state = prop_oneof![
            4 => (0..usize::MAX).prop_map(waits),
            4 => moved.prop_map(MemberState::Moved),
            1 => Just(MemberState::Unaffected),
            1 => Just(MemberState::Apart),
        ];
        (member_state, any::<bool>())
    }

    fn policy() -> impl Strategy<Value = SpreadPolicy> {
        let waves = prop_oneof![Just(None), Just(Some("1")), Just(Some("1, 30%")), Just(Some("20%, 2, 90%"))];
        (waves, proptest::option::of(1..6_usize), 0..20_u64).prop_map(|(waves, max_in_flight, bake)| {
            SpreadPolicy {
                max_in_flight,
                waves: waves.and_then(Waves::parse),
                bake: Duration::from_secs(bake),
                ..SpreadPolicy::default()
            }
        })
    }

    proptest! {
        /// Whatever the order of the workloads, as many may move as the limits allow, and the reason of the others is the same.
        #[test]
        fn no_more_may_move_than_allowed(
            states in proptest::collection::vec(state(), 0..12), policy in policy(), now in 0..70_i64,
        ) {
            let keys: Vec<_> = (0..states.len()).collect();
            let members = || keys.iter().zip(&states)
                .map(|(key, (member_state, is_rolling))| member(key, *member_state, *is_rolling));
            let spread = Spread::of(&policy, ChangeVerdict::default(), at(now), members());
            let reversed: Vec<_> = members().collect();
            let reversed = Spread::of(&policy, ChangeVerdict::default(), at(now), reversed.into_iter().rev());
            let rolling = states.iter().filter(|(_, is_rolling)| *is_rolling).count();
            let waiting = members().filter_map(|member| match member.member_state {
                MemberState::Waits(Waiting { place, .. }) if !member.is_rolling => Some(place),
                _ => None,
            });
            let waiting: Vec<_> = waiting.collect();
            for has_failed in [false, true] {
                let may = |spread: &Spread<usize>| -> Vec<_> {
                    waiting.iter().filter(|place| spread.wait(has_failed, **place).is_none()).copied().collect()
                };
                prop_assert_eq!(may(&spread), may(&reversed));
                if let Some(limit) = policy.max_in_flight {
                    prop_assert!(rolling < limit || may(&spread).is_empty());
                }
                if let Some(progress) = spread.progress() {
                    let coming = states.iter().filter(|(member_state, rolls)| *rolls && matches!(member_state, MemberState::Waits(_)));
                    let taken = progress.moved + coming.count();
                    prop_assert!(may(&spread).is_empty() || taken + may(&spread).len() <= progress.limit);
                    prop_assert!(progress.wave <= progress.waves && progress.limit <= progress.total);
                    // The first ones may move, not others.
                    let last = may(&spread).into_iter().max();
                    prop_assert!(last.is_none_or(|last| waiting.iter().all(|place| *place > last || may(&spread).contains(place))));
                }
            }
        }

        /// The wave that is derived is the one of a controller that remembers it: it begins a wave only when the moved workloads
        /// have been healthy for the bake time. Users move some workloads meanwhile.
        #[test]
        fn derived_wave_is_the_remembered_one(
            steps in proptest::collection::vec((0..6_u8, 0..12_usize, 0..8_i64), 1..120),
            waves in prop_oneof![Just("1"), Just("1, 30%"), Just("2, 25%, 5, 90%")],
            bake in 0..12_i64,
        ) {
            const TOTAL: usize = 12;
            let policy = in_waves(waves, bake);
            let of = policy.waves.clone().unwrap();
            let keys: Vec<_> = (0..TOTAL).collect();
            let mut states: Vec<_> = (0..TOTAL).map(waits).collect();
            let (mut now, mut wave) = (1000, 0);
            for (step, number, seconds) in steps {
                let members = keys.iter().zip(&states).map(|(key, member_state)| member(key, *member_state, false));
                let spread = Spread::of(&policy, ChangeVerdict::default(), at(now), members);
                let all: Vec<_> = states.iter().filter_map(|state| match state {
                    MemberState::Moved(moved) => Some(*moved),
                    _ => None,
                }).collect();
                let is_proven = all.iter().all(|moved| moved.health == Health::Settled)
                    && all.iter().all(|moved| moved.since.is_none_or(|since| since + SignedDuration::from_secs(bake) <= at(now)));
                let mut next = wave;
                while is_proven && of.limit(next, TOTAL) <= all.len() && next < of.count(TOTAL) {
                    next += 1;
                }
                match (step, states[number]) {
                    (0 | 1, MemberState::Waits(Waiting { place, .. })) => {
                        if spread.wait(false, place).is_none() {
                            prop_assert!(all.len() < of.limit(next, TOTAL), "{:?} in wave {}", states, next);
                            wave = next;
                            states[number] = moved(Health::Progressing, now);
                            // Two moves have different times, as two writes do.
                            now += 1;
                        } else {
                            let is_held = spread.progress().unwrap().next.is_empty();
                            prop_assert!(!is_held || all.len() >= of.limit(next, TOTAL), "{:?} in wave {}", states, next);
                        }
                    }
                    (2, MemberState::Waits(_)) => {
                        states[number] = MemberState::Moved(Moved { since: Some(at(now)), ..Moved::default() });
                        now += 1;
                    }
                    (3 | 4, MemberState::Moved(moved)) => {
                        states[number] = MemberState::Moved(Moved { health: Health::Settled, ..moved });
                    }
                    (5, MemberState::Moved(moved)) => {
                        states[number] = MemberState::Moved(Moved { health: Health::Unavailable, ..moved });
                    }
                    _ => now += seconds,
                }
            }
        }
    }
}
