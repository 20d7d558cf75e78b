//! `on-failure: revert`: which failures refuse a content, and which workloads go back.

use std::{collections::BTreeSet, sync::Arc};

use confrev::{
    annotations,
    controller::{Action, Outcome, ReferringSubject, VerdictSet, take},
    kinds::Kinds,
    resolve::{
        Health::{self, Failed, Progressing, Settled, Unavailable},
        Record, RecordedFailure, Verdict, Workload,
    },
    snapshot::Rotated,
    telemetry::metrics::Reason,
    world::{SnapshotRecord, WorkloadKey},
};
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, name, observed, record, snapshot, stored},
    story::{BLUE, GREEN, poke, undo},
    world::{World, configmap, kind},
};

/// When the first workload moved.
const START: i64 = 2_000_000;

fn set(world: &mut World, color: &str) {
    world.set("demo", json!({"color": color}));
    world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"] = reverts();
}

fn reverts() -> Value {
    json!({annotations::ON_FAILURE: "revert"})
}

/// The workloads `a` to `c`, of which `a` and `b` have moved to green.
fn workloads() -> (World, Vec<(String, Value)>) {
    let mut world = World::default();
    set(&mut world, "blue");
    let mut all: Vec<_> = ["a", "b", "c"].map(|name| (name.to_owned(), stored(&mut world, name))).into();
    set(&mut world, "green");
    for (_, object) in &mut all[..2] {
        *object = poke(&mut world, object, START);
    }
    (world, all)
}

fn failed() -> Verdict {
    let (reason, at) = ("Deployment/a failed: x".into(), "then".into());
    Verdict {
        failed: Some(RecordedFailure { reason, at, previous: Some(BLUE.into()) }),
        ..Verdict::default()
    }
}

/// What a new leader does within a minute, at that second after the start.
#[derive(Debug, Default)]
struct Acts {
    rolled: BTreeSet<String>,
    refused: Vec<(String, Option<RecordedFailure>)>,
    reasons: Vec<Reason>,
}

fn acts(
    records: Vec<(WorkloadKey, Record)>,
    annotations: &Value,
    verdict: Option<Verdict>,
    second: i64,
) -> Acts {
    let mut desk = Desk::new();
    desk.now = Timestamp::from_second(START + second).unwrap();
    let later = desk.now;
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    let green =
        SnapshotRecord { created: later, verdict: verdict.map(Box::new), ..snapshot("green", "1", &[]) };
    desk.state.apply_snapshot(&name(GREEN), Some(green.clone()), desk.now);
    for (key, record) in records {
        desk.state.apply_workload(&key, Some(record), desk.now);
    }
    let mut acts = Acts::default();
    for _ in 0..6 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => {
                    let green = observed(json!({"color": "green"}), annotations.clone(), "2");
                    Outcome::Read(Some(Box::new(green)))
                }
                // The roll stays in progress.
                Action::Poke { workload, .. } => {
                    acts.rolled.insert(workload.name.to_string());
                    continue;
                }
                // The watch of snapshots is silent.
                Action::SetVerdict { snapshot, version: before, verdict, had_failed, decision, .. } => {
                    acts.refused.push((snapshot.object.name.to_string(), verdict.failed.clone()));
                    let after = format!("{}", 2 + acts.refused.len());
                    Outcome::VerdictSet(VerdictSet { snapshot, before, after, verdict, had_failed, decision })
                }
                Action::WriteEvent(event) => {
                    acts.reasons.push(event.reason);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.pass(10);
    }
    acts
}

fn records(all: &[(String, Value)], first: Health) -> Vec<(WorkloadKey, Record)> {
    let health = |name: &str| if name == "a" { first } else { Settled };
    all.iter().map(|(name, object)| (key(name), record(object, health(name)))).collect()
}

