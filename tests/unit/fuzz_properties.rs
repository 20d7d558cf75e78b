//! The properties that the fuzzer checks for hours, checked for a second: with its seeds, and with random changes of them.

use std::{fs, path::Path};

use confrev::{kinds::Kinds, resolve::Workload};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::workload_corpus::corpus;
use confrev_properties::{annotations, digest, review, seeds, template};

/// Checks the property of a fuzz target.
fn check(target: &str, bytes: &[u8]) {
    match target {
        "review" => review::check(bytes),
        "template" => template::check(bytes),
        "digest" => digest::check(bytes),
        "annotations" => annotations::check(bytes),
        other => panic!("no target {other}"),
    }
}

/// With `CONFREV_FUZZ_CORPUS`, the seeds are written to that folder, as the fuzzer's corpus.
#[test]
fn fuzz_seeds_and_corpus_have_all_properties() {
    let objects: Vec<_> = corpus().into_iter().flatten().map(|document| document.object).collect();
    let folder = std::env::var("CONFREV_FUZZ_CORPUS").ok();
    for (target, seeds) in seeds::all(&objects) {
        assert!(seeds.len() > 3, "{target} has too few seeds");
        for (number, seed) in seeds.iter().enumerate() {
            check(target, seed);
            if let Some(folder) = &folder {
                let folder = Path::new(folder).join(target);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
            }
        }
    }
}

/// If an object had two templates, it would be unclear which one a patch changes.
#[test]
fn refuses_duplicate_fields() {
    let kinds = Kinds::default();
    let cron_job = kinds.by_resource("batch", "cronjobs").unwrap();
    let deployment = kinds.by_resource("apps", "deployments").unwrap();
    for (kind, json) in [
        (deployment, r#"{"spec":{"template":{}},"spec":{}}"#),
        (deployment, r#"{"spec":{"template":{},"template":null}}"#),
        (cron_job, r#"{"spec":{"jobTemplate":{"spec":{}},"jobTemplate":{}}}"#),
        (deployment, r#"{"metadata":{},"metadata":{}}"#),
        (deployment, r#"{"spec":{"template":{"spec":{"volumes":[],"volumes":[]}}}}"#),
    ] {
        let problem = Workload::parse(kind, json).expect_err(json).to_string();
        assert!(problem.contains("duplicate field"), "{json}: {problem}");
    }
    assert!(Workload::parse(deployment, r#"{"x":1,"x":2,"spec":{"y":1,"y":2}}"#).is_ok());
}

/// Changes of a text: a position, the number of bytes that are removed there, and the bytes that are inserted.
fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, Vec<u8>)>> {
    let words: Vec<&[u8]> = vec![
        b"",
        b"null",
        b"{}",
        b"[]",
        b"\"",
        b"\\u0000",
        b"1e999",
        b"-0",
        b"18446744073709551616",
        b"\xff",
        b"true",
        b",",
        b"\"name\":\"\",",
        b"\"metadata\":null,",
        b"\"spec\":{},",
        b"demo",
        b"[[[[",
        b"\xf0\x9f\x98\x80",
    ];
    let word = prop::sample::select(words).prop_map(<[u8]>::to_vec);
    prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, word), 1..4)
}

fn edited(seed: &[u8], edits: &[(prop::sample::Index, u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (at, gone, come) in edits {
        let at = at.index(bytes.len() + 1);
        let end = (at + usize::from(*gone)).min(bytes.len());
        bytes.splice(at..end, come.iter().copied());
    }
    bytes
}

/// Values that replace a value in a document.
fn odd_values() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!({}),
        json!([]),
        json!([null]),
        json!(""),
        json!("demo"),
        json!("missing"),
        json!("off"),
        json!("bound"),
        json!("A B/~"),
        json!(true),
        json!(-1),
        json!({"name": "other", "items": [{"key": "k"}], "optional": true}),
        json!([{"configMap": {"name": "demo"}}, {"secret": {"secretName": "s", "name": "s"}}]),
    ])
}

/// The document with some of its values replaced.
fn with_odd_values(seed: &[u8], odd: &[(prop::sample::Index, Value)]) -> Vec<u8> {
    let (choice, json) = seed.split_at(usize::from(!seed.starts_with(b"{")));
    let Ok(mut document) = serde_json::from_slice::<Value>(json) else { return seed.to_vec() };
    for (at, value) in odd {
        let mut places = Vec::new();
        pointers(&document, &mut String::new(), &mut places);
        *document.pointer_mut(&places[at.index(places.len())]).unwrap() = value.clone();
    }
    [choice, document.to_string().as_bytes()].concat()
}

fn pointers(value: &Value, path: &mut String, found: &mut Vec<String>) {
    found.push(path.clone());
    let children: Vec<_> = match value {
        Value::Object(fields) => fields.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect(),
        _ => return,
    };
    for (key, child) in children {
        let length = path.len();
        path.push('/');
        path.push_str(&confrev::annotations::pointer_token(&key));
        pointers(child, path, found);
        path.truncate(length);
    }
}

/// One of the seeds of a target.
fn seed_of(target: usize) -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let (name, seeds) = seeds::all(&[])[target].clone();
    prop::sample::select(seeds).prop_map(move |seed| (name, seed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_admission_panic_or_answer_wrong(
        (target, seed) in (0..4_usize).prop_flat_map(seed_of),
        edits in edits(),
    ) {
        check(target, &edited(&seed, &edits));
    }

    #[test]
    fn no_document_makes_admission_panic_or_answer_wrong(
        (target, seed) in (0..3_usize).prop_flat_map(seed_of),
        odd in prop::collection::vec((any::<prop::sample::Index>(), odd_values()), 1..4),
    ) {
        check(target, &with_odd_values(&seed, &odd));
    }

    #[test]
    fn no_value_of_an_annotation_makes_admission_panic(text in "\\PC{0,40}") {
        check("annotations", text.as_bytes());
    }
}
