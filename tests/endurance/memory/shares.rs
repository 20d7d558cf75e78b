//! The memory of a namespace that fills its share of the index: whatever its objects look like, they take no more than is counted.

use std::sync::Arc;

use confrev::{
    annotations,
    controller::{RawObject, RevisionsSubject, State, WorkloadsSubject, take},
    kinds::{Kinds, REVISION_KINDS},
    snapshot::{ObjectName, SourceKind},
    world::{BoundRecord, INDEX_TOTAL, NAMESPACE_SHARE, Name, Owner, REVISIONS_SHARE, Version},
};
use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Map, Value, json};

use super::{config, counter, kind, uid};

/// Fixed memory, and tables that have just grown.
const SPARE: usize = 1 << 20;

/// The name of a source: distinct, and of this length at least.
fn long(number: usize, length: usize) -> String {
    format!("{number:0>length$}")
}

/// An object with references to distinct snapshots, with names of this length at least.
fn referring(namespace: &str, number: usize, references: usize, length: usize) -> Value {
    let names: Vec<_> = (0..references).map(|each| long(number * references + each, length)).collect();
    let snapshot = |name: &String| format!("{name}-0123456789");
    let sources: Map<_, _> = names.iter().map(|name| (name.clone(), json!(snapshot(name)))).collect();
    let env: Vec<_> = names.iter().map(|name| json!({"configMapRef": {"name": snapshot(name)}})).collect();
    json!({
        "metadata": {
            "name": format!("set-{number}"), "namespace": namespace, "uid": uid("set", number), "resourceVersion": "1",
            "labels": {(annotations::ENABLED): "true"},
        },
        "spec": {"template": {
            "metadata": {"annotations": {(annotations::SOURCES): json!({"configmaps": sources}).to_string()}},
            "spec": {"containers": [{"name": "app", "envFrom": env}]},
        }},
    })
}

/// A workload that reads many keys of one source.
fn reading(number: usize, keys: usize) -> Value {
    let key = |each: usize| {
        let of = json!({"name": "demo", "key": format!("key-{number}-{each}")});
        json!({"name": format!("V{each}"), "valueFrom": {"configMapKeyRef": of}})
    };
    let env: Vec<_> = (0..keys).map(key).collect();
    json!({
        "metadata": {
            "name": format!("web-{number}"), "namespace": "tenant", "uid": uid("web", number), "resourceVersion": "1",
            "labels": {(annotations::ENABLED): "true"},
        },
        "spec": {"template": {"spec": {"containers": [{"name": "app", "env": env}]}}},
    })
}

fn state() -> State {
    let mut state = State::new(Arc::new(Kinds::default()), config());
    state.set_synced();
    state
}

fn see(state: &mut State, is_workload: bool, object: Value) {
    let object: RawObject = serde_json::from_value(object).unwrap();
    let (event, now) = (Event::Apply(object), Timestamp::UNIX_EPOCH);
    if is_workload {
        take(&WorkloadsSubject(kind("Deployment")), state, event, &mut None, now);
    } else {
        let sets = REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap();
        take(&RevisionsSubject(sets), state, event, &mut None, now);
    }
}

/// The memory of a state that sees these objects, and the bytes that it counts.
fn memory(what: &str, objects: impl IntoIterator<Item = (bool, Value)>) -> (usize, State) {
    let before = counter::held();
    let mut state = state();
    for (is_workload, object) in objects {
        see(&mut state, is_workload, object);
    }
    let held = counter::held() - before;
    let counted = state.counts(false).index_bytes;
    println!("{what}: {held} bytes, {counted} counted, {} % of it", 100 * held / counted);
    (held, state)
}

/// Objects, each a workload (`true`) or a revision. They are made one by one, so that only their records count.
type Objects = Box<dyn Iterator<Item = (bool, Value)>>;
/// Objects, and the share that they fill.
type Case = (&'static str, Objects, usize);

#[test]
fn records_take_no_more_than_their_share() {
    let sets = |count: usize, references: usize, length: usize| -> Objects {
        Box::new((0..count).map(move |number| (false, referring("tenant", number, references, length))))
    };
    let webs = |count: usize, references: usize, length: usize| -> Objects {
        Box::new((0..count).map(move |number| (true, referring("tenant", number, references, length))))
    };
    let keys: Objects = Box::new((0..40).map(|number| (true, reading(number, 5000))));
    let cases: [Case; 7] = [
        ("1,900 names in each of 8 ReplicaSets", sets(8, 1900, 1), REVISIONS_SHARE),
        ("100 long names in each of 80 ReplicaSets", sets(80, 100, 200), REVISIONS_SHARE),
        ("7,000 ReplicaSets with one name", sets(7000, 1, 1), REVISIONS_SHARE),
        ("30,000 ReplicaSets without names", sets(30_000, 0, 1), REVISIONS_SHARE),
        ("1,900 names in each of 8 workloads", webs(8, 1900, 1), NAMESPACE_SHARE),
        ("8,000 workloads with one name", webs(8000, 1, 1), NAMESPACE_SHARE),
        ("5,000 keys in each of 40 workloads", keys, NAMESPACE_SHARE),
    ];
    let mut exceeded = Vec::new();
    for (what, objects, share) in cases {
        let (held, state) = memory(what, objects);
        assert_eq!(state.partly_known_namespaces(), ["tenant".into()], "{what}");
        if held > share + SPARE {
            exceeded.push((what, held, share));
        }
    }
    assert!(exceeded.is_empty(), "{exceeded:?}");
}

/// Objects in bind mode, with as many owners as an object can have.
#[test]
fn owners_take_no_more_than_their_share() {
    let before = counter::held();
    let mut state = state();
    for number in 0..100 {
        let owner = |each: usize| {
            Owner::new("v1", "Pod", format!("pod-{number}-{each}"), uid("pod", number * 5000 + each))
        };
        let version = Version { uid: uid("bound", number), resource_version: "1".to_owned() };
        let record = BoundRecord { version, owners: (0..5000).map(owner).collect() };
        let name = Name::new("tenant", ObjectName::new(SourceKind::ConfigMap, format!("bound-{number}")));
        state.apply_bound(&name, Some(record), Timestamp::UNIX_EPOCH);
    }
    let held = counter::held() - before;
    println!("100 objects with 5,000 owners: {held} bytes, {} counted", state.counts(false).index_bytes);
    assert!(held <= NAMESPACE_SHARE + SPARE, "{held}");
}

/// As many namespaces as it takes.
#[test]
fn all_records_take_no_more_than_the_total() {
    let objects = (0..12).flat_map(|tenant| {
        (0..10)
            .map(move |number| (false, referring(&format!("tenant-{tenant}"), 10 * tenant + number, 1900, 1)))
    });
    let (held, state) = memory("1,900 names in each of 10 ReplicaSets of 12 namespaces", objects);
    // Every table has just grown.
    assert!(held <= INDEX_TOTAL + 2 * SPARE, "{held}");
    assert!(state.partly_known_namespaces().len() >= 8, "{:?}", state.partly_known_namespaces());
}
