//! The rewriting of a template: the patch gives the expected object, and nothing panics.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use confrev::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::{
        self, Carried, Decision, Facts, NamespaceFacts, NamespaceOptIn, Need, Request, Spares, Workload,
    },
    snapshot::{ObjectName, Rotated, SourceKind, snapshot_name},
    template::revision_of,
};
use serde_json::{Value, json};

use super::world::{self, NAMESPACE, World};

/// More rounds of reading than any decision needs.
const ROUNDS: usize = 40;

/// Checks an object: the first byte selects the kind and whether Secrets are enabled, the rest is the object.
pub fn check(bytes: &[u8]) {
    let Some((&choice, json)) = bytes.split_first() else { return };
    let kinds = Kinds::default();
    let kind = kinds.iter().nth(usize::from(choice >> 1) % kinds.iter().count()).unwrap();
    let secrets = choice & 1 == 1;
    let Ok(text) = std::str::from_utf8(json) else { return };
    // As received: nothing panics, whatever the text is.
    if let Ok(new) = Workload::parse(kind, text) {
        decide(
            &Request { namespace: NAMESPACE, secrets, new, old: None, carried: Carried::default() },
            &World::default(),
        );
    }
    let Ok(object) = serde_json::from_str::<Value>(text) else { return };
    if !world::is_object(&object) {
        return;
    }
    check_object(kind, &object, secrets);
    check_expected(kind, object, secrets);
}

/// An opted-in Deployment with most forms of references.
pub fn deployment() -> Value {
    json!({
        "metadata": {"name": "web", "labels": {annotations::ENABLED: "true"}},
        "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "demo"}}, {"secretRef": {"name": "s"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "other", "items": [{"key": "k", "path": "p"}]}}],
        }}},
    })
}

/// Checks that the patch applies, and that its result is a fixed point.
pub fn check_object(kind: &WorkloadKind, object: &Value, secrets: bool) {
    let world = World::default();
    let Some(stored) = review(kind, object, None, secrets, &world) else { return };
    let again = review(kind, &stored, Some(&stored), secrets, &world);
    assert_eq!(again.as_ref(), Some(&stored), "a decision changes its own result, of {object}");
}

/// The object as stored; `None` if it is denied, or does not have its kind's form.
fn review(
    kind: &WorkloadKind,
    new: &Value,
    old: Option<&Value>,
    secrets: bool,
    world: &World,
) -> Option<Value> {
    let (new_text, old_text) = (new.to_string(), old.map(Value::to_string));
    let old = old_text.as_ref().map(|text| Workload::parse(kind, text).expect("an admitted object"));
    let new_workload = Workload::parse(kind, &new_text).ok()?;
    let decision = decide(
        &Request { namespace: NAMESPACE, secrets, new: new_workload, old, carried: Carried::default() },
        world,
    );
    if decision.denial.is_some() {
        assert!(decision.patch.0.is_empty(), "a denied object is not changed");
        return None;
    }
    for ensure in &decision.ensure {
        let source = world.observe(&ensure.source).expect("a snapshot has a source");
        world.snapshot(&ensure.snapshot(), &ensure.identity(), source.json());
    }
    let mut object = new.clone();
    json_patch::patch(&mut object, &decision.patch)
        .unwrap_or_else(|error| panic!("{error}: {} on {new}", decision.patch));
    Some(object)
}

fn decide(request: &Request<'_>, world: &World) -> Decision {
    let mut rounds = 0;
    let decision = resolve::decide(request, &mut Facts::default(), |needs, facts| {
        assert!(!needs.is_empty(), "an incomplete decision names its needs");
        rounds += 1;
        assert!(rounds < ROUNDS, "no decision after {ROUNDS} rounds");
        for need in needs {
            match need {
                Need::Namespace => {
                    facts.set_namespace(NamespaceFacts {
                        opt_in: NamespaceOptIn::Now,
                        secrets: true,
                        ..NamespaceFacts::default()
                    });
                }
                Need::Newest { .. } => {}
                Need::Spares(source) => facts.set_spares(source, Spares::default()),
                Need::Schema(source) => facts.set_verdict(source, None),
                Need::Revisions(_) => facts.set_revisions(Vec::new()),
                Need::Target(target) => facts.set_target_enabled(target.kind == "Deployment"),
                Need::Object(name) => facts.set_object(name.clone(), world.observe(&name)),
            }
        }
        Ok::<_, Infallible>(())
    });
    let Ok(decision) = decision;
    decision
}

/// Checks the exact result for an object that has no confrev metadata but the opt-in.
fn check_expected(kind: &WorkloadKind, mut object: Value, secrets: bool) {
    strip(&mut object);
    if !has_plain_metadata(&mut object) {
        return;
    }
    object["metadata"]["labels"][annotations::ENABLED] = json!("true");
    if secrets {
        object["metadata"]["annotations"][annotations::SECRETS] = json!("true");
    }
    let text = object.to_string();
    if Workload::parse(kind, &text).is_err() || text.contains("confrev-mount") {
        return;
    }
    let stored = review(kind, &object, None, secrets, &World::default());
    let expected = expected(kind, &object, secrets);
    assert_eq!(stored.as_ref(), Some(&expected), "of {object}");
}

