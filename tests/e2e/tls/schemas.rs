//! The verdict about stored content, which only a client with a certificate gets: the API server.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::control_plane::{API_SERVER, Stage};
use crate::mounted_secret::Mount;
use crate::processes::start;
use crate::until;

fn object<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A ConfigMap with a schema that allows numbers up to this one.
fn schemas(maximum: u32) -> Value {
    json!({"metadata": {"name": "schemas", "annotations": {"confrev.dev/schema-for": "own"}},
           "data": {"number": json!({"maximum": maximum}).to_string()}})
}

fn source(number: u32) -> Value {
    let annotations = json!({"confrev.dev/schema": "schemas/number", "confrev.dev/schema-keys": "text"});
    json!({"metadata": {"name": "number", "annotations": annotations}, "data": {"text": number.to_string()}})
}

fn deployment(name: &str, image: &str) -> Deployment {
    object(json!({
        "metadata": {"name": name, "labels": {"confrev.dev/enabled": "true"},
            "annotations": {"confrev.dev/track": "false"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "app", "image": image,
                "envFrom": [{"configMapRef": {"name": "number"}}]}]}}},
    }))
}

/// The content became invalid after it was written: the schema is stricter now.
#[tokio::test(flavor = "multi_thread")]
async fn certificate_gives_verdict_about_stored_content() {
    let stage = Stage::take().await;
    let namespace = stage.namespace().await;
    let mount = Mount::new(&[("ca.crt", stage.clients.pem.as_bytes())]);
    let ca = format!("--client-ca={}", mount.dir().join("ca.crt").display());
    let name = format!("--client-name={API_SERVER}");
    let _programs = start(&stage, 1, &[], &[&ca, &name]).await;
    let maps: Api<ConfigMap> = Api::namespaced(stage.client().await, namespace.name());
    let workloads: Api<Deployment> = Api::namespaced(stage.client().await, namespace.name());
    let create = PostParams::default();
    maps.create(&create, &object(schemas(9))).await.unwrap();
    // The webhook may not be in force yet, and is not needed for a write of a source.
    maps.create(&create, &object(source(6))).await.unwrap();
    let reference = |web: &Deployment| {
        let web = serde_json::to_value(web).unwrap();
        let name = &web["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
        name.as_str().unwrap().to_owned()
    };
    let web = until("an admitted workload", async || {
        workloads.create(&create, &deployment("web", "app:1")).await.ok()
    })
    .await;
    let kept = reference(&web);
    assert!(kept.starts_with("number-"), "{kept}");
    let merge = |change: Value| Patch::Merge(change);
    maps.patch("number", &PatchParams::default(), &merge(source(7))).await.unwrap();
    maps.patch("schemas", &PatchParams::default(), &merge(schemas(5))).await.unwrap();

    let refused = workloads.create(&create, &deployment("new", "app:1")).await.unwrap_err().to_string();
    assert!(refused.contains("fails the rule \"maximum\""), "{refused}");
    // A deployment keeps its snapshot.
    let web = serde_json::to_value(deployment("web", "app:2")).unwrap();
    let web = workloads.patch("web", &PatchParams::default(), &merge(web)).await.unwrap();
    assert_eq!(reference(&web), kept);
    maps.patch("schemas", &PatchParams::default(), &merge(schemas(8))).await.unwrap();
    let web = serde_json::to_value(deployment("web", "app:3")).unwrap();
    let web = workloads.patch("web", &PatchParams::default(), &merge(web)).await.unwrap();
    assert_ne!(reference(&web), kept);
}
