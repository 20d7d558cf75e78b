//! No decision takes more instructions than it did, nor more than a plain parse of what it reads.
//!
//! What is held are ratios to a parse with serde_json of the same texts in the same run: counts by themselves differ from
//! one compiler, C library and processor to the next. `CONFREV_FIGURES=write` writes the figures anew.
#![allow(clippy::expect_used, reason = "to panic is how a test fails")]

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path, process::Command};

/// The figures that hold.
const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/figures.txt");
/// The function at the heart of SHA-256. It is left out of all counts: processors have instructions for it, and callgrind
/// plays one that has none, so that it would count 40 of them for each byte and hide everything else.
const HASH: &str = "sha2::sha256::compress256";
/// How much more than its figure a ratio may be.
const GROWTH: f64 = 1.10;
/// The steepest that the log-log line of a size and its instructions may be.
const SLOPE: f64 = 1.05;

/// What was counted of one case.
struct Count {
    name: String,
    /// What it varies: a number of references, or of bytes.
    size: f64,
    /// Instructions of the parse of all that it reads.
    parse: f64,
    /// Instructions of the case itself.
    own: f64,
}

impl Count {
    fn ratio(&self) -> f64 {
        self.own / self.parse
    }
}

/// Builds the program that is counted, as the product is built, but for what takes long.
fn build(folder: &Path) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    cargo.args(["build", "--quiet", "--locked", "--profile", "counted", "--package", "confrev-instructions"]);
    cargo.args(["--bin", "instructions", "--target-dir"]).arg(folder);
    // What cargo tells this test about its own package would make it build others anew.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).status();
    assert!(built.expect("cargo can be run").success(), "the program that is counted does not build");
}

/// Runs it under callgrind.
fn count() -> Vec<Count> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // The target folder's own `tmp` lies in it.
    let target = scratch.parent().expect("it lies in the target folder");
    build(target);
    let dumps = scratch.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--combine-dumps=yes", "--collect-atstart=no"]);
    // A count is written down, and the next begins, before and after each call of `counted`.
    let counted = ["--toggle-collect", "--dump-before", "--dump-after"]
        .map(|flag| format!("{flag}=instructions::counted"));
    valgrind.args(counted).arg(format!("--toggle-collect={HASH}"));
    valgrind.arg(format!("--callgrind-out-file={}", dumps.display()));
    let output = valgrind.arg(target.join("counted/instructions")).output().expect("valgrind can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let totals = fs::read_to_string(&dumps).expect("callgrind has written");
    let totals = totals.lines().filter_map(|line| line.strip_prefix("totals: ")?.trim().parse::<f64>().ok());
    // What comes before each call is none of its own.
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

/// The steepness of the line through the logarithms of size and instructions, by least squares, for each group of cases
/// whose names differ at their ends alone.
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
        "# Instructions of a case as a ratio to those of a parse into a serde_json::Value of all that it reads.\n\
         # Held by tests/instructions.rs; `make instructions` writes it anew.\n\
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

#[test]
fn no_decision_takes_more_instructions_than_its_figure_and_none_grows_faster_than_what_it_reads() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed: no instructions are counted, and this test holds nothing");
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
    let figures = fs::read_to_string(FIGURES).expect("there are figures");
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
                wrong.push(format!("{}: {:.4}, and its figure is {most}", count.name, count.ratio()));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        slopes
            .iter()
            .filter(|(group, slope)| group.starts_with("decision/") && *slope > SLOPE)
            .map(|(group, slope)| format!("{group} grows with a slope of {slope:.3}, more than {SLOPE}")),
    );
    assert!(wrong.is_empty(), "{}\n(make instructions writes the figures anew)", wrong.join("\n"));
}
