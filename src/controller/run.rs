//! The controller's loop, and the state that it shares with admission and the watches.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::Instant,
};
use tracing::Instrument as _;

use super::{
    Leadership, Name, Outcome, Served, State, Step, Task,
    clock::Clock,
    execute,
    subjects::Reader,
    vitals::{Pulse, Vitals},
};
use crate::{
    cluster::{Api, ApiError},
    resolve::{Decision, Facts, Observed},
    snapshot::{ObjectName, Rotated},
    telemetry::{
        Condition, Metrics,
        metrics::{Done, EventOutcome, Limit, Roll},
        traces,
    },
};

/// The most actions in progress at once.
const CONCURRENCY: usize = 16;
/// The most lists in progress at once: each holds a page in memory, as text and as objects.
const LISTS: usize = 2;
/// The longest that a list waits for its turn: the lists before it may wait for a server that does not answer.
const LONGEST_TURN: Duration = Duration::from_secs(2);
/// The longest rest of the loop, since clocks may step and a wake-up may be lost.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// The least time between two updates of the gauges: each update reads every workload.
const STANDING_PAUSE: Duration = Duration::from_secs(1);

/// The state, shared by the watches, the loop and admission. It is locked only briefly, never across an await.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Copied from the state, where they never change: every review reads them.
    served: Served,
    reader: Reader,
    clock: Mutex<Clock>,
    changed: Arc<Notify>,
    namespaces: watch::Sender<usize>,
    lists: Arc<Semaphore>,
    sync: Arc<Sync>,
    vitals: Vitals,
}

/// Counts the watches that have not listed their objects yet.
struct Sync {
    open: AtomicUsize,
    complete: AtomicBool,
    /// Whether every watch has listed its objects.
    done: AtomicBool,
    condition: Condition,
    reached: Notify,
}

/// Notified once by a watch when its objects are known. The default value notifies nothing.
#[derive(Default)]
pub(super) struct SyncPoint(Mutex<Option<Arc<Sync>>>);

impl SyncPoint {
    /// Records that the watch's objects are known.
    pub(super) fn reached(&self) {
        if let Some(sync) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            sync.open.fetch_sub(1, Ordering::SeqCst);
            sync.reached.notify_one();
        }
    }
}

impl Shared {
    /// Shares a state; `condition` holds once every watch has listed its objects.
    pub fn new(state: State, condition: Condition) -> Self {
        let sync = Sync {
            open: AtomicUsize::new(0),
            complete: AtomicBool::new(false),
            done: AtomicBool::new(false),
            condition,
            reached: Notify::new(),
        };
        Self(Arc::new(Inner {
            served: state.served.clone(),
            reader: state.reader(),
            state: Mutex::new(state),
            clock: Mutex::new(Clock::new()),
            changed: Arc::new(Notify::new()),
            namespaces: watch::Sender::new(0),
            lists: Arc::new(Semaphore::new(LISTS)),
            sync: Arc::new(sync),
            vitals: Vitals::new(),
        }))
    }

    /// Locks the state, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the state is locked at this moment.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.0.state.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }

