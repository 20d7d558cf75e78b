//! The queue of all rolls: conflicts, refusals, and the workloads of a namespace that opts in.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use confrev::{
    annotations,
    cluster::{ApiError, Event, KubeApi, LiveWorkload},
    controller::{Action, Config, ObjectStep, Outcome, Queue, State, Task, execute},
    kinds::Kinds,
    resolve::{Health, NamespaceOptIn, Record},
    snapshot::{ObjectName, Rotated, SourceKind},
    telemetry::{Metrics, metrics::Reason},
    world::{Inherited, Name, Precondition, WorkloadKey},
};
use http::{Method, Request, Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, name, observed, record, stored, web_on_blue},
    windows_and_sets::with_window,
    world::{World, annotate, deployment, kind, state_of},
};

/// An API server with one workload, every write of which is a conflict. Returns the methods of the requests, too.
fn conflicting(workload: &Value) -> (KubeApi, Arc<Mutex<Vec<Method>>>) {
    let (text, asked) = (workload.to_string(), Arc::<Mutex<Vec<Method>>>::default());
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        log.lock().unwrap().push(request.method().clone());
        let is_read = *request.method() == Method::GET;
        let body = if is_read { text.clone() } else { json!({"kind": "Status"}).to_string() };
        let mut response = Response::new(Body::from(body.into_bytes()));
        *response.status_mut() = if is_read { StatusCode::OK } else { StatusCode::CONFLICT };
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let client = kube::Client::new(service, "ns");
    (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), asked)
}

