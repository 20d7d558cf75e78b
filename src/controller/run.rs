//! The controller's loop.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tracing::Instrument as _;

use super::{
    action::{Action, Outcome},
    contents::LargeContents,
    leader::Leadership,
    queue::{MAX_WORKING, Task},
    reconcile::state::State,
    shared::Shared,
    tasks::{Next, check, execute},
};
use crate::{
    cluster::{Api, ApiError},
    schema::Schemas,
    telemetry::{
        Metrics,
        metrics::{Done, EventOutcome, Limit, Roll},
        traces,
    },
};

/// The longest rest of the loop, since clocks may step and a wake-up may be lost.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// The least time between two updates of the gauges: each update reads every workload.
const GAUGES_PAUSE: Duration = Duration::from_secs(1);
/// The time between two reports of dropped Events.
const DROPPED_PAUSE: Duration = Duration::from_mins(1);

/// Runs the controller until `stop` is set: runs due tasks concurrently, and applies their outcomes to the state.
pub async fn run<A: Api>(
    api: A,
    shared: Shared,
    schemas: Schemas,
    leadership: Leadership,
    metrics: Metrics,
    mut stop: watch::Receiver<bool>,
) {
    shared.lock().set_leading(false);
    tokio::select! {
        () = shared.wait_for_sync() => {}
        _ = stop.wait_for(|stop| *stop) => return,
    }
    let mut under_way: JoinSet<(Task, Result<Outcome, ApiError>)> = JoinSet::new();
    let contents = LargeContents::default();
    let mut led = false;
    let mut updated: Option<Instant> = None;
    let mut dropped_reported = Instant::now();
    loop {
        shared.pass();
        let leads = leadership.holds();
        shared.lock().set_leading(leads);
        if leads && !led {
            shared.change(State::reconcile_all);
        }
        led = leads;
        if !leads {
            shared.lock().leave_to_the_leader();
        }
        shared.relist_if_due();
        start_due(&api, &shared, (&contents, &schemas), &mut under_way).await;
        let mut rest = rest(&shared);
        if updated.is_none_or(|at| at.elapsed() >= GAUGES_PAUSE) {
            updated = Some(Instant::now());
            metrics.set_runtime_tasks(tokio::runtime::Handle::current().metrics().num_alive_tasks());
            let mut state = shared.lock();
            metrics.set_state_counts(&state.counts(leads));
            metrics.set_waiting(&state.waiting(leads));
            for reason in state.take_dropped_events() {
                metrics.event(reason, EventOutcome::Dropped);
            }
            metrics.limit_reached(Limit::Rolls, state.rolls.take_rate_waits());
            metrics.limit_reached(Limit::SnapshotBytes, state.take_dropped_snapshots());
            for strategy in state.take_changes() {
                metrics.change(&strategy);
            }
        }
        if dropped_reported.elapsed() >= DROPPED_PAUSE {
            dropped_reported = Instant::now();
            shared.lock().report_dropped(shared.now());
        }
        if under_way.len() >= MAX_WORKING {
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
    (contents, schemas): (&LargeContents, &Schemas),
    under_way: &mut JoinSet<(Task, Result<Outcome, ApiError>)>,
) {
    while under_way.len() < MAX_WORKING {
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
        let (api, schemas) = (api.metered(contents.of_task()), schemas.clone());
        let span = traces::task(&task.work(), &task);
        under_way.spawn(async move {
            let done = async {
                match action {
                    Action::Check(source) => check::check(&api, &schemas, &source).await,
                    action => execute(&api, action, now).await,
                }
            };
            let done = AssertUnwindSafe(done).catch_unwind();
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
        if roll == Roll::Rolled && !state.world.is_pending(key) {
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

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::{task::JoinHandle, time::sleep};

    use super::*;
    use crate::{
        annotations,
        cluster::{Event, KubeApi, ObjectRef},
        controller::reconcile::fixture::{on, state},
        kinds::Kinds,
        notify::Notices,
        resolve::{Health, Observed},
        snapshot::{DIGITS, Digest, SourceKind, snapshot_name},
        telemetry::{Readiness, metrics::Reason},
        world::{
            Revision, RevisionKey, SnapshotRecord,
            fixture::{digest, key, record, snapshot, snapshot_record, source, used},
        },
    };

    const WEB: &str = "PATCH deployments/web ";
    const READ: &str = "GET configmaps/a ";

    /// The status and the body for a call.
    type Answer = fn(&str) -> (u16, Value);

    /// A controller with an API server that answers each call after a second.
    struct Run {
        shared: Shared,
        leadership: Leadership,
        metrics: Metrics,
        calls: Arc<Mutex<Vec<String>>>,
        stop: watch::Sender<bool>,
        task: JoinHandle<()>,
    }

    impl Run {
        fn start(state: State, answer: Answer) -> Self {
            let shared = Shared::new(state, Readiness::new().register("caches"));
            let calls = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&calls);
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let path = request.uri().path().rsplitn(3, '/').take(2).collect::<Vec<_>>();
                let call = format!("{} {}/{} ", request.method(), path[1], path[0]);
                let (code, body) = answer(&call);
                log.lock().unwrap().push(call);
                async move {
                    sleep(Duration::from_secs(1)).await;
                    let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
                    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                    Ok::<_, Infallible>(response)
                }
            });
            let (leadership, metrics) = (Leadership::default(), Metrics::new());
            let client = kube::Client::new(service, "ns");
            let api = KubeApi::new(client, Arc::new(Kinds::default()), metrics.clone());
            let (stop, stopped) = watch::channel(false);
            let task =
                run(api, shared.clone(), Schemas::default(), leadership.clone(), metrics.clone(), stopped);
            let task = tokio::spawn(task);
            Self { shared, leadership, metrics, calls, stop, task }
        }

        /// A controller that leads and knows all objects.
        fn leading(state: State, answer: Answer) -> Self {
            let run = Self::start(state, answer);
            run.shared.sync_points_are_complete();
            run.lead(true);
            run
        }

        fn lead(&self, leads: bool) {
            self.leadership.set(leads.then(|| Instant::now() + Duration::from_hours(1)));
            self.shared.changed().notify_one();
        }

        /// How many calls begin like this.
        fn count(&self, call: &str) -> usize {
            self.calls.lock().unwrap().iter().filter(|other| other.starts_with(call)).count()
        }

        fn has(&self, line: &str) -> bool {
            self.metrics.encode().lines().any(|other| other == line)
        }

        /// How many tasks of this kind are done.
        fn done(&self, task: &str) -> usize {
            let start = format!("confrev_tasks_total{{task=\"{task}\",outcome=\"done\"}} ");
            let text = self.metrics.encode();
            text.lines().find_map(|line| line.strip_prefix(&*start)?.parse().ok()).unwrap()
        }

        async fn end(self) {
            self.stop.send(true).unwrap();
            tokio::time::timeout(Duration::from_secs(10), self.task).await.unwrap().unwrap();
        }
    }

    fn content() -> Value {
        json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "9"}, "data": {"k": "v"}})
    }

    /// The workload web with a content of a.
    fn web(version: &str, content: &Digest, snapshot: &str) -> Value {
        let map = |text: String| json!({"configmaps": {"a": text}}).to_string();
        let state = json!({"configmaps": {"a": {"seen": content.to_string()}}}).to_string();
        let annotations = json!({(annotations::STATE): state});
        let sources = json!({(annotations::SOURCES): map(snapshot.to_owned())});
        let volume = json!({"name": "c", "configMap": {"name": snapshot}});
        json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "web-0", "resourceVersion": version,
                "labels": {(annotations::ENABLED): "true"}, "annotations": annotations},
            "spec": {"template": {"metadata": {"annotations": sources},
                "spec": {"containers": [], "volumes": [volume]}}},
        })
    }

    fn new_digest() -> Digest {
        let json = content().to_string().into_bytes();
        Observed::read(SourceKind::ConfigMap, json).unwrap().digest()
    }

    fn moved() -> (u16, Value) {
        (200, web("8", &new_digest(), &snapshot_name("a", &new_digest(), DIGITS[0])))
    }

    /// A workload with former content, and the snapshot of the new one.
    fn pending() -> State {
        let mut state = state(&[("web", &on(1, Health::Settled))]);
        let name = source("a").sibling(snapshot_name("a", &new_digest(), DIGITS[0]));
        let record = SnapshotRecord { digest: new_digest(), ..snapshot_record("a", 3) };
        state.world.apply_snapshot(&name, Some(record), &mut Vec::new());
        state
    }

    fn status(code: u16, message: &str) -> (u16, Value) {
        (code, json!({"kind": "Status", "message": message}))
    }

    /// Answers for everything but the roll.
    fn answer_to(call: &str) -> (u16, Value) {
        match call {
            READ => (200, content()),
            "GET deployments/web " => (200, web("7", &digest(1), &snapshot("a", 1))),
            _ => status(404, "not found"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_leader_that_knows_all_acts() {
        let answer = |call: &str| if call == WEB { moved() } else { answer_to(call) };
        let run = Run::start(pending(), answer);
        run.lead(true);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(run.count(""), 0, "the watches have not listed all objects");
        run.lead(false);
        run.shared.sync_points_are_complete();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(run.count(""), 0, "another replica leads");
        run.lead(true);
        // Both sources are read, and the change settles.
        sleep(Duration::from_millis(4500)).await;
        assert_eq!((run.done("read"), run.done("roll")), (2, 1));
        sleep(Duration::from_mins(1)).await;
        assert_eq!((run.done("read"), run.done("roll")), (2, 1), "everything is done");
        run.lead(false);
        sleep(Duration::from_secs(1)).await;
        run.shared.change(|state, now| state.queue.schedule(Task::Read(source("a")), now));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(run.done("read"), 2, "its tasks are dropped");
        run.lead(true);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(run.done("read"), 4, "what it knew may be old");
        run.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_leader_posts_notifications() {
        let notices = Notices::unread();
        let state = state(&[]).notifying(notices.clone());
        let run = Run::start(state, |_| status(404, "not found"));
        run.shared.sync_points_are_complete();
        for (leads, posted) in [(false, 0), (true, 1), (false, 1), (true, 2)] {
            run.lead(leads);
            sleep(Duration::from_secs(10)).await;
            run.shared.change(|state, now| {
                let event = event_on_workload(posted, now);
                state.report([event], now);
            });
            sleep(Duration::from_secs(10)).await;
            assert_eq!(notices.waiting(), posted, "it leads: {leads}");
        }
        run.end().await;
    }

    /// A notified Event about a workload of that number.
    fn event_on_workload(number: usize, at: jiff::Timestamp) -> Event {
        let name = format!("web-{number}");
        let regarding =
            ObjectRef { api_version: "apps/v1".into(), kind: "Deployment".into(), uid: name.clone(), name };
        let (reason, note, same) = (Reason::Pinned, String::new(), at.to_string());
        Event { namespace: "ns".into(), regarding, related: None, reason, note, same, at }
    }

    #[tokio::test(start_paused = true)]
    async fn actions_run_concurrently_up_to_a_limit() {
        let mut state = state(&[]);
        for number in 0..2 * MAX_WORKING {
            let web = record("web", &[used(&format!("s{number}"), None)]);
            let now = jiff::Timestamp::now();
            state.apply_workload(&key(&format!("web-{number}")), Some(web), now);
        }
        let run = Run::leading(state, |_| status(404, "not found"));
        let reads = || run.count("GET configmaps/s");
        for round in 1..=4 {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(reads(), round * MAX_WORKING / 2, "a namespace leaves half of them to others");
            sleep(Duration::from_millis(500)).await;
        }
        run.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn outcomes_of_tasks_are_counted() {
        let unchanged = |call: &str| match call {
            WEB => (200, web("8", &digest(1), &snapshot("a", 1))),
            _ => answer_to(call),
        };
        let conflict = |call: &str| if call == WEB { status(409, "changed") } else { answer_to(call) };
        let refused = |call: &str| if call == WEB { status(403, "quota") } else { answer_to(call) };
        let moved = |call: &str| if call == WEB { moved() } else { answer_to(call) };
        let cases: [(Answer, _, _, _); 4] = [
            (moved, "rolled", "done", 1),
            (unchanged, "rolled", "done", 0),
            (conflict, "conflict", "conflict", 0),
            (refused, "failed", "failed", 0),
        ];
        for (answer, roll, task, delays) in cases {
            let mut state = pending();
            // No object uses the missing snapshot, so that its restore conflicts.
            let set = RevisionKey { kind: 0, namespace: "ns".into(), name: "set".into() };
            let uses = vec![used("a", Some(4))];
            let revision = Revision { uid: "set".into(), uses };
            state.apply_revision(&set, Some(revision), jiff::Timestamp::now());
            let run = Run::leading(state, answer);
            sleep(Duration::from_millis(5300)).await;
            for outcome in ["rolled", "conflict", "failed"] {
                let count = u8::from(outcome == roll);
                let line = format!("confrev_rolls_total{{outcome=\"{outcome}\"}} {count}");
                assert!(run.has(&line), "{line}\n{}", run.metrics.encode());
            }
            for line in [
                format!("confrev_tasks_total{{task=\"roll\",outcome=\"{task}\"}} 1"),
                format!("confrev_roll_delay_seconds_count {delays}"),
            ] {
                assert!(run.has(&line), "{line}\n{}", run.metrics.encode());
            }
            sleep(Duration::from_mins(1)).await;
            let line = "confrev_tasks_total{task=\"restore\",outcome=\"failed\"} 0";
            assert!(run.has(line), "{line}\n{}", run.metrics.encode());
            assert!(!run.has("confrev_tasks_total{task=\"restore\",outcome=\"conflict\"} 0"));
            run.end().await;
        }
    }

    /// The controller checks the content itself: admission gives no verdict about it to clients without a certificate.
    #[tokio::test(start_paused = true)]
    async fn failing_content_is_not_rolled_to() {
        fn with_schema() -> Value {
            let mut content = content();
            content["metadata"]["annotations"] = json!({(annotations::SCHEMA): "schemas/app"});
            content
        }
        let missing: Answer = |call| match call {
            WEB => moved(),
            READ => (200, with_schema()),
            _ => answer_to(call),
        };
        let run = Run::leading(pending(), missing);
        sleep(Duration::from_secs(20)).await;
        assert_eq!(run.count(WEB), 0, "{:?}", run.calls.lock().unwrap());
        for line in [
            "confrev_waiting_workloads{gate=\"schema\"} 1",
            "confrev_rolls_total{outcome=\"failed\"} 0",
            "confrev_tasks_total{task=\"check\",outcome=\"failed\"} 0",
        ] {
            assert!(run.has(line), "{line}\n{}", run.metrics.encode());
        }
        run.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn gauges_follow_the_state() {
        let run = Run::leading(state(&[("web", &on(2, Health::Settled))]), answer_to);
        sleep(Duration::from_secs(1)).await;
        assert!(run.has("confrev_workloads 1"));
        let other = record("other", &[]);
        run.shared.change(|state, now| state.apply_workload(&key("other"), Some(other), now));
        sleep(Duration::from_secs(10)).await;
        assert!(run.has("confrev_workloads 2"), "{}", run.metrics.encode());
        run.end().await;
    }

    /// A write that was sent is answered before the process ends.
    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_actions_in_progress() {
        let run = Run::leading(state(&[("web", &on(2, Health::Settled))]), answer_to);
        sleep(Duration::from_millis(500)).await;
        assert_eq!(run.count(READ), 1);
        let start = Instant::now();
        run.end().await;
        assert_eq!(start.elapsed(), Duration::from_millis(500));
    }
}
