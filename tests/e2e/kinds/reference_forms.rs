//! Every form of reference to a ConfigMap or a Secret, in the template of every kind.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::{KINDS, Load};
use crate::manifests::config_map;
use crate::shared::running;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, expect, text};

/// The places of ConfigMap names in a pod spec with every form of reference.
const CONFIG_MAPS: [&str; 6] = [
    "/volumes/0/configMap/name",
    "/volumes/2/projected/sources/0/configMap/name",
    "/containers/0/env/0/valueFrom/configMapKeyRef/name",
    "/containers/0/envFrom/0/configMapRef/name",
    "/initContainers/0/env/0/valueFrom/configMapKeyRef/name",
    "/initContainers/0/envFrom/0/configMapRef/name",
];
/// The places of Secret names.
const SECRETS: [&str; 6] = [
    "/volumes/1/secret/secretName",
    "/volumes/2/projected/sources/1/secret/name",
    "/containers/0/env/1/valueFrom/secretKeyRef/name",
    "/containers/0/envFrom/1/secretRef/name",
    "/initContainers/0/env/1/valueFrom/secretKeyRef/name",
    "/initContainers/0/envFrom/1/secretRef/name",
];
/// Names that are not references, or that confrev must not change.
const OTHERS: [&str; 2] = ["/imagePullSecrets/0/name", "/volumes/3/projected/sources/0/configMap/name"];

fn every_form() -> Value {
    let environment = |name: &str| {
        let of = |name: &str| json!({"name": name, "key": "text"});
        json!({
            "name": name,
            "image": "app:1",
            "env": [
                {"name": "ONE", "valueFrom": {"configMapKeyRef": of("demo")}},
                {"name": "TWO", "valueFrom": {"secretKeyRef": of("demo")}},
            ],
            "envFrom": [{"configMapRef": {"name": "demo"}}, {"prefix": "S_", "secretRef": {"name": "demo"}}],
        })
    };
    json!({
        "imagePullSecrets": [{"name": "demo"}],
        "initContainers": [environment("init")],
        "containers": [environment("app")],
        "volumes": [
            {"name": "one", "configMap": {"name": "demo"}},
            {"name": "two", "secret": {"secretName": "demo"}},
            {"name": "both", "projected": {"sources": [
                {"configMap": {"name": "demo", "items": [{"key": "text", "path": "c"}]}},
                {"secret": {"name": "demo", "items": [{"key": "text", "path": "s"}]}},
            ]}},
            {"name": "platform", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
        ],
    })
}

fn secret(text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo"}, "stringData": {"text": text}})
}

/// Whether every reference names the snapshot of this text.
fn frozen(world: &World, load: &Load, wanted: &str) -> Result<(), String> {
    let spec = load.stored(world)["spec"].take();
    for (kind, pointers) in [("configmap", CONFIG_MAPS), ("secret", SECRETS)] {
        for pointer in pointers {
            let name = text(spec.pointer(pointer).ok_or(pointer)?);
            let object = world.cluster.get(kind, world.name(), &name);
            let object = object.ok_or_else(|| format!("{pointer}: there is no {kind} {name}"))?;
            // Secrets have the text in base64.
            let texts = [text(&object["data"]["text"]), text(&object["stringData"]["text"])];
            let encoded = if wanted == "A" { "QQ==" } else { "Qg==" };
            let is_it = name != "demo" && texts.iter().any(|found| found == wanted || found == encoded);
            if !is_it || object["immutable"] != true {
                return Err(format!("{pointer} names {name}, which is not the snapshot of {wanted}"));
            }
        }
    }
    others_are_as_written(&spec)
}

fn others_are_as_written(spec: &Value) -> Result<(), String> {
    let names = OTHERS.map(|pointer| spec.pointer(pointer).map(text).unwrap_or_default());
    expect(&names, &["demo", "kube-root-ca.crt"])
}

/// Each reference is resolved, rolled to a change, and restored to the source's name.
#[test]
fn every_kind_resolves_every_form_of_reference() {
    let _confrev = running();
    let body = |world: &World, resource| {
        let mut load = Load::new(resource, "web", &[]).annotation("secrets", "true");
        let mut spec = every_form();
        if resource.ends_with("jobs") {
            spec["restartPolicy"] = json!("Never");
        }
        load.manifest.pointer_mut(load.template).expect("the manifest has a template")["spec"] = spec;
        world.apply(&config_map("demo", "A")).ok();
        world.apply(&secret("A")).ok();
        load.apply(world).ok();
        frozen(world, &load, "A").unwrap();
        if !load.kind().rolls {
            return;
        }
        world.apply(&config_map("demo", "B")).ok();
        world.apply(&secret("B")).ok();
        wait_for("every reference to name B", LIMIT, || frozen(world, &load, "B"));
        world.kubectl(&["label", &load.reference(), "confrev.dev/enabled=false", "--overwrite"]).ok();
        let spec = load.stored(world)["spec"].take();
        for pointer in CONFIG_MAPS.iter().chain(&SECRETS) {
            assert_eq!(spec.pointer(pointer), Some(&json!("demo")), "{pointer}");
        }
        others_are_as_written(&spec).unwrap();
    };
    let resources = KINDS.iter().map(|kind| (kind.name.to_owned(), kind.resource));
    in_threads(resources, |resource| body(&World::new("forms"), resource));
}
