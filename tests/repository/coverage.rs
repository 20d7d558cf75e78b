//! `docs/evidence/coverage.md` matches the tests and the product.

use std::{collections::BTreeSet, fs, path::Path};

use confrev::{
    kinds::{Kinds, REVISION_KINDS},
    template::Template,
};

/// Every Rust file below a folder, as one text.
fn sources(folder: &str) -> String {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut text = String::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The rows of all tables: the first cell, and all words in backticks of the last one.
fn rows() -> Vec<(String, Vec<String>)> {
    let text = read("docs/evidence/coverage.md");
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---"));
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells
        .filter(|cells| !cells[cells.len() - 1].starts_with("tests"))
        .map(|cells| {
            let first = cells[0].split(" (").next().unwrap_or_default().replace('`', "");
            let named = cells[cells.len() - 1].split('`').skip(1).step_by(2).map(str::to_owned).collect();
            (first, named)
        })
        .collect()
}

/// The names of all tests.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in
        [sources("tests"), sources("src"), sources("core/src"), sources("world/src"), sources("core/tests")]
    {
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line == "#[test]" || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
                if is_test {
                    names.extend(rest.split('(').next().map(str::to_owned));
                }
                is_test = false;
            }
        }
    }
    names
}

#[test]
fn every_row_names_tests_that_exist() {
    let tests = tests();
    let rows = rows();
    assert!(rows.len() > 50, "{} rows were found", rows.len());
    for (first, named) in rows {
        assert!(!named.is_empty(), "{first}: the row names no test");
        for name in named {
            assert!(tests.contains(&name), "{first}: test {name} does not exist");
        }
    }
}

/// The test filters in the Makefile: the arguments of `cargo test` that are not options.
fn filters() -> Vec<String> {
    let text = read("Makefile").replace("\\\n", " ");
    let commands = text.lines().filter_map(|line| Some(line.split_once("$(CARGO) test ")?.1));
    let mut found = Vec::new();
    for command in commands {
        let mut words = command.split_whitespace().filter(|word| *word != "--");
        while let Some(word) = words.next() {
            match word {
                "--test" | "--package" | "-p" | "--profile" => drop(words.next()),
                // A variable is the choice of the person who calls the target.
                word if word.starts_with(['-', '$']) => {}
                word => found.push(word.to_owned()),
            }
        }
    }
    found
}

#[test]
fn makefile_test_filters_match_tests() {
    let (tests, filters) = (tests(), filters());
    assert!(filters.len() >= 4, "{filters:?}");
    for filter in filters {
        let name = filter.rsplit("::").next().unwrap_or_default();
        assert!(tests.iter().any(|test| test.contains(name)), "no test matches {filter} of the Makefile");
    }
}

fn has_row(first: &str) {
    let found = rows().iter().any(|(cell, _)| cell == first);
    assert!(found, "docs/evidence/coverage.md has no row for {first}");
}

#[test]
fn every_kind_has_a_row() {
    for kind in Kinds::default().iter() {
        has_row(&kind.kind);
    }
    for kind in &REVISION_KINDS {
        has_row(kind.kind);
    }
}

#[test]
fn every_label_and_annotation_has_a_row() {
    for key in confrev::annotations::KEYS {
        has_row(key.name);
    }
    has_row(confrev::annotations::MANAGED_BY);
}

/// A pod spec with each form of reference once, in every list of containers.
const EVERY_FORM: &str = r#"{"spec": {
    "volumes": [
        {"configMap": {"name": "a"}},
        {"secret": {"secretName": "a"}},
        {"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "a"}}]}}
    ],
    "containers": [{
        "env": [{"valueFrom": {"configMapKeyRef": {"name": "a"}}}, {"valueFrom": {"secretKeyRef": {"name": "a"}}}],
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "a"}}]
    }],
    "initContainers": [{
        "env": [{"valueFrom": {"configMapKeyRef": {"name": "a"}}}, {"valueFrom": {"secretKeyRef": {"name": "a"}}}],
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "a"}}]
    }]
}}"#;

#[test]
fn every_form_of_reference_has_a_row() {
    let template: Template<'_> = serde_json::from_str(EVERY_FORM).unwrap();
    let mut forms = BTreeSet::new();
    for reference in template.references() {
        let pointer = reference.pointer.strip_prefix("/spec/").unwrap().replace('/', ".");
        let form: Vec<_> = pointer
            .split('.')
            .map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { "[]" } else { part })
            .collect();
        let form = form.join(".").replace(".[]", "[]");
        has_row(&form);
        forms.insert(form);
    }
    // The template above has every form: the product adds each form in one place, those of containers for two lists.
    let product = read("core/src/template/references.rs");
    let of = |part: &str| {
        let (_, body) = product.split_once(&format!("    fn {part}(&mut self")).unwrap();
        body.split("\n    }\n").next().unwrap().matches("SourceKind::").count()
    };
    assert_eq!(forms.len(), of("volume") + 2 * of("container"));
    assert_eq!(
        product.matches("_containers: NullableList").count()
            + product.matches(" containers: NullableList").count(),
        2
    );
}
