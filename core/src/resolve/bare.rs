//! The comparison of pod templates, without the fields that controllers and admission write into them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize as _, de::DeserializeSeed as _};
use serde_json::{Value, value::RawValue};

use super::mount;
use crate::{
    annotations::{self, On},
    json::At,
    json_values::count_values,
    snapshot::{Digest, ObjectName},
    template::{Template, nano_units},
};

/// Labels that controllers add to the templates of their revisions.
const HASHES: [&str; 3] = ["pod-template-hash", "rollouts-pod-template-hash", "controller-revision-hash"];

/// The most JSON values of a template that is compared. Each takes many times its text. A template with 3,000 variables and 500 volumes
/// has 20,000.
const MOST_VALUES: usize = 50_000;
/// A template with more JSON values is compared alone, so that all comparisons together have a bound, however many threads there are.
const MANY_VALUES: usize = 5_000;
/// The turn of such a template. A comparison takes milliseconds.
static LARGE: Mutex<()> = Mutex::new(());

/// The digest of the template at `path` of an object. `name_of` gives the name to compare in place of each reference's own.
/// `None`: the object has no template, or the template cannot be read, or has too many values.
///
/// Both sides are compared as the API server's own types would write them. The controller of Rollouts writes the whole object in that
/// notation, so the next apply differs from what is stored.
pub(super) fn bare<P: AsRef<str>>(
    text: &str,
    path: &[P],
    name_of: impl Fn(&ObjectName) -> Option<ObjectName>,
) -> Option<Digest> {
    let mut turn = None;
    // A value takes two bytes of text at least.
    if text.len() > 2 * MANY_VALUES {
        let template: &RawValue =
            At::new(path).deserialize(&mut serde_json::Deserializer::from_str(text)).ok()??;
        let values = count_values(template.get().as_bytes());
        if values > MOST_VALUES {
            return None;
        }
        turn = (values > MANY_VALUES).then(|| LARGE.lock());
    }
    let digest = digest_of(text, path, name_of);
    drop(turn);
    digest
}

fn digest_of<P: AsRef<str>>(
    text: &str,
    path: &[P],
    name_of: impl Fn(&ObjectName) -> Option<ObjectName>,
) -> Option<Digest> {
    let mut template: Value =
        At::new(path).deserialize(&mut serde_json::Deserializer::from_str(text)).ok()??;
    mount::strip(&mut template);
    let renames: Vec<_> = Template::deserialize(&template)
        .ok()?
        .references()
        .into_iter()
        .filter_map(|reference| {
            let name = name_of(&ObjectName::new(reference.kind, reference.name))?;
            Some((reference.pointer, name.name.to_string()))
        })
        .collect();
    for (pointer, name) in renames {
        if let Some(place) = template.pointer_mut(&pointer) {
            *place = Value::String(name);
        }
    }
    let mut remove = |pointer: &str, keys: &[&str]| {
        if let Some(Value::Object(fields)) = template.pointer_mut(pointer) {
            fields.retain(|key, _| !keys.contains(&key.as_str()));
        }
    };
    remove("/metadata/annotations", &annotations::records(On::Template).collect::<Vec<_>>());
    remove("/metadata/labels", &[annotations::REVISION]);
    remove("/metadata/labels", &HASHES);
    // A ControllerRevision holds its template as a strategic merge patch.
    remove("", &["$patch"]);
    if let Some(spec) = template.pointer_mut("/spec") {
        canonicalize(spec);
    }
    Some(Digest::of_bytes(pruned(template).unwrap_or_default().to_string()))
}

/// Fields that hold a quantity.
const QUANTITIES: [&str; 2] = ["divisor", "sizeLimit"];
/// Fields that hold quantities by name.
const NAMED_QUANTITIES: [&str; 3] = ["limits", "overhead", "requests"];
/// Fields that the types leave out if they are zero or false. Source: the fields of `PodSpec` in Kubernetes, `core/v1`, that are no
/// pointers.
const OMITTED: [&str; 15] = [
    "divisor",
    "failureThreshold",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "partition",
    "periodSeconds",
    "readOnly",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
];

/// Writes the quantities of a pod's spec in one form, and leaves out what the types leave out.
fn canonicalize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(canonicalize),
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                if QUANTITIES.contains(&key.as_str()) {
                    in_units(field);
                } else if NAMED_QUANTITIES.contains(&key.as_str())
                    && let Value::Object(named) = field
                {
                    named.values_mut().for_each(in_units);
                } else {
                    canonicalize(field);
                }
            }
            fields.retain(|key, field| !OMITTED.contains(&key.as_str()) || !is_zero(field));
        }
        _ => {}
    }
}

