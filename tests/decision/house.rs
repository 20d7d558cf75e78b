//! Invariants of the source tree.

use std::{fs, path::Path};

/// Every Rust file below a folder of `src`, with its text.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(!found.is_empty(), "{folder} has no files");
    found
}

/// What a pure module may not name: clients, I/O, time that passes, and the modules that have them.
const IMPURE: [&str; 17] = [
    "kube::",
    "k8s_openapi",
    "tokio",
    "axum",
    "hyper",
    "reqwest",
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::io",
    "std::thread",
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "crate::cluster",
    "async fn",
];

#[test]
fn snapshot_template_and_resolve_reach_no_client_and_do_no_io() {
    for folder in ["snapshot", "template", "resolve"] {
        for (file, text) in files(folder) {
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let impure = IMPURE.iter().find(|word| line.contains(*word));
                assert_eq!(impure, None, "{file}: {line}");
                // Of the crate's own modules, only the other pure ones.
                for used in line.split("crate::").skip(1) {
                    let module =
                        used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                    let pure = ["", "snapshot", "template", "resolve", "few", "json", "kinds", "names"]
                        .contains(&module);
                    assert!(pure, "{file} uses crate::{module}: {line}");
                }
            }
        }
    }
}

#[test]
fn the_prefix_of_labels_and_annotations_stands_in_one_place() {
    for (file, text) in files("") {
        if file.ends_with("names.rs") {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in product.lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!line.contains("\"confrev.dev/"), "{file}: {line}");
        }
    }
}