    /// The current time on the controller's clock.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.0.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The notification that wakes the loop.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.0.changed)
    }

    /// Whether every watch has listed its objects.
    pub fn is_synced(&self) -> bool {
        self.lock().synced
    }

    /// Why this replica cannot do a leader's work; `None` if it can.
    pub fn unfit_to_lead(&self) -> Option<&'static str> {
        if self.0.sync.done.load(Ordering::SeqCst) {
            self.0.vitals.failing()
        } else {
            Some("not every watch has listed its objects")
        }
    }

    /// Adds a watch, and returns its pulse.
    pub(super) fn pulse(&self) -> Arc<Pulse> {
        self.0.vitals.watch()
    }

    /// Queues everything for a check, sources first: the digests of Secrets have changed.
    pub fn look_at_all(&self) {
        self.change(State::look_at_all);
    }

    /// The namespaces for which the webhooks are called.
    pub fn served(&self) -> &Served {
        &self.0.served
    }

    /// The ConfigMaps that are never snapshotted.
    pub fn rotated(&self) -> &Rotated {
        &self.0.reader.rotated
    }

    /// The settings that decide how a watched object is read.
    pub(super) fn reader(&self) -> &Reader {
        &self.0.reader
    }

    /// Whether a write of this source is to be snapshotted.
    pub fn is_snapshotted(&self, source: &Name) -> bool {
        self.lock().is_snapshotted(source)
    }

    /// How many snapshots a source has.
    pub fn snapshot_count(&self, source: &Name) -> usize {
        self.lock().snapshot_count(source)
    }

    /// Remembers the snapshots to which a decision newly refers, in case the garbage collector deletes one before it is bound.
    pub fn remember_snapshots(&self, namespace: &str, decision: &Decision, facts: &Facts) {
        let now = self.now();
        let sound = |name: &ObjectName| facts.object(name)?.filter(|observed| observed.is_sound());
        let contents =
            decision.refers.iter().filter_map(|name| Some((name.clone(), Arc::new(sound(name)?.clone()))));
        let contents: Vec<_> = contents.collect();
        let mut state = self.lock();
        for (name, content) in contents {
            state.remember_admitted(Name::new(namespace, name), content, now);
        }
    }

    /// Remembers a source in bind mode that is about to be deleted, so that it can be recreated while it is in use.
    pub fn remember(&self, name: &Name, content: &Observed) {
        let content = Arc::new(content.clone());
        let displaced = self.lock().remember_deleted(name.clone(), content, self.now());
        for object in displaced {
            tracing::warn!(%object, "too many bound objects are being deleted: the content of one of them is forgotten");
        }
    }

    /// Changes the state, and wakes the loop and the watches of namespaces.
    pub(super) fn change(&self, change: impl FnOnce(&mut State, Timestamp)) {
        let generation = {
            let mut state = self.lock();
            change(&mut state, self.now());
            state.watched_namespace_generation()
        };
        self.0.namespaces.send_if_modified(|known| std::mem::replace(known, generation) != generation);
        self.0.changed.notify_one();
    }

    /// Waits for a turn to list, but not for long. The turn ends when the permit is dropped.
    pub(super) async fn turn_to_list(&self) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.0.lists).acquire_owned();
        tokio::time::timeout(LONGEST_TURN, turn).await.ok()?.ok()
    }

    /// Creates a point that a watch must reach before the state counts as known.
    pub(super) fn sync_point(&self) -> SyncPoint {
        self.0.sync.open.fetch_add(1, Ordering::SeqCst);
        SyncPoint(Mutex::new(Some(Arc::clone(&self.0.sync))))
    }

    /// Records that no further sync point will be created.
    pub(super) fn sync_points_are_complete(&self) {
        self.0.sync.complete.store(true, Ordering::SeqCst);
        self.0.sync.reached.notify_one();
    }

    /// Reports every change of the set of namespaces to watch.
    pub(super) fn namespace_changes(&self) -> watch::Receiver<usize> {
        self.0.namespaces.subscribe()
    }

    /// Waits until every watch has listed its objects, then lets the controller act.
    async fn wait_for_sync(&self) {
        let sync = &self.0.sync;
        while !(sync.complete.load(Ordering::SeqCst) && sync.open.load(Ordering::SeqCst) == 0) {
            sync.reached.notified().await;
        }
        self.change(|state, _| state.set_synced());
        // The first turn of the loop starts now.
        self.0.vitals.turn();
        sync.done.store(true, Ordering::SeqCst);
        sync.condition.hold();
    }
}

