//! The faults of an enumerated run: each call of confrev has a number, and some numbers have a fault.

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

/// How long a process takes to restart.
const START: SignedDuration = SignedDuration::from_secs(3);
/// How long a Lease remains after its holder has ended.
const LEASE: SignedDuration = SignedDuration::from_secs(8);
/// The delay of a delayed response to the controller.
const DELAY: SignedDuration = SignedDuration::from_secs(8);
/// The delay of a delayed response during a review. The API server waits for 5 s.
const REVIEW_DELAY: SignedDuration = SignedDuration::from_secs(3);
/// The time limit of a call.
const LIMIT: SignedDuration = SignedDuration::from_secs(10);
/// The time limit of a call during a review.
const REVIEW_LIMIT: SignedDuration = SignedDuration::from_secs(4);
/// When an abandoned request takes effect.
const LATE: SignedDuration = SignedDuration::from_secs(14);
/// How long a rollout takes, if it takes time.
const ROLLOUT: SignedDuration = SignedDuration::from_secs(5);
/// The time of a late garbage collector from its decision to the deletion.
const COLLECTED: SignedDuration = SignedDuration::from_secs(2);
/// How long pods take to terminate.
const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// How long a watch is silent before it is restarted.
pub(crate) const SILENCE: SignedDuration = SignedDuration::from_secs(60);

/// How the call begins that writes an Event.
pub(crate) const TELL: &str = "tell ";

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallFault {
    /// The process ends before the call; another replica leads after the Lease has expired.
    Crash,
    /// The process ends after the call; it restarts without any memory, and leads.
    CrashDone,
    /// The call takes effect, and its response never arrives.
    Lost,
    /// The call takes effect, and its response arrives seconds later.
    Delayed,
    /// The caller abandons the call, which takes effect seconds later.
    Late,
    /// The object has changed: 409.
    Conflict,
    /// The API server fails: 500.
    Refused,
    /// From this call on, all watches of the replica are silent for a minute. Then they list again.
    Stale,
    /// The watches of one class are silent for a minute. Then they deliver the withheld events.
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

    /// Whether the fault applies to this call: a read has no effect that could be partial.
    pub(crate) fn concerns(self, writes: bool) -> bool {
        writes || !matches!(self, Self::CrashDone | Self::Late | Self::Conflict)
    }

    /// Whether the fault silences watches.
    pub(crate) fn is_stale(self) -> bool {
        matches!(self, Self::Stale | Self::StaleOf(_))
    }

    /// The name that selects the fault.
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

/// A call: its description, and whether it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub what: String,
    pub writes: bool,
}

type Doing = Pin<Box<dyn Future<Output = Result<Outcome, ApiError>> + Send>>;
type Effect = Box<dyn FnOnce(&Arc<Model>) + Send>;

struct Running {
    replica: usize,
    /// The number of the process.
    life: usize,
    task: Task,
    doing: Doing,
}

/// The plan of one run, and the operations in progress.
#[derive(Default)]
pub(crate) struct Trial {
    plan: Vec<(usize, CallFault)>,
    /// All calls so far.
    pub made: Vec<Made>,
    /// The number of planned faults that have happened.
    pub happened: usize,
    running: Vec<Running>,
    /// Requests in transit.
    late: Vec<(SignedDuration, Effect)>,
    /// The times at which something must be checked again.
    wakes: BTreeSet<SignedDuration>,
    /// The number of earlier processes of each replica.
    lives: [usize; 2],
    /// The end of the downtime of each process.
    down: [Option<SignedDuration>; 2],
    /// The time of the next election, and the new leader.
    election: Option<(SignedDuration, usize)>,
    /// Whether rollouts take time.
    slow: bool,
    /// Whether the garbage collector deletes seconds after its decision.
    late_collector: bool,
    /// The template of each workload's rollout, and the start of that rollout.
    rollouts: BTreeMap<Key, (Value, SignedDuration)>,
    /// When the pods of deleted revisions have terminated.
    ending: BTreeMap<Key, SignedDuration>,
    /// Whether the policy `confrev-carry` is in force.
    pub carries: bool,
    /// Warnings in Events.
    pub warnings: BTreeSet<String>,
    /// The writes of confrev, its Events and its answers to writers, if they are recorded.
    pub record: Option<Vec<String>>,
}

impl Trial {
    /// Adds a line to the record, if there is one.
    pub(crate) fn record(&mut self, line: &str) {
        if let Some(record) = &mut self.record {
            record.push(line.to_owned());
        }
    }

    /// A run with these faults, each at the call with that number.
    pub(crate) fn new(plan: &[(usize, CallFault)]) -> Self {
        Self { plan: plan.to_vec(), ..Self::default() }
    }

    /// The same, with or without the policy `confrev-carry`.
    pub(crate) fn carrying(self, carries: bool) -> Self {
        Self { carries, ..self }
    }
}

