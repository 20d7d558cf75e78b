//! Two appliers of one manifest: names that admission rewrote belong to the first one.

use serde_json::json;

use crate::any_kind::Load;
use crate::shared::running;
use crate::world::World;

/// A limit of the API server that `docs/gitops.md` states. Lists without keys have one owner as a whole, so that no name in them can
/// be taken out of `managedFields`.
#[test]
fn second_server_side_applier_conflicts_on_rewritten_names() {
    let _confrev = running();
    let world = World::new("two-appliers");
    world.set_config("demo", "A");
    let mut web = Load::new("deployments", "web", &[]);
    let spec = &mut web.manifest["spec"]["template"]["spec"];
    spec["volumes"] = json!([{"name": "demo", "configMap": {"name": "demo"}}]);
    spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "demo"}}]);
    let apply = |by: &str, more: &[&str]| {
        let manager = format!("--field-manager={by}");
        world.with_file(&[&["apply", "--server-side", &manager], more].concat(), &web.manifest)
    };
    apply("one", &[]).ok();
    apply("one", &[]).ok();
    let second = apply("two", &[]);
    for field in [".spec.template.spec.volumes[name=\"demo\"].configMap.name", "envFrom"] {
        assert!(second.stderr.contains("conflict") && second.stderr.contains(field), "{field}: {second}");
    }
    let live = world.cluster.get("deployment", world.name(), "web").unwrap();
    let managers = live["metadata"]["managedFields"].as_array().unwrap();
    let first = managers.iter().find(|entry| entry["manager"] == "one").unwrap();
    let template = &first["fieldsV1"]["f:spec"]["f:template"]["f:spec"];
    let containers = template["f:containers"].as_object().unwrap();
    let (_, container) = containers.iter().next().unwrap();
    assert_eq!(container["f:envFrom"], json!({}), "the list has one owner as a whole");
    assert_eq!(template["f:volumes"]["k:{\"name\":\"demo\"}"]["f:configMap"], json!({"f:name": {}}));
    // The second one takes the fields over, or shares them by what the first one stored.
    apply("two", &["--force-conflicts"]).ok();
    web.wait_resolved(&world, "demo", "A");
    apply("two", &[]).ok();
    // The client that creates the workload in another way owns its fields as well.
    world.delete("deployment", "web");
    world.with_file(&["create"], &web.manifest).ok();
    let after_create = apply("one", &[]);
    assert!(after_create.stderr.contains("conflict"), "{after_create}");
}