fn set_of(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn failure_refuses_content_and_moved_workloads_return() {
    let (_, all) = workloads();
    let acts = acts(records(&all, Failed), &reverts(), None, 30);
    let [(snapshot, Some(refusal))] = &acts.refused[..] else { panic!("{acts:?}") };
    assert_eq!((snapshot.as_str(), refusal.previous.as_deref()), (GREEN, Some(BLUE)));
    assert_eq!(&*refusal.reason, "Deployment/a failed: ProgressDeadlineExceeded");
    assert_eq!(acts.rolled, set_of(&["a", "b"]), "the third has not moved");
    assert!(acts.reasons.contains(&Reason::ContentRefused), "{acts:?}");
}

/// Another leader continues from the mark alone.
#[test]
fn new_leader_continues_return_from_the_mark() {
    let (mut world, mut all) = workloads();
    let snapshot = world.objects.get_mut(&configmap(GREEN)).unwrap();
    snapshot["metadata"]["annotations"][annotations::VERDICT] = json!(failed().text());
    all[0].1 = poke(&mut world, &all[0].1, START + 9);
    let marked = acts(records(&all, Settled), &reverts(), Some(failed()), 30);
    assert_eq!((&marked.rolled, &marked.refused[..]), (&set_of(&["b"]), &[][..]));
    // Without the setting, the mark has no effect: the others roll on.
    let held = acts(records(&all, Settled), &json!({}), Some(failed()), 30);
    assert_eq!(held.rolled, set_of(&["a", "c"]));
}

#[test]
fn only_failures_of_the_move_refuse() {
    let (mut world, all) = workloads();
    for (health, refuses) in [(Failed, true), (Progressing, false), (Unavailable, false), (Settled, false)] {
        let acts = acts(records(&all, health), &reverts(), None, 30);
        assert_eq!(acts.refused.len(), usize::from(refuses), "{health:?}");
    }
    let is_refused =
        |all: &[(String, Value)]| !acts(records(all, Failed), &reverts(), None, 30).refused.is_empty();
    // A person wrote the spec since.
    let mut deployed = all.clone();
    let time = Timestamp::from_second(START + 9).unwrap().to_string();
    deployed[0].1["metadata"]["managedFields"] =
        json!([{"manager": "kubectl", "time": time, "fieldsV1": {"f:spec": {"f:template": {}}}}]);
    assert!(!is_refused(&deployed));
    // The controller of Rollouts writes the whole Rollout at each new revision.
    deployed[0].1["metadata"]["managedFields"][0]["manager"] = json!("rollouts-controller");
    assert!(is_refused(&deployed));
    // It was unhealthy before.
    let mut unwell = all.clone();
    let state = &mut unwell[0].1["metadata"]["annotations"][annotations::STATE];
    let marked = state.as_str().unwrap().replace(r#""seen""#, r#""unhealthy":true,"seen""#);
    *state = json!(marked);
    assert!(!is_refused(&unwell));
    // A person moved it.
    let (_, mut chosen) = workloads();
    let back = world.update(&undo(&all[0].1, &all[2].1), &all[0].1);
    chosen[0].1 = world.update(&undo(&back, &all[0].1), &back);
    assert!(is_refused(&all));
    let hold = acts(records(&all, Failed), &json!({annotations::ON_FAILURE: "hold"}), None, 30);
    assert_eq!((hold.refused.len(), hold.rolled.len()), (0, 1), "{hold:?}");
}

/// Kinds without a deadline of their own, and Rollouts.
#[test]
fn every_kind_refuses_after_its_failure() {
    let at = |kind_name: &str, health, second| {
        let (_, all) = workloads();
        let at = Kinds::default().iter().position(|kind| kind.kind == kind_name).unwrap();
        let kind = kind(kind_name);
        let mut object = all[0].1.clone();
        if kind_name == "CronJob" {
            object["spec"] = json!({"jobTemplate": {"spec": object["spec"]}});
        }
        let record = Record::of(&Workload::read(&kind, &object).unwrap(), health, &Rotated::default());
        let key = WorkloadKey { kind: at, namespace: Arc::from("ns"), name: Arc::from("a") };
        let acts = acts(vec![(key, record)], &reverts(), None, second);
        acts.refused.iter().find_map(|(_, refusal)| Some(refusal.as_ref()?.reason.to_string()))
    };
    let late = |kind: &str| Some(format!("{kind}/a failed: not healthy within its progress-deadline"));
    assert_eq!(at("Rollout", Failed, 30).as_deref(), Some("Rollout/a failed: aborted or degraded"));
    for kind in ["StatefulSet", "DaemonSet"] {
        assert_eq!(at(kind, Progressing, 30), None);
        assert_eq!(at(kind, Progressing, 590), late(kind), "the deadline passes");
        assert_eq!(at(kind, Unavailable, 700), late(kind));
        assert_eq!(at(kind, Unavailable, 86_400), None, "its pods failed long after");
        assert_eq!(at(kind, Settled, 86_400), None);
    }
    assert_eq!(at("CronJob", Settled, 86_400), None);
}

/// Its next Jobs read the previous content.
#[test]
fn cron_jobs_return_with_others() {
    let (_, all) = workloads();
    let at = Kinds::default().iter().position(|kind| kind.kind == "CronJob").unwrap();
    let kind = kind("CronJob");
    let mut object = all[1].1.clone();
    object["spec"] = json!({"jobTemplate": {"spec": object["spec"]}});
    let record = Record::of(&Workload::read(&kind, &object).unwrap(), Settled, &Rotated::default());
    let cron_job = WorkloadKey { kind: at, namespace: Arc::from("ns"), name: Arc::from("nightly") };
    let mut known = records(&all, Failed);
    known.push((cron_job, record));
    let acts = acts(known, &reverts(), None, 30);
    assert_eq!(acts.rolled, set_of(&["a", "b", "nightly"]));
}

/// The pods of the template are the Rollout's.
#[test]
fn aborted_rollout_refuses_content_of_its_deployment() {
    let (_, all) = workloads();
    let mut desk = Desk::new();
    desk.now = Timestamp::from_second(START + 30).unwrap();
    desk.state.apply_snapshot(&name(GREEN), Some(snapshot("green", "1", &[])), desk.now);
    desk.state.apply_workload(&key("a"), Some(record(&all[0].1, Settled)), desk.now);
    let green = json!({"color": "green"});
    let is_refusal = |action: &Action| matches!(action, Action::SetVerdict { .. });
    assert!(!desk.act(&green, &reverts(), "2").iter().any(is_refusal));
    let rollout = json!({
        "metadata": {"name": "shop", "namespace": "ns", "uid": "r"},
        "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}},
        "status": {"abort": true},
    });
    let event = Event::Apply(serde_json::from_value(rollout).unwrap());
    take(&ReferringSubject(Arc::from("ns")), &mut desk.state, event, &mut None, desk.now);
    let acts = desk.act(&green, &reverts(), "2");
    let Some(Action::SetVerdict { verdict, .. }) = acts.iter().find(|action| is_refusal(action)) else {
        panic!("{acts:?}")
    };
    assert_eq!(
        &*verdict.failed.as_ref().unwrap().reason,
        "Deployment/a failed: its Rollout is aborted or degraded"
    );
}

#[test]
fn retry_removes_the_mark_once() {
    let (_, all) = workloads();
    let retried = |at: i64| {
        let at = Timestamp::from_second(START + at).unwrap();
        let annotations =
            json!({annotations::ON_FAILURE: "revert", annotations::DECISION: format!("retry {GREEN} {at}")});
        acts(records(&all[2..], Settled), &annotations, Some(failed()), 30)
    };
    let again = retried(31);
    assert_eq!((&again.refused[..], &again.rolled), (&[(GREEN.to_owned(), None)][..], &set_of(&["c"])));
    assert!(again.reasons.contains(&Reason::RollReleased), "{again:?}");
    let earlier = retried(29);
    assert_eq!((earlier.refused.len(), earlier.rolled.len()), (0, 0));
}
