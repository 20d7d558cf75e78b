//! Every form of reference, in every kind's template.

use confrev::{annotations, kinds::Kinds};
use serde_json::{Value, json};

use super::world::{NAMESPACE, World};

/// A pod spec with every form of reference to a ConfigMap, and as many references to other objects.
fn pod_spec() -> Value {
    let env = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "color"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "demo", "key": "password"}}},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "D", "value": "demo"},
    ]);
    let env_from =
        json!([{"configMapRef": {"name": "demo"}}, {"prefix": "p", "secretRef": {"name": "demo"}}]);
    json!({
        "initContainers": [{"name": "i", "restartPolicy": "Always", "env": env, "envFrom": env_from}],
        "containers": [{"name": "c", "image": "demo", "env": env, "envFrom": env_from}, {"name": "bare"}],
        "imagePullSecrets": [{"name": "demo"}],
        "volumes": [
            {"name": "demo", "configMap": {"name": "demo", "items": [{"key": "color", "path": "p"}]}},
            {"name": "s", "secret": {"secretName": "demo"}},
            {"name": "csi", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "demo"}}},
            {"name": "p", "projected": {"sources": [
                {"configMap": {"name": "demo"}},
                {"secret": {"name": "demo"}},
                {"serviceAccountToken": {"path": "t"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            ]}},
            {"name": "e", "emptyDir": {}},
        ],
    })
}

/// Collects every path below `value` at which a ConfigMap is named. It walks the whole tree and recognises names by shape
/// alone, so it shares no code with confrev.
fn configmap_paths(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, child) in fields {
                let at = format!("{path}/{key}");
                if matches!(key.as_str(), "configMap" | "configMapRef" | "configMapKeyRef")
                    && child["name"].is_string()
                {
                    found.push(format!("{at}/name"));
                }
                configmap_paths(child, &at, found);
            }
        }
        Value::Array(items) => {
            for (i, child) in items.iter().enumerate() {
                configmap_paths(child, &format!("{path}/{i}"), found);
            }
        }
        _ => {}
    }
}

/// Nothing else in the object changes.
#[test]
fn rewrites_every_reference_form_in_every_kind() {
    // The template of this kind is a field of the object itself.
    let configured = "/v1/podtemplates/PodTemplate=template".parse().unwrap();
    for kind in Kinds::with(&[configured]).iter() {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        let mut template = json!({"spec": pod_spec()});
        for field in kind.template.iter().rev() {
            let mut outer = serde_json::Map::new();
            outer.insert(field.clone(), template);
            template = Value::Object(outer);
        }
        let mut object = template;
        object["metadata"] =
            json!({"name": "w", "namespace": NAMESPACE, "labels": {annotations::ENABLED: "true"}});
        object["status"] = json!({"big": 1.5e300, "small": -0.0, "n": null, "zz": {"b": 1, "a": 2}});

        let admitted = world.review(kind, &object, None);
        let pointer = kind.template_pointer();
        let mut expected = object.clone();
        let mut paths = Vec::new();
        configmap_paths(&object, "", &mut paths);
        let ours: Vec<_> =
            paths.iter().filter(|path| object.pointer(path).unwrap() != "kube-root-ca.crt").collect();
        assert_eq!(ours.len(), 6, "{kind}: {ours:?}");
        for path in ours {
            *expected.pointer_mut(path).unwrap() = json!("demo-3a18d34e26");
        }
        let sources = r#"{"configmaps":{"demo":"demo-3a18d34e26"}}"#;
        expected.pointer_mut(&pointer).unwrap()["metadata"] = json!({
            "annotations": {annotations::SOURCES: sources},
            "labels": {annotations::REVISION: confrev::template::revision_of(sources)},
        });
        if kind.kind == "Job" {
            let revision = json!(confrev::template::revision_of(sources));
            expected["metadata"]["labels"][annotations::REVISION] = revision;
        }
        expected["metadata"]["annotations"] = json!({annotations::STATE:
            "{\"configmaps\":{\"demo\":{\"seen\":\"sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f\"}}}"});
        assert_eq!(admitted.object, expected, "{kind}");
    }
}

#[test]
fn empty_and_null_fields_refer_to_nothing() {
    let mut world = World::default();
    for spec in [
        json!(null),
        json!({}),
        json!({"volumes": null, "containers": null, "initContainers": []}),
        json!({"volumes": [null, {}, {"configMap": null}, {"configMap": {}}, {"configMap": {"name": ""}}]}),
        json!({"volumes": [{"projected": {}}, {"projected": {"sources": null}}, {"projected": {"sources": [null]}}]}),
        json!({"containers": [null, {"env": null, "envFrom": null}, {"env": [null, {}], "envFrom": [null, {}]}]}),
    ] {
        let mut object = super::world::deployment(&[]);
        object["spec"]["template"]["spec"] = spec;
        assert_eq!(world.create(&object), object);
    }
}
