//! Every way in which a container can read a ConfigMap.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use confrev_controlplane::{Nodes, holds_for, wait_for};
use serde_json::json;

use crate::printing::{SECONDS, canary_of_two, delete_source, log, pod_that_printed, wait_printed};
use crate::shared::{LIMIT, running};
use crate::world::{World, expect, name_of};

/// Prints what is mounted, at the start and after each change.
const SCRIPT: &str = r#"trap 'exit 0' TERM
last=
while true; do
  now="subpath=$(cat /one-file) projected=$(cat /projected/renamed) binary=$(od -An -tx1 /demo/bytes | tr -d ' \n') optional=$(ls /optional | wc -l)$absent"
  [ "$now" = "$last" ] || echo "$now"
  last=$now
  sleep 1 & wait $!
done"#;

/// Sets all keys of the source.
fn set(world: &World, text: &str, bytes: &[u8]) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"},
        "data": {"text": text}, "binaryData": {"bytes": STANDARD.encode(bytes)},
    });
    world.apply(&object).ok();
}

/// What the sidecar prints for a text and two bytes.
fn line(text: &str, bytes: &str) -> String {
    format!("subpath={text} projected={text} binary={bytes} optional=0\n")
}

/// `subPath`, projected and optional volumes, optional variables and `binaryData`, in a native sidecar. The old pods keep
/// all of it while the canary has the new content.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn sidecar_keeps_content_of_every_reference_form() {
    let _confrev = running();
    let world = World::new("volumes");
    let mut web = canary_of_two("web");
    let spec = &mut web.manifest["spec"]["template"]["spec"];
    let volumes = spec["volumes"].as_array_mut().expect("volumes");
    let projected = json!([{"configMap": {"name": "demo", "items": [{"key": "text", "path": "renamed"}]}}]);
    volumes.push(json!({"name": "projected", "projected": {"sources": projected}}));
    volumes.push(json!({"name": "optional", "configMap": {"name": "missing", "optional": true}}));
    let absent = json!({"name": "missing", "key": "text", "optional": true});
    spec["initContainers"] = json!([{
        "name": "sidecar",
        "image": Nodes::SHELL,
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": [{"name": "absent", "valueFrom": {"configMapKeyRef": absent}}],
        "volumeMounts": [
            {"name": "demo", "mountPath": "/demo"},
            {"name": "demo", "mountPath": "/one-file", "subPath": "text"},
            {"name": "projected", "mountPath": "/projected"},
            {"name": "optional", "mountPath": "/optional"},
        ],
    }]);
    set(&world, "blue", &[0, 255]);
    web.apply(&world).ok();
    wait_printed(&world, &web, &["blue", "blue"]);

    set(&world, "green", &[1, 254]);
    wait_printed(&world, &web, &["blue", "green"]);
    // The canary of two pods is one pod, and one of the first two remains.
    let sidecars = || {
        let pods = web.pods(&world);
        let mut lines: Vec<_> = pods.iter().map(|pod| log(&world, pod, "sidecar")).collect();
        lines.sort();
        expect(&lines, &[line("blue", "00ff"), line("green", "01fe")])
    };
    wait_for("the sidecars to print both contents", LIMIT, sidecars);
    holds_for("that the sidecars print both contents", Duration::from_secs(SECONDS), sidecars);
    delete_source(&world, "configmap");
    let blue = pod_that_printed(&world, &web, "blue");
    world.kubectl(&["delete", "pod", &name_of(&blue)]).ok();
    wait_for("the replacement's sidecar to print the same", LIMIT, sidecars);
}

/// The revision without content keeps the name of the source: the kubelet adds the source's files to its running pods. The
/// next revision has a snapshot.
#[test]
#[ignore = "it needs real nodes: make test-node"]
fn created_optional_config_map_makes_one_revision() {
    let _confrev = running();
    let world = World::new("optional");
    let mut web = canary_of_two("web");
    let spec = &mut web.manifest["spec"]["template"]["spec"];
    spec["volumes"][0]["configMap"]["optional"] = json!(true);
    spec["containers"][0]["env"][0]["valueFrom"]["configMapKeyRef"]["optional"] = json!(true);
    web.apply(&world).ok();
    let logs = || -> Vec<String> { web.pods(&world).iter().map(|pod| log(&world, pod, "app")).collect() };
    wait_for("two pods without content", LIMIT, || {
        let logs = logs();
        expect(&logs.iter().filter(|log| log.contains("No such file")).count(), &2)
    });
    world.set_config("demo", "green");
    wait_for("a canary with the snapshot, and the file in the old pod", LIMIT * 2, || {
        let mut logs = logs();
        logs.sort_by_key(String::len);
        expect(&logs.len(), &2)?;
        expect(&logs[0], "green green\n")?;
        let (first, later) = logs[1].split_once('\n').unwrap_or_default();
        expect(&(first.contains("No such file"), later), &(true, "green \n"))
    });
}
