//! What an enumerated run does to the calls of confrev: each call has a number, and some numbers have a fault.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use confrev::{
    cluster::{ApiError, Event},
    controller::{Outcome, Task},
    telemetry::metrics::Reason,
};
use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    api::{Memory, late, refused},
    model::Model,
    replica::Class,
    store::Key,
};

/// How long a process takes to start again.
const START: SignedDuration = SignedDuration::from_secs(3);
/// How long a Lease outlives its holder.
const LEASE: SignedDuration = SignedDuration::from_secs(15);
/// How long a delayed answer to the controller takes.
const DELAY: SignedDuration = SignedDuration::from_secs(8);
/// How long one takes on the way of a review. The API server waits for 5 s.
const REVIEW_DELAY: SignedDuration = SignedDuration::from_secs(3);
/// When a caller gives up.
const LIMIT: SignedDuration = SignedDuration::from_secs(10);
/// The same on the way of a review.
const REVIEW_LIMIT: SignedDuration = SignedDuration::from_secs(4);
/// When a request that was given up takes effect.
const LATE: SignedDuration = SignedDuration::from_secs(14);
/// How long a rollout takes, where it takes any time.
const ROLLOUT: SignedDuration = SignedDuration::from_secs(5);
/// How long a late collector takes from its judgement to the deletion.
const COLLECTED: SignedDuration = SignedDuration::from_secs(2);
/// How long pods take to end.
const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// How long a watch is silent before it is begun again.
pub(crate) const SILENCE: SignedDuration = SignedDuration::from_secs(60);

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallFault {
    /// The process ends before the call; another replica leads once the Lease has run out.
    Crash,
    /// The process ends after the call was done; it starts again, knows nothing, and leads.
    CrashDone,
    /// The call is done, and its answer never comes.
    Lost,
    /// The call is done, and its answer comes seconds later.
    Delayed,
    /// The caller gives the call up, and seconds later it is done.
    Late,
    /// The object has changed: 409.
    Conflict,
    /// The API server fails: 500.
    Refused,
    /// From this call on the replica's watches bring nothing for a minute; then they list anew.
    Stale,
    /// The same of the watches of one kind, which then bring what they held back.
    StaleOf(Class),
}

impl CallFault {
    /// Every fault.
    pub(crate) const ALL: [Self; 13] = [
        Self::Crash,
        Self::CrashDone,
        Self::Lost,
        Self::Delayed,
        Self::Late,
        Self::Conflict,
        Self::Refused,
        Self::Stale,
        Self::StaleOf(Class::Workloads),
        Self::StaleOf(Class::Revisions),
        Self::StaleOf(Class::Snapshots),
        Self::StaleOf(Class::Sources),
        Self::StaleOf(Class::Namespaces),
    ];

    /// Whether the fault means something for this call: nothing is half done by a read.
    pub(crate) fn concerns(self, writes: bool) -> bool {
        writes || !matches!(self, Self::CrashDone | Self::Late | Self::Conflict)
    }

    /// Whether watches are silent for a while.
    pub(crate) fn is_stale(self) -> bool {
        matches!(self, Self::Stale | Self::StaleOf(_))
    }

