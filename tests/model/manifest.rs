//! The user's repository: manifests of workloads and contents of sources. They are few, so that they recur.

use std::collections::{BTreeMap, BTreeSet};

use confrev::{
    annotations,
    snapshot::{Object, SourceKind, snapshot_name},
};
use serde_json::{Value, json};

use crate::store::{Key, Kind, annotation, set_meta};

/// A source of the model, by namespace and name.
pub(crate) const SOURCES: [(&str, &str); 4] = [("a", "s"), ("a", "t"), ("b", "s"), ("b", "t")];
/// The number of sources that exist at first; the others are missing until a user creates them.
pub(crate) const PRESENT: usize = 3;
/// A workload of the model.
pub(crate) const WORKLOADS: [(&str, Kind, &str); 4] = [
    ("a", Kind::Deployment, "d"),
    ("a", Kind::Rollout, "r"),
    ("a", Kind::Deployment, "e"),
    ("b", Kind::Deployment, "d"),
];
pub(crate) const NAMESPACES: [&str; 2] = ["a", "b"];
/// The number of forms of [`template`].
pub(crate) const FORMS: u8 = 7;
/// The number of contents of [`content`].
pub(crate) const CONTENTS: u8 = 4;
/// The annotation in which client-side apply records the applied manifest.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(crate) fn source_key(index: usize) -> Key {
    let (namespace, name) = SOURCES[index];
    Key::configmap(namespace, name)
}

pub(crate) fn workload_key(index: usize) -> Key {
    let (namespace, kind, name) = WORKLOADS[index];
    Key::new(kind, namespace, name)
}

/// A content of a source. It has two keys, so that some contents differ only in a key that a workload does not read.
pub(crate) fn content(number: u8) -> Value {
    json!({"k1": format!("{}", number % 2), "k2": format!("{}", number / 2)})
}

/// The name of the snapshot of a content.
pub(crate) fn snapshot_of(source: usize, number: u8) -> String {
    let json = json!({"data": content(number)}).to_string();
    let digest = Object::parse(json.as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap();
    snapshot_name(SOURCES[source].1, &digest, 10)
}

/// The user's manifest of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub form: u8,
    pub image: u8,
    pub enabled: Option<bool>,
    pub track: Option<bool>,
    pub exclude: bool,
    pub holds_undos: bool,
}

impl Manifest {
    /// The first manifest of each workload. Three workloads are opted in by their own label.
    pub(crate) fn first(index: usize) -> Self {
        let form = [0, 3, 0, 1][index];
        Self { form, enabled: (index != 2).then_some(true), ..Self::default() }
    }

    pub(crate) fn to_json(&self, key: &Key) -> Value {
        let mut object = json!({
            "apiVersion": key.kind.api_version(),
            "kind": key.kind.as_str(),
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": {"template": template(self.form, self.image)},
        });
        if let Some(enabled) = self.enabled {
            set_meta(&mut object, "labels", annotations::ENABLED, Some(bool_text(enabled)));
        }
        if let Some(track) = self.track {
            set_meta(&mut object, "annotations", annotations::TRACK, Some(bool_text(track)));
        }
        if self.exclude {
            set_meta(&mut object, "annotations", annotations::EXCLUDE, Some("t"));
        }
        if self.holds_undos {
            set_meta(&mut object, "annotations", annotations::ON_UNDO, Some("hold"));
        }
        object
    }
}

