//! Text of the cluster leaves the program in one place for each reader: the output of the commands, the pages of the dashboard, the log.

use crate::source_tree::{files, product};

/// What writes to standard output or standard error.
const PRINTING: [&str; 10] = [
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "stdout()",
    "stderr()",
    "io::stderr",
    "/dev/std",
    ".print()",
];

/// The files that print, with the reason. Each of them escapes what it prints.
const PLACES: [(&str, &str); 3] = [
    ("src/cli/output.rs", "the commands"),
    ("src/telemetry/log.rs", "the log"),
    ("src/schema/child.rs", "the answer of a check to its parent process, in JSON"),
];

/// Whether a line has this text, and not as the end of a longer name.
fn has(line: &str, wanted: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(wanted).any(|(at, _)| !wanted.starts_with(is_name) || !line[..at].ends_with(is_name))
}

/// The lines of the product that contain one of these texts, each with its file.
fn lines(folder: &str, wanted: &[&str]) -> Vec<(String, String)> {
    let found = files(folder).into_iter().flat_map(|(file, text)| {
        let lines: Vec<_> = product(&text)
            .filter(|line| wanted.iter().any(|wanted| has(line, wanted)))
            .map(|line| (file.clone(), line.trim().to_owned()))
            .collect();
        lines
    });
    found.collect()
}

#[test]
fn nothing_prints_outside_of_the_writers() {
    let all: Vec<_> =
        ["src", "core/src", "world/src"].iter().flat_map(|folder| lines(folder, &PRINTING)).collect();
    let is_in = |file: &str, place: &str| file.ends_with(place);
    let elsewhere: Vec<_> =
        all.iter().filter(|(file, _)| !PLACES.iter().any(|(place, _)| is_in(file, place))).collect();
    assert!(elsewhere.is_empty(), "use the functions of src/cli/output.rs: {elsewhere:#?}");
    for (place, _) in PLACES {
        assert!(all.iter().any(|(file, _)| is_in(file, place)), "{place} prints nothing");
    }
}

/// The writer takes text that was made safe, and JSON or YAML that it has made itself.
#[test]
fn writer_of_commands_escapes_all_it_prints() {
    let of_writer = |wanted: &[&str]| -> Vec<String> {
        let all = lines("src/cli", wanted).into_iter();
        all.filter(|(file, _)| file.ends_with("src/cli/output.rs")).map(|(_, line)| line).collect()
    };
    let raw: Vec<_> = of_writer(&["print!(", "println!(", "eprint!(", "eprintln!("]);
    assert!(raw.len() == 2 && raw.iter().all(|line| line.contains("safe::line(")), "{raw:?}");
    let written = of_writer(&[" write(&", "\twrite(&"]);
    let known =
        ["write(&(to_json(value)? + \"\\n\"))", "write(&documents?.join(\"---\\n\"))", "write(&text.0)"];
    assert_eq!(written, known);
}

/// A page is text in one function, which escapes what HTML does not.
#[test]
fn pages_become_text_in_one_place() {
    let found = lines("src/cli/dashboard", &[".into_string()", "differences.0", "PreEscaped("]);
    let found: Vec<_> =
        found.iter().map(|(file, line)| (file.rsplit('/').next().unwrap(), line.as_str())).collect();
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found.iter().any(|(file, line)| *file == "layout.rs" && line.contains("text::block(")),
        "{found:?}"
    );
    // Rows that went through the same function.
    assert!(found.iter().any(|(_, line)| line.contains("PreEscaped(&row.html)")), "{found:?}");
    let rows = lines("src/cli/dashboard", &["row.html ="]);
    assert!(rows.len() == 1 && rows[0].1.contains("layout::to_text("), "{rows:?}");
}

/// Any user may write Events, so no command believes one.
#[test]
fn no_command_reads_events() {
    let found = lines("src/cli", &["/events", "events.k8s.io", "involvedObject", "RollRefused"]);
    assert_eq!(found, []);
}

/// A plain hash of a Secret lets anyone test guesses of its value.
#[test]
fn commands_use_digests_that_may_be_shown() {
    assert_eq!(lines("src/cli", &[".digest()", "digests().current()"]), []);
    let hashed = lines("src/cli", &["Digest::of_bytes("]);
    let files: Vec<_> = hashed.iter().map(|(file, _)| file.rsplit('/').next().unwrap()).collect();
    // Values of ConfigMaps, what a preview shows, and names.
    let mut files = files;
    files.sort_unstable();
    assert_eq!(files, ["action.rs", "content.rs", "digest_id.rs"], "{hashed:?}");
}
