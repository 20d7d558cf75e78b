//! What admission adds to a write: the same writes in three namespaces, in turn.

use std::time::Instant;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::row::{Reach, Row};
use crate::site::{CONFREV, NOTHING, PLAIN, Site, config_map, config_maps, deployment, deployments};
use crate::stats::quantile;

const NAMESPACES: [&str; 3] = [PLAIN, NOTHING, CONFREV];
const REFERENCES: usize = 3;

/// Milliseconds of every write, by namespace.
type Times = [Vec<f64>; 3];

/// The namespaces with their places, each turn beginning with another one: none is always the first to be written.
fn in_turn(turn: usize) -> impl Iterator<Item = (usize, &'static str)> {
    (turn..turn + NAMESPACES.len()).map(|i| (i % NAMESPACES.len(), NAMESPACES[i % NAMESPACES.len()]))
}

/// The rows of workloads: so many creations, and as many updates, by each number of writers.
pub(crate) fn workloads(site: &Site, count: usize) -> Vec<Row> {
    let sources: Vec<_> = (0..REFERENCES).map(|i| format!("written-{i}")).collect();
    for namespace in NAMESPACES {
        for source in &sources {
            site.cluster.create("configmap", namespace, &config_map(source, 1000));
        }
    }
    let mut rows = Vec::new();
    for writers in [1, 16] {
        let (mut creations, mut updates) = (Times::default(), Times::default());
        let each = count.div_ceil(writers);
        let done = site
            .runtime
            .block_on(join_all((0..writers).map(|writer| write(site, writers, writer, each, &sources))));
        for (created, updated) in done {
            for i in 0..3 {
                creations[i].extend(&created[i]);
                updates[i].extend(&updated[i]);
            }
        }
        rows.extend(compared(
            &format!("creation of a workload, 3 references, {writers} writers"),
            &creations,
        ));
        rows.extend(compared(&format!("update of a workload, 3 references, {writers} writers"), &updates));
    }
    rows
}

/// One writer's creations and updates.
async fn write(
    site: &Site,
    writers: usize,
    writer: usize,
    count: usize,
    sources: &[String],
) -> (Times, Times) {
    let (mut creations, mut updates) = (Times::default(), Times::default());
    for number in 0..count {
        let name = format!("written-{writers}-{writer}-{number}");
        let mut object = deployment(&name, sources);
        // The controllers of the cluster leave it alone.
        object["spec"]["paused"] = json!(true);
        for (i, namespace) in in_turn(number) {
            let start = Instant::now();
            site.client.create(&deployments(namespace), &object).await;
            creations[i].push(start.elapsed().as_secs_f64() * 1e3);
        }
        let change = json!({"spec": {"template": {"metadata": {"annotations": {"bench": "changed"}}}}});
        for (i, namespace) in in_turn(number) {
            let path = format!("{}/{name}", deployments(namespace));
            let start = Instant::now();
            site.client.merge(&path, &change).await;
            updates[i].push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    (creations, updates)
}

/// The rows of ConfigMaps: unused, and used by so many workloads, which do not roll meanwhile.
pub(crate) fn sources(site: &Site, count: usize, many: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, number) in [("unused", 0), ("used-by-one", 1), ("used-by-many", many)] {
        for namespace in NAMESPACES {
            site.cluster.create("configmap", namespace, &config_map(name, 1000));
        }
        let user = |number| {
            let mut object = deployment(&format!("{name}-{number}"), &[name.to_owned()]);
            object["metadata"]["annotations"] = json!({"confrev.dev/min-interval": "24h"});
            object["spec"]["paused"] = json!(true);
            object
        };
        site.runtime.block_on(site.client.create_all(&deployments(CONFREV), (0..number).map(user)));
        // The first change rolls them; the next ones wait for the interval.
        change(site, CONFREV, name, "first");
        site.wait_at_rest(std::time::Duration::from_secs(2));
        let mut times = Times::default();
        for turn in 0..count {
            for (i, namespace) in in_turn(turn) {
                times[i].push(change(site, namespace, name, &turn.to_string()));
            }
        }
        let what = format!("write of a ConfigMap, used by {number}");
        if number == 0 {
            let middle = quantile(&times[2], 0.5);
            rows.push(Row::new(
                format!("{what}, p50, to no webhook"),
                "ms",
                middle,
                quantile(&times[0], 0.5),
                Reach::Read,
            ));
            let what = format!("{what}, p50, to a webhook that does nothing");
            rows.push(Row::new(what, "ms", middle, quantile(&times[1], 0.5), Reach::Times(1.1)));
        } else {
            rows.push(Row::new(
                format!("{what}, p50, to no webhook"),
                "ms",
                quantile(&times[2], 0.5),
                quantile(&times[0], 0.5),
                Reach::Read,
            ));
            rows.push(Row::new(
                format!("{what}, p99, to no webhook"),
                "ms",
                quantile(&times[2], 0.99),
                quantile(&times[0], 0.99),
                Reach::Read,
            ));
        }
    }
    rows
}

/// Milliseconds of one change.
fn change(site: &Site, namespace: &str, name: &str, text: &str) -> f64 {
    let path = format!("{}/{name}", config_maps(namespace));
    let change: Value = json!({"data": {"text": text}});
    let start = Instant::now();
    site.runtime.block_on(site.client.merge(&path, &change));
    start.elapsed().as_secs_f64() * 1e3
}

fn compared(what: &str, times: &Times) -> Vec<Row> {
    let [plain, nothing, ours] = times;
    let row = |part: f64, name: &str, more: f64| {
        let (ours, plain) = (quantile(ours, part), quantile(plain, part));
        Row::new(format!("{what}, {name}, to no webhook"), "ms", ours, plain, Reach::More(more))
    };
    let to_nothing = format!("{what}, p50, to a webhook that does nothing");
    vec![
        row(0.5, "p50", 1.5),
        row(0.99, "p99", 5.0),
        Row::new(to_nothing, "ms", quantile(ours, 0.5), quantile(nothing, 0.5), Reach::Times(1.3)),
    ]
}
