//! Health and `max-in-flight`: which workloads hold the others, and which do not.

use std::sync::Arc;

use confrev::{
    annotations,
    controller::{
        Action, PartialObject, RawObject, ReferringSubject, Subject, UsedSourcesSubject, WorkloadsSubject,
        take,
    },
    resolve::Health,
    snapshot::SourceKind,
    telemetry::metrics::StateCounts,
};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key},
    world::{World, annotate, deployment, kind, remembered},
};

/// The generation and the status of a Deployment.
#[derive(Clone, Copy)]
enum Status {
    Healthy,
    RollingOut,
    /// Past its progress deadline.
    Failed,
    /// Rolled out long ago; its pods fail.
    Crashing,
}

use Status::{Crashing, Failed, Healthy, RollingOut};

fn progressing(reason: &str) -> Value {
    json!([{"type": "Progressing", "status": "True", "reason": reason}])
}

fn with_status(object: &Value, status: Status) -> Value {
    let mut object = object.clone();
    object["metadata"]["generation"] = json!(2);
    object["status"] = match status {
        Healthy => json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}),
        RollingOut => json!({"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1}),
        Failed => json!({"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1,
            "conditions": progressing("ProgressDeadlineExceeded")}),
        Crashing => json!({"replicas": 1, "updatedReplicas": 1,
            "conditions": progressing("NewReplicaSetAvailable")}),
    };
    object["status"]["observedGeneration"] = json!(2);
    object
}

fn named(name: &str) -> Value {
    let mut object = deployment(&["demo"]);
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(format!("uid-{name}"));
    object
}

