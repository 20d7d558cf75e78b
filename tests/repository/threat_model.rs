//! `docs/evidence/threat-model.md`: threats are numbered, and each names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of all functions in Rust files below a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for line in text.lines().map(str::trim_start) {
                let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "));
                names.extend(rest.and_then(|rest| rest.split('(').next()).map(str::to_owned));
            }
        }
    }
}

#[test]
fn each_threat_names_tests_that_exist() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/evidence/threat-model.md"))
            .unwrap();
    let mut known = BTreeSet::new();
    for folder in ["tests", "src", "core/src", "world/src", "core/tests", "image/tests"] {
        functions(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut known);
    }
    let (_, table) = page.split_once("## Threats\n").expect("the section exists");
    let (table, _) = table.split_once("\n## ").expect("another section follows");
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| T")).collect();
    assert!(rows.len() > 20, "the table has {} threats", rows.len());
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, threat, mitigation, _, tests] = cells[..] else { panic!("not six cells: {row}") };
        assert_eq!(number, format!("T{}", index + 1));
        assert!(!threat.is_empty() && !mitigation.is_empty(), "{row}");
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "T{} names no test", index + 1);
        for test in named {
            assert!(known.contains(test), "T{}: no test is called {test}", index + 1);
        }
    }
}