/// A future that is ready at that time, or when the calling process has ended.
struct Until {
    api: Memory,
    at: SignedDuration,
}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let elapsed = self.api.model.conditions().elapsed;
        if elapsed >= self.at || self.api.has_ended() {
            return Poll::Ready(());
        }
        // Time advances only between two polls, and each poll must reach this point.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Memory {
    /// Performs one call of an enumerated run.
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
        let at = self.model.conditions().elapsed + time;
        self.model.trial().wakes.insert(at);
        Until { api: self.clone(), at }.await;
    }

    /// Whether the calling process has ended.
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

    /// The number of earlier processes of a replica.
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
        if writes && !what.starts_with(TELL) {
            trial.record(what);
        }
        let planned = trial.plan.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        let fault = planned.filter(|fault| fault.concerns(writes));
        trial.happened += usize::from(fault.is_some());
        drop(trial);
        crate::trace!(
            "  {} {number} {what}{}",
            self.cluster_time(),
            fault.map_or(String::new(), |fault| format!(": {fault:?}"))
        );
        fault
    }

    /// Begins a task of the controller.
    pub(crate) fn begin(self: &Arc<Self>, replica: usize, task: Task, doing: Doing) {
        self.go_on(Running { replica, life: self.life(replica), task, doing });
    }

    /// Continues a task as far as possible.
    fn go_on(self: &Arc<Self>, mut running: Running) -> bool {
        let shared = self.replicas()[running.replica].shared.clone();
        let answer = running.doing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // The task's process has ended meanwhile.
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

    /// Lets time pass while a review waits for a call; all other components run.
    pub(crate) fn pass(self: &Arc<Self>) {
        let pause = self.round(SignedDuration::MAX).unwrap_or(SignedDuration::from_millis(1));
        self.conditions().elapsed += pause;
    }

    fn later(&self, effect: Effect) {
        let at = self.conditions().elapsed + LATE;
        let mut trial = self.trial();
        trial.wakes.insert(at);
        trial.late.push((at, effect));
    }

    fn crash(&self, replica: usize, election: SignedDuration, next: usize) {
        let elapsed = self.conditions().elapsed;
        let led = self.conditions().leader == Some(replica);
        let mut trial = self.trial();
        trial.down[replica] = Some(elapsed + START);
        trial.lives[replica] += 1;
        trial.running.retain(|running| running.replica != replica);
        trial.wakes.insert(elapsed + START);
        if led {
            trial.election = Some((elapsed + election, next));
            trial.wakes.insert(elapsed + election);
            drop(trial);
            self.conditions().leader = None;
        }
    }

    fn silence(&self, replica: usize, class: Option<Class>) {
        let until = self.conditions().elapsed + SILENCE;
        self.trial().wakes.insert(until);
        let until = self.now(replica) + SILENCE;
        self.replicas()[replica].silence(class, until);
    }

    /// Performs the steps that are due: processes start, a replica leads, requests and responses arrive. Returns
    /// whether there was any.
    pub(crate) fn take_turns(self: &Arc<Self>) -> bool {
        if !self.is_enumerated() {
            return false;
        }
        let elapsed = self.conditions().elapsed;
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

    /// The time until something must be checked again.
    pub(crate) fn next_turn(&self) -> Option<SignedDuration> {
        if !self.is_enumerated() {
            return None;
        }
        let elapsed = self.conditions().elapsed;
        self.trial().wakes.retain(|at| *at > elapsed);
        self.trial().wakes.first().map(|at| *at - elapsed)
    }

    /// Records a written Event.
    pub(crate) fn was_told(&self, event: &Event) {
        if self.is_enumerated() {
            let Event { reason, regarding, note, .. } = event;
            self.trial().record(&format!(
                "{} of {}/{}: {note}",
                reason.text(),
                regarding.kind,
                regarding.name
            ));
        }
        if self.is_enumerated() && event.reason == Reason::SnapshotLost {
            self.trial().warnings.insert(format!("{} of {}", event.reason.text(), event.regarding.name));
        }
    }
}

impl Model {
    /// Whether the rollout of a template has ended, with or without success.
    pub(crate) fn is_rolled_out(&self, key: &Key, template: &Value) -> bool {
        let elapsed = self.conditions().elapsed;
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

    /// The pods of a revision begin to terminate.
    pub(crate) fn pods_end_later(&self, key: &Key) {
        let ends = self.conditions().elapsed + GRACE;
        let mut trial = self.trial();
        trial.wakes.insert(ends);
        trial.ending.insert(key.clone(), ends);
    }

    /// Whether a deleted revision still has pods.
    pub(crate) fn has_pods_still(&self, key: &Key) -> bool {
        let elapsed = self.conditions().elapsed;
        self.trial().ending.get(key).is_some_and(|ends| *ends > elapsed)
    }

    /// Whether the passing of time alone may give the cluster's controllers something to do.
    pub(crate) fn has_timers(&self) -> bool {
        self.is_enumerated() && {
            let trial = self.trial();
            trial.slow || !trial.ending.is_empty()
        }
    }

    /// From now on, the garbage collector is late.
    pub(crate) fn collect_late(&self) {
        self.trial().late_collector = true;
    }

    /// The garbage collector deletes an object, possibly some time after its decision.
    pub(crate) fn collect_object(&self, key: &Key, object: &Value) {
        if !self.is_enumerated() || !self.trial().late_collector {
            self.delete(key);
            return self.ghost().collected(key);
        }
        let at = self.conditions().elapsed + COLLECTED;
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

    /// From now on, rollouts take some seconds.
    pub(crate) fn take_time(&self) {
        self.trial().slow = true;
    }
}
