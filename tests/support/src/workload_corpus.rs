//! The corpus: workloads and ConfigMaps of public repositories. It is in a folder beside the project's on the developers'
//! machines. Their references are found without the product's code.

use std::{fs, io, io::Write as _};

use confrev_core::annotations;
use serde_json::{Value, json};

use crate::root;

/// One document of a file.
pub struct Document {
    /// The origin of the document: the file's name, and the comment before the document.
    pub origin: String,
    /// The object.
    pub object: Value,
}

/// A reference to a ConfigMap or Secret in a template.
#[derive(Debug)]
pub struct Named {
    /// JSON pointer within the template.
    pub pointer: String,
    /// `ConfigMap` or `Secret`.
    pub kind: &'static str,
    /// The name of the referenced object.
    pub name: String,
    /// The keys that the reference selects.
    pub keys: Vec<String>,
}

/// Prints to stderr, so that the test runner does not hide the text of a passing test.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// All documents, ordered by file and position. `None`, with a message, if the corpus is missing.
pub fn corpus() -> Option<Vec<Document>> {
    let folder = root().join("../shared/corpus");
    let Ok(entries) = fs::read_dir(&folder) else {
        say("The corpus of workloads is MISSING (../shared/corpus): its tests are skipped.");
        return None;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut documents = Vec::new();
    for path in paths {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n").skip(1) {
            let comment = document.lines().next().and_then(|line| line.strip_prefix("# "));
            let origin = format!("{file}: {}", comment.unwrap_or("no comment"));
            let object = serde_saphyr::from_str(document).unwrap_or_else(|e| panic!("{origin}: {e}"));
            documents.push(Document { origin, object });
        }
    }
    assert!(documents.len() > 100, "the corpus has only {} documents", documents.len());
    Some(documents)
}

/// The references of a template. They are found by the names of fields alone, anywhere in the pod's spec.
pub fn references(template: &Value) -> Vec<Named> {
    let mut found = Vec::new();
    walk(&template["spec"], &mut vec!["spec".to_owned()], &mut found);
    found
}

fn walk(value: &Value, path: &mut Vec<String>, found: &mut Vec<Named>) {
    let children: Vec<_> = match value {
        Value::Object(fields) => fields.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect(),
        _ => return,
    };
    for (key, child) in children {
        // `secretRef` of a volume belongs to a driver. A projected Secret has `name`, a volume has `secretName`.
        let within = |field: &str| path.iter().rev().take(3).any(|above| above == field);
        let form = match key.as_str() {
            "configMap" | "configMapRef" | "configMapKeyRef" => Some(("ConfigMap", "name")),
            "secretKeyRef" => Some(("Secret", "name")),
            "secretRef" if within("envFrom") => Some(("Secret", "name")),
            "secret" if within("sources") => Some(("Secret", "name")),
            "secret" => Some(("Secret", "secretName")),
            _ => None,
        };
        path.push(key);
        if let Some((kind, field)) = form
            && let Some(name) = child[field].as_str().filter(|name| !name.is_empty())
        {
            let items = child["items"].as_array().into_iter().flatten().map(|item| &item["key"]);
            let keys = items.chain([&child["key"]]).filter_map(|key| key.as_str().map(str::to_owned));
            let pointer = format!("/{}/{field}", path.join("/"));
            found.push(Named { pointer, kind, name: name.to_owned(), keys: keys.collect() });
        }
        walk(child, path, found);
        path.pop();
    }
}

/// Opts a workload in by its own label, with its Secrets or without.
pub fn opted_in(object: &Value, secrets: bool) -> Value {
    let mut object = object.clone();
    set(&mut object["metadata"]["labels"], annotations::ENABLED, "true");
    if secrets {
        set(&mut object["metadata"]["annotations"], annotations::SECRETS, "true");
    }
    object
}

fn set(map: &mut Value, key: &str, value: &str) {
    if map.is_null() {
        *map = json!({});
    }
    map[key] = json!(value);
}

/// Reverts the changes of admission to `pointers` of a template and to metadata, without the product's code. `before` is the
/// object before admission: confrev added every map that it lacks.
pub fn taken_back(after: &Value, before: &Value, template: &str, pointers: &[String]) -> Value {
    let mut after = after.clone();
    for pointer in pointers {
        *after.pointer_mut(pointer).unwrap() = before.pointer(pointer).unwrap().clone();
    }
    let metadata =
        [String::new(), template.trim_end_matches("/spec/template").to_owned(), template.to_owned()];
    for at in metadata.map(|at| at + "/metadata") {
        for map in ["labels", "annotations"] {
            if let Some(Value::Object(map)) = after.pointer_mut(&format!("{at}/{map}")) {
                for key in [annotations::SOURCES, annotations::REVISION, annotations::STATE] {
                    map.remove(key);
                }
            }
            let lacked = before.pointer(&format!("{at}/{map}")).is_none();
            if lacked && after.pointer(&format!("{at}/{map}")) == Some(&json!({})) {
                after.pointer_mut(&at).unwrap().as_object_mut().unwrap().remove(map);
            }
        }
        if before.pointer(&at).is_none() && after.pointer(&at) == Some(&json!({})) {
            let parent = at.trim_end_matches("/metadata");
            after.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove("metadata");
        }
    }
    after
}