/// Replaces a quantity by its units.
fn in_units(value: &mut Value) {
    if let Some(units) = nano_units(value) {
        *value = Value::String(units.to_string());
    }
}

fn is_zero(value: &Value) -> bool {
    *value == Value::Bool(false) || nano_units(value) == Some(0)
}

/// The value without fields that are null or empty, with sorted keys; `None` if nothing remains.
fn pruned(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then_some(Value::String(text)),
        Value::Array(items) => {
            let items: Vec<_> = items.into_iter().map(|item| pruned(item).unwrap_or_default()).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> =
                fields.into_iter().filter_map(|(key, value)| Some((key, pruned(value)?))).collect();
            (!fields.is_empty()).then(|| Value::Object(fields.into_iter().collect()))
        }
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(template: &Value) -> Option<Digest> {
        bare(&json!({"spec": {"template": template}}).to_string(), &["spec", "template"], |_| None)
    }

    #[test]
    fn compares_templates_without_defaults_and_own_fields() {
        let container = |more: Value| {
            let mut container = json!({"name": "c", "image": "i:1"});
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            container
        };
        let template = |labels: Value, container: Value| json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
        let plain = digest(&template(json!({"app": "web"}), container(json!({}))));
        let mut written = template(
            json!({"app": "web", "confrev.dev/revision": "0123456789", "pod-template-hash": "x"}),
            container(json!({"resources": {}, "env": null})),
        );
        written["metadata"]["creationTimestamp"] = Value::Null;
        written["metadata"]["annotations"] = json!({"confrev.dev/sources": "{}", "confrev.dev/live": "{}"});
        written["$patch"] = json!("replace");
        assert_eq!(digest(&written), plain);
        for other in [
            template(json!({"app": "other"}), container(json!({}))),
            template(json!({"app": "web"}), container(json!({"image": "i:2"}))),
            template(json!({"app": "web"}), container(json!({"tty": true}))),
        ] {
            assert_ne!(digest(&other), plain, "{other}");
        }
        assert_eq!(bare("{}", &["spec", "template"], |_| None), None);
        let many = |count: usize| digest(&json!({"spec": {"x": vec![1; count]}}));
        assert!(many(MOST_VALUES - 10).is_some() && many(MOST_VALUES).is_none());
    }

    /// The controller of Rollouts writes what it has read in the notation of its types.
    #[test]
    fn compares_templates_as_types_write_them() {
        let of = |spec: Value| digest(&json!({"metadata": {"labels": {"app": "web"}}, "spec": spec}));
        let container = |fields: Value| of(json!({"containers": [fields]}));
        for (by_hand, by_types) in [
            (
                json!({"resources": {"limits": {"cpu": 1, "memory": "1024Mi"}}}),
                json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
            ),
            (
                json!({"resources": {"requests": {"cpu": 0.5}}}),
                json!({"resources": {"requests": {"cpu": "500m"}}}),
            ),
            (json!({"readinessProbe": {"initialDelaySeconds": 0}}), json!({"readinessProbe": {}})),
            (
                json!({"volumeMounts": [{"name": "v", "readOnly": false}]}),
                json!({"volumeMounts": [{"name": "v"}]}),
            ),
            (
                json!({"tty": false, "ports": [{"containerPort": 80, "hostPort": 0}]}),
                json!({"ports": [{"containerPort": 80}]}),
            ),
            (
                json!({"env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
                json!({"env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}]}),
            ),
        ] {
            assert_eq!(container(by_hand.clone()), container(by_types), "{by_hand}");
        }
        let volume = |limit: Value| of(json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": limit}}]}));
        assert_eq!(volume(json!("1024Mi")), volume(json!("1Gi")));
        assert_ne!(volume(json!("1Gi")), volume(json!("2Gi")));
        for (one, other) in [
            (json!({"resources": {"limits": {"cpu": 1}}}), json!({"resources": {"limits": {"cpu": 2}}})),
            (json!({"resources": {"limits": {"cpu": 0}}}), json!({"resources": {}})),
            (json!({"readinessProbe": {"initialDelaySeconds": 1}}), json!({"readinessProbe": {}})),
            (json!({"securityContext": {"runAsUser": 0}}), json!({})),
            (json!({"securityContext": {"privileged": false}}), json!({})),
            (
                json!({"env": [{"name": "A", "value": "1"}]}),
                json!({"env": [{"name": "A", "value": "1000m"}]}),
            ),
            (json!({"args": ["1"]}), json!({"args": ["1000m"]})),
        ] {
            assert_ne!(container(one.clone()), container(other), "{one}");
        }
        let labelled = |text: &str| digest(&json!({"metadata": {"labels": {"divisor": text}}, "spec": {}}));
        assert_ne!(labelled("1"), labelled("1000m"), "a label is a text");
    }
}
