//! Workloads that read Secrets while Secrets are off, which is the default of an installation.

use serde_json::{Value, json};

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{World, each_kind};

/// Adds references of every form to a Secret, beside the ConfigMap.
fn with_secret(mut manifest: Value) -> Value {
    let pods = &mut manifest["spec"]["template"]["spec"];
    let container = &mut pods["containers"][0];
    let variable = json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}});
    container["env"] = json!([variable]);
    container["envFrom"].as_array_mut().unwrap().push(json!({"secretRef": {"name": "keys"}}));
    let volumes = pods["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "keys", "secret": {"secretName": "keys"}}));
    volumes.push(json!({"name": "both", "projected": {"sources": [{"secret": {"name": "keys"}}]}}));
    manifest
}

/// The parts of a template that name the Secret.
fn named(template: &Value) -> Vec<Value> {
    let pods = &template["spec"];
    let container = &pods["containers"][0];
    vec![
        container["env"][0]["valueFrom"]["secretKeyRef"]["name"].clone(),
        container["envFrom"][1]["secretRef"]["name"].clone(),
        pods["volumes"][1]["secret"]["secretName"].clone(),
        pods["volumes"][2]["projected"]["sources"][0]["secret"]["name"].clone(),
    ]
}

/// References to ConfigMaps in the same template are resolved.
#[test]
fn secret_references_stay_unchanged_if_secrets_are_off() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("secrets-off");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.kubectl(&["create", "secret", "generic", "keys", "--from-literal=token=t"]).ok();
        let manifest = with_secret(web.manifest());
        let applied = world.apply(&manifest);
        assert!(!applied.stderr.contains("Warning:"), "{applied}");
        applied.ok();
        world.wait_reads(&web, "demo", &["A"]);
        let as_written = || named(&world.live(&web)["spec"]["template"]) == vec![json!("keys"); 4];
        assert!(as_written(), "{}", world.live(&web));

        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
        world.undo(&web);
        world.wait_reads(&web, "demo", &["A"]);
        assert!(as_written(), "{}", world.live(&web));

        // A workload that nevertheless opts in its Secrets gets a warning.
        let mut asking = manifest;
        asking["metadata"]["annotations"]["confrev.dev/secrets"] = json!("true");
        asking["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        let applied = world.apply(&asking);
        assert!(applied.stderr.contains("snapshots of Secrets are disabled"), "{applied}");
        applied.ok();
        assert!(as_written(), "{}", world.live(&web));
        assert!(world.cluster.list("secret", world.name(), crate::world::SNAPSHOTS).is_empty());
    });
}
