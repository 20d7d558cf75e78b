//! The seeds of the fuzzer and of the tests.

use confrev::{annotations, kinds::Kinds};
use serde_json::{Value, json};

use super::{review::PATHS, template};

/// Values of annotations, valid and invalid.
const VALUES: [&str; 24] = [
    "true",
    "false",
    "warn",
    "deny",
    "allow",
    "10s",
    "1h30m",
    "500ms",
    "1.5h",
    "0",
    "3",
    "a,secret/b.c,configmap/d",
    "a,b=/etc/app",
    "demo",
    "auto-2026-01-02T03:04:05.678Z",
    "please",
    r#"{"configmaps":{"demo":"demo-3a18d34e26"},"secrets":{"s":"s-1"}}"#,
    r#"{"configmaps":{"demo":"sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f"}}"#,
    "sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f",
    "apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template",
    "99999999999999999999h",
    "../..",
    "1e309s",
    "\u{0}\u{fffd}é",
];

/// A corpus for each target; `more` contains objects of manifests.
pub fn all(more: &[Value]) -> [(&'static str, Vec<Vec<u8>>); 4] {
    [
        ("review", reviews(more)),
        ("template", templates(more)),
        ("digest", contents(more)),
        ("annotations", VALUES.iter().map(|value| value.as_bytes().to_vec()).collect()),
    ]
}

/// An object of each kind, then the objects of manifests.
fn workloads(more: &[Value]) -> Vec<(usize, Value)> {
    let kinds = Kinds::default();
    let mut found = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let (mut object, pods) = (template::deployment(), template::deployment()["spec"]["template"].clone());
        if kind.kind == "CronJob" {
            object["spec"] =
                json!({"jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": pods}}});
        }
        object["metadata"]["annotations"] =
            json!({annotations::SECRETS: "true", annotations::MISSING: "allow"});
        // A field that the kind does not have.
        object["spec"]["metadata"] = json!({"labels": {"a": "b"}});
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind);
        found.push((index, object.clone()));
        object["metadata"]["annotations"] =
            json!({annotations::MOUNT: "demo,other=/etc/app", annotations::EXCLUDE: "other"});
        found.push((index, object));
    }
    for object in more {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let same = kinds.iter().position(|kind| kind.group == group && kind.kind == text("kind"));
        found.extend(same.map(|index| (index, object.clone())));
    }
    found
}

fn templates(more: &[Value]) -> Vec<Vec<u8>> {
    let of = |(index, object): (usize, Value)| {
        let choice = u8::try_from(index * 2 + 1).unwrap_or_default();
        [vec![choice], object.to_string().into_bytes()].concat()
    };
    workloads(more).into_iter().map(of).collect()
}

fn reviews(more: &[Value]) -> Vec<Vec<u8>> {
    let kinds: Vec<_> = Kinds::default().iter().cloned().collect();
    let mut found = Vec::new();
    let mut review = |path: usize, resource: Value, object: &Value, old: &Value, operation: &str| {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "resource": resource, "name": "web", "namespace": "ns", "operation": operation,
            "object": object, "oldObject": old, "dryRun": false,
        }});
        assert!(path < PATHS.len());
        found.push([vec![u8::try_from(path).unwrap_or_default()], review.to_string().into_bytes()].concat());
    };
    for (index, object) in workloads(more) {
        let kind = &kinds[index];
        let resource = json!({"group": kind.group, "version": kind.version, "resource": kind.plural});
        review(0, resource.clone(), &object, &Value::Null, "CREATE");
        review(0, resource.clone(), &object, &object, "UPDATE");
        review(1, resource, &object, &Value::Null, "CREATE");
    }
    for (path, resource) in [(2, "configmaps"), (3, "secrets")] {
        let resource = json!({"group": "", "version": "v1", "resource": resource});
        for object in sources() {
            review(path, resource.clone(), &object, &Value::Null, "CREATE");
            review(path, resource.clone(), &object, &sources()[0], "UPDATE");
            review(path, resource.clone(), &Value::Null, &object, "DELETE");
        }
    }
    found
}

fn sources() -> [Value; 4] {
    let labels = json!({annotations::ENABLED: "true"});
    [
        json!({"metadata": {"name": "demo", "uid": "u", "labels": labels}, "data": {"color": "blue", "b": "2"}}),
        json!({"metadata": {"name": "demo", "labels": labels}, "binaryData": {"logo": "AAEC\r\nAx==\n"}, "immutable": true}),
        json!({"metadata": {"name": "demo", "labels": labels, "annotations": {annotations::KEEP: "3"}}, "type": "Opaque",
               "data": {"password": "aHVudGVyMg=="}}),
        json!({"metadata": {"name": "demo", "labels": {annotations::ENABLED: "bind"}}, "data": null}),
    ]
}

fn contents(more: &[Value]) -> Vec<Vec<u8>> {
    let of_manifests =
        more.iter().filter(|object| object["kind"] == "ConfigMap" || object["kind"] == "Secret");
    sources().iter().chain(of_manifests).map(|object| object.to_string().into_bytes()).collect()
}
