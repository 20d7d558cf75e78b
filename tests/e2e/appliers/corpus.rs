//! The corpus of workloads on a real API server, which must accept each workload after admission.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;

use confrev::kinds::{Kinds, WorkloadKind};
use confrev::snapshot::ROTATED_CONFIGMAPS;
use serde_json::{Value, json};

use crate::shared::running;
use crate::workload_corpus::{Document, Named, corpus, opted_in, references, say, taken_back};
use crate::world::{World, text};

/// The number of workloads that are sent at once.
const THREADS: usize = 4;

/// Creates all sources of the workloads in the namespace: the corpus's own ConfigMaps, with the keys that the workloads
/// need, and invented ones.
fn create_sources(world: &World, corpus: &[Document], references: &[Named]) {
    let mut objects: BTreeMap<(&str, String), BTreeMap<String, Value>> = BTreeMap::new();
    for reference in references.iter().filter(|reference| !is_rotated(&reference.name)) {
        let data = objects.entry((reference.kind, reference.name.clone())).or_default();
        data.extend(reference.keys.iter().map(|key| (key.clone(), json!("dmFsdWU="))));
    }
    for object in corpus.iter().map(|document| &document.object) {
        let key = ("ConfigMap", text(&object["metadata"]["name"]));
        if let (Some(data), Some(own)) = (objects.get_mut(&key), object["data"].as_object()) {
            data.extend(own.clone());
        }
    }
    for ((kind, name), data) in objects {
        let object = json!({"metadata": {"name": name}, "data": data});
        world.cluster.create(kind, world.name(), &object);
    }
}

fn is_rotated(name: &str) -> bool {
    ROTATED_CONFIGMAPS.contains(&name)
}

/// Creates a workload in a dry-run. The corpus has fields of other versions and other tools.
fn dry_run(world: &World, kind: &WorkloadKind, object: &Value) -> Result<Value, String> {
    let version = text(&object["apiVersion"]);
    let path = format!("/apis/{version}/namespaces/{}/{}", world.name(), kind.plural);
    match world.cluster.api().post(&format!("{path}?dryRun=All&fieldValidation=Ignore"), object) {
        (201, mut created) => {
            strip(&mut created);
            Ok(created)
        }
        (404, _) => Err(format!("{version} {} is not served", kind.kind)),
        (_, answer) => Err(text(&answer["message"])),
    }
}

/// Removes the namespace, and fields that differ between two creations.
fn strip(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut().expect("the object has metadata");
    for field in [
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "ownerReferences",
        "finalizers",
        "selfLink",
    ] {
        metadata.remove(field);
    }
    object.as_object_mut().expect("an object").remove("status");
    // A Job selects its pods by its uid.
    for at in ["/metadata/labels", "/spec/template/metadata/labels", "/spec/selector/matchLabels"] {
        if let Some(Value::Object(labels)) = object.pointer_mut(at) {
            labels.retain(|key, _| !key.ends_with("controller-uid"));
        }
    }
    if object["kind"] == "Job" {
        object["spec"].as_object_mut().map(|spec| spec.remove("selector"));
    }
}

/// Whether the API server accepts the workload as written. If so, it must also accept the opted-in workload, with changes
/// only in the names of its references.
fn taken(world: &World, kind: &WorkloadKind, document: &Document) -> Result<usize, String> {
    let origin = &document.origin;
    let mut object = document.object.clone();
    strip(&mut object);
    dry_run(world, kind, &object)?;
    // Compare with the workload that has the annotation `secrets` and is not opted in: only confrev makes a difference.
    let mut plain = opted_in(&object, true);
    plain["metadata"]["labels"][confrev::annotations::ENABLED] = json!("false");
    let mut plain = dry_run(world, kind, &plain)?;
    plain["metadata"]["labels"][confrev::annotations::ENABLED] = json!("true");
    let admitted = dry_run(world, kind, &opted_in(&object, true)).unwrap_or_else(|e| panic!("{origin}: {e}"));

    let at = kind.template_pointer();
    let found = plain.pointer(&at).map(references).unwrap_or_default();
    let mut rewritten = Vec::new();
    for reference in found.iter().filter(|reference| !is_rotated(&reference.name)) {
        let pointer = format!("{at}{}", reference.pointer);
        let name = text(admitted.pointer(&pointer).expect("the reference exists"));
        let digits = name.strip_prefix(&format!("{}-", reference.name)).unwrap_or_default();
        assert!(digits.len() == 10, "{origin}: {pointer} is {name}");
        rewritten.push(pointer);
    }
    let before = taken_back(&admitted, &plain, &at, &rewritten);
    assert_eq!(before, plain, "{origin}: nothing else changes");
    let again = dry_run(world, kind, &admitted).unwrap_or_else(|e| panic!("{origin}: {e}"));
    assert_eq!(again, admitted, "{origin}: a second admission changes nothing");
    Ok(rewritten.len())
}

/// The dry-runs write nothing.
#[test]
fn api_server_accepts_every_resolved_corpus_workload() {
    let Some(corpus) = corpus() else { return };
    let _confrev = running();
    let kinds = Kinds::default();
    let kind_of = |object: &Value| {
        let group = text(&object["apiVersion"]);
        kinds.by_kind(&group, object["kind"].as_str()?)
    };
    let workloads: Vec<_> =
        corpus.iter().filter_map(|document| Some((kind_of(&document.object)?, document))).collect();
    let templates =
        workloads.iter().filter_map(|(kind, document)| document.object.pointer(&kind.template_pointer()));
    let world = World::new("corpus");
    create_sources(&world, &corpus, &templates.flat_map(references).collect::<Vec<_>>());

    let refused = Mutex::new(BTreeSet::new());
    let counts = Mutex::new((0, 0));
    thread::scope(|scope| {
        for chunk in workloads.chunks(workloads.len().div_ceil(THREADS)) {
            let (world, refused, counts) = (&world, &refused, &counts);
            scope.spawn(move || {
                for (kind, document) in chunk {
                    match taken(world, kind, document) {
                        Ok(references) => {
                            let mut counts = counts.lock().unwrap();
                            *counts = (counts.0 + 1, counts.1 + references);
                        }
                        Err(reason) => {
                            let reason: String = reason.chars().take(120).collect();
                            refused.lock().unwrap().insert(format!("{}: {reason}", document.origin));
                        }
                    }
                }
            });
        }
    });
    let (taken, rewritten) = counts.into_inner().unwrap();
    let refused = refused.into_inner().unwrap();
    let kinds: BTreeSet<_> = corpus
        .iter()
        .map(|document| &document.object)
        .filter(|object| object["kind"] != "ConfigMap" && kind_of(object).is_none())
        .map(|object| format!("{} {}", text(&object["apiVersion"]), text(&object["kind"])))
        .collect();
    say(&format!(
        "corpus: {taken} workloads accepted, {rewritten} references rewritten; not confrev's: {kinds:?}"
    ));
    say(&format!("corpus: refused without confrev as well: {refused:#?}"));
    assert!(taken > 200 && rewritten > 400, "too few workloads of the corpus were read");
    assert!(world.snapshots().is_empty(), "a dry-run writes nothing");
}
