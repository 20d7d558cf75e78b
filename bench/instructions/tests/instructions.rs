//! Limits of the number of instructions of a decision, compared with a plain parse of everything that it reads.
//!
//! The limits are ratios to a parse with serde_json of the same texts in the same run. Absolute counts differ between
//! compilers, C libraries and processors. `CONFREV_FIGURES=write` writes the figures again.
#![allow(clippy::expect_used, reason = "to panic is how a test fails")]

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path, process::Command};

/// The recorded figures.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/figures.txt");
/// The inner function of SHA-256, which is left out of all counts. Processors have instructions for it, but callgrind
/// simulates a processor without them. It would count 40 instructions for each byte, and hide everything else.
const HASH: &str = "sha2::sha256::compress256";
/// The factor by which a ratio may exceed its figure.
const GROWTH: f64 = 1.10;
/// The largest allowed slope of instructions over size, in logarithms.
const SLOPE: f64 = 1.05;

/// The counts of one case.
struct Count {
    name: String,
    /// The varied value: a number of references, or of bytes.
    size: f64,
    /// Instructions of the parse of everything that the case reads.
    parse: f64,
    /// Instructions of the case itself.
    own: f64,
}

impl Count {
    fn ratio(&self) -> f64 {
        self.own / self.parse
    }
}

/// Builds the counted program like the product, but without LTO, which is slow.
fn build(folder: &Path) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo.args(["build", "--quiet", "--locked", "--profile", "counted", "--package", "confrev-instructions"]);
    cargo.args(["--bin", "instructions", "--target-dir"]).arg(folder);
    // The variables that cargo sets for this package would cause further rebuilds.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status();
    assert!(built.expect("cargo can be run").success(), "the counted program does not build");
}

/// Runs the counted program under callgrind.
fn count() -> Vec<Count> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // The target folder contains `tmp`.
    let target = scratch.parent().expect("the folder is in the target folder");
    build(target);
    let dumps = scratch.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--combine-dumps=yes", "--collect-atstart=no"]);
    // Before and after each call of `counted`, callgrind writes a count and starts a new one.
    let counted = ["--toggle-collect", "--dump-before", "--dump-after"]
        .map(|flag| format!("{flag}=instructions::case::counted"));
    valgrind.args(counted).arg(format!("--toggle-collect={HASH}"));
    valgrind.arg(format!("--callgrind-out-file={}", dumps.display()));
    let output = valgrind.arg(target.join("counted/instructions")).output().expect("valgrind can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let totals = fs::read_to_string(&dumps).expect("callgrind has written its output");
    let totals = totals.lines().filter_map(|line| line.strip_prefix("totals: ")?.trim().parse::<f64>().ok());
    // The count before each call does not belong to the case.
    let mut totals = totals.skip(1).step_by(2);
    let mut counts = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (name, size) = line.split_once(' ').expect("a name and a size");
        let mut next = || totals.next().expect("two counts for each case");
        let (parse, own) = (next(), next());
        counts.push(Count { name: name.to_owned(), size: size.parse().expect("a number"), parse, own });
    }
    counts
}

/// The slope of instructions over size, in logarithms and by least squares, for each group of cases whose names differ
/// only at the end.
fn slopes(counts: &[Count]) -> Vec<(String, f64)> {
    let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for count in counts {
        let group = count.name.rsplit_once('/').map_or("", |(group, _)| group);
        groups.entry(group).or_default().push((count.size.ln(), count.own.ln()));
    }
    let slope = |points: &[(f64, f64)]| {
        let middle = |of: fn(&(f64, f64)) -> f64| {
            points.iter().map(of).sum::<f64>() / points.iter().map(|_| 1.0).sum::<f64>()
        };
        let (x, y) = (middle(|point| point.0), middle(|point| point.1));
        let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        both / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
    };
    groups.into_iter().map(|(group, points)| (group.to_owned(), slope(&points))).collect()
}

fn written(counts: &[Count]) -> String {
    let mut text = String::from(
        "# Instructions of a case as a ratio to those of a parse into a serde_json::Value of everything that it reads.\n\
         # Compared by tests/instructions.rs, written by `make instructions`.\n\
         # case                              ratio      instructions         of the parse\n",
    );
    for count in counts {
        let _ = writeln!(
            text,
            "{:<34} {:>8.4} {:>17.0} {:>20.0}",
            count.name,
            count.ratio(),
            count.own,
            count.parse
        );
    }
    text
}

/// No decision grows faster than the data that it reads, and the state of a wave no faster than its workloads.
#[test]
fn decision_instructions_stay_within_their_figures() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed: this test counts no instructions and checks nothing");
        return;
    }
    let counts = count();
    let text = written(&counts);
    let slopes = slopes(&counts);
    for (group, slope) in &slopes {
        println!("slope of {group}: {slope:.3}");
    }
    println!("{text}");
    if env::var_os("CONFREV_FIGURES").is_some_and(|value| value == "write") {
        fs::write(FIGURES, &text).expect("the figures can be written");
    }
    let figures = fs::read_to_string(FIGURES).expect("the file of figures exists");
    let figure = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse::<f64>().ok()?))
    };
    let figures: BTreeMap<_, _> =
        figures.lines().filter(|line| !line.starts_with('#')).filter_map(figure).collect();
    let mut wrong = Vec::new();
    for count in &counts {
        match figures.get(&count.name) {
            None => wrong.push(format!("{} has no figure", count.name)),
            Some(most) if count.ratio() > most * GROWTH => {
                wrong.push(format!("{}: {:.4}, above its figure {most}", count.name, count.ratio()));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        slopes
            .iter()
            .filter(|(group, slope)| {
                ["decision/", "waves/"].iter().any(|grows| group.starts_with(grows)) && *slope > SLOPE
            })
            .map(|(group, slope)| format!("{group} grows with a slope of {slope:.3}, above {SLOPE}")),
    );
    assert!(wrong.is_empty(), "{}\n(make instructions writes the figures again)", wrong.join("\n"));
}
