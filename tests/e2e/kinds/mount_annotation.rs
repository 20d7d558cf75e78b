//! ConfigMaps that an annotation mounts in every container.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::shared::running;
use crate::world::{LIMIT, World, expect};

fn more(text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"more": text}})
}

/// The files of the pod under the path. Every container must have the same volume.
fn mounted(world: &World, web: &Load) -> Result<Vec<(String, String)>, String> {
    let pods = web.pods(world);
    let [pod] = &pods[..] else { return Err(format!("{} pods are ready", pods.len())) };
    let files = world.cluster.pod_config(pod)?.files;
    let spec = &pod["spec"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().into_iter().flatten());
    let mut containers = 0;
    for container in lists.into_iter().flatten() {
        let mounts: Vec<_> = container["volumeMounts"].as_array().into_iter().flatten().collect();
        let mount = mounts.iter().find(|mount| mount["mountPath"] == "/etc/shop");
        match mount {
            Some(mount) if mount["readOnly"] == true && mount["name"] == "confrev-mount" => containers += 1,
            other if files.is_empty() && other.is_none() => {}
            other => return Err(format!("{} has the mount {other:?}", container["name"])),
        }
    }
    if files.is_empty() || containers == 3 {
        Ok(files.into_iter().collect())
    } else {
        Err(format!("{containers} containers have the mount"))
    }
}

fn wait_mounted(world: &World, web: &Load, wanted: &[(&str, &str)]) {
    let wanted = wanted.iter().map(|(file, text)| (format!("confrev-mount/{file}"), (*text).to_owned()));
    let wanted: Vec<_> = wanted.collect();
    wait_for(&format!("the pod to find {wanted:?}"), LIMIT, || expect(&mounted(world, web)?, &wanted));
}

/// The mount rolls to changes, and is removed with the annotation.
#[test]
fn mount_annotation_mounts_source_in_every_container() {
    let _confrev = running();
    let world = World::new("mount");
    let mut web = Load::new("deployments", "web", &[]);
    web.manifest["spec"]["template"]["spec"] = json!({
        "initContainers": [{"name": "init", "image": "init:1"}],
        "containers": [
            {"name": "app", "image": "app:1"},
            {"name": "side", "image": "side:1"},
        ],
    });
    world.set_config("demo", "A");
    world.apply(&more("1")).ok();
    web.clone().annotation("mount", "demo,more=/etc/shop").apply(&world).ok();
    wait_mounted(&world, &web, &[("more", "1"), ("text", "A")]);

    world.set_config("demo", "B");
    wait_mounted(&world, &web, &[("more", "1"), ("text", "B")]);
    world.apply(&more("2")).ok();
    wait_mounted(&world, &web, &[("more", "2"), ("text", "B")]);
    assert_eq!(world.cluster.list("replicasets", world.name(), "").len(), 3);
    let generation = web.live(&world)["metadata"]["generation"].clone();
    web.clone().annotation("mount", "demo,more=/etc/shop").apply(&world).ok();
    assert_eq!(web.live(&world)["metadata"]["generation"], generation);

    // The annotation lists fewer sources later.
    web.annotate(&world, "mount", Some("more=/etc/shop"));
    wait_mounted(&world, &web, &[("more", "2")]);
    world.kubectl(&["annotate", "deployment/web", "confrev.dev/mount-"]).ok();
    wait_mounted(&world, &web, &[]);
    assert!(web.live(&world)["spec"]["template"]["spec"]["volumes"].is_null());
}
