//! The decision over workloads of other projects.

use std::collections::{BTreeMap, BTreeSet};

use confrev::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::Workload,
    snapshot::{ObjectName, ROTATED_CONFIGMAPS, SourceKind},
};
use serde_json::{Value, json};

use super::world::World;
use crate::workload_corpus::{Document, Named, corpus, opted_in, references, say, taken_back};

/// The built-in kinds, and the other kinds of the corpus.
fn kinds() -> Kinds {
    let more = ["v1alpha1/daemonsets/DaemonSet", "v1beta1/statefulsets/StatefulSet"];
    Kinds::with(&more.map(|kind| format!("apps.kruise.io/{kind}=spec.template").parse().unwrap()))
}

fn kind_of<'k>(kinds: &'k Kinds, object: &Value) -> Option<&'k WorkloadKind> {
    kinds.by_kind(object["apiVersion"].as_str()?, object["kind"].as_str()?)
}

/// A world in which every referenced source exists.
fn world(references: &[Named]) -> World {
    let mut keys: BTreeMap<ObjectName, BTreeSet<&str>> = BTreeMap::new();
    for reference in references {
        let kind = if reference.kind == "Secret" { SourceKind::Secret } else { SourceKind::ConfigMap };
        let keys = keys.entry(ObjectName::new(kind, &*reference.name)).or_default();
        keys.extend(reference.keys.iter().map(String::as_str));
    }
    let mut world = World::default();
    for (name, keys) in keys {
        // Base64, which is also valid text.
        let data: BTreeMap<_, _> = keys.iter().chain(&["whole"]).map(|key| (*key, "dmFsdWU=")).collect();
        let object = json!({"metadata": {"name": name.name, "uid": "u"}, "type": "Opaque", "data": data});
        world.objects.insert(name, object);
    }
    world
}

/// The object as text, with every number in a notation that no serializer writes.
fn with_odd_numbers(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => format!("{number}0"),
        Value::Number(number) => format!("{number}.00"),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(key, value)| format!("{}:{}", json!(key), with_odd_numbers(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(with_odd_numbers).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn has_number(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(has_number),
        Value::Array(items) => items.iter().any(has_number),
        other => other.is_number(),
    }
}

fn ours(reference: &Named, secrets: bool) -> bool {
    let rotated = ROTATED_CONFIGMAPS.contains(&reference.name.as_str());
    if reference.kind == "Secret" { secrets } else { !rotated }
}

/// Checks the decision on a workload. Returns the number of rewritten references.
fn decided(kind: &WorkloadKind, document: &Document, secrets: bool) -> usize {
    let origin = &document.origin;
    let object = opted_in(&document.object, secrets);
    let at = kind.template_pointer();
    let Some(template) = object.pointer(&at) else {
        assert!(
            object["spec"]["workloadRef"].is_object() || object["spec"].is_null(),
            "{origin}: no template"
        );
        return 0;
    };
    let found = references(template);
    let mut world = world(&found);
    let admitted = world.review(kind, &object, None);
    assert_eq!(admitted.decision.denial, None, "{origin}");
    assert_eq!(admitted.decision.warnings, [""; 0], "{origin}");

    let mut rewritten = Vec::new();
    for reference in &found {
        let pointer = format!("{at}{}", reference.pointer);
        let name = admitted.object.pointer(&pointer).unwrap().as_str().unwrap();
        if !ours(reference, secrets) {
            assert_eq!(name, reference.name, "{origin}: {pointer} stays as written");
            continue;
        }
        let kind = if reference.kind == "Secret" { SourceKind::Secret } else { SourceKind::ConfigMap };
        let [source, snapshot] =
            [&reference.name, name].map(|name: &str| &world.objects[&ObjectName::new(kind, name)]);
        assert_eq!(
            snapshot["metadata"]["annotations"][annotations::SOURCE_NAME],
            *reference.name,
            "{origin}"
        );
        assert_eq!((&snapshot["data"], &snapshot["immutable"]), (&source["data"], &json!(true)), "{origin}");
        let sources = admitted.object.pointer(&format!("{at}/metadata/annotations")).unwrap();
        let sources: Value = serde_json::from_str(sources[annotations::SOURCES].as_str().unwrap()).unwrap();
        assert_eq!(sources[kind.plural()][&reference.name], *name, "{origin}");
        rewritten.push(pointer);
    }
    let before = taken_back(&admitted.object, &object, &at, &rewritten);
    assert_eq!(before, object, "{origin}: something else changed");
    // The patch contains only strings, so every other field keeps its bytes.
    let odd = world.decision(kind, &with_odd_numbers(&object));
    assert_eq!(odd.patch, admitted.decision.patch, "{origin}");
    assert!(!has_number(&json!(odd.patch)), "{origin}: {:?}", odd.patch);

    let objects = world.objects.clone();
    for again in [None, Some(&admitted.object)] {
        let patch = world.review(kind, &admitted.object, again).decision.patch;
        assert_eq!(json!(patch), json!([]), "{origin}: a fixed point");
    }
    let spec = &world.review(kind, &object, Some(&admitted.object)).object["spec"];
    assert_eq!(spec, &admitted.object["spec"], "{origin}: applied again");
    assert_eq!(world.objects, objects, "{origin}: applying again creates an object");
    rewritten.len()
}

/// Nothing else in the workloads changes.
#[test]
fn rewrites_all_references_of_the_corpus() {
    let Some(corpus) = corpus() else { return };
    let kinds = kinds();
    let (mut workloads, mut references, mut unknown) = (0, [0, 0], BTreeMap::<String, usize>::new());
    let mut malformed = BTreeSet::new();
    for document in corpus.iter().filter(|document| document.object["kind"] != "ConfigMap") {
        let Some(kind) = kind_of(&kinds, &document.object) else {
            let of = format!("{} {}", document.object["apiVersion"], document.object["kind"]);
            *unknown.entry(of).or_default() += 1;
            continue;
        };
        // The API server refuses these, too.
        if let Err(problem) = Workload::parse(kind, &document.object.to_string()) {
            malformed.insert(format!("{}: {problem}", document.origin));
            continue;
        }
        workloads += 1;
        for secrets in [false, true] {
            references[usize::from(secrets)] += decided(kind, document, secrets);
        }
    }
    let [without, with] = references;
    let references = format!("{without} references, {with} with Secrets");
    say(&format!(
        "corpus: {workloads} workloads, {references}; unknown {unknown:?}; malformed {malformed:?}"
    ));
    assert!(malformed.len() < 3, "{malformed:?}");
    assert!(workloads > 200 && without > 300 && with > without, "too little of the corpus was read");
}
