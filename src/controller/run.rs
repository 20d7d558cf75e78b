//! The controller's loop.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tracing::Instrument as _;

use super::{
    action::Outcome, apply::execute::execute, leader::Leadership, queue::Task, reconcile::Next,
    reconcile::state::State, shared::Shared,
};
use crate::{
    cluster::{Api, ApiError},
    telemetry::{
        Metrics,
        metrics::{Done, EventOutcome, Limit, Roll},
        traces,
    },
};

/// The most actions in progress at once.
const CONCURRENCY: usize = 16;
/// The longest rest of the loop, since clocks may step and a wake-up may be lost.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// The least time between two updates of the gauges: each update reads every workload.
const GAUGES_PAUSE: Duration = Duration::from_secs(1);

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
    let mut updated: Option<Instant> = None;
    loop {
        shared.turn();
        let leads = leadership.holds();
        if leads && !led {
            shared.change(State::reconcile_all);
        }
        led = leads;
        if !leads {
            shared.lock().leave_to_the_leader();
        }
        start_due(&api, &shared, &mut under_way).await;
        let mut rest = rest(&shared);
        if updated.is_none_or(|at| at.elapsed() >= GAUGES_PAUSE) {
            updated = Some(Instant::now());
            metrics.set_runtime_tasks(tokio::runtime::Handle::current().metrics().num_alive_tasks());
            let mut state = shared.lock();
            metrics.set_state_counts(&state.standing(leads));
            for reason in state.take_dropped_events() {
                metrics.event(reason, EventOutcome::Dropped);
            }
            metrics.limit_reached(Limit::Rolls, state.rolls.take_rate_waits());
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
            () = shared.woken() => {}
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
        let next = shared.lock().next_step(now);
        let (task, action) = match next {
            Next::Act(task, action) => (task, action),
            Next::More => {
                // Admission waits for the same lock.
                tokio::task::yield_now().await;
                continue;
            }
            Next::Rest => return,
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
        let since = state.rolls.rolling(key).map(|rolling| rolling.since);
        state.finish(task, outcome, now);
        // A workload whose roll had no effect is still pending.
        if roll == Roll::Rolled && !state.index.is_pending(key) {
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
    let due = state.next_due().map_or(LONGEST_REST, |due| shared.until(due));
    due.min(LONGEST_REST)
}
