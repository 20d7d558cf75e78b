//! The cost of confrev at rest: memory, requests, and the time of a start.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::beside::SETS;
use crate::environment::{CONFREV, Environment, LIMIT, Requests, config_map, config_maps};
use crate::process;
use crate::requests::{self, Kind, sum};
use crate::row::{Reach, Row};
use crate::stats::{number, quantile};

/// How long nothing may change before it counts as rest.
const REST: Duration = Duration::from_secs(2);
/// The interval of the readiness checks: the measured time is a fraction of a second.
const LOOK: Duration = Duration::from_millis(2);

/// One start: the seconds until confrev was ready, the processor seconds of confrev and of the API server until then, its
/// memory in MB (peak, and at rest), and its requests until rest.
struct Start {
    seconds: f64,
    cpu: f64,
    server_cpu: f64,
    most: f64,
    now: f64,
    asked: Requests,
}

/// Restarts confrev.
fn restarted(env: &mut Environment) -> Start {
    let before = env.asked();
    env.confrev.stop();
    let server_cpu = env.api_server_cpu();
    let start = Instant::now();
    env.confrev.launch(&[]);
    while !env.confrev.is_ready() {
        assert!(start.elapsed() < LIMIT, "confrev is not ready");
        std::thread::sleep(LOOK);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = process::cpu(env.confrev.pid()).as_secs_f64();
    let server_cpu = env.api_server_cpu() - server_cpu;
    env.wait_at_rest(REST);
    let (most, now) = process::memory(env.confrev.pid());
    Start { seconds, cpu, server_cpu, most, now, asked: env.asked_since(before, requests::is_counted) }
}

/// The medians of several starts.
fn starts(env: &mut Environment, rounds: usize) -> Start {
    let all: Vec<_> = (0..rounds).map(|_| restarted(env)).collect();
    let middle = |of: fn(&Start) -> f64| quantile(&all.iter().map(of).collect::<Vec<_>>(), 0.5);
    Start {
        seconds: middle(|start| start.seconds),
        cpu: middle(|start| start.cpu),
        server_cpu: middle(|start| start.server_cpu),
        most: middle(|start| start.most),
        now: middle(|start| start.now),
        asked: requests::middle(all.iter().map(|start| &start.asked)),
    }
}

/// The memory of the process in the empty cluster: peak, and at rest.
pub(crate) fn empty(env: &mut Environment, rounds: usize) -> (f64, f64) {
    let start = starts(env, rounds);
    let _ = Row::read("resident memory in the empty cluster, peak", "MB", start.most);
    (start.most, start.now)
}

/// ConfigMaps that nothing uses.
pub(crate) fn unused(env: &Environment, prefix: &str, count: usize, bytes: usize) {
    let unused = (0..count).map(|i| config_map(&format!("{prefix}-{i}"), bytes));
    env.runtime.block_on(env.client.create_all(&config_maps(CONFREV), unused));
}

/// The rows of memory with `count` unused ConfigMaps of 10 kB and as many unused Secrets of 4 kB.
pub(crate) fn memory(env: &mut Environment, count: usize, rounds: usize, empty: (f64, f64)) -> Vec<Row> {
    unused(env, "heap", count, 10_000);
    let secrets = (0..count)
        .map(|i| json!({"metadata": {"name": format!("heap-{i}")}, "stringData": {"key": "x".repeat(4000)}}));
    let path = format!("/api/v1/namespaces/{CONFREV}/secrets");
    env.runtime.block_on(env.client.create_all(&path, secrets));
    env.wait_at_rest(REST);
    let (written, _) = process::memory(env.confrev.pid());
    let start = starts(env, rounds);
    let beside = format!("beside {count} unused ConfigMaps of 10 kB and {count} Secrets of 4 kB");
    vec![
        Row::new(format!("resident memory {beside}, peak"), "MB", start.most, empty.0, Reach::Most(25.0)),
        Row::new(format!("resident memory {beside}, at rest"), "MB", start.now, empty.1, Reach::More(5.0)),
        Row::new("resident memory while those are written, peak", "MB", written, empty.0, Reach::Most(25.0)),
    ]
}

/// The rows of memory with the present opted-in workloads, of starts, and of the requests of a start.
pub(crate) fn beside(
    env: &mut Environment,
    rounds: usize,
    config_maps: usize,
    empty: (f64, f64),
) -> Vec<Row> {
    env.wait_at_rest(REST);
    let (written, _) = process::memory(env.confrev.pid());
    let start = starts(env, rounds);
    let metric = |name: &str| env.confrev.metric(name);
    let workloads = metric("confrev_workloads");
    let sources = metric("confrev_sources");
    let (sets, config_maps) = (workloads * number(SETS), number(config_maps));
    let beside = format!(
        "beside {workloads} opted-in workloads, {sets} ReplicaSets, {sources} sources and {config_maps} ConfigMaps in all"
    );
    let each = (start.now - empty.1) * 1e3 / workloads;
    // With few workloads, the fixed cost of a process would be counted as theirs.
    let reach = if workloads >= 10_000.0 { Reach::Most(4.0) } else { Reach::Read };
    let (memory, ready) = if workloads <= 1000.0 {
        (Reach::Most(25.0), Reach::Most(1.0))
    } else {
        (Reach::Most(45.0), Reach::Most(2.0))
    };
    let mut rows = vec![
        Row::new(format!("resident memory {beside}, peak"), "MB", start.most, empty.0, memory),
        Row::new("resident memory while those are written, peak", "MB", written, empty.0, memory),
        Row::new(format!("resident memory for each workload {beside}"), "kB", each, None, reach),
        Row::new(format!("from start to ready {beside}"), "s", start.seconds, None, ready),
        Row::read(format!("from start to ready {beside}, processor time of confrev"), "s", start.cpu),
        Row::read(
            format!("from start to ready {beside}, processor time of the API server"),
            "s",
            start.server_cpu,
        ),
    ];
    let snapshots = metric("confrev_snapshots");
    // All ConfigMaps are in one namespace, also the unused ones. Snapshots are listed separately.
    let lists = vec![workloads, sets, snapshots, config_maps - snapshots];
    rows.extend(requests::rows(
        &format!("a restart {beside}"),
        &start.asked,
        &Kind::Restart { lists, sources },
    ));
    rows
}

/// The rows of a time at rest.
pub(crate) fn at_rest(env: &Environment, time: Duration) -> Vec<Row> {
    env.wait_at_rest(REST);
    let before = env.asked();
    // The sleep is the measurement: nothing must happen meanwhile.
    std::thread::sleep(time);
    let is_write = |verb: &str| !matches!(verb, "get" | "list" | "watch");
    let writes = env.asked_since(before, |request| is_write(&request.verb) && request.resource != "leases");
    let what = format!("{} s at rest", time.as_secs());
    let mut rows = vec![Row::new(
        format!("writes in {what}, but for the Lease"),
        "requests",
        sum(&writes),
        None,
        Reach::Most(0.0),
    )];
    let asked = env.asked_since(before, |request| !request.ended);
    rows.extend(requests::rows(&what, &asked, &Kind::Rest { seconds: time.as_secs_f64() }));
    rows
}
