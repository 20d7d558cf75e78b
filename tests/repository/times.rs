//! No test compares times: a busy machine would fail it. A wait may have a limit, and a report may print a time.

use crate::source_tree::files;

/// The folders with tests. The benchmark measures times, and asserts nothing about them.
const FOLDERS: [&str; 9] = [
    "src",
    "core",
    "world",
    "schema",
    "image",
    "tests",
    "examples",
    "bench/instructions/src",
    "bench/instructions/tests",
];

/// The files that measure times to print them or to wait, and the use of the times.
const MEASURE: [(&str, &str); 13] = [
    ("tests/controlplane/src", "prints how long builds and suites took"),
    ("tests/endurance/chaos/main.rs", "prints how long each fault took"),
    ("tests/endurance/chaos/replicas.rs", "waits between two kills"),
    ("tests/endurance/storms/soak.rs", "prints when each sample was taken"),
    ("tests/endurance/storms/changing_config_map.rs", "waits between two changes"),
    ("tests/endurance/storms/outages.rs", "prints how long each outage took"),
    ("tests/support/src/writer.rs", "prints the slowest write, and when one was refused"),
    ("tests/e2e/appliers/argo_cd.rs", "waits until the next second"),
    ("tests/e2e/appliers/recording.rs", "writes the times of a recording"),
    ("tests/e2e/core/hostile/attacks.rs", "prints the latency of reviews during an attack"),
    ("tests/e2e/core/picture/mod.rs", "waits for samples of a picture"),
    ("tests/e2e/dashboard/many.rs", "prints how long a page takes"),
    ("examples/demo/screen.rs", "prints how long the story has taken"),
];

/// How a line may use the time that has passed: as a limit of a wait, or in a line that is printed.
const USES: [&str; 10] = [
    "while ",
    "if ",
    ".then_some(())",
    "assert!(begun.elapsed() < LIMIT,",
    "assert!(start.elapsed() < LIMIT,",
    "println!(",
    "eprintln!(",
    "elapsed().as_secs_f64() / 60.0,",
    "elapsed().as_secs()",
    "let count = start.elapsed().as_millis().to_string();",
];

/// Whether a line of a test takes a time from which a comparison could follow.
fn takes_time(line: &str) -> bool {
    let reads =
        [".elapsed()", "Instant::now() -", "performance.now()"].iter().any(|read| line.contains(read));
    reads && !USES.iter().any(|used| line.contains(used))
}

/// The lines of a file that are tests: all lines, or those of the tests in a file of the product.
fn tests_of<'t>(file: &str, text: &'t str) -> &'t str {
    let is_product = ["/src/", "src/"].iter().any(|part| file.contains(part)) && !file.contains("tests/");
    if is_product { text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests) } else { text }
}

#[test]
fn no_test_compares_times() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let mut wrong = Vec::new();
    let mut unused: Vec<_> = MEASURE.iter().map(|(file, _)| *file).collect();
    for (file, text) in FOLDERS.iter().flat_map(|folder| files(folder)) {
        let file = file.strip_prefix(root).unwrap();
        // A simulated clock does not depend on the machine.
        if file.ends_with("repository/times.rs") || text.contains("start_paused") {
            continue;
        }
        let lines = tests_of(file, &text).lines().filter(|line| !line.trim_start().starts_with("//"));
        let times: Vec<_> = lines.filter(|line| takes_time(line)).collect();
        match MEASURE.iter().find(|(measuring, _)| file.starts_with(measuring)) {
            Some((measuring, _)) if !times.is_empty() => unused.retain(|file| file != measuring),
            Some(_) => {}
            None => wrong.extend(times.iter().map(|line| format!("{file}: {}", line.trim()))),
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "count operations instead, or print the time in its own line");
    assert_eq!(unused, Vec::<&str>::new(), "these files measure nothing");
}

#[test]
fn comparisons_of_times_are_found() {
    for (line, is_found) in [
        ("let took = start.elapsed();", true),
        ("assert!(start.elapsed() < few * 24, \"slow\");", true),
        ("start.elapsed()", true),
        ("let took = Instant::now() - start;", true),
        ("assert!(start.elapsed() < LIMIT, \"no answer\");", false),
        ("while start.elapsed() < LIMIT {", false),
        ("println!(\"took {:?}\", start.elapsed());", false),
        ("let end = Instant::now() + LIMIT;", false),
    ] {
        assert_eq!(takes_time(line), is_found, "{line}");
    }
}
