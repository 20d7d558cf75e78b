//! `make bench`: cost and speed of confrev and of baselines in the same run, on a real control plane.
//!
//! It fails if a row misses its target.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "to panic is how a measurement fails that cannot be made"
)]

mod bare;
mod beside;
mod environment;
mod load;
mod parts;
mod peers;
mod plot;
mod process;
mod propagation;
mod requests;
mod rest;
mod reviews;
mod row;
mod slo;
mod stats;
mod users;
mod writes;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use confrev_controlplane::binaries;

use crate::environment::Environment;
use crate::propagation::{Cost, Shape};
use crate::requests::Kind;
use crate::row::{Reach, Row};
use crate::stats::slope;

/// A change is handled immediately and as fast as possible: the pauses that users have are deliberate, and not
/// measured.
const OPTIONS: [&str; 2] = ["--settle=0s", "--roll-rate=100000"];

const USAGE: &str = "Usage: bench quick|full|large|slo|parts CONFREV FOLDER
Measures the binary CONFREV, and writes its table and plot to FOLDER.";

/// The extent of a run.
struct Extent {
    name: &'static str,
    title: &'static str,
    command: &'static str,
    /// The duration of each load of reviews.
    rounds: usize,
    /// The number of starts of confrev in each measurement.
    starts: usize,
    load: Duration,
    /// The number of writes of workloads for each number of writers; of ConfigMaps, a third. None: neither writes nor
    /// reviews are measured.
    writes: usize,
    /// The number of unused ConfigMaps, and of Secrets.
    unused: usize,
    /// The number of workloads in the measurements of starts and of rest.
    workloads: usize,
    /// The number of ConfigMaps in those measurements.
    config_maps: usize,
    rest: Duration,
    shapes: &'static [Shape],
    /// The creations and updates by concurrent users, for each number of users. None: not measured.
    iterations: usize,
    /// The number of workloads that roll while others are written. None: not measured.
    beside_rolls: usize,
    /// How often the parts of admission are removed in turn. None: not measured.
    parts: usize,
}

const fn shape(workloads: usize, sources: usize, rounds: usize) -> Shape {
    Shape { workloads, sources, rounds }
}

/// Measures nothing: the base of the extents that measure little.
const NOTHING: Extent = Extent {
    name: "",
    title: "",
    command: "",
    rounds: 0,
    starts: 0,
    load: Duration::ZERO,
    writes: 0,
    unused: 0,
    workloads: 0,
    config_maps: 0,
    rest: Duration::ZERO,
    shapes: &[],
    iterations: 0,
    beside_rolls: 0,
    parts: 0,
};

const QUICK: Extent = Extent {
    name: "quick",
    title: "everything, on a small scale",
    command: "make bench-quick",
    rounds: 3,
    starts: 1,
    load: Duration::from_millis(300),
    writes: 80,
    unused: 500,
    workloads: 100,
    config_maps: 1000,
    rest: Duration::from_secs(6),
    shapes: &[shape(10, 1, 2), shape(100, 1, 2), shape(1, 1, 10)],
    ..NOTHING
};

const FULL: Extent = Extent {
    name: "full",
    title: "everything",
    command: "make bench",
    rounds: 5,
    starts: 5,
    load: Duration::from_millis(700),
    writes: 640,
    unused: 5000,
    workloads: 1000,
    config_maps: 10_000,
    rest: Duration::from_mins(1),
    shapes: &[shape(10, 1, 3), shape(100, 1, 5), shape(1000, 1, 3), shape(1, 1, 100), shape(100, 100, 5)],
    iterations: 1000,
    parts: 3,
    ..NOTHING
};

/// The measurements that take long.
const LARGE: Extent = Extent {
    name: "large",
    title: "10,000 workloads, and ten minutes at rest",
    command: "make bench-large",
    rounds: 3,
    starts: 3,
    workloads: 10_000,
    config_maps: 10_000,
    rest: Duration::from_mins(10),
    shapes: &[shape(100, 1, 2), shape(1000, 1, 2), shape(10_000, 1, 1)],
    ..NOTHING
};

/// The time of writes while a large change is in progress, at confrev's own pace.
const SLO: Extent = Extent {
    name: "slo",
    title: "writes while 5,000 workloads roll",
    command: "make bench-slo",
    beside_rolls: 5000,
    ..NOTHING
};

/// The API server's own share of a write, for comparison between versions of Kubernetes.
const PARTS: Extent = Extent {
    name: "parts",
    title: "the API server's own share of a write",
    command: "make bench-parts",
    parts: 5,
    ..NOTHING
};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let (extent, binary, folder) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bare"] => {
            tokio::runtime::Runtime::new().expect("threads").block_on(bare::serve());
            return ExitCode::SUCCESS;
        }
        ["quick", binary, folder] => (QUICK, binary, folder),
        ["full", binary, folder] => (FULL, binary, folder),
        ["large", binary, folder] => (LARGE, binary, folder),
        ["slo", binary, folder] => (SLO, binary, folder),
        ["parts", binary, folder] => (PARTS, binary, folder),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let binary = PathBuf::from(binary).canonicalize().expect("the binary exists");
    let mut rows = if extent.workloads > 0 { at_rest(&extent, &binary) } else { Vec::new() };
    let (more, costs, kubernetes) = if extent.beside_rolls > 0 {
        let (rows, kubernetes) = slo::rows(&binary, extent.beside_rolls);
        (rows, Vec::new(), kubernetes)
    } else {
        at_work(&extent, &binary)
    };
    rows.extend(more);
    fs::create_dir_all(folder).expect("the folder can be made");
    write(&extent, Path::new(folder), &rows, &costs, &kubernetes);
    let short: Vec<_> = rows.iter().filter(|row| row.is_short()).collect();
    println!("{}", row::table(&rows));
    println!("{} of {} rows fall short", short.len(), rows.len());
    if short.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Measures the resources of confrev, on a control plane of its own.
