//! The service level of the Kubernetes project: p99 of mutating calls within 1 s, while one ConfigMap of many workloads
//! changes.
//!
//! Source: Kubernetes SIG Scalability, "API call latency SLIs/SLOs". The times here are the client's and include
//! webhooks; the project excludes them.

use std::path::Path;
use std::time::Instant;

use futures::future::Either;
use serde_json::json;

use crate::environment::{CONFREV, Environment, config_map, deployment, deployments};
use crate::propagation::{Shape, change};
use crate::row::{Reach, Row};
use crate::stats::quantile;

/// The rows with `workloads` workloads, on a control plane of their own, and the version of Kubernetes. confrev runs with its
/// default roll rate.
pub(crate) fn rows(binary: &Path, workloads: usize) -> (Vec<Row>, String) {
    let env = Environment::start(binary, &[]);
    let shape = Shape { workloads, sources: 1, rounds: 1 };
    shape.create(&env, CONFREV, None);
    env.cluster.create("configmap", CONFREV, &config_map("other", 1000));
    let (start, mut times) = (Instant::now(), Vec::new());
    env.runtime.block_on(async {
        let mut rolls = std::pin::pin!(change(&env.client, shape, CONFREV, 0));
        for number in 0_usize.. {
            let written = std::pin::pin!(write(&env, number));
            match futures::future::select(rolls, written).await {
                Either::Left(_) => break,
                Either::Right((written, rest)) => {
                    times.extend(written);
                    rolls = rest;
                }
            }
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let what = format!("write of another workload while {workloads} workloads on one ConfigMap roll");
    let rows = vec![
        Row::new(format!("{what}, p50"), "ms", quantile(&times, 0.5), None, Reach::Read),
        Row::new(format!("{what}, p99"), "ms", quantile(&times, 0.99), None, Reach::Most(1000.0)),
        Row::read(
            format!("{workloads} workloads on one ConfigMap, at the default roll rate, all rolled"),
            "s",
            seconds,
        ),
    ];
    (rows, env.kubernetes())
}

/// The milliseconds of the creation and of the update of a workload that uses another ConfigMap.
async fn write(env: &Environment, number: usize) -> [f64; 2] {
    let name = format!("other-{number}");
    let mut object = deployment(&name, &["other".to_owned()]);
    object["spec"]["paused"] = json!(true);
    let start = Instant::now();
    env.client.create(&deployments(CONFREV), &object).await;
    let created = start.elapsed().as_secs_f64() * 1e3;
    let change = json!({"spec": {"template": {"metadata": {"annotations": {"bench": "changed"}}}}});
    let start = Instant::now();
    env.client.merge(&format!("{}/{name}", deployments(CONFREV)), &change).await;
    [created, start.elapsed().as_secs_f64() * 1e3]
}
