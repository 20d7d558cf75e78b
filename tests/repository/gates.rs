//! Only the gates know their names and keys: whatever a gate decides, shows or counts follows from its answer.

use std::{collections::BTreeSet, fs, path::Path};

use confrev::{annotations, gate_settings, gates::Gate};

use crate::source_tree::{files, product};

/// The folders of the gates.
const GATES: [&str; 2] = ["core/src/gates/", "core/src/gate_settings/"];

/// The lines of the product that name a gate, or the constant of a setting that is one.
fn naming(file: &str, text: &str) -> Vec<String> {
    let constant = |key: &'static str| {
        let name = key.strip_prefix(annotations::PREFIX).unwrap_or(key);
        format!("annotations::{}", name.replace('-', "_").to_uppercase())
    };
    let keys: Vec<_> = gate_settings::keys().map(constant).collect();
    let names = |line: &str| line.contains("Gate::named(") || keys.iter().any(|key| line.contains(key));
    let lines = product(text).filter(|line| names(line));
    lines.map(|line| format!("{file}: {}", line.trim())).collect()
}

#[test]
fn no_other_file_names_a_gate() {
    let mut found = Vec::new();
    for (file, text) in ["src", "core/src", "world/src"].into_iter().flat_map(files) {
        // A fixture is part of tests.
        if !file.ends_with("/fixture.rs") && !GATES.iter().any(|folder| file.contains(folder)) {
            found.extend(naming(&file, &text));
        }
    }
    assert!(found.is_empty(), "only {} name gates:\n{}", GATES.join(" and "), found.join("\n"));
}

#[test]
fn names_of_gates_are_found() {
    let one = "let gate = Gate::named(\"wave\");\nlet all = Gate::all();\nread(annotations::WINDOW);\nread(annotations::SET);";
    let found = ["a.rs: let gate = Gate::named(\"wave\");", "a.rs: read(annotations::WINDOW);"];
    assert_eq!(naming("a.rs", &format!("{one}\n#[cfg(test)]\nmod tests {{\nGate::named(\"set\");")), found);
}

#[test]
fn reference_lists_every_gate() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    let page = fs::read_to_string(page).expect("the reference");
    let section = page.split("\n## Gates\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.expect("the section of the gates").lines().filter(|line| line.starts_with("| `"));
    let rows: BTreeSet<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(rows, Gate::all().map(Gate::name).collect());
}