/// A stored workload after a roll by the controller.
fn poked(world: &mut World, stored: &Value) -> Value {
    let mut wanted = stored.clone();
    annotate(&mut wanted, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
    world.update(&wanted, stored)
}

/// A Rollout with the template of `web`, which is neither opted in nor labelled.
fn rollout(observed: &str, status: Value) -> Value {
    let mut rollout = json!({
        "metadata": {"name": "shop", "namespace": "ns", "uid": "r", "generation": 1},
        "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
        "status": status,
    });
    rollout["status"]["observedGeneration"] = json!("1");
    rollout["status"]["workloadObservedGeneration"] = json!(observed);
    rollout
}

/// The workloads that a new leader rolls after its start. `rollouts` is `None` if Rollouts have not been listed yet.
fn rolled_by_new_leader(objects: &[Value], rollouts: Option<&[Value]>) -> Vec<String> {
    let (limit, green) = (json!({annotations::MAX_IN_FLIGHT: "1"}), json!({"color": "green"}));
    let mut desk = Desk::new();
    list(&mut desk, &WorkloadsSubject(key("web").kind), objects);
    desk.read(&green, &limit, "2");
    if let Some(rollouts) = rollouts {
        list(&mut desk, &ReferringSubject(Arc::from("ns")), rollouts);
    }
    let mut rolled = Vec::new();
    for _ in 0..5 {
        desk.pass(2);
        let due: Vec<_> = std::iter::from_fn(|| desk.state.next_action(desk.now)).collect();
        rolled.extend(due.into_iter().filter_map(|(_, action)| match action {
            Action::Poke { workload, .. } => Some(workload.name.to_string()),
            _ => None,
        }));
    }
    rolled
}

/// Applies the list of a watch to the state.
fn list<S: Subject<Object = RawObject>>(desk: &mut Desk, subject: &S, objects: &[Value]) {
    let mut listing = None;
    let mut step = |event| take(subject, &mut desk.state, event, &mut listing, desk.now);
    step(Event::Init);
    for object in objects {
        step(Event::InitApply(serde_json::from_value(object.clone()).unwrap()));
    }
    step(Event::InitDone);
}

impl Desk {
    /// Lets every source be read. No other action may be due.
    fn read(&mut self, data: &Value, annotations: &Value, version: &str) {
        let actions: Vec<_> = std::iter::from_fn(|| self.state.next_action(self.now)).collect();
        for (task, action) in actions {
            assert!(matches!(action, Action::Read(_)), "{action:?}");
            let found = super::controller::observed(data.clone(), annotations.clone(), version);
            let outcome = confrev::controller::Outcome::Read(Some(Box::new(found)));
            self.state.finish(&task, Ok(outcome), self.now);
        }
    }
}

/// Two workloads on blue. The first rolls to green, the second is pending.
fn first_takes_green(before: Status, take: impl Fn(&mut World, &Value) -> Value) -> (World, [Value; 2]) {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let [web, other] = ["web", "other"].map(|name| world.create(&named(name)));
    world.set("demo", json!({"color": "green"}));
    let web = take(&mut world, &with_status(&web, before));
    (world, [web, with_status(&other, Healthy)])
}

#[test]
fn workload_unhealthy_before_change_holds_no_others() {
    for (before, after, holds) in [
        (Healthy, Failed, true),
        (Healthy, Healthy, false),
        (RollingOut, Failed, true),
        (Failed, Failed, false),
        (Crashing, Failed, false),
        (Failed, RollingOut, true),
        (Failed, Healthy, false),
    ] {
        let (_, [web, other]) = first_takes_green(before, poked);
        let rolled = rolled_by_new_leader(&[with_status(&web, after), other], Some(&[]));
        let wanted: &[&str] = if holds { &[] } else { &["other"] };
        assert_eq!(rolled, wanted, "{} then {}", before as u8, after as u8);
    }
}

#[test]
fn apply_records_unhealthy_workload() {
    let apply = |world: &mut World, stored: &Value| {
        let mut wanted = named("web");
        wanted["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        world.update(&wanted, stored)
    };
    for (before, holds) in [(Failed, false), (Healthy, true)] {
        let (_, [web, other]) = first_takes_green(before, apply);
        let rolled = rolled_by_new_leader(&[with_status(&web, Failed), other], Some(&[]));
        assert_eq!(rolled.is_empty(), holds, "{}", before as u8);
    }
}

#[test]
fn failure_with_outdated_status_counts() {
    let poked_after_scaling = |world: &mut World, stored: &Value| {
        let mut scaled = stored.clone();
        scaled["metadata"]["generation"] = json!(3);
        poked(world, &scaled)
    };
    for (before, holds) in [(Failed, false), (Healthy, true)] {
        let (_, [web, other]) = first_takes_green(before, poked_after_scaling);
        let rolled = rolled_by_new_leader(&[with_status(&web, Failed), other], Some(&[]));
        assert_eq!(rolled.is_empty(), holds, "{}", before as u8);
    }
}

#[test]
fn unhealthy_record_lasts_until_workload_is_healthy() {
    let (mut world, [web, _]) = first_takes_green(Failed, poked);
    let marked = |object: &Value| remembered(object, "unhealthy");
    let seen = |object: &Value| remembered(object, "seen");
    let mark = json!({"configmaps": {"demo": true}});
    assert_eq!(marked(&web), mark);
    // The same content again: nothing is written.
    for status in [RollingOut, Failed, Healthy] {
        let stored = with_status(&web, status);
        let applied = world.admit(&stored, Some(&stored));
        assert!(applied.decision.patch.0.is_empty(), "{:?}", applied.decision.patch);
    }
    // The next content comes before the workload is healthy again, then after.
    world.set("demo", json!({"color": "red"}));
    for (status, lasts) in [(RollingOut, true), (Failed, true), (Healthy, false)] {
        let red = poked(&mut world, &with_status(&web, status));
        assert_ne!(seen(&red), seen(&web));
        assert_eq!(marked(&red), if lasts { mark.clone() } else { Value::Null }, "{}", status as u8);
    }
}

#[test]
fn undo_restores_no_unhealthy_record() {
    let (mut world, [green, _]) = first_takes_green(Failed, poked);
    world.set("demo", json!({"color": "red"}));
    let red = poked(&mut world, &with_status(&green, Healthy));
    let mut undone = red.clone();
    undone["spec"]["template"] = green["spec"]["template"].clone();
    undone["metadata"]["annotations"] = green["metadata"]["annotations"].clone();
    let undone = world.update(&undone, &with_status(&red, Failed));
    assert_eq!(remembered(&undone, "unhealthy"), Value::Null);
    assert_eq!(remembered(&undone, "seen"), remembered(&red, "seen"));
}

#[test]
fn opting_out_removes_unhealthy_record() {
    let (mut world, [web, _]) = first_takes_green(Failed, poked);
    let mut out = web.clone();
    out["metadata"]["labels"][annotations::ENABLED] = json!("false");
    let out = world.update(&out, &web);
    assert_eq!(out["metadata"]["annotations"].get(annotations::STATE), None, "{out}");
}

#[test]
fn workload_health_includes_its_rollouts() {
    let healthy = json!({"phase": "Healthy"});
    let (_, [web, other]) = first_takes_green(Healthy, poked);
    let objects = [with_status(&web, Healthy), other];
    let two = |status: &Value| {
        let mut second = rollout("2", status.clone());
        second["metadata"]["name"] = json!("second");
        vec![rollout("2", healthy.clone()), second]
    };
    let mut elsewhere = rollout("2", json!({"phase": "Degraded"}));
    elsewhere["spec"]["workloadRef"]["name"] = json!("third");
    for (rollouts, holds) in [
        (None, true),
        (Some(vec![]), false),
        (Some(vec![rollout("2", healthy.clone())]), false),
        (Some(vec![rollout("1", healthy.clone())]), true),
        (Some(vec![rollout("2", json!({"phase": "Paused"}))]), true),
        (Some(vec![rollout("2", json!({"phase": "Degraded"}))]), true),
        (Some(vec![rollout("2", json!({"phase": "Progressing", "abort": true}))]), true),
        (Some(two(&healthy)), false),
        (Some(two(&json!({"phase": "Degraded"}))), true),
        (Some(vec![elsewhere]), false),
    ] {
        let rolled = rolled_by_new_leader(&objects, rollouts.as_deref());
        assert_eq!(rolled.is_empty(), holds, "{rollouts:?}");
    }
}

#[test]
fn deleted_rollout_holds_no_workloads() {
    let (_, [web, other]) = first_takes_green(Healthy, poked);
    let (limit, green) = (json!({annotations::MAX_IN_FLIGHT: "1"}), json!({"color": "green"}));
    let mut desk = Desk::new();
    list(&mut desk, &WorkloadsSubject(key("web").kind), &[with_status(&web, Healthy), other]);
    desk.read(&green, &limit, "2");
    let subject = ReferringSubject(Arc::from("ns"));
    let rollout = rollout("2", json!({"phase": "Degraded"}));
    list(&mut desk, &subject, std::slice::from_ref(&rollout));
    let due = |desk: &mut Desk| {
        desk.pass(2);
        std::iter::from_fn(|| desk.state.next_action(desk.now))
            .any(|(_, action)| matches!(action, Action::Poke { .. }))
    };
    assert!(!due(&mut desk), "a failed Rollout holds no workloads");
    let gone = Event::Delete(serde_json::from_value(rollout).unwrap());
    take(&subject, &mut desk.state, gone, &mut None, desk.now);
    assert!(due(&mut desk), "a deleted Rollout holds the other workload");
}

/// A source of the namespace, as its watch reports it.
fn source(annotations: &Value) -> PartialObject {
    let metadata = json!({"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": "1", "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

/// The watch is stopped once nothing in the namespace needs it. A last event may already be on its way.
#[test]
fn late_event_of_an_ended_watch_changes_nothing() {
    let ns: Arc<str> = Arc::from("ns");
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = super::controller::record(&world.create(&named("web")), Health::Settled);
    let mut desk = Desk::new();
    let sources = UsedSourcesSubject(SourceKind::ConfigMap, Arc::clone(&ns));
    let tell = |desk: &mut Desk| {
        let limited = source(&json!({annotations::MAX_IN_FLIGHT: "1"}));
        take(&sources, &mut desk.state, Event::Apply(limited), &mut None, desk.now);
    };
    let mut watches = Vec::new();
    for _ in 0..2 {
        desk.state.apply_workload(&key("web"), Some(web.clone()), desk.now);
        tell(&mut desk);
        watches.extend(desk.state.limited_namespaces());
        desk.state.apply_workload(&key("web"), None, desk.now);
        for ended in [false, true] {
            if ended {
                tell(&mut desk);
                list(
                    &mut desk,
                    &ReferringSubject(Arc::clone(&ns)),
                    &[rollout("2", json!({"phase": "Degraded"}))],
                );
            }
            assert_eq!(desk.state.limited_namespaces().len(), 0, "after the late event: {ended}");
            assert_eq!(desk.state.watched_namespaces().len(), 0, "after the late event: {ended}");
            assert_eq!(desk.state.counts(true), StateCounts::default(), "after the late event: {ended}");
        }
    }
    let [(first, before), (second, after)] = &watches[..] else { panic!("{watches:?}") };
    assert_eq!((&**first, &**second), ("ns", "ns"));
    assert_ne!(before, after, "the Rollouts are listed again by another watch");
}

#[test]
fn stateful_set_unhealthy_before_change_holds_no_others() {
    let stateful = |name: &str| {
        let mut object = named(name);
        object["kind"] = json!("StatefulSet");
        object
    };
    let status = |object: &Value, ready: usize, revisions: [&str; 2]| {
        let mut object = object.clone();
        object["metadata"]["generation"] = json!(2);
        object["status"] = json!({"observedGeneration": 2, "updatedReplicas": 1, "readyReplicas": ready,
            "currentRevision": revisions[0], "updateRevision": revisions[1]});
        object
    };
    for (before, holds) in [(1, true), (0, false)] {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        let kind = kind("StatefulSet");
        let [web, other] = ["web", "other"].map(|name| world.review(&kind, &stateful(name), None).object);
        world.set("demo", json!({"color": "green"}));
        let stored = status(&web, before, ["a", "a"]);
        let mut wanted = stored.clone();
        annotate(&mut wanted, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
        let web = world.review(&kind, &wanted, Some(&stored)).object;

        let (limit, green) = (json!({annotations::MAX_IN_FLIGHT: "1"}), json!({"color": "green"}));
        let index = confrev::kinds::Kinds::default().iter().position(|known| known.kind == "StatefulSet");
        let mut desk = Desk::new();
        // The new pod of `web` never becomes ready.
        let objects = [status(&web, 0, ["a", "b"]), status(&other, 1, ["a", "a"])];
        list(&mut desk, &WorkloadsSubject(index.unwrap()), &objects);
        desk.read(&green, &limit, "2");
        desk.pass(2);
        let due = std::iter::from_fn(|| desk.state.next_action(desk.now));
        let rolls = due.filter(|(_, action)| matches!(action, Action::Poke { .. })).count();
        assert_eq!(rolls == 0, holds, "{before} ready before");
    }
}
