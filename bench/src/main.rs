//! `make bench`: what confrev costs and how fast it is, beside baselines in the same run, on a real control plane.
//!
//! It fails where a row falls short of what it is to reach.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "to panic is how a measurement fails that cannot be made"
)]

mod bare;
mod load;
mod plot;
mod process;
mod propagation;
mod rest;
mod reviews;
mod row;
mod site;
mod stats;
mod writes;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use crate::propagation::{Cost, Shape};
use crate::row::{Reach, Row};
use crate::site::Site;
use crate::stats::slope;

/// A change is passed on at once, and as fast as can be: the pauses that users have are deliberate, and not measured.
const OPTIONS: [&str; 2] = ["--settle=0s", "--roll-rate=100000"];

const USAGE: &str = "Usage: bench quick|full CONFREV FOLDER
Measures the binary CONFREV, and writes its table and plot into FOLDER.";

/// How much is measured.
struct Extent {
    name: &'static str,
    load: Duration,
    rounds: usize,
    writes: usize,
    unused: usize,
    shapes: &'static [Shape],
    growth: &'static [usize],
    rest: Duration,
}

const fn shape(workloads: usize, sources: usize) -> Shape {
    Shape { workloads, sources }
}

const QUICK: Extent = Extent {
    name: "quick",
    load: Duration::from_millis(300),
    rounds: 3,
    writes: 64,
    unused: 1000,
    shapes: &[shape(1, 1)],
    growth: &[10, 100],
    rest: Duration::from_secs(5),
};

const FULL: Extent = Extent {
    name: "full",
    load: Duration::from_secs(1),
    rounds: 3,
    writes: 320,
    unused: 5000,
    shapes: &[shape(1, 1), shape(100, 100)],
    growth: &[100, 1000, 10_000],
    rest: Duration::from_mins(2),
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
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let binary = PathBuf::from(binary).canonicalize().expect("the binary is there");
    let (rows, costs) = measure(&extent, &binary);
    fs::create_dir_all(folder).expect("the folder can be made");
    write(&extent, Path::new(folder), &rows, &costs);
    let short: Vec<_> = rows.iter().filter(|row| row.is_short()).collect();
    println!("{}", row::table(&rows));
    println!("{} of {} rows fall short", short.len(), rows.len());
    if short.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(extent: &Extent, binary: &Path) -> (Vec<Row>, Vec<Cost>) {
    let mut site = Site::start(binary, &OPTIONS);
    let (mut rows, empty) = rest::memory(&mut site, extent.unused);
    rows.extend(reviews::rows(&site, extent.load, extent.rounds));
    rows.extend(writes::workloads(&site, extent.writes));
    rows.extend(writes::sources(&site, extent.writes / 4, 100));
    for shape in extent.shapes {
        rows.extend(propagation::rows(&site, *shape, extent.rounds).0);
    }
    let mut costs = Vec::new();
    for workloads in extent.growth {
        let (more, cost) = propagation::rows(&site, shape(*workloads, 1), extent.rounds.min(2));
        rows.extend(more);
        rows.push(requests(&cost));
        costs.push(cost);
    }
    // Each shape stays where it is.
    let shapes = extent.shapes.iter().map(|shape| shape.workloads).chain(extent.growth.iter().copied());
    let workloads = stats::number(shapes.sum());
    rows.extend(rest::beside(&mut site, extent.rounds, workloads, empty));
    rows.push(rest::writes_at_rest(&site, extent.rest));
    let size = fs::metadata(binary)
        .map_or(f64::NAN, |metadata| stats::number(metadata.len().try_into().unwrap_or(0)));
    rows.push(Row::new("size of the static binary", "MB", size / 1e6, None, Reach::Most(12.0)));
    rows.extend(growth(&costs));
    (rows, costs)
}

/// The requests of one change beside the least that can do it: the source is read once, its snapshot created, bound and told
/// of once; each workload is poked and told of once, and its admission reads the source and the snapshot.
fn requests(cost: &Cost) -> Row {
    let what = format!("API requests of a change of a ConfigMap with {} workloads", cost.workloads);
    for (kind, count) in &cost.asked {
        eprintln!("  {count} {kind}");
    }
    // With few, the bindings count that come one by one, as the ReplicaSets do.
    let reach = if cost.workloads >= 100.0 { Reach::Times(1.2) } else { Reach::Read };
    Row::new(what, "requests", cost.requests, 4.0 + 4.0 * cost.workloads, reach)
}

/// What grows, by its name.
fn lines(costs: &[Cost]) -> Vec<plot::Line> {
    let points = |of: fn(&Cost) -> f64| costs.iter().map(|cost| (cost.workloads, of(cost))).collect();
    vec![
        ("rolls a second", points(|cost| cost.rolls_per_second)),
        ("processor seconds of a change", points(|cost| cost.cpu_seconds)),
        ("resident memory, MB", points(|cost| cost.memory)),
        ("API requests of a change", points(|cost| cost.requests)),
    ]
}

fn growth(costs: &[Cost]) -> Vec<Row> {
    let mut rows = Vec::new();
    for cost in costs {
        let with = format!("a change with {} workloads", cost.workloads);
        rows.push(Row::new(
            format!("growth: {with}, rolls a second"),
            "1/s",
            cost.rolls_per_second,
            None,
            Reach::Read,
        ));
        rows.push(Row::new(format!("growth: {with}, processor"), "s", cost.cpu_seconds, None, Reach::Read));
        rows.push(Row::new(format!("growth: {with}, resident memory"), "MB", cost.memory, None, Reach::Read));
    }
    rows.extend(lines(costs).into_iter().map(|(name, points)| {
        Row::new(format!("growth: {name}, slope"), "", slope(&points), None, Reach::Most(1.05))
    }));
    rows
}

/// Writes the table and the plot.
fn write(extent: &Extent, folder: &Path, rows: &[Row], costs: &[Cost]) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "<!-- Written by `make bench` or `make bench-quick`. -->\n\nExtent `{}`, on {cores} cores; confrev {}, Kubernetes {}; \
         confrev ran with `{}`.\n\n",
        extent.name,
        env!("CARGO_PKG_VERSION"),
        kubernetes(),
        OPTIONS.join(" ")
    );
    text += &row::table(rows);
    let _ = writeln!(text, "\n![growth]({}.svg)", extent.name);
    fs::write(folder.join(format!("{}.md", extent.name)), text).expect("the table can be written");
    let svg = plot::svg("What confrev costs, over the number of workloads on one ConfigMap", &lines(costs));
    fs::write(folder.join(format!("{}.svg", extent.name)), svg).expect("the plot can be written");
}

/// The version of the API server.
fn kubernetes() -> String {
    let (_, version) = confrev_controlplane::ControlPlane::shared().api().get("/version");
    version["gitVersion"].as_str().unwrap_or("unknown").to_owned()
}
