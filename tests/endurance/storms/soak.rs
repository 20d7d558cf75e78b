//! Continuous changes for a configurable time: only the resources in use may grow. `make soak`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::shared::{Running, running};
use crate::world::{World, name_of, text};

/// The number of workloads, unless `CONFREV_SOAK_WORKLOADS` is set.
const WORKLOADS: usize = 1000;
const THREADS: usize = 4;
/// Changes per second, of all ConfigMaps together.
const CHANGES: u64 = 5;
/// The pause between two samples.
const LOOK: Duration = Duration::from_secs(5);
/// Time limit for a thousand workloads to be created and to come to rest.
const LIMIT: Duration = Duration::from_mins(10);
/// Time limit for three changes of each workload on a busy machine.
const WARM_UP: Duration = Duration::from_mins(30);
/// By how many MiB memory may be higher in the last third than in the second: what allocators keep, and no more.
const MOST: f64 = 8.0;

/// One sample.
struct Look {
    at: Duration,
    memory: f64,
    descriptors: f64,
    threads: f64,
    tasks: f64,
    snapshots: f64,
}

impl Look {
    fn at(confrev: &Running, start: Instant) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "these are small")]
        let float = |count: u64| count as f64;
        Self {
            at: start.elapsed(),
            memory: float(confrev.status("VmRSS")) / 1024.0,
            descriptors: float(confrev.descriptors() as u64),
            threads: float(confrev.status("Threads")),
            tasks: confrev.metric("confrev_runtime_tasks"),
            snapshots: confrev.metric("confrev_snapshots"),
        }
    }
}

/// A column of the table: its title, its values, and by how much it may grow.
type Column = (&'static str, fn(&Look) -> f64, f64);

/// A few connections open and close; a leak would add one for each of thousands of changes.
const COLUMNS: [Column; 5] = [
    ("memory, MiB", |look| look.memory, MOST),
    ("descriptors", |look| look.descriptors, 10.0),
    ("threads", |look| look.threads, 4.0),
    ("tasks", |look| look.tasks, 20.0),
    // A workload rolls some time after the change, and the sweep follows later still.
    ("snapshots", |look| look.snapshots, 200.0),
];

#[test]
#[ignore = "takes an hour: make soak"]
fn soak_grows_no_unused_resources() {
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().expect("a number"));
    let minutes = setting("CONFREV_SOAK_MINUTES").unwrap_or(1);
    let workloads =
        setting("CONFREV_SOAK_WORKLOADS").map_or(WORKLOADS, |count| usize::try_from(count).unwrap());
    let confrev = running();
    let world = World::new("soak");
    create(&world, workloads);
    let (over, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let looks = thread::scope(|scope| {
        scope.spawn(|| change(&world, workloads, &over, &changes));
        // From then on, each workload has its final number of revisions, and confrev learns nothing more about it.
        wait_for("each ConfigMap to change three times", WARM_UP, || {
            let changed = changes.load(Ordering::Relaxed);
            if changed >= 3 * workloads { Ok(()) } else { Err(format!("{changed} changes")) }
        });
        let (start, mut looks) = (Instant::now(), Vec::new());
        while start.elapsed() < Duration::from_secs(60 * u64::from(minutes)) {
            thread::sleep(LOOK);
            looks.push(Look::at(&confrev, start));
        }
        over.store(true, Ordering::Relaxed);
        looks
    });
    let rest = Instant::now();
    wait_for("exactly the used snapshots, and those that sources keep", LIMIT, || left(&world, workloads));
    println!("at rest after {:.0} s", rest.elapsed().as_secs_f64());
    let grown = report(&looks, changes.load(Ordering::Relaxed));

    assert!(grown.is_empty(), "these grow: {grown:?}");
    assert!(confrev.metric("confrev_lost_snapshots") == 0.0);
}

/// Each workload has a ConfigMap of its own, and keeps one old revision.
fn create(world: &World, workloads: usize) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || {
                for number in (first..workloads).step_by(THREADS) {
                    let source = format!("demo-{number}");
                    world.cluster.create("configmap", world.name(), &config_map(&source, "0"));
                    let kind = Kind::ALL[number % Kind::ALL.len()];
                    let mut workload =
                        Workload::new(kind, &format!("web-{number}"), &[&source]).replicas(0).manifest();
                    workload["spec"]["revisionHistoryLimit"] = json!(1);
                    world.cluster.create(kind.name(), world.name(), &workload);
                }
            });
        }
    });
}

