//! The policy `confrev-carry` as the API server applies it: `charts/confrev/templates/carry.yaml` in other words.

use std::collections::{BTreeMap, BTreeSet};

use confrev_core::{
    annotations,
    kinds::WorkloadKind,
    resolve::Workload,
    snapshot::{ObjectName, SourceKind},
    template::{SourceMap, Template},
};
use serde_json::{Map, Value};

/// The annotations of pod templates that a replace loses.
const TEMPLATE: [&str; 2] = [annotations::SOURCES, annotations::LIVE];

/// An update or a creation of a workload as the policy changes it. `namespace`: whether the namespace opts in.
pub fn carry(kind: &WorkloadKind, new: &Value, old: Option<&Value>, namespace: bool) -> Value {
    let mut carried = new.clone();
    let label = new.pointer("/metadata/labels").and_then(|labels| labels.get(annotations::ENABLED));
    let opted_in = label.map_or(namespace, |value| value != "false");
    let at = kind.template_pointer();
    let sources = old.map(|old| sources_of(old, &at)).unwrap_or_default();
    let requested = match new.pointer(&format!("{at}/metadata/annotations")) {
        Some(own) if own.get(annotations::SOURCES).is_some() => sources_of(new, &at),
        _ => sources.clone(),
    };
    let opts_out = !opted_in && !sources.is_empty() && requested == sources;
    let (new_text, old_text) = (new.to_string(), old.map(Value::to_string));
    let parsed = Workload::parse(kind, &new_text).unwrap();
    let references = parsed.template.as_ref().map(Template::references).unwrap_or_default();
    let (mut kept, mut chosen) = (BTreeSet::new(), BTreeSet::new());
    for reference in &references {
        let object = ObjectName::new(reference.kind, reference.name);
        let name = if opted_in {
            sources.get(&object).cloned()
        } else if !opts_out {
            None
        } else {
            sources.iter().find(|(_, snapshot)| **snapshot == object).map(|(source, _)| source.clone())
        };
        let Some(name) = name else { continue };
        *carried.pointer_mut(&format!("{at}{}", reference.pointer)).unwrap() = Value::from(&*name.name);
        kept.insert(object);
    }
    for (source, snapshot) in &sources {
        let is_stated = requested.get(source).is_some_and(|stated| stated != snapshot);
        let is_other = |name: &ObjectName| name.kind == source.kind && !sources.values().any(|of| of == name);
        let others = references.iter().map(|reference| ObjectName::new(reference.kind, reference.name));
        let is_chosen =
            is_stated || others.filter(is_other).any(|name| is_named_after(&name.name, &source.name));
        if is_chosen && !kept.contains(source) {
            chosen.insert(source.clone());
        }
    }
    let is_used = |snapshot: &ObjectName| {
        references
            .iter()
            .any(|reference| (reference.kind, reference.name) == (snapshot.kind, &*snapshot.name))
    };
    let added = requested.iter().filter(|(source, snapshot)| source != snapshot && is_used(snapshot));
    chosen.extend(added.map(|(source, _)| source.clone()).filter(|source| !sources.contains_key(source)));
    if !opted_in {
        unmark(&mut carried);
        for key in TEMPLATE.iter().filter(|_| opts_out) {
            remove(&mut carried, &format!("{at}/metadata/annotations"), key);
        }
        if opts_out {
            remove(&mut carried, &format!("{at}/metadata/labels"), annotations::REVISION);
        }
        return carried;
    }
    let stored = old_text.as_ref().map(|old| Workload::parse(kind, old).unwrap());
    let marked = stored.as_ref().filter(|old| old.label(annotations::CARRIED).is_some());
    let earlier = marked.and_then(|old| old.annotation(annotations::CARRIED)).unwrap_or_default();
    let text = |source: &ObjectName| format!("{}/{}", source.kind.plural(), source.name);
    let (kept, chosen): (BTreeSet<_>, BTreeSet<_>) =
        (kept.iter().map(text).collect(), chosen.iter().map(text).collect());
    let mut mark: BTreeSet<_> = earlier
        .split(',')
        .filter(|entry| !["", "?", "+"].contains(entry))
        .filter(|entry| {
            let source = entry.trim_start_matches('=');
            !kept.contains(source) && !chosen.contains(source)
        })
        .map(str::to_owned)
        .collect();
    mark.extend(kept);
    mark.extend(chosen.iter().map(|source| format!("={source}")));
    if restore(&mut carried, old, &at) {
        mark.insert("+".to_owned());
    }
    if kind.rolls || old.is_none() {
        set(&mut carried, "/metadata", "labels", annotations::CARRIED, "true");
        let mark: Vec<_> = mark.into_iter().collect();
        set(&mut carried, "/metadata", "annotations", annotations::CARRIED, &mark.join(","));
    } else {
        unmark(&mut carried);
    }
    carried
}

