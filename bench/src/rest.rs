//! What confrev costs while it has nothing to do: memory, requests, and the time of a start.

use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::process;
use crate::row::{Reach, Row};
use crate::site::{CONFREV, LIMIT, Site, config_map, config_maps};
use crate::stats::quantile;

/// How long nothing may change before it counts as rest.
const REST: Duration = Duration::from_secs(2);

/// Starts confrev anew. Answers with the seconds until it was ready, and with its memory in MB: the most, and at rest.
pub(crate) fn restarted(site: &mut Site) -> (f64, f64, f64) {
    site.confrev.stop();
    let start = Instant::now();
    site.confrev.launch(&[]);
    let mut looked = start;
    wait_for("confrev to be ready", LIMIT, || {
        // Often, since what is measured is a fraction of a second.
        while looked.elapsed() < Duration::from_millis(2) {
            std::thread::yield_now();
        }
        looked = Instant::now();
        site.confrev.is_ready().then_some(())
    });
    let seconds = start.elapsed().as_secs_f64();
    site.wait_at_rest(REST);
    let (most, now) = process::memory(site.confrev.pid());
    (seconds, most, now)
}

/// The rows of memory beside so many ConfigMaps of 10 kB, and as many Secrets of 4 kB, that nothing uses; and the memory in
/// the empty cluster, at rest.
pub(crate) fn memory(site: &mut Site, count: usize) -> (Vec<Row>, f64) {
    let (_, empty_most, empty) = restarted(site);
    let secrets = format!("/api/v1/namespaces/{CONFREV}/secrets");
    let config_maps = config_maps(CONFREV);
    site.runtime.block_on(async {
        let unused = (0..count).map(|i| config_map(&format!("heap-{i}"), 10_000));
        site.client.create_all(&config_maps, unused).await;
        let unused = (0..count).map(
            |i| json!({"metadata": {"name": format!("heap-{i}")}, "stringData": {"key": "x".repeat(4000)}}),
        );
        site.client.create_all(&secrets, unused).await;
    });
    let (written, _) = process::memory(site.confrev.pid());
    let (_, most, now) = restarted(site);
    let beside = format!("beside {count} unused ConfigMaps and Secrets");
    let rows = vec![
        Row::new("resident memory in the empty cluster, peak", "MB", empty_most, None, Reach::Read),
        Row::new(format!("resident memory {beside}, peak"), "MB", most, empty_most, Reach::Most(25.0)),
        Row::new(format!("resident memory {beside}, at rest"), "MB", now, empty, Reach::More(5.0)),
        Row::new(
            format!("resident memory while {count} of each are written, peak"),
            "MB",
            written,
            empty_most,
            Reach::Read,
        ),
    ];
    (rows, empty)
}

/// The rows of a start beside so many opted-in workloads, and of the memory that they take beyond that in the empty cluster.
pub(crate) fn beside(site: &mut Site, rounds: usize, workloads: f64, empty: f64) -> Vec<Row> {
    let starts: Vec<_> = (0..rounds).map(|_| restarted(site)).collect();
    let middle = |of: fn(&(f64, f64, f64)) -> f64| quantile(&starts.iter().map(of).collect::<Vec<_>>(), 0.5);
    let (most, now) = (middle(|start| start.1), middle(|start| start.2));
    let beside = format!("beside {workloads} opted-in workloads, with two ReplicaSets each");
    let each = (now - empty) * 1e3 / workloads;
    // Beside few, what a process takes by itself would be counted as theirs.
    let reach = if workloads >= 1000.0 { Reach::Most(4.0) } else { Reach::Read };
    vec![
        Row::new(
            format!("from start to ready {beside}"),
            "s",
            middle(|start| start.0),
            None,
            Reach::Most(1.0),
        ),
        Row::new(format!("resident memory {beside}, peak"), "MB", most, empty, Reach::Most(80.0)),
        Row::new(format!("resident memory for each workload {beside}"), "kB", each, None, reach),
    ]
}

/// The row of writes over some time at rest.
pub(crate) fn writes_at_rest(site: &Site, time: Duration) -> Row {
    site.wait_at_rest(REST);
    let before = site.asked().len();
    // Nothing is waited for: that nothing comes is what is measured.
    std::thread::sleep(time);
    let asked = site.asked();
    let is_write = |verb: &str| !matches!(verb, "get" | "list" | "watch");
    let writes =
        asked[before..].iter().filter(|request| is_write(&request.verb) && request.resource != "leases");
    let what = format!("writes in {} s at rest, but for the Lease", time.as_secs());
    Row::new(what, "writes", crate::stats::number(writes.count()), None, Reach::Most(0.0))
}
