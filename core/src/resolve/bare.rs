//! The comparison of pod templates, without the fields that controllers and admission write into them.

use std::collections::BTreeMap;

use serde::{Deserialize as _, de::DeserializeSeed as _};
use serde_json::Value;

use super::mount;
use crate::{
    annotations,
    json::At,
    snapshot::{Digest, ObjectName},
    template::Template,
};

/// Labels that controllers add to the templates of their revisions.
const HASHES: [&str; 3] = ["pod-template-hash", "rollouts-pod-template-hash", "controller-revision-hash"];

/// The digest of the template at `path` of an object. `name_of` gives the name to compare in place of each reference's own.
/// `None`: the object has no template, or the template cannot be read.
///
/// A field that is null or empty counts as absent: controllers that write the whole object add such fields.
pub(super) fn bare<P: AsRef<str>>(
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
    remove("/metadata/annotations", &[annotations::SOURCES, annotations::LIVE]);
    remove("/metadata/labels", &[annotations::REVISION]);
    remove("/metadata/labels", &HASHES);
    // A ControllerRevision holds its template as a strategic merge patch.
    remove("", &["$patch"]);
    Some(Digest::of_bytes(pruned(template).unwrap_or_default().to_string()))
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
    }
}