fn at_rest(extent: &Extent, binary: &Path) -> Vec<Row> {
    let size = fs::metadata(binary)
        .map_or(f64::NAN, |metadata| stats::number(metadata.len().try_into().unwrap_or(usize::MAX)));
    let mut rows = vec![Row::new("size of the static binary", "MB", size / 1e6, None, Reach::Most(14.0))];
    let mut env = Environment::start(binary, &OPTIONS);
    let empty = rest::empty(&mut env, extent.starts);
    if extent.unused > 0 {
        rows.extend(rest::memory(&mut env, extent.unused, extent.starts, empty));
    }
    // Each workload has a ConfigMap and its snapshot.
    let more = extent.config_maps.saturating_sub(extent.unused + 2 * extent.workloads);
    rest::unused(&env, "more", more, 1000);
    beside::create(&env, extent.workloads);
    let config_maps = extent.unused + more + 2 * extent.workloads;
    rows.extend(rest::beside(&mut env, extent.starts, config_maps, empty));
    rows.extend(rest::at_rest(&env, extent.rest));
    rows
}

/// Measures the speed of confrev and the cost of a change, on another control plane. Also returns the version of
/// Kubernetes.
fn at_work(extent: &Extent, binary: &Path) -> (Vec<Row>, Vec<Cost>, String) {
    let env = Environment::start(binary, &OPTIONS);
    let (mut rows, mut costs) = (Vec::new(), Vec::new());
    // The shapes for growth come first, since leftovers of other changes are swept later. The workloads of each shape
    // remain.
    for shape in extent.shapes {
        let (more, cost) = propagation::rows(&env, *shape);
        rows.extend(more);
        if shape.is_of_growth() {
            let what = format!("a change of a ConfigMap with {} workloads", cost.workloads);
            let kind = Kind::Change { workloads: cost.workloads };
            rows.extend(requests::rows(&what, &cost.asked, &kind));
            costs.push(cost);
        }
    }
    if !costs.is_empty() {
        rows.extend(growth(&costs));
    }
    if extent.parts > 0 {
        rows.extend(parts::rows(&env, extent.parts));
    }
    if extent.iterations > 0 {
        rows.extend(users::rows(&env, extent.iterations));
    }
    if extent.writes > 0 {
        rows.extend(reviews::rows(&env, extent.load, extent.rounds));
        rows.extend(writes::workloads(&env, extent.writes));
        rows.extend(writes::sources(&env, extent.writes / 3, 100));
    }
    (rows, costs, env.kubernetes())
}

/// The growing quantities, by name.
fn lines(costs: &[Cost]) -> Vec<plot::Line> {
    let points = |of: fn(&Cost) -> f64| costs.iter().map(|cost| (cost.workloads, of(cost))).collect();
    vec![
        ("rolls a second", points(Cost::rolls_per_second)),
        ("seconds of a change", points(|cost| cost.seconds)),
        ("processor seconds of a change", points(|cost| cost.cpu_seconds)),
        ("resident memory, MB", points(|cost| cost.memory)),
        ("API requests of a change", points(Cost::requests)),
    ]
}

fn growth(costs: &[Cost]) -> Vec<Row> {
    let mut rows = Vec::new();
    for cost in costs {
        let with = format!("a change with {} workloads", cost.workloads);
        let mut read = |what: &str, unit, value| {
            rows.push(Row::read(format!("growth: {with}, {what}"), unit, value));
        };
        read("rolls a second", "1/s", cost.rolls_per_second());
        read("processor", "s", cost.cpu_seconds);
        read("resident memory", "MB", cost.memory);
    }
    rows.extend(lines(costs).into_iter().map(|(name, points)| {
        Row::new(format!("growth: {name}, slope"), "", slope(&points), None, Reach::Most(1.05))
    }));
    rows
}

/// Writes the table and the plot.
fn write(extent: &Extent, folder: &Path, rows: &[Row], costs: &[Cost], kubernetes: &str) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "<!-- Written by `{0}`. -->\n\n# Measured: {3}\n\n`{0}`, on {cores} cores; confrev {1}, Kubernetes {kubernetes}; \
         confrev ran with {2}. [How cost is measured](../performance.md) describes the measurements, and why rows fall short.\n\n",
        extent.command,
        env!("CARGO_PKG_VERSION"),
        if extent.beside_rolls > 0 {
            "its default options".to_owned()
        } else {
            format!("`{}`", OPTIONS.join(" "))
        },
        extent.title,
    );
    text += &row::table(rows);
    // The results of an older Kubernetes are stored beside those of the newest.
    let version = binaries::kubernetes();
    let is_newest = binaries::versions().next() == Some(&version);
    let name = if is_newest { extent.name.to_owned() } else { format!("{}-{version}", extent.name) };
    if costs.is_empty() {
        return write_file(folder, &format!("{name}.md"), &text);
    }
    let _ = writeln!(text, "\n![growth]({name}.svg)");
    write_file(folder, &format!("{name}.md"), &text);
    let svg = plot::svg("What confrev costs, over the number of workloads on one ConfigMap", &lines(costs));
    write_file(folder, &format!("{name}.svg"), &svg);
}

fn write_file(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