    /// The name by which a run is asked for.
    pub(crate) fn name(self) -> String {
        match self {
            Self::CrashDone => "crash-done".to_owned(),
            Self::StaleOf(class) => format!("stale-{class:?}").to_lowercase(),
            plain => format!("{plain:?}").to_lowercase(),
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// A call that was made: what for, and whether it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub what: String,
    pub writes: bool,
}

type Doing = Pin<Box<dyn Future<Output = Result<Outcome, ApiError>> + Send>>;
type Effect = Box<dyn FnOnce(&Arc<Model>) + Send>;

struct Running {
    replica: usize,
    /// Of which process.
    life: usize,
    task: Task,
    doing: Doing,
}

/// What is planned for one run, and what is under way.
#[derive(Default)]
pub(crate) struct Trial {
    plan: Vec<(usize, CallFault)>,
    /// Every call so far.
    pub made: Vec<Made>,
    /// How many of the plan have happened.
    pub happened: usize,
    running: Vec<Running>,
    /// Requests that are on their way still.
    late: Vec<(SignedDuration, Effect)>,
    /// When something is to be looked at again.
    wakes: BTreeSet<SignedDuration>,
    /// How many processes each replica has had before.
    lives: [usize; 2],
    /// Until when a process is down.
    down: [Option<SignedDuration>; 2],
    /// When who leads.
    election: Option<(SignedDuration, usize)>,
    /// Whether rollouts take time.
    slow: bool,
    /// Whether the collector deletes what it judged seconds before.
    late_collector: bool,
    /// Since when which template of a workload is rolled out.
    rollouts: BTreeMap<Key, (Value, SignedDuration)>,
    /// When the pods of revisions under deletion end.
    ending: BTreeMap<Key, SignedDuration>,
    /// Warnings that Events told.
    pub warnings: BTreeSet<String>,
}

impl Trial {
    /// A run with these faults, each at the call of that number.
    pub(crate) fn new(plan: &[(usize, CallFault)]) -> Self {
        Self { plan: plan.to_vec(), ..Self::default() }
    }
}

/// Ready at that time, or when its process has ended.
struct Until {
    api: Memory,
    at: SignedDuration,
}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let elapsed = self.api.model.settings().elapsed;
        if elapsed >= self.at || self.api.has_ended() {
            return Poll::Ready(());
        }
        // Time passes only between two polls, and each must come by here.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Memory {
    /// Does one call of an enumerated run.
    pub(crate) async fn enumerated_call<T: Send + 'static>(
        &self,
        what: &str,
        writes: bool,
        act: impl FnOnce(&Arc<Model>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = &self.model;
        if self.has_ended() {
            return Err(late(what));
        }
        let fault = model.next_fault(what, writes);
        let (delay, limit) = if self.for_review { (REVIEW_DELAY, REVIEW_LIMIT) } else { (DELAY, LIMIT) };
        match fault {
            None => act(model),
            Some(CallFault::Conflict) => Err(ApiError::Conflict { what: what.to_owned() }),
            Some(CallFault::Refused) => Err(refused(what)),
            Some(CallFault::Crash) => {
                model.crash(self.replica, LEASE, 1 - self.replica);
                Err(late(what))
            }
            Some(CallFault::CrashDone) => {
                drop(act(model));
                model.crash(self.replica, START, self.replica);
                Err(late(what))
            }
            Some(CallFault::Lost) => {
                drop(act(model));
                self.rest(limit).await;
                Err(late(what))
            }
            Some(CallFault::Delayed) => {
                let answer = act(model);
                self.rest(delay).await;
                answer
            }
            Some(CallFault::Late) => {
                model.later(Box::new(move |model| drop(act(model))));
                self.rest(limit).await;
                Err(late(what))
            }
            Some(CallFault::Stale) => {
                model.silence(self.replica, None);
                act(model)
            }
            Some(CallFault::StaleOf(class)) => {
                model.silence(self.replica, Some(class));
                act(model)
            }
        }
    }

    async fn rest(&self, time: SignedDuration) {
        let at = self.model.settings().elapsed + time;
        self.model.trial().wakes.insert(at);
        Until { api: self.clone(), at }.await;
    }

    /// Whether the process that calls has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.model.is_enumerated() && self.model.life(self.replica) != self.life
    }
}

impl Model {
    /// Whether this is the world of an enumerated run.
    pub(crate) fn is_enumerated(&self) -> bool {
        self.trial.is_some()
    }

    pub(crate) fn trial(&self) -> MutexGuard<'_, Trial> {
        self.trial.as_ref().unwrap().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a replica's process is down.
    pub(crate) fn is_down(&self, replica: usize) -> bool {
        self.is_enumerated() && self.trial().down[replica].is_some()
    }

    /// How many processes a replica has had before.
    pub(crate) fn life(&self, replica: usize) -> usize {
        if self.is_enumerated() { self.trial().lives[replica] } else { 0 }
    }