pub(crate) fn bool_text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// A pod template in one of a few forms. They include whole and partial uses, and two sources.
fn template(form: u8, image: u8) -> Value {
    let volume = |name: &str| json!({"name": name, "configMap": {"name": name}});
    let items = |name: &str, key: &str| json!({"name": name, "configMap": {"name": name, "items": [{"key": key, "path": key}]}});
    let env = |name: &str, key: &str| json!([{"name": "E", "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}]);
    let (volumes, env, env_from) = match form {
        0 => (json!([volume("s")]), json!([]), json!([])),
        1 => (json!([items("s", "k1")]), json!([]), json!([])),
        2 => (json!([volume("s")]), json!([]), json!([{"configMapRef": {"name": "t"}}])),
        3 => (json!([items("s", "k2")]), env("t", "k1"), json!([])),
        4 => {
            let sources =
                json!([{"configMap": {"name": "s"}}, {"configMap": {"name": "t", "optional": true}}]);
            (json!([{"name": "p", "projected": {"sources": sources}}]), json!([]), json!([]))
        }
        5 => (json!([volume("t")]), env("s", "k1"), json!([{"configMapRef": {"name": "s"}}])),
        _ => (json!([]), json!([]), json!([])),
    };
    json!({
        "metadata": {"labels": {"app": "w"}},
        "spec": {
            "containers": [{"name": "c", "image": format!("i:{image}"), "env": env, "envFrom": env_from}],
            "volumes": volumes,
        },
    })
}

/// A reference of a template, found by the model's own traversal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The JSON pointer of the name within the template.
    pub at: String,
    /// The place by the names of volumes, containers and variables, which stay the same when indexes change.
    pub place: String,
    pub kind: SourceKind,
    pub name: String,
    /// The keys; `None`: all.
    pub keys: Option<BTreeSet<String>>,
}

/// All references to ConfigMaps and Secrets, recognized by the field that contains them.
pub(crate) fn references(template: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    walk(template, String::new(), String::new(), &mut found);
    found
}

fn walk(value: &Value, at: String, place: String, found: &mut Vec<Reference>) {
    match value {
        Value::Object(map) => {
            for (field, inner) in map {
                let (at, place) = (format!("{at}/{field}"), format!("{place}/{field}"));
                let kind = match field.as_str() {
                    "configMap" | "configMapKeyRef" | "configMapRef" => Some(SourceKind::ConfigMap),
                    "secret" | "secretKeyRef" | "secretRef" => Some(SourceKind::Secret),
                    _ => None,
                };
                if let Some(kind) = kind {
                    let called = if inner["secretName"].is_null() { "name" } else { "secretName" };
                    let name = inner[called].as_str().unwrap().to_owned();
                    let (at, place) = (format!("{at}/{called}"), place.clone());
                    found.push(Reference { at, place, kind, name, keys: keys(inner) });
                }
                walk(inner, at, place, found);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                let place = inner["name"]
                    .as_str()
                    .map_or_else(|| format!("{place}/{index}"), |name| format!("{place}/{name}"));
                walk(inner, format!("{at}/{index}"), place, found);
            }
        }
        _ => {}
    }
}

fn keys(reference: &Value) -> Option<BTreeSet<String>> {
    if let Some(key) = reference["key"].as_str() {
        return Some(BTreeSet::from([key.to_owned()]));
    }
    let items = reference["items"].as_array()?;
    Some(items.iter().map(|item| item["key"].as_str().unwrap().to_owned()).collect())
}

/// The keys that a template reads by any of these names; `None` for all keys.
pub(crate) fn keys_read(references: &[Reference], of: &[&str]) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for reference in references.iter().filter(|reference| of.contains(&reference.name.as_str())) {
        all.extend(reference.keys.clone()?);
    }
    Some(all)
}

/// Whether two contents are equal for these keys.
pub(crate) fn same(left: &Value, right: &Value, keys: Option<&BTreeSet<String>>) -> bool {
    keys.map_or_else(|| left == right, |keys| keys.iter().all(|key| left[key] == right[key]))
}

/// The snapshots of ConfigMaps in a template's `sources`, with their sources.
pub(crate) fn stated(template: &Value) -> Vec<(String, String)> {
    stated_of(SourceKind::ConfigMap, template)
}

/// The snapshots of one kind in a template's `sources`, with their sources.
pub(crate) fn stated_of(kind: SourceKind, template: &Value) -> Vec<(String, String)> {
    let Some(text) = annotation(template, annotations::SOURCES) else { return Vec::new() };
    let stated: Value = serde_json::from_str(text).unwrap();
    let entries = stated[kind.plural()].as_object().into_iter().flatten();
    entries.map(|(source, snapshot)| (source.clone(), snapshot.as_str().unwrap().to_owned())).collect()
}

/// The digests in a template's `live` annotation, by source: the contents that its pods started with.
pub(crate) fn live_digests(template: &Value) -> BTreeMap<String, String> {
    let Some(text) = annotation(template, annotations::LIVE) else { return BTreeMap::new() };
    let live: Value = serde_json::from_str(text).unwrap();
    let entries = live[SourceKind::ConfigMap.plural()].as_object().into_iter().flatten();
    entries.map(|(source, digest)| (source.clone(), digest.as_str().unwrap().to_owned())).collect()
}

/// The digest of these keys of a content; of all keys if `None`.
pub(crate) fn digest(content: &Value, keys: Option<&BTreeSet<String>>) -> String {
    let mut content = content.clone();
    if let (Some(keys), Some(entries)) = (keys, content.as_object_mut()) {
        entries.retain(|key, _| keys.contains(key));
    }
    let object = json!({"data": content}).to_string();
    Object::parse(object.as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap().to_string()
}

/// The result of `kubectl apply` for a live object: `base` is the last applied manifest, `wanted` the new one.
pub(crate) fn merge(base: &Value, wanted: &Value, live: &Value) -> Value {
    let (Some(wanted_map), Some(live_map)) = (wanted.as_object(), live.as_object()) else {
        return wanted.clone();
    };
    let mut merged = live_map.clone();
    for field in base.as_object().into_iter().flatten().map(|(field, _)| field) {
        if !wanted_map.contains_key(field) {
            merged.remove(field);
        }
    }
    for (field, value) in wanted_map {
        let live = live_map.get(field).unwrap_or(&Value::Null);
        merged.insert(field.clone(), merge(&base[field], value, live));
    }
    Value::Object(merged)
}
