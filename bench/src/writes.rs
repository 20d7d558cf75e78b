//! The time that admission adds to a write: the same writes in three namespaces, in turn.

use std::time::{Duration, Instant};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::environment::{
    CONFREV, Environment, LIMIT, NOTHING, PLAIN, config_map, config_maps, deployment, deployments,
};
use crate::row::{Reach, Row};
use crate::stats::quantile;

const NAMESPACES: [&str; 3] = [PLAIN, NOTHING, CONFREV];
const REFERENCES: usize = 3;
/// The number of workloads that use one ConfigMap. Each is an owner of its snapshot, and is read with the snapshot.
const SHARED: usize = 80;
/// How long confrev must send no request before the effects of a write count as finished.
const REST: Duration = Duration::from_millis(300);

/// The interval of the checks of a new workload.
const LOOK: Duration = Duration::from_millis(5);

/// The milliseconds of every write, by namespace.
type Times = [Vec<f64>; 3];

/// The namespaces with their indexes, forward and backward. So confrev's work after a write affects only its own
/// measurements and those of the webhook that does nothing.
fn in_turn(turn: usize) -> impl Iterator<Item = (usize, &'static str)> {
    let last = NAMESPACES.len() - 1;
    let place = move |i: usize| if turn.is_multiple_of(2) { i } else { last - i };
    (0..NAMESPACES.len()).map(move |i| (place(i), NAMESPACES[place(i)]))
}

/// The rows of workloads: `count` creations and as many updates, for each number of writers.
pub(crate) fn workloads(env: &Environment, count: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (writers, each) in [(1, 1), (16, 5)] {
        let (mut creations, mut updates) = (Times::default(), Times::default());
        let mut sources = Vec::new();
        for turn in 0..count.div_ceil(writers * each) {
            if (turn * writers * each).is_multiple_of(SHARED) {
                sources = new_sources(env, &format!("written-{writers}-{turn}"));
            }
            for (i, namespace) in in_turn(turn) {
                let written = (0..writers).map(|writer| {
                    let names = (0..each).map(move |n| format!("written-{writers}-{turn}-{writer}-{n}"));
                    write(env, namespace, names, &sources)
                });
                for (created, updated) in env.runtime.block_on(join_all(written)) {
                    creations[i].extend(created);
                    updates[i].extend(updated);
                }
                if writers > 1 && namespace == CONFREV {
                    env.wait_at_rest(REST);
                }
            }
        }
        rows.extend(compared(
            &format!("creation of a workload, 3 references, {writers} writers"),
            writers,
            &creations,
        ));
        let what = format!("update of a workload, 3 references, {writers} writers");
        rows.extend(compared(&what, writers, &updates));
    }
    rows
}

/// Creates new sources in all namespaces, and a workload that uses them. So the snapshots exist, as for all workloads
/// but the first that uses a content.
fn new_sources(env: &Environment, prefix: &str) -> Vec<String> {
    let sources: Vec<_> = (0..REFERENCES).map(|i| format!("{prefix}-{i}")).collect();
    for namespace in NAMESPACES {
        for source in &sources {
            env.cluster.create("configmap", namespace, &config_map(source, 1000));
        }
        env.runtime.block_on(write(env, namespace, std::iter::once(prefix.to_owned()), &sources));
    }
    env.wait_at_rest(REST);
    sources
}

/// The creations and updates of one writer, in milliseconds.
async fn write(
    env: &Environment,
    namespace: &str,
    names: impl Iterator<Item = String>,
    sources: &[String],
) -> (Vec<f64>, Vec<f64>) {
    let (mut creations, mut updates) = (Vec::new(), Vec::new());
    for name in names {
        let mut object = deployment(&name, sources);
        // The controllers of the cluster ignore it.
        object["spec"]["paused"] = json!(true);
        object["metadata"]["annotations"] = json!({});
        let start = Instant::now();
        env.client.create(&deployments(namespace), &object).await;
        creations.push(start.elapsed().as_secs_f64() * 1e3);
        let path = format!("{}/{name}", deployments(namespace));
        // The workload's controller writes to it too. If such a write comes first, the API server repeats the
        // update, including admission.
        while env.client.send(Method::GET, &path, "", &Value::Null).await["status"]["observedGeneration"]
            .is_null()
        {
            assert!(start.elapsed() < LIMIT, "no controller has observed {path}");
            tokio::time::sleep(LOOK).await;
        }
        let change = json!({"spec": {"template": {"metadata": {"annotations": {"bench": "changed"}}}}});
        let start = Instant::now();
        env.client.merge(&path, &change).await;
        updates.push(start.elapsed().as_secs_f64() * 1e3);
    }
    (creations, updates)
}

/// The rows of ConfigMaps: unused, and used by these numbers of workloads, which do not roll meanwhile.
pub(crate) fn sources(env: &Environment, count: usize, many: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, number) in [("unused", 0), ("used-by-one", 1), ("used-by-many", many)] {
        for namespace in NAMESPACES {
            env.cluster.create("configmap", namespace, &config_map(name, 1000));
        }
        let user = |number| {
            let mut object = deployment(&format!("{name}-{number}"), &[name.to_owned()]);
            object["metadata"]["annotations"] = json!({"confrev.dev/min-interval": "24h"});
            object["spec"]["paused"] = json!(true);
            object
        };
        env.runtime.block_on(env.client.create_all(&deployments(CONFREV), (0..number).map(user)));
        // The first change rolls the workloads; later changes wait for the interval.
        change(env, CONFREV, name, "first");
        env.wait_at_rest(Duration::from_secs(2));
        let mut times = Times::default();
        for turn in 0..count {
            for (i, namespace) in in_turn(turn) {
                times[i].push(change(env, namespace, name, &turn.to_string()));
            }
        }
        let what = format!("write of a ConfigMap, used by {number}");
        for (part, quantile_name) in [(0.5, "p50"), (0.99, "p99")] {
            let [plain, nothing, ours] = times.each_ref().map(|times| quantile(times, part));
            let what = format!("{what}, {quantile_name}");
            rows.push(Row::new(format!("{what}, to no webhook"), "ms", ours, plain, Reach::Read));
            let what = format!("{what}, to a webhook that does nothing");
            // The difference between two measurements of the same value. Admission writes nothing, whatever uses the
            // ConfigMap.
            let reach = if part < 0.9 { Reach::Times(1.1) } else { Reach::Read };
            rows.push(Row::new(what, "ms", ours, nothing, reach));
        }
    }
    rows
}

/// The milliseconds of one change.
fn change(env: &Environment, namespace: &str, name: &str, text: &str) -> f64 {
    let path = format!("{}/{name}", config_maps(namespace));
    let change: Value = json!({"data": {"text": text}});
    let start = Instant::now();
    env.runtime.block_on(env.client.merge(&path, &change));
    start.elapsed().as_secs_f64() * 1e3
}

fn compared(what: &str, writers: usize, times: &Times) -> Vec<Row> {
    let mut rows = Vec::new();
    for (part, name, more) in [(0.5, "p50", 1.5), (0.99, "p99", 5.0)] {
        let [plain, nothing, ours] = times.each_ref().map(|times| quantile(times, part));
        let what = format!("{what}, {name}");
        rows.push(Row::new(format!("{what}, to no webhook"), "ms", ours, plain, Reach::More(more)));
        let what = format!("{what}, to a webhook that does nothing");
        // One review that reads live takes a constant time more than one that reads nothing.
        let reach = if (writers, name) == (1, "p50") { Reach::More(1.5) } else { Reach::Times(1.3) };
        rows.push(Row::new(what, "ms", ours, nothing, reach));
    }
    rows
}