/// Pokes a workload whose watch lags: the live read after the conflict finds `live`. Returns the version of the next poke, if
/// there is one.
async fn poked_after_conflict(live: impl FnOnce(&mut Value)) -> Option<String> {
    let (_, mut web, mut desk) = web_on_blue();
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    desk.pass(2);
    let poke = |desk: &mut Desk| {
        desk.actions().into_iter().find(|(_, action)| matches!(action, Action::Poke { .. }))
    };
    let Some((task, action)) = poke(&mut desk) else { panic!("the change does not roll") };
    web["metadata"]["resourceVersion"] = json!("77");
    live(&mut web);
    let (api, asked) = conflicting(&web);
    let outcome = execute(&api, action, desk.now).await;
    assert_eq!(*asked.lock().unwrap(), [Method::PATCH, Method::GET]);
    desk.state.finish(&task, outcome, desk.now);
    desk.now += SignedDuration::from_millis(100);
    match poke(&mut desk)? {
        (_, Action::Poke { condition: Precondition::Version(version), .. }) => Some(version),
        (_, other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn conflict_leads_to_live_read() {
    assert_eq!(poked_after_conflict(|_| {}).await.as_deref(), Some("77"));
    let seen = poked_after_conflict(|live| {
        let green = observed(json!({"color": "green"}), json!({}), "2").digest().to_string();
        annotate(live, annotations::STATE, &state_of("seen", &json!({"configmaps": {"demo": green}})));
    });
    assert_eq!(seen.await, None, "the workload has rolled to the change");
    let out = poked_after_conflict(|live| live["metadata"]["labels"][annotations::ENABLED] = json!("false"));
    assert_eq!(out.await, None, "the workload has opted out");
}

/// A webhook may answer a roll with status 409, too.
#[test]
fn roll_backs_off_after_conflict_without_change() {
    // Whether others write the workload between the tries.
    for (changes, least, most) in [(false, 5, 20), (true, 300, 700)] {
        let (_, web, mut desk) = web_on_blue();
        let mut live = Record { resource_version: "1".into(), ..record(&web, Health::Settled) };
        desk.state.apply_workload(&key("web"), Some(live.clone()), desk.now);
        let mut tries = 0;
        for _ in 0..600 {
            for (task, action) in desk.actions() {
                let outcome = match action {
                    Action::Read(_) => {
                        let found = observed(json!({"color": "green"}), json!({}), "2");
                        Outcome::Read(Some(Box::new(found)))
                    }
                    Action::Poke { .. } => {
                        tries += 1;
                        if changes {
                            live.resource_version = format!("{}", tries + 1).into();
                        }
                        Outcome::Changed(LiveWorkload::Enabled(Box::new(live.clone())))
                    }
                    _ => Outcome::Done,
                };
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
            desk.now += SignedDuration::from_millis(100);
        }
        assert!((least..most).contains(&tries), "{tries} in a minute, changed in between: {changes}");
    }
}

/// Nothing but the conflict shows that the webhook refuses the label.
#[test]
fn unlabelled_workload_backs_off_after_a_conflict() {
    let mut opt_in = OptIn::new(1, 100, json!({}));
    opt_in.conflicts = true;
    for _ in 0..600 {
        opt_in.turn(|_| None);
    }
    let tries: usize = opt_in.pokes.values().sum();
    assert!((5..20).contains(&tries), "{tries} in a minute");
}

/// A namespace with many workloads that opts in, and the webhook's result for each.
struct OptIn {
    desk: Desk,
    limit: Value,
    stored: BTreeMap<WorkloadKey, Value>,
    /// How often each was poked.
    pokes: BTreeMap<WorkloadKey, usize>,
    lists: usize,
    events: Vec<Event>,
    /// Whether each poke is a conflict, although no client changes the workload.
    conflicts: bool,
}

impl OptIn {
    fn new(workloads: usize, rolls_per_second: u32, limit: Value) -> Self {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        world.namespace.opt_in = NamespaceOptIn::Now;
        let mut desk = Desk::new();
        let config = Config { rolls_per_second, ..Config::default() };
        desk.state = State::new(Arc::new(Kinds::default()), config);
        desk.state.set_synced();
        let stored = (0..workloads).map(|number| {
            let name = format!("web-{number:03}");
            let mut object = deployment(&["demo"]);
            object["metadata"]["name"] = json!(name);
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
            object["metadata"]["resourceVersion"] = json!("1");
            object["metadata"].as_object_mut().unwrap().remove("labels");
            (key(&name), object)
        });
        let stored = stored.collect();
        desk.state.apply_namespace(&"ns".into(), NamespaceOptIn::Now, desk.now);
        let (pokes, events) = (BTreeMap::new(), Vec::new());
        Self { desk, limit, stored, pokes, lists: 0, events, conflicts: false }
    }

    /// Lets a tenth of a second pass. `refused` is the API server's error for a workload. Returns the workloads that rolled.
    fn turn(&mut self, refused: impl Fn(&WorkloadKey) -> Option<ApiError>) -> Vec<WorkloadKey> {
        let mut rolled = Vec::new();
        // There are no Rollouts that take their template from these workloads.
        self.desk.state.set_referrers_listed("ns", self.desk.now);
        while let Some((task, action)) = self.desk.state.next_action(self.desk.now) {
            let outcome = match action {
                Action::Read(_) => {
                    let found = observed(json!({"color": "blue"}), self.limit.clone(), "1");
                    Ok(Outcome::Read(Some(Box::new(found))))
                }
                Action::OptIn(..) => {
                    self.lists += 1;
                    let candidates = self.stored.iter().map(|(key, object)| match live(object) {
                        LiveWorkload::Unlabelled(candidate) => (key.clone(), *candidate),
                        other => panic!("{other:?}"),
                    });
                    Ok(Outcome::Unlabelled(candidates.collect()))
                }
                Action::Poke { workload, condition, .. } => {
                    assert!(matches!(condition, Precondition::Unlabelled { .. }), "{condition:?}");
                    *self.pokes.entry(workload.clone()).or_default() += 1;
                    if let Some(error) = refused(&workload) {
                        Err(error)
                    } else if self.conflicts {
                        Ok(Outcome::Changed(live(&self.stored[&workload])))
                    } else {
                        let mut world = World::default();
                        world.set("demo", json!({"color": "blue"}));
                        world.namespace.opt_in = NamespaceOptIn::Now;
                        let after = world.create(&self.stored[&workload]);
                        rolled.push(workload);
                        Ok(Outcome::Poked(Box::new(record(&after, Health::Progressing))))
                    }
                }
                Action::WriteEvent(event) => {
                    self.events.push(*event);
                    Ok(Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            self.desk.state.finish(&task, outcome, self.desk.now);
        }
        self.desk.now += SignedDuration::from_millis(100);
        rolled
    }

    /// The watch reports that the workload is settled.
    fn settle(&mut self, key: &WorkloadKey) {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        world.namespace.opt_in = NamespaceOptIn::Now;
        let after = world.create(&self.stored[key]);
        self.desk.state.apply_workload(key, Some(record(&after, Health::Settled)), self.desk.now);
    }
}

/// The result of a live read.
fn live(object: &Value) -> LiveWorkload {
    LiveWorkload::read(&kind("Deployment"), &object.to_string(), &Rotated::default(), &Inherited::default())
        .unwrap()
}

fn quota() -> ApiError {
    let message = "deployments.apps is forbidden: exceeded quota: compute".to_owned();
    ApiError::Refused { what: "patch".to_owned(), code: 403, message }
}

#[test]
fn namespace_opts_in_at_the_rate_of_rolls() {
    let mut opt_in = OptIn::new(100, 10, json!({}));
    let mut first = None;
    for turn in 0..150 {
        let rolled = opt_in.turn(|_| None);
        if !rolled.is_empty() {
            first = first.or(Some(turn));
        }
        let seconds = first.map_or(0, |first| (turn - first) / 10);
        // The rolls of one second may happen at once.
        assert!(opt_in.pokes.len() <= 10 * (seconds + 2), "{} in {seconds} s", opt_in.pokes.len());
    }
    assert_eq!(opt_in.lists, 1);
    assert_eq!((opt_in.pokes.len(), opt_in.pokes.values().sum::<usize>()), (100, 100), "each once");
}

#[test]
fn namespace_opts_in_within_max_in_flight() {
    let mut opt_in = OptIn::new(5, 100, json!({annotations::MAX_IN_FLIGHT: "1"}));
    for _ in 0..5 {
        let rolled: Vec<_> = (0..50).flat_map(|_| opt_in.turn(|_| None)).collect();
        assert_eq!(rolled.len(), 1, "the others wait until this workload is healthy: {rolled:?}");
        opt_in.settle(&rolled[0]);
    }
    assert_eq!(opt_in.pokes.len(), 5);
}

/// 20 seconds after the start, the window of the namespace or of the source opens.
#[test]
fn namespace_opts_in_inside_windows() {
    for of_source in [true, false] {
        let window = "Mon 13:47-14:00";
        let limit = if of_source { json!({annotations::WINDOW: window}) } else { json!({}) };
        let mut opt_in = OptIn::new(3, 100, limit);
        if !of_source {
            let now = opt_in.desk.now;
            opt_in.desk.state.apply_namespace_settings(&"ns".into(), with_window(Some(window)), now);
        }
        let early: Vec<_> = (0..190).flat_map(|_| opt_in.turn(|_| None)).collect();
        assert_eq!(early.len(), 0, "of the source: {of_source}");
        let later: Vec<_> = (0..60).flat_map(|_| opt_in.turn(|_| None)).collect();
        assert_eq!(later.len(), 3, "of the source: {of_source}");
    }
}

#[test]
fn refused_workload_is_retried_alone() {
    let mut opt_in = OptIn::new(20, 100, json!({}));
    let refused = key("web-003");
    for _ in 0..3000 {
        opt_in.turn(|key| (*key == refused).then(quota));
    }
    let again = opt_in.pokes.remove(&refused).unwrap();
    assert!((8..15).contains(&again), "{again} times in five minutes");
    assert!(opt_in.pokes.len() == 19 && opt_in.pokes.values().all(|pokes| *pokes == 1), "{:?}", opt_in.pokes);
    assert_eq!(opt_in.lists, 1);
    // Once the namespace opts out, nothing is left to do.
    opt_in.desk.state.apply_namespace(&"ns".into(), NamespaceOptIn::Out, opt_in.desk.now);
    for (key, _) in std::mem::take(&mut opt_in.pokes) {
        opt_in.desk.state.apply_workload(&key, None, opt_in.desk.now);
    }
    for _ in 0..3000 {
        opt_in.turn(|_| panic!("a roll after the namespace opted out"));
    }
}

#[test]
fn relist_keeps_workloads_that_join() {
    let mut opt_in = OptIn::new(2, 100, json!({}));
    opt_in.turn(|_| None);
    let (now, mut listing) = (opt_in.desk.now, None);
    let workloads = confrev::controller::WorkloadsSubject(key("web").kind);
    for event in [kube::runtime::watcher::Event::Init, kube::runtime::watcher::Event::InitDone] {
        confrev::controller::take(&workloads, &mut opt_in.desk.state, event, &mut listing, now);
    }
    let rolled: Vec<_> = (0..50).flat_map(|_| opt_in.turn(|_| None)).collect();
    assert_eq!(rolled.len(), 2);
}

#[test]
fn refused_roll_is_reported_on_workload_and_source() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = stored(&mut world, "web");
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    let mut told = Vec::new();
    let mut refusals = 0;
    for _ in 0..6000 {
        while let Some((task, action)) = desk.state.next_action(desk.now) {
            let outcome = match action {
                Action::Read(_) => {
                    let found = observed(json!({"color": "green"}), json!({}), "2");
                    Ok(Outcome::Read(Some(Box::new(found))))
                }
                Action::Poke { .. } => {
                    refusals += 1;
                    // The message of a quota differs each time. A conflict or a failure of the server is not a refusal.
                    let message = format!("exceeded quota: compute, used: {refusals}");
                    Err(ApiError::Refused {
                        what: String::new(),
                        code: if refusals == 1 { 500 } else { 403 },
                        message,
                    })
                }
                Action::WriteEvent(event) => {
                    told.push(*event);
                    Ok(Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
        desk.now += SignedDuration::from_millis(100);
    }
    assert!(refusals > 10, "{refusals}");
    told.retain(|event| event.reason == Reason::RollRefused);
    let about: Vec<_> = told.iter().map(|event| (&*event.regarding.kind, &*event.regarding.name)).collect();
    assert_eq!(about, [("Deployment", "web"), ("ConfigMap", "demo")], "once in ten minutes: {told:?}");
    for event in &told {
        assert!(event.note.contains("exceeded quota: compute, used: 2"), "{}", event.note);
        assert_eq!(event.to_json()["type"], "Warning");
    }
    assert!(told[1].note.contains("Deployment/web"), "{}", told[1].note);
    assert_eq!(told[0].related.as_ref().map(|related| &*related.name), Some("demo"));
    assert!(desk.state.is_snapshotted(&name("demo")));
}

/// The restore of a snapshot of a namespace.
fn restore(namespace: &str, snapshot: &str) -> Task {
    Task::Object(Name::new(namespace, ObjectName::new(SourceKind::ConfigMap, snapshot)), ObjectStep::Restore)
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The namespaces take turns; within a namespace, the task that is due longest comes first.
#[test]
fn namespaces_take_turns_with_slow_tasks() {
    let mut queue = Queue::default();
    for number in 0..1000 {
        queue.schedule(restore("flood", &format!("s{number:04}")), at(1 + number / 100));
    }
    queue.schedule(restore("one", "late"), at(50));
    queue.schedule(restore("one", "early"), at(40));
    queue.schedule(Task::OptIn("two".into()), at(60));
    queue.schedule(restore("later", "s"), at(200));
    let mut next = || {
        let task = queue.pop(at(100), at(0)).unwrap();
        queue.done(&task);
        task
    };
    let first: Vec<_> = (0..6).map(|_| next()).collect();
    let wanted = [
        restore("flood", "s0000"),
        restore("one", "early"),
        Task::OptIn("two".into()),
        restore("flood", "s0001"),
        restore("one", "late"),
        restore("flood", "s0002"),
    ];
    assert_eq!(first, wanted);
    assert_eq!(next(), restore("flood", "s0003"), "no other task is due");
    queue.schedule(restore("one", "new"), at(100));
    let after: Vec<_> = (0..2).map(|_| queue.pop(at(100), at(0)).unwrap()).collect();
    assert!(after.contains(&restore("one", "new")), "{after:?}");
    for task in &after {
        queue.failed(task.clone(), at(100));
    }
    queue.retain(|task| *task != restore("flood", "s0005"));
    let mut left = 0;
    while let Some(task) = queue.pop(at(100), at(0)) {
        assert_ne!(task, restore("flood", "s0005"));
        queue.cancel(&restore("flood", "s0006"));
        queue.done(&task);
        left += 1;
    }
    assert!((990..1000).contains(&left), "{left}");
    // The failed tasks pause, and the last task is not due yet.
    assert!(queue.next(at(0)).is_some_and(|due| due > at(100) && due < at(102)), "{:?}", queue.next(at(0)));
    let rest: Vec<_> = std::iter::from_fn(|| queue.pop(at(300), at(0))).collect();
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert!(rest.contains(&restore("later", "s")));
    assert_eq!(queue.next(at(0)), None);
}

/// A step of a test of the queue, on one of a few tasks.
#[derive(Clone, Debug)]
enum Step {
    Schedule(usize, i64),
    Cancel(usize),
    Pop,
    Done(usize),
    Wait(i64),
    Retain(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12_usize, 0..20_i64).prop_map(|(task, after)| Step::Schedule(task, after)),
        1 => (0..12_usize).prop_map(Step::Cancel),
        4 => Just(Step::Pop),
        3 => (0..12_usize).prop_map(Step::Done),
        2 => (0..10_i64).prop_map(Step::Wait),
        1 => (0..12_usize).prop_map(Step::Retain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// No slow task is lost, early or handed out twice, and each namespace's tasks come in order of time.
    #[test]
    fn slow_tasks_are_handed_out_in_order(steps in prop::collection::vec(step(), 1..80)) {
        const AT_ONCE: usize = 4;
        let task = |number: usize| restore(["a", "b", "c"][number % 3], &format!("s{number}"));
        let (mut queue, mut now) = (Queue::default(), 100);
        let mut known: BTreeMap<usize, i64> = BTreeMap::new();
        let mut working: Vec<usize> = Vec::new();
        for step in steps {
            match step {
                Step::Schedule(number, after) => {
                    queue.schedule(task(number), at(now + after));
                    let entry = known.entry(number).or_insert(now + after);
                    *entry = (*entry).min(now + after);
                }
                Step::Cancel(number) => {
                    queue.cancel(&task(number));
                    known.remove(&number);
                }
                Step::Wait(seconds) => now += seconds,
                Step::Done(number) => {
                    queue.done(&task(number));
                    working.retain(|known| *known != number);
                }
                Step::Retain(number) => {
                    queue.retain(|known| *known != task(number));
                    known.remove(&number);
                }
                Step::Pop => {
                    let is_free = |number: &usize| working.len() < AT_ONCE && !working.contains(number);
                    let due: Vec<_> =
                        known.iter().filter(|(number, due)| is_free(number) && **due <= now).collect();
                    match queue.pop(at(now), at(0)) {
                        None => prop_assert!(due.is_empty(), "{due:?}"),
                        Some(popped) => {
                            let number = (0..12).find(|number| task(*number) == popped).unwrap();
                            let mut of_namespace = due.iter().filter(|(other, _)| *other % 3 == number % 3);
                            prop_assert!(due.iter().any(|(due, _)| **due == number));
                            prop_assert!(of_namespace.all(|(_, due)| known[&number] <= **due));
                            known.remove(&number);
                            working.push(number);
                        }
                    }
                }
            }
            let waiting = known.iter().filter(|(number, _)| !working.contains(number));
            let next = waiting.map(|(_, due)| at(*due)).min().filter(|_| working.len() < AT_ONCE);
            let found = queue.next(at(0));
            // The namespace whose turn it is comes first, even if a task of another namespace has been due longer.
            prop_assert!(found == next || (found <= Some(at(now)) && next <= Some(at(now)) && found.is_some() == next.is_some()));
        }
    }
}