fn change(world: &World, workloads: usize, over: &AtomicBool, changes: &AtomicUsize) {
    let pause = Duration::from_millis(1000 / CHANGES);
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let number = changes.fetch_add(1, Ordering::Relaxed);
        // In an order in which adjacent numbers are far apart.
        world.set_config(&format!("demo-{}", number * 7 % workloads), &format!("{}", number + 1));
        next += pause;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Each snapshot is named by a template or has the present content of its source, and none of these is missing.
fn left(world: &World, workloads: usize) -> Result<(), String> {
    let list = |kind: &str| world.cluster.list(kind, world.name(), "");
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let volume =
        |object: &Value| text(&object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]);
    let (mut present, mut behind) = (BTreeSet::new(), 0);
    for kind in Kind::ALL {
        present.extend(list(kind.name()).iter().map(volume));
    }
    wanted.extend(present.iter().cloned());
    wanted.extend(list("replicasets").iter().map(volume));
    let snapshots = world.snapshots();
    let content = |snapshot: &Value| {
        (text(&snapshot["metadata"]["labels"]["confrev.dev/source"]), text(&snapshot["data"]["text"]))
    };
    let of_present: BTreeSet<_> =
        snapshots.iter().filter(|snapshot| present.contains(&name_of(snapshot))).map(content).collect();
    for source in list("configmap")
        .iter()
        .filter(|object| name_of(object).starts_with("demo-") && object["immutable"].is_null())
    {
        behind += usize::from(!of_present.contains(&(name_of(source), text(&source["data"]["text"]))));
    }
    let there: BTreeSet<_> = snapshots.iter().map(name_of).collect();
    let (missing, more) = (wanted.difference(&there).count(), there.difference(&wanted).count());
    if (behind, missing, more) == (0, 0, 0) && present.len() == workloads {
        println!("{} snapshots, all in use", there.len());
        return Ok(());
    }
    Err(format!("{behind} workloads are behind, {missing} snapshots are missing, {more} are left over"))
}

/// Prints the table; returns the columns that grow.
fn report(looks: &[Look], changes: usize) -> Vec<&'static str> {
    println!("\n{changes} changes, the first of them before the first sample\n");
    println!(
        "| what | first | second third | last third | largest | slope per hour |\n|---|---|---|---|---|---|"
    );
    let third = looks.len() / 3;
    let mut grown = Vec::new();
    for (words, of, most_growth) in COLUMNS {
        let mean = |looks: &[Look]| {
            looks.iter().map(of).sum::<f64>() / f64::from(u32::try_from(looks.len()).unwrap())
        };
        let (second, last) = (mean(&looks[third..2 * third]), mean(&looks[2 * third..]));
        let largest = looks.iter().map(of).fold(0.0, f64::max);
        let slope = slope(&looks[third..], of) * 3600.0;
        println!("| {words} | {:.1} | {second:.1} | {last:.1} | {largest:.1} | {slope:+.1} |", of(&looks[0]));
        if last > second + most_growth {
            grown.push(words);
        }
    }
    grown
}

/// The slope per second, by least squares.
fn slope(looks: &[Look], of: fn(&Look) -> f64) -> f64 {
    let count = f64::from(u32::try_from(looks.len()).unwrap());
    let (mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0);
    for look in looks {
        let at = look.at.as_secs_f64();
        (x, y, xx, xy) = (x + at, y + of(look), xx + at * at, xy + at * of(look));
    }
    (count * xy - x * y) / (count * xx - x * x)
}
