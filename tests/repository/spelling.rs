//! The policy `confrev-spelling` knows every label and annotation of the program.

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The keys of `core/src/names.rs` whose comment begins like this.
fn keys(beginning: &str) -> BTreeSet<String> {
    let source = read("core/src/names.rs");
    let mut keys = BTreeSet::new();
    let mut comment = String::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            comment += text;
        } else {
            let key = line.split("concat!(prefix!(), \"").nth(1).and_then(|rest| rest.split('"').next());
            if comment.starts_with(beginning) {
                keys.extend(key.map(|key| format!("confrev.dev/{key}")));
            }
            comment.clear();
        }
    }
    keys
}

/// The keys in the variable of that name.
fn listed(variable: &str) -> BTreeSet<String> {
    let chart = read("charts/confrev/templates/spelling.yaml");
    let (_, rest) = chart.split_once(&format!("- name: {variable}\n")).expect("the variable exists");
    let (_, list) = rest.split_once('[').expect("a list");
    let (list, _) = list.split_once(']').expect("its end");
    list.split('"').filter(|part| part.starts_with("confrev.dev/")).map(str::to_owned).collect()
}

#[test]
fn spelling_policy_lists_every_key() {
    for (variable, beginning) in [
        ("knownLabels", "Label on"),
        ("knownAnnotations", "Annotation on"),
        ("sourceAnnotations", "Annotation on sources:"),
        ("workloadAnnotations", "Annotation on workloads:"),
    ] {
        let wanted = keys(beginning);
        assert!(!wanted.is_empty());
        assert_eq!(
            listed(variable),
            wanted,
            "update {variable} in charts/confrev/templates/spelling.yaml, then run `make manifests`"
        );
    }
}
