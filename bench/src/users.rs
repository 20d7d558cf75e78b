//! Concurrent users who create and update workloads, in the form in which Kyverno publishes its admission latency.
//!
//! Source: Kyverno, "Scaling": 100, 200 and 500 concurrent users, 1,000 iterations in all; average and maximum.

use std::time::Instant;

use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::json;

use crate::environment::{CONFREV, Environment, PLAIN, config_map, config_maps, deployment, deployments};
use crate::process;
use crate::row::{Reach, Row};
use crate::stats::number;

const USERS: [usize; 3] = [100, 200, 500];
const REFERENCES: usize = 3;

/// The milliseconds of creations and of updates, and the number of iterations with a write that failed: on a slow machine,
/// a write of 500 users may take longer than the timeout of a webhook.
#[derive(Default)]
struct Times {
    created: Vec<f64>,
    updated: Vec<f64>,
    failed: usize,
}

/// The rows for each number of users, with `iterations` iterations.
pub(crate) fn rows(env: &Environment, iterations: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for users in USERS {
        let plain = iterate(env, PLAIN, users, iterations);
        let pid = env.confrev.pid();
        let cpu = process::cpu(pid);
        let ours = iterate(env, CONFREV, users, iterations);
        let cpu = process::cpu(pid).saturating_sub(cpu).as_secs_f64();
        for (what, ours, plain) in
            [("creation", &ours.created, &plain.created), ("update", &ours.updated, &plain.updated)]
        {
            let mut row = |name: &str, of: fn(&[f64]) -> f64| {
                let what = format!("{users} users, {iterations} iterations: {what}, {name}");
                rows.push(Row::new(what, "ms", of(ours), of(plain), Reach::Read));
            };
            row("average", average);
            row("maximum", |times| times.iter().copied().fold(0.0, f64::max));
        }
        let with = format!("{users} users, {iterations} iterations");
        let failed = |times: &Times| number(times.failed);
        let what = format!("{with}: iterations that failed");
        rows.push(Row::new(what, "", failed(&ours), failed(&plain), Reach::Most(0.0)));
        rows.push(Row::read(format!("{with}: processor"), "s", cpu));
        rows.push(Row::read(format!("{with}: resident memory, peak so far"), "MB", process::memory(pid).0));
    }
    rows
}

fn average(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / number(times.len())
}

/// Each iteration creates a workload and updates it. `users` of them run concurrently.
fn iterate(env: &Environment, namespace: &str, users: usize, iterations: usize) -> Times {
    let prefix = format!("users-{users}");
    let sources: Vec<_> = (0..REFERENCES).map(|i| format!("{prefix}-{i}")).collect();
    env.runtime.block_on(async {
        env.client
            .create_all(&config_maps(namespace), sources.iter().map(|source| config_map(source, 1000)))
            .await;
        let iteration = |number: usize| {
            let (sources, prefix) = (&sources, &prefix);
            async move {
                let name = format!("{prefix}-{number}");
                let mut object = deployment(&name, sources);
                // The controllers of the cluster ignore it.
                object["spec"]["paused"] = json!(true);
                let start = Instant::now();
                let path = deployments(namespace);
                env.client.try_send(Method::POST, &path, "application/json", &object).await?;
                let created = start.elapsed().as_secs_f64() * 1e3;
                let path = format!("{path}/{name}");
                let change =
                    json!({"spec": {"template": {"metadata": {"annotations": {"bench": "changed"}}}}});
                let start = Instant::now();
                env.client.try_send(Method::PATCH, &path, "application/merge-patch+json", &change).await?;
                Ok::<_, kube::Error>((created, start.elapsed().as_secs_f64() * 1e3))
            }
        };
        let mut times = Times::default();
        let mut answers = std::pin::pin!(stream::iter(0..iterations).map(iteration).buffer_unordered(users));
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((created, updated)) => {
                    times.created.push(created);
                    times.updated.push(updated);
                }
                Err(error) => {
                    if times.failed == 0 {
                        eprintln!("{users} users in {namespace}: {error}");
                    }
                    times.failed += 1;
                }
            }
        }
        times
    })
}
