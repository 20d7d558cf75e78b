//! Memory that the controller keeps for a workload: allocated bytes, which are equal on every machine.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod counter;
mod shares;

use std::sync::Arc;

use confrev::{
    annotations,
    controller::{
        Action, Config, Outcome, RevisionsSubject, SnapshotsSubject, State, Subject, UsedSourcesSubject,
        WorkloadsSubject, take,
    },
    kinds::{Kinds, REVISION_KINDS},
    resolve::Observed,
    snapshot::SourceKind,
};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The limit for a workload, its source, its snapshot and two ReplicaSets. `make bench` measures the rest of a
/// process's memory (needed at the start, and not returned to the system).
const MOST: usize = 3200;
/// The limit at the start, while the source is not read yet.
const MOST_AT_FIRST: usize = 3500;
/// Enough workloads that fixed costs do not count, and that tables are neither just full nor just grown.
const WORKLOADS: usize = 10_000;
/// Their namespaces.
const NAMESPACES: usize = 10;

/// A uid of constant length, distinct for each kind of object.
fn uid(kind: &str, number: usize) -> String {
    let kind: u32 = kind.bytes().map(u32::from).sum();
    format!("{kind:0>8x}-0000-4000-8000-{number:0>12}")
}

/// The namespaces have 1,000 workloads each.
fn namespace(number: usize) -> String {
    format!("production-{}", number % NAMESPACES)
}

fn source(number: usize) -> String {
    format!("settings-of-{number}")
}

/// The content of every source: all digests are equal, since no size depends on them.
fn content() -> Value {
    json!({"color": "blue"})
}

fn observed(number: usize) -> Observed {
    let metadata = json!({
        "name": source(number),
        "namespace": namespace(number),
        "uid": uid("source", number),
        "resourceVersion": (1_000_000 + number).to_string(),
    });
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": content()});
    Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).unwrap()
}

fn snapshot_name(number: usize) -> String {
    format!("{}-3a18d34e26", source(number))
}

fn template(number: usize) -> Value {
    let sources = json!({"configmaps": {source(number): snapshot_name(number)}});
    json!({
        "metadata": {
            "labels": {(annotations::REVISION): "1a2b3c4d5e"},
            "annotations": {(annotations::SOURCES): sources.to_string()},
        },
        "spec": {"containers": [{
            "name": "app",
            "image": "example/app:1",
            "envFrom": [{"configMapRef": {"name": snapshot_name(number)}}],
        }]},
    })
}

fn workload(number: usize) -> Value {
    let state = json!({"configmaps": {source(number): {"seen": observed(number).digest().to_string()}}});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": format!("service-{number}"),
            "namespace": namespace(number),
            "uid": uid("workload", number),
            "resourceVersion": (2_000_000 + number).to_string(),
            "labels": {(annotations::ENABLED): "true"},
            "annotations": {(annotations::STATE): state.to_string()},
        },
        "spec": {"template": template(number)},
    })
}

fn replica_set(number: usize, revision: usize) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": format!("service-{number}-7d4b8c9f{revision}"),
            "namespace": namespace(number),
            "uid": uid("set", 2 * number + revision),
            "resourceVersion": (3_000_000 + number).to_string(),
        },
        "spec": {"template": template(number)},
    })
}

fn snapshot(number: usize) -> Value {
    let owner = |kind: &str, api_version: &str, name: String, uid: String| json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
    let set = |revision| {
        let set = replica_set(number, revision);
        let text = |field: &str| set["metadata"][field].as_str().unwrap().to_owned();
        owner("ReplicaSet", "apps/v1", text("name"), text("uid"))
    };
    let owners = json!([
        owner("ConfigMap", "v1", source(number), uid("source", number)),
        owner("Deployment", "apps/v1", format!("service-{number}"), uid("workload", number)),
        set(0),
        set(1),
    ]);
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": snapshot_name(number),
            "namespace": namespace(number),
            "uid": uid("snapshot", number),
            "resourceVersion": (4_000_000 + number).to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                (annotations::SOURCE_NAME): source(number),
                (annotations::DIGEST): observed(number).digest().to_string(),
            },
            "ownerReferences": owners,
        },
    })
}

/// Lists objects into the state, as a watch does when it starts.
fn list<S: Subject>(state: &mut State, subject: &S, objects: impl Iterator<Item = Value>)
where
    S::Object: DeserializeOwned,
{
    let (mut listing, now) = (None, Timestamp::UNIX_EPOCH);
    take(subject, state, Event::Init, &mut listing, now);
    for object in objects {
        let object = serde_json::from_value(object).unwrap();
        take(subject, state, Event::InitApply(object), &mut listing, now);
    }
    take(subject, state, Event::InitDone, &mut listing, now);
}

/// Does the tasks that are due: every source is read unchanged. Returns all other actions.
fn settle(state: &mut State) -> Vec<Action> {
    let (mut others, mut now) = (Vec::new(), Timestamp::UNIX_EPOCH);
    for _ in 0..10 {
        now += SignedDuration::from_secs(1);
        while let Some((task, action)) = state.next_action(now) {
            let outcome = if let Action::Read(name) = &action {
                let number = name.object.name.rsplit('-').next().unwrap().parse().unwrap();
                Outcome::Read(Some(Box::new(observed(number))))
            } else {
                others.push(action);
                Outcome::Done
            };
            state.finish(&task, Ok(outcome), now);
        }
    }
    others
}

fn kind(name: &str) -> usize {
    Kinds::default().iter().position(|kind| kind.kind == name).unwrap()
}

fn config() -> Config {
    Config { rolls_per_second: 100_000, secrets: true, ..Config::default() }
}

#[test]
fn workload_memory_stays_within_the_stated_limit() {
    let replica_sets = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
    let before = counter::held();
    let mut state = State::new(Arc::new(Kinds::default()), config());
    let mut told = Vec::new();
    let mut tell = |what: &'static str| told.push((what, (counter::held() - before) / WORKLOADS));
    list(&mut state, &WorkloadsSubject(kind("Deployment")), (0..WORKLOADS).map(workload));
    tell("workloads");
    let sets = (0..WORKLOADS).flat_map(|number| [replica_set(number, 0), replica_set(number, 1)]);
    list(&mut state, &RevisionsSubject(replica_sets), sets);
    tell("and revisions");
    list(&mut state, &SnapshotsSubject(SourceKind::ConfigMap), (0..WORKLOADS).map(snapshot));
    tell("and snapshots");
    for place in 0..NAMESPACES {
        let of = (0..WORKLOADS).filter(|number| number % NAMESPACES == place);
        let sources = of.map(|number| serde_json::from_slice::<Value>(observed(number).json()).unwrap());
        list(&mut state, &UsedSourcesSubject(SourceKind::ConfigMap, namespace(place).into()), sources);
    }
    state.set_synced();
    tell("and queued tasks");
    let others = settle(&mut state);
    assert!(others.is_empty(), "unexpected actions: {others:?}");
    assert_eq!(state.partly_known_namespaces(), Vec::<Arc<str>>::new(), "every workload is known");
    let counted = state.counts(false).index_bytes / WORKLOADS;
    println!("counted bytes per workload: {counted}");
    tell("after all tasks");
    println!("bytes per workload: {told:#?}");
    let most = told.iter().map(|(_, each)| *each).max().unwrap();
    assert!(most <= MOST_AT_FIRST, "{most} bytes per workload at first, the limit is {MOST_AT_FIRST}");
    let (_, each) = told.pop().unwrap();
    assert!(each <= MOST, "{each} bytes per workload, the limit is {MOST}");
    drop(state);
}
