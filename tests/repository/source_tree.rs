//! Invariants of the source tree.

use std::{fs, path::Path};

/// Every Rust file below a folder, with its text.
pub(crate) fn files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
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

/// The lines of a file that are part of the product: neither comments nor tests.
pub(crate) fn product(text: &str) -> impl Iterator<Item = &str> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    product.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// Parts of the standard library and of jiff that the core may not use: I/O and clocks. Its dependencies include no client
/// and no runtime.
const IMPURE: [&str; 10] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::io",
    "std::thread",
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "async fn",
];

#[test]
fn pure_crates_do_no_io() {
    for (file, text) in files("core/src").into_iter().chain(files("world/src")) {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let impure = IMPURE.iter().find(|word| line.contains(*word));
            assert_eq!(impure, None, "{file}: {line}");
        }
    }
}

#[test]
fn pure_crates_depend_on_no_client_or_runtime() {
    let core = [
        "base64",
        "jiff",
        "memchr",
        "parking_lot",
        "json-patch",
        "ring",
        "serde",
        "serde_json",
        "sha2",
        "thiserror",
        "uuid",
    ];
    let world = ["confrev-core", "arc-swap", "jiff", "parking_lot", "serde", "serde_json"];
    for (folder, expected) in [("core", &core[..]), ("world", &world)] {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let (dependencies, _) = dependencies.split_once("\n[").unwrap();
        let names = dependencies.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), expected, "{folder}");
    }
}

/// It is the prefix of annotations, too.
#[test]
fn label_prefix_is_defined_in_one_place() {
    for (file, text) in ["src", "core/src", "world/src"].into_iter().flat_map(files) {
        if file.ends_with("annotations.rs") {
            continue;
        }
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in product.lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!line.contains("\"confrev.dev/"), "{file}: {line}");
        }
    }
}

/// Any other way leaves Nagle's algorithm on, which delays a request by 40 ms.
#[test]
fn clients_are_made_in_one_place() {
    const OTHER_WAYS: [&str; 4] =
        ["Client::try_from(", "Client::try_default(", "ClientBuilder", "rustls_https_connector"];
    let found = files("src").into_iter().chain(files("bench/src")).flat_map(|(file, text)| {
        let product = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        let found: Vec<_> = OTHER_WAYS.into_iter().filter(|way| product.contains(way)).collect();
        found.into_iter().map(move |way| (file.clone(), way))
    });
    let (right, wrong): (Vec<_>, Vec<_>) =
        found.partition(|(file, _)| file.ends_with("src/cluster/connect.rs"));
    assert_eq!(wrong, [], "use confrev::cluster::connect");
    assert!(!right.is_empty(), "src/cluster/connect.rs makes the clients");
}
