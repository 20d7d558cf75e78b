//! The lists of labels and annotations in the program and in the chart agree with the comments of `core/src/annotations.rs`.

use std::{collections::BTreeSet, fs, path::Path};

use confrev::annotations::{
    ENABLED_BY, ROLL, SEEN, SOURCE_RECORDS, SOURCE_SETTINGS, WORKLOAD_RECORDS, WORKLOAD_SETTINGS,
};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The keys of `core/src/annotations.rs` whose comment begins like this.
fn keys(beginning: &str) -> BTreeSet<String> {
    keys_with(|comment| comment.starts_with(beginning))
}

/// The annotations on this kind of object that confrev or a command writes, or that users write.
fn annotations(on: &str, written: bool) -> BTreeSet<String> {
    keys_with(|comment| {
        let first = comment.strip_prefix("Annotation on ").and_then(|rest| rest.split([':', '.']).next());
        first.is_some_and(|first| first.contains(on) && first.contains("written by") == written)
    })
}

/// The keys of `core/src/annotations.rs` with such a comment.
fn keys_with(matches: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let source = read("core/src/annotations.rs");
    let mut keys = BTreeSet::new();
    let mut comment = String::new();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("/// ") {
            comment += text;
            comment.push(' ');
        } else {
            let key = line.split("concat!(prefix!(), \"").nth(1).and_then(|rest| rest.split('"').next());
            if matches(&comment) {
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

#[test]
fn lists_of_annotations_are_complete() {
    for (list, on, written) in [
        (&WORKLOAD_SETTINGS[..], "workloads", false),
        (&WORKLOAD_RECORDS, "workloads", true),
        (&SOURCE_SETTINGS, "sources", false),
        (&SOURCE_RECORDS, "sources", true),
    ] {
        let listed: BTreeSet<_> = list.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(listed, annotations(on, written), "update the lists in core/src/annotations.rs");
    }
}

/// The keys in the part of `webhooks.yaml` that begins with this line, up to the next webhook.
fn called_for(webhook: &str) -> Vec<BTreeSet<String>> {
    let chart = read("charts/confrev/templates/webhooks.yaml");
    let (_, rest) =
        chart.split_once(&format!("  - name: {webhook}.confrev.dev\n")).expect("the webhook exists");
    let webhook = rest.split("\n  - name: ").next().unwrap_or_default();
    let lists = webhook.split("].exists(key,").collect::<Vec<_>>();
    let (_, lists) = lists.split_last().expect("a part");
    let keys = |list: &str| {
        list.split('"').filter(|part| part.starts_with("confrev.dev/")).map(str::to_owned).collect()
    };
    lists.iter().map(|text| keys(text.rsplit('[').next().unwrap_or_default())).collect()
}

/// Otherwise confrev would not be called when the annotation changes.
#[test]
fn webhooks_are_called_for_every_setting() {
    let all = |lists: &[&[&str]]| lists.concat().into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let workloads = all(&[&WORKLOAD_SETTINGS, &[SEEN, ENABLED_BY]]);
    let sources = all(&[&SOURCE_SETTINGS]);
    // A new value of `roll` is valid, whatever it is.
    let checked = &workloads - &all(&[&[ROLL, SEEN, ENABLED_BY]]);
    for (webhook, wanted) in [
        ("workloads", &workloads),
        ("namespaced-workloads", &workloads),
        ("configmaps", &sources),
        ("secrets", &sources),
        ("settings", &checked),
    ] {
        let lists = called_for(webhook);
        assert_eq!(lists.last(), Some(wanted), "update {webhook} in charts/confrev/templates/webhooks.yaml");
    }
}