    fn next_fault(&self, what: &str, writes: bool) -> Option<CallFault> {
        if writes {
            self.writes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let mut trial = self.trial();
        let number = trial.made.len();
        trial.made.push(Made { what: what.to_owned(), writes });
        let planned = trial.plan.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        let fault = planned.filter(|fault| fault.concerns(writes));
        trial.happened += usize::from(fault.is_some());
        drop(trial);
        crate::trace!("  {number} {what}{}", fault.map_or(String::new(), |fault| format!(": {fault:?}")));
        fault
    }

    /// Begins a task of the controller.
    pub(crate) fn begin(self: &Arc<Self>, replica: usize, task: Task, doing: Doing) {
        self.go_on(Running { replica, life: self.life(replica), task, doing });
    }

    /// Lets a task go on as far as it can.
    fn go_on(self: &Arc<Self>, mut running: Running) -> bool {
        let shared = self.replicas()[running.replica].shared.clone();
        let answer = running.doing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // Its process has ended meanwhile.
        if self.life(running.replica) != running.life {
            return true;
        }
        let Poll::Ready(outcome) = answer else {
            self.trial().running.push(running);
            return false;
        };
        let Running { replica, task, .. } = running;
        shared.lock().finish(&task, outcome, self.now(replica));
        true
    }

    /// Waits with a review for what it waits for, while everything else goes its way.
    pub(crate) fn pass(self: &Arc<Self>) {
        let pause = self.round(SignedDuration::MAX).unwrap_or(SignedDuration::from_millis(1));
        self.settings().elapsed += pause;
    }

    fn later(&self, effect: Effect) {
        let at = self.settings().elapsed + LATE;
        let mut trial = self.trial();
        trial.wakes.insert(at);
        trial.late.push((at, effect));
    }

    fn crash(&self, replica: usize, election: SignedDuration, next: usize) {
        let elapsed = self.settings().elapsed;
        let led = self.settings().leader == Some(replica);
        let mut trial = self.trial();
        trial.down[replica] = Some(elapsed + START);
        trial.lives[replica] += 1;
        trial.running.retain(|running| running.replica != replica);
        trial.wakes.insert(elapsed + START);
        if led {
            trial.election = Some((elapsed + election, next));
            trial.wakes.insert(elapsed + election);
            drop(trial);
            self.settings().leader = None;
        }
    }

    fn silence(&self, replica: usize, class: Option<Class>) {
        let until = self.settings().elapsed + SILENCE;
        self.trial().wakes.insert(until);
        let until = self.now(replica) + SILENCE;
        self.replicas()[replica].silence(class, until);
    }

    /// Does what time has brought: processes start, someone leads, requests and answers arrive. Answers whether anything did.
    pub(crate) fn take_turns(self: &Arc<Self>) -> bool {
        if !self.is_enumerated() {
            return false;
        }
        let elapsed = self.settings().elapsed;
        let mut any = false;
        for replica in 0..2 {
            if self.trial().down[replica].is_some_and(|until| until <= elapsed) {
                let fresh = self.new_replica();
                self.replicas()[replica] = fresh;
                self.trial().down[replica] = None;
                any = true;
            }
        }
        let elected = self.trial().election.filter(|(at, _)| *at <= elapsed);
        if let Some((_, leader)) = elected
            && !self.is_down(leader)
        {
            self.trial().election = None;
            self.lead(leader);
            any = true;
        }
        let (due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.trial().late).into_iter().partition(|(at, _)| *at <= elapsed);
        self.trial().late.extend(waiting);
        for (_, effect) in due {
            effect(self);
            any = true;
        }
        let running = std::mem::take(&mut self.trial().running);
        for running in running {
            any |= self.go_on(running);
        }
        any
    }

    /// How long it is until something is to be looked at again.
    pub(crate) fn next_turn(&self) -> Option<SignedDuration> {
        if !self.is_enumerated() {
            return None;
        }
        let elapsed = self.settings().elapsed;
        self.trial().wakes.retain(|at| *at > elapsed);
        self.trial().wakes.first().map(|at| *at - elapsed)
    }

    /// An Event was written.
    pub(crate) fn was_told(&self, event: &Event) {
        if self.is_enumerated() && event.reason == Reason::SnapshotLost {
            self.trial().warnings.insert(format!("{} of {}", event.reason.text(), event.regarding.name));
        }
    }
}

impl Model {
    /// Whether the rollout of a template has ended, be it well or not.
    pub(crate) fn is_rolled_out(&self, key: &Key, template: &Value) -> bool {
        let elapsed = self.settings().elapsed;
        let mut trial = self.trial();
        if !trial.slow {
            return true;
        }
        let begun = trial.rollouts.entry(key.clone()).or_insert_with(|| (template.clone(), elapsed));
        if begun.0 != *template {
            *begun = (template.clone(), elapsed);
        }
        let ends = begun.1 + ROLLOUT;
        if ends > elapsed {
            trial.wakes.insert(ends);
        }
        ends <= elapsed
    }

    /// The pods of a revision begin to end.
    pub(crate) fn pods_end_later(&self, key: &Key) {
        let ends = self.settings().elapsed + GRACE;
        let mut trial = self.trial();
        trial.wakes.insert(ends);
        trial.ending.insert(key.clone(), ends);
    }

    /// Whether a revision that is being deleted has pods.
    pub(crate) fn has_pods_still(&self, key: &Key) -> bool {
        let elapsed = self.settings().elapsed;
        self.trial().ending.get(key).is_some_and(|ends| *ends > elapsed)
    }

    /// Whether time alone may give the cluster's controllers something to do.
    pub(crate) fn has_timers(&self) -> bool {
        self.is_enumerated() && {
            let trial = self.trial();
            trial.slow || !trial.ending.is_empty()
        }
    }

    /// From now on the collector is late.
    pub(crate) fn collect_late(&self) {
        self.trial().late_collector = true;
    }

    /// The collector deletes an object, if need be some time after it judged that.
    pub(crate) fn collect_object(&self, key: &Key, object: &Value) {
        if !self.is_enumerated() || !self.trial().late_collector {
            self.delete(key);
            return self.ghost().collected(key);
        }
        let at = self.settings().elapsed + COLLECTED;
        let mut trial = self.trial();
        if trial.ending.insert(key.clone(), at).is_some() {
            return;
        }
        trial.wakes.insert(at);
        let (key, uid) = (key.clone(), object["metadata"]["uid"].clone());
        let effect = move |model: &Arc<Model>| {
            model.trial().ending.remove(&key);
            if model.get(&key).is_some_and(|live| live["metadata"]["uid"] == uid) {
                model.delete(&key);
            }
        };
        trial.late.push((at, Box::new(effect)));
    }

    /// Rollouts take some seconds from now on.
    pub(crate) fn take_time(&self) {
        self.trial().slow = true;
    }
}