/// Removes all confrev metadata from an object.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !key.contains(annotations::PREFIX));
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Creates the maps for a label and an annotation; false if something else is in their place.
fn has_plain_metadata(object: &mut Value) -> bool {
    ["labels", "annotations"].iter().all(|map| {
        let metadata = &mut object["metadata"];
        (metadata.is_null() || metadata.is_object()) && (metadata[map].is_null() || metadata[map].is_object())
    })
}

/// The expected stored object, computed without the product's parsers and patches.
fn expected(kind: &WorkloadKind, object: &Value, secrets: bool) -> Value {
    let (mut stored, at) = (object.clone(), kind.template_pointer());
    let mut sources: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    let mut seen: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    let all = references(object, &at);
    let lacking: BTreeSet<_> =
        all.iter().filter(|(pointer, _)| lacks_key(object, pointer)).map(|(_, name)| name).collect();
    for (pointer, name) in &all {
        let ours = name.kind == SourceKind::ConfigMap || secrets;
        if !ours || Rotated::default().contains(name) || !world::exists(name) {
            continue;
        }
        let mut enter = |entry: &str| {
            sources.entry(name.kind.plural()).or_default().insert(name.name.to_string(), entry.to_owned())
        };
        match world::enabled(name) {
            Some("bind") => drop(enter(&name.name)),
            Some(_) => {}
            None => {
                let digest = World::default().observe(name).unwrap().digest();
                let state = seen.entry(name.kind.plural()).or_default();
                if lacking.contains(name) {
                    let entry = json!({"lacking": true, "seen": digest.to_string()});
                    state.insert(name.name.to_string(), entry);
                    continue;
                }
                let snapshot = snapshot_name(&name.name, &digest, 10);
                enter(&snapshot);
                state.insert(name.name.to_string(), json!({"seen": digest.to_string()}));
                *stored.pointer_mut(pointer).unwrap() = json!(snapshot);
            }
        }
    }
    if !seen.is_empty() {
        set(&mut stored, "/metadata/annotations", annotations::STATE, &json!(seen).to_string());
    }
    if !sources.is_empty() {
        let text = json!(sources).to_string();
        let revision = revision_of(&text);
        set(&mut stored, &format!("{at}/metadata/annotations"), annotations::SOURCES, &text);
        set(&mut stored, &format!("{at}/metadata/labels"), annotations::REVISION, &revision);
        let of_job = format!("{}/metadata/labels", at.trim_end_matches("/spec/template"));
        if kind.kind == "Job"
            || (kind.kind == "CronJob" && object.pointer(&of_job).is_some_and(Value::is_object))
        {
            set(&mut stored, &of_job, annotations::REVISION, &revision);
        }
    }
    stored
}

/// Whether the reference at that pointer requires a key that no source of the world has.
fn lacks_key(object: &Value, pointer: &str) -> bool {
    let (reference, _) = pointer.rsplit_once('/').expect("a pointer to a name");
    let reference = object.pointer(reference).expect("an object with a name");
    let items = reference["items"].as_array().into_iter().flatten();
    let keys = items.chain([reference]).filter_map(|of| of["key"].as_str()).filter(|key| !key.is_empty());
    reference["optional"] != true && keys.into_iter().any(|key| !world::KEYS.contains(&key))
}

/// Sets a key of a map, and creates missing maps on the path.
fn set(object: &mut Value, map: &str, key: &str, value: &str) {
    let mut place = object;
    for field in map.split('/').skip(1) {
        place = &mut place[field];
    }
    place[key] = json!(value);
}

/// Every place that names a source.
fn references(object: &Value, at: &str) -> Vec<(String, ObjectName)> {
    let mut found = Vec::new();
    let mut enter = |pointer: String, kind: SourceKind| {
        let name = object.pointer(&pointer).and_then(Value::as_str).filter(|name| !name.is_empty());
        if let Some(name) = name {
            found.push((pointer, ObjectName::new(kind, name)));
        }
    };
    let count = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len);
    let (config, secret) = (SourceKind::ConfigMap, SourceKind::Secret);
    for i in 0..count(&format!("{at}/spec/volumes")) {
        let volume = format!("{at}/spec/volumes/{i}");
        enter(format!("{volume}/configMap/name"), config);
        enter(format!("{volume}/secret/secretName"), secret);
        for j in 0..count(&format!("{volume}/projected/sources")) {
            enter(format!("{volume}/projected/sources/{j}/configMap/name"), config);
            enter(format!("{volume}/projected/sources/{j}/secret/name"), secret);
        }
    }
    for containers in ["containers", "initContainers"] {
        for i in 0..count(&format!("{at}/spec/{containers}")) {
            let container = format!("{at}/spec/{containers}/{i}");
            for j in 0..count(&format!("{container}/env")) {
                enter(format!("{container}/env/{j}/valueFrom/configMapKeyRef/name"), config);
                enter(format!("{container}/env/{j}/valueFrom/secretKeyRef/name"), secret);
            }
            for j in 0..count(&format!("{container}/envFrom")) {
                enter(format!("{container}/envFrom/{j}/configMapRef/name"), config);
                enter(format!("{container}/envFrom/{j}/secretRef/name"), secret);
            }
        }
    }
    found
}
