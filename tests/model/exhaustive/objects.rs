//! The objects of scenarios, as in a user's files.

use confrev::annotations;
use serde_json::{Value, json};

use crate::store::{Key, Kind, set_meta};

/// The namespace of nearly all objects.
pub(crate) const NAMESPACE: &str = "a";

/// An object as in a user's file.
#[derive(Clone)]
pub(crate) struct File {
    pub key: Key,
    pub json: Value,
}

impl File {
    fn new(key: Key, mut json: Value) -> Self {
        json["apiVersion"] = json!(key.kind.api_version());
        json["kind"] = json!(key.kind.as_str());
        json["metadata"] = json!({"name": key.name, "namespace": key.namespace});
        Self { key, json }
    }

    /// An opted-in workload whose template uses these sources; see [`pod`].
    pub(crate) fn workload(kind: Kind, name: &str, uses: &[&str]) -> Self {
        let key = Key::new(kind, NAMESPACE, name);
        let mut json = json!({"spec": {}});
        *kind.template_mut(&mut json) = pod(uses);
        Self::new(key, json).label(annotations::ENABLED, Some("true"))
    }

    /// An opted-in Deployment.
    pub(crate) fn deployment(name: &str, uses: &[&str]) -> Self {
        Self::workload(Kind::Deployment, name, uses)
    }

    /// An opted-in Rollout that uses the template of a Deployment.
    pub(crate) fn rollout_of(name: &str, deployment: &str) -> Self {
        let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment});
        let json = json!({"spec": {"workloadRef": reference}});
        Self::new(Key::new(Kind::Rollout, NAMESPACE, name), json).label(annotations::ENABLED, Some("true"))
    }

    /// A ConfigMap, or a Secret as `secret/NAME`, with this content under the key `v`.
    pub(crate) fn source(name: &str, content: &str) -> Self {
        Self::entries(name, &[("v", content)])
    }

    /// A ConfigMap or Secret with these entries.
    pub(crate) fn entries(name: &str, entries: &[(&str, &str)]) -> Self {
        let key = source_key(name);
        let value = |text: &str| match key.kind {
            Kind::Secret => json!(base64_of(text)),
            _ => json!(text),
        };
        let data: serde_json::Map<_, _> =
            entries.iter().map(|(entry, text)| ((*entry).to_owned(), value(text))).collect();
        let json = if key.kind == Kind::Secret {
            json!({"type": "Opaque", "data": data})
        } else {
            json!({"data": data})
        };
        Self::new(key, json)
    }

    pub(crate) fn label(mut self, label: &str, value: Option<&str>) -> Self {
        set_meta(&mut self.json, "labels", label, value);
        self
    }

    /// An annotation of confrev.
    pub(crate) fn note(mut self, annotation: &str, value: &str) -> Self {
        set_meta(&mut self.json, "annotations", annotation, Some(value));
        self
    }

    /// Removes the label that opts in.
    pub(crate) fn unlabelled(self) -> Self {
        self.label(annotations::ENABLED, None)
    }

    pub(crate) fn image(mut self, image: u8) -> Self {
        self.key.kind.template_mut(&mut self.json)["spec"]["containers"][0]["image"] =
            json!(format!("i:{image}"));
        self
    }

    pub(crate) fn history(mut self, limit: u64) -> Self {
        self.json["spec"]["revisionHistoryLimit"] = json!(limit);
        self
    }

    pub(crate) fn in_namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.key.namespace);
        self.json["metadata"]["namespace"] = json!(namespace);
        self
    }
}

pub(crate) fn base64_of(text: &str) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}

/// The key of a ConfigMap, or of a Secret as `secret/NAME`.
pub(crate) fn source_key(name: &str) -> Key {
    match name.strip_prefix("secret/") {
        Some(name) => Key::new(Kind::Secret, NAMESPACE, name),
        None => Key::new(Kind::ConfigMap, NAMESPACE, name),
    }
}

/// A pod template that uses these sources. `s`: as a volume; `?s`: as an optional volume; `s:k`: the key `k` as a
/// variable; `from:s`: all its keys as variables; `projected:s`: as a part of a projected volume. A Secret is
/// `secret/NAME`.
pub(crate) fn pod(uses: &[&str]) -> Value {
    let (mut volumes, mut env, mut env_from, mut projected) = (vec![], vec![], vec![], vec![]);
    for (number, text) in uses.iter().enumerate() {
        let (optional, text) = text.strip_prefix('?').map_or((None, *text), |text| (Some(true), text));
        let (form, text) = match text.split_once(':') {
            Some((form @ ("from" | "projected"), text)) => (form, text),
            _ => ("", text),
        };
        let (text, key) = text.split_once(':').map_or((text, None), |(text, key)| (text, Some(key)));
        let (is_secret, name) = text.strip_prefix("secret/").map_or((false, text), |name| (true, name));
        let field = |plain: &'static str, secret: &'static str| if is_secret { secret } else { plain };
        let mut reference = json!({"name": name});
        if optional.is_some() {
            reference["optional"] = json!(true);
        }
        match (form, key) {
            ("from", _) => env_from.push(json!({field("configMapRef", "secretRef"): reference})),
            ("projected", _) => projected.push(json!({field("configMap", "secret"): reference})),
            (_, Some(key)) => {
                reference["key"] = json!(key);
                let from = json!({field("configMapKeyRef", "secretKeyRef"): reference});
                env.push(json!({"name": format!("E{number}"), "valueFrom": from}));
            }
            _ => {
                if is_secret {
                    reference["secretName"] = reference["name"].take();
                    reference.as_object_mut().unwrap().remove("name");
                }
                volumes.push(json!({"name": format!("v{number}"), field("configMap", "secret"): reference}));
            }
        }
    }
    if !projected.is_empty() {
        volumes.push(json!({"name": "p", "projected": {"sources": projected}}));
    }
    json!({
        "metadata": {"labels": {"app": "w"}},
        "spec": {
            "containers": [{"name": "c", "image": "i:0", "env": env, "envFrom": env_from}],
            "volumes": volumes,
        },
    })
}