/// Runs the controller until `stop` is set: runs due tasks concurrently, and applies their outcomes to the state.
pub async fn run<A: Api>(
    api: A,
    shared: Shared,
    leadership: Leadership,
    metrics: Metrics,
    mut stop: watch::Receiver<bool>,
) {
    tokio::select! {
        () = shared.wait_for_sync() => {}
        _ = stop.wait_for(|stop| *stop) => return,
    }
    let mut under_way: JoinSet<(Task, Result<Outcome, ApiError>)> = JoinSet::new();
    let mut led = false;
    let mut told: Option<Instant> = None;
    loop {
        shared.0.vitals.turn();
        let leads = leadership.holds();
        if leads && !led {
            shared.change(State::look_at_all);
        }
        led = leads;
        if !leads {
            shared.lock().leave_to_the_leader();
        }
        start_due(&api, &shared, &mut under_way).await;
        let mut rest = rest(&shared);
        if told.is_none_or(|at| at.elapsed() >= STANDING_PAUSE) {
            told = Some(Instant::now());
            metrics.set_runtime_tasks(tokio::runtime::Handle::current().metrics().num_alive_tasks());
            let mut state = shared.lock();
            metrics.set_state_counts(&state.standing(leads));
            for reason in state.take_dropped_events() {
                metrics.event(reason, EventOutcome::Dropped);
            }
            metrics.limit_reached(Limit::Rolls, std::mem::take(&mut state.rate_waits));
        }
        if under_way.len() >= CONCURRENCY {
            // Due tasks wait for an action to end, which wakes the loop.
            rest = LONGEST_REST;
        }
        tokio::select! {
            Some(done) = under_way.join_next(), if !under_way.is_empty() => match done {
                Ok((task, outcome)) => finish(&shared, &metrics, &task, outcome),
                Err(error) => tracing::error!(%error, "an action was cancelled"),
            },
            () = shared.0.changed.notified() => {}
            () = tokio::time::sleep(rest) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    // Let actions in progress finish, so that every write that was sent has been answered.
    while let Some(done) = under_way.join_next().await {
        drop(done);
    }
}

async fn start_due<A: Api>(
    api: &A,
    shared: &Shared,
    under_way: &mut JoinSet<(Task, Result<Outcome, ApiError>)>,
) {
    while under_way.len() < CONCURRENCY {
        let now = shared.now();
        let step = shared.lock().next_step(now);
        let (task, action) = match step {
            Step::Act(task, action) => (task, action),
            Step::More => {
                // Admission waits for the same lock.
                tokio::task::yield_now().await;
                continue;
            }
            Step::Rest => return,
        };
        let api = api.clone();
        let span = traces::task(&task.work(), &task);
        under_way.spawn(async move {
            let done = AssertUnwindSafe(execute(&api, action, now)).catch_unwind();
            let outcome = done.instrument(span.clone()).await;
            let outcome = outcome.unwrap_or_else(|_| {
                let reason = "the task panicked, which is a bug in confrev".to_owned();
                Err(ApiError::Answer { what: format!("{task:?}"), reason })
            });
            if outcome.as_ref().is_err_and(|error| !error.is_conflict()) {
                span.record("otel.status_code", "ERROR");
            }
            (task, outcome)
        });
    }
}

fn finish(shared: &Shared, metrics: &Metrics, task: &Task, outcome: Result<Outcome, ApiError>) {
    let (ended, roll) = match &outcome {
        Ok(Outcome::Changed(_)) => (Done::Conflict, Roll::Conflict),
        Ok(_) => (Done::Done, Roll::Rolled),
        Err(error) if error.is_conflict() => (Done::Conflict, Roll::Conflict),
        Err(_) => (Done::Failed, Roll::Failed),
    };
    metrics.task(task.work(), ended);
    if matches!(outcome, Ok(Outcome::Restored)) {
        metrics.snapshot_restored();
    }
    let Task::Roll(key) = task else {
        return shared.change(|state, now| state.finish(task, outcome, now));
    };
    metrics.roll(roll);
    shared.change(|state, now| {
        let since = state.rolling.get(key).map(|(since, _)| *since);
        state.finish(task, outcome, now);
        // A workload whose roll had no effect is still pending.
        if roll == Roll::Rolled && !state.is_pending(key) {
            let delay = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
            metrics.roll_delay(delay.unwrap_or_default());
            tracing::info!(workload = state.display(key), "rolled to the present content of its sources");
        }
    });
}

/// How long the loop may rest before the next task is due.
fn rest(shared: &Shared) -> Duration {
    let mut state = shared.lock();
    state.forget_old(shared.now());
    let due = state.next_due().map_or(LONGEST_REST, |due| shared.clock().until(due));
    due.min(LONGEST_REST)
}