/// Whether the policy `confrev-unresolved` refuses a marked write for another reason: it lacks the volume or a mount for the annotation
/// `mount`, or asks for a roll alone.
pub fn needs_confrev(kind: &WorkloadKind, new: &Value, old: Option<&Value>) -> bool {
    let template = |object: &'_ Value| object.pointer(&kind.template_pointer()).cloned().unwrap_or_default();
    let notes = |object: &Value, key: &str| object["metadata"]["annotations"].get(key).cloned();
    let now = template(new);
    if old.is_some_and(|old| template(old) == now) {
        return old.is_some_and(|old| notes(old, annotations::ROLL) != notes(new, annotations::ROLL));
    }
    let is_named = |list: &Value| {
        list.as_array().is_some_and(|all| all.iter().any(|entry| entry["name"] == "confrev-mount"))
    };
    let containers = ["containers", "initContainers"].map(|list| now["spec"][list].as_array().cloned());
    let is_mounted = is_named(&now["spec"]["volumes"])
        && containers.iter().flatten().flatten().all(|container| is_named(&container["volumeMounts"]));
    notes(new, annotations::MOUNT).is_some() && !now["spec"].is_null() && !is_mounted
}

/// The references of a marked write that the policy `confrev-unresolved` refuses.
pub fn unresolved(kind: &WorkloadKind, new: &Value, old: Option<&Value>) -> Vec<ObjectName> {
    let at = kind.template_pointer();
    let names = |object: &Value| -> BTreeSet<ObjectName> {
        let text = object.to_string();
        let workload = Workload::parse(kind, &text).unwrap();
        let references = workload.template.as_ref().map(Template::references).unwrap_or_default();
        references.iter().map(|reference| ObjectName::new(reference.kind, reference.name)).collect()
    };
    let known = old.map(names).unwrap_or_default();
    let stored = old.map(|old| sources_of(old, &at)).unwrap_or_default();
    let own = sources_of(new, &at);
    let notes = &new["metadata"]["annotations"];
    let excluded = notes[annotations::EXCLUDE].as_str().unwrap_or_default();
    let is_known = |name: &ObjectName| {
        let is_snapshot = own.values().chain(stored.values()).any(|snapshot| snapshot == name);
        let is_excluded = excluded.split(',').any(|text| {
            let text = text.trim();
            let named = text.strip_prefix("secret/").map(|text| (SourceKind::Secret, text));
            named.unwrap_or((SourceKind::ConfigMap, text.strip_prefix("configmap/").unwrap_or(text)))
                == (name.kind, &*name.name)
        });
        known.contains(name)
            || is_snapshot
            || is_excluded
            || stored
                .keys()
                .any(|source| source.kind == name.kind && is_named_after(&name.name, &source.name))
            || (name.kind == SourceKind::Secret && notes[annotations::SECRETS] != "true")
    };
    names(new).into_iter().filter(|name| !is_known(name)).collect()
}

/// Whether a name is that of a snapshot of this source.
fn is_named_after(name: &str, source: &str) -> bool {
    let digits = name.strip_prefix(source).and_then(|rest| rest.strip_prefix('-'));
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digits.is_some_and(|digits| (10..=64).contains(&digits.len()) && digits.bytes().all(is_digit))
}

/// Gives a template the annotations of the stored one, if it has lost them all. Returns whether it has.
fn restore(carried: &mut Value, old: Option<&Value>, at: &str) -> bool {
    let stored = |map: &str, key: &str| {
        let value = old?.pointer(&format!("{at}/metadata/{map}"))?.get(key)?;
        value.as_str().map(str::to_owned)
    };
    let own = carried.pointer(&format!("{at}/metadata/annotations"));
    let is_bare = TEMPLATE.iter().all(|key| own.is_none_or(|own| own.get(key).is_none()));
    let lost: BTreeMap<_, _> =
        TEMPLATE.iter().filter_map(|key| Some((*key, stored("annotations", key)?))).collect();
    if !is_bare || lost.is_empty() || carried.pointer(&format!("{at}/spec")).is_none() {
        return false;
    }
    for (key, value) in lost {
        set(carried, &format!("{at}/metadata"), "annotations", key, &value);
    }
    if let Some(revision) = stored("labels", annotations::REVISION) {
        set(carried, &format!("{at}/metadata"), "labels", annotations::REVISION, &revision);
    }
    true
}

fn sources_of(object: &Value, at: &str) -> BTreeMap<ObjectName, ObjectName> {
    let text = object
        .pointer(&format!("{at}/metadata/annotations"))
        .and_then(|own| own.get(annotations::SOURCES)?.as_str())
        .unwrap_or_default();
    let map = SourceMap::<String>::parse(text).unwrap_or_default();
    map.iter()
        .map(|(source, snapshot)| {
            let kind: SourceKind = source.kind;
            (source.clone(), ObjectName::new(kind, snapshot.as_str()))
        })
        .collect()
}

fn unmark(object: &mut Value) {
    for map in ["labels", "annotations"] {
        remove(object, &format!("/metadata/{map}"), annotations::CARRIED);
    }
}

/// Removes a key of the map at this JSON pointer, which may be missing.
pub fn remove(object: &mut Value, map: &str, key: &str) {
    if let Some(Value::Object(map)) = object.pointer_mut(map) {
        map.remove(key);
    }
}

/// Sets a key of the map of this name in the object at a JSON pointer. Both may be missing, the object in which they are may not.
pub fn set(object: &mut Value, at: &str, map: &str, key: &str, value: &str) {
    let (parent, last) = at.rsplit_once('/').unwrap();
    for (place, field) in [(parent.to_owned(), last), (at.to_owned(), map)] {
        let fields = object.pointer_mut(&place).unwrap().as_object_mut().unwrap();
        let present = fields.entry(field).or_insert_with(|| Value::Object(Map::new()));
        if present.is_null() {
            *present = Value::Object(Map::new());
        }
    }
    object.pointer_mut(&format!("{at}/{map}")).unwrap()[key] = Value::from(value);
}
