//! Policies that match a Secret by its name: the one in docs/security.md, on a control plane.

use std::fs;
use std::path::Path;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::shared::running;
use crate::world::{LIMIT, World, text};

/// The YAML under the heading of the page.
fn documented() -> String {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md")).expect("the page");
    let (_, section) = page.split_once("## Policies that match a name\n").expect("the heading");
    let (_, code) = section.split_once("```yaml\n").expect("a block of YAML");
    code.split_once("```").expect("its end").0.to_owned()
}

/// A pod with this spec beside its container, and the annotation `sources`.
fn pod(name: &str, spec: Value, sources: Option<&str>) -> Value {
    let mut spec = spec;
    spec["containers"][0]["name"] = json!("app");
    spec["containers"][0]["image"] = json!("app:1");
    let annotations = sources.map_or(json!({}), |sources| json!({"confrev.dev/sources": sources}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})
}

#[test]
fn documented_policy_refuses_snapshots_of_its_secret() {
    let _confrev = running();
    let world = World::labelled("name-policies", &[("example.com/tier", "public")]);
    let secret = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "stringData": {"password": "x"}});
    world.apply(&secret("root-db", json!({}))).ok();
    world.apply(&secret("shop-db", json!({}))).ok();
    let volume = |name: &str| json!({"volumes": [{"name": "keys", "secret": {"secretName": name}}], "containers": [{}]});
    let mut web =
        Load::new("deployments", "web", &[]).annotation("secrets", "true").spec(json!({"replicas": 0}));
    web.manifest["spec"]["template"]["spec"]["volumes"] = json!([
        {"name": "root", "secret": {"secretName": "root-db"}},
        {"name": "shop", "secret": {"secretName": "shop-db"}},
    ]);
    web.apply(&world).ok();
    let live = web.live(&world);
    let template = &live["spec"]["template"];
    let [root, shop] = [0, 1].map(|at| text(&template["spec"]["volumes"][at]["secret"]["secretName"]));
    let sources = text(&template["metadata"]["annotations"]["confrev.dev/sources"]);
    assert!(root.starts_with("root-db-") && shop.starts_with("shop-db-"), "{template}");

    let policy = documented();
    let path = std::env::temp_dir().join(format!("{}.yaml", world.name()));
    fs::write(&path, &policy).expect("a file");
    world.cluster.kubectl(&["apply", "--filename", path.to_str().expect("a path")]).run().ok();
    let dry = |pod: &Value| world.with_file(&["create", "--dry-run=server"], pod);
    wait_for("the policy to take effect", LIMIT, || {
        let said = dry(&pod("plain", volume("root-db"), None));
        if said.stderr.contains("'no-root-db'") {
            Ok(())
        } else {
            Err(format!("{}{}", said.stdout, said.stderr))
        }
    });
    let env = |name: &str| json!({"containers": [{"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": name, "key": "password"}}}]}]});
    let env_from = |name: &str| json!({"containers": [{"envFrom": [{"secretRef": {"name": name}}]}]});
    let init = |name: &str| json!({"containers": [{}], "initContainers": [{"name": "i", "image": "i", "envFrom": [{"secretRef": {"name": name}}]}]});
    let projected = |name: &str| json!({"containers": [{}], "volumes": [{"name": "all", "projected": {"sources": [{"secret": {"name": name}}]}}]});
    let of_root = r#"{"secrets":{"root-db":"any-0123456789"}}"#;
    for (what, spec, sources) in [
        ("a snapshot", volume(&root), None),
        ("a snapshot in a variable", env(&root), None),
        ("a snapshot in all variables", env_from(&root), None),
        ("a snapshot in an init container", init(&root), None),
        ("a projected snapshot", projected(&root), None),
        ("a name that was cut", volume("any-0123456789"), Some(of_root)),
        ("both snapshots of the template", volume(&shop), Some(&*sources)),
    ] {
        let said = dry(&pod("any", spec, sources));
        assert!(said.stderr.contains("'no-root-db'"), "{what}: {}{}", said.stdout, said.stderr);
    }
    let of_config =
        r#"{"configmaps":{"root-db":"root-db-0123456789"},"secrets":{"shop-db":"shop-db-0123456789"}}"#;
    for (what, spec, sources) in [
        ("another Secret", volume(&shop), None),
        ("a longer name", volume("root-db-of-shop"), None),
        ("a ConfigMap of the same name", volume(&shop), Some(of_config)),
    ] {
        let said = dry(&pod("any", spec, sources));
        assert!(said.stdout.contains("created"), "{what}: {}", said.stderr);
    }

    // With the label, the reference stays as written, and a policy that matches the name alone works.
    world.apply(&secret("root-db", json!({"confrev.dev/enabled": "false"}))).ok();
    web.manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
    web.apply(&world).ok();
    let live = web.live(&world);
    assert_eq!(live["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"], "root-db");
    world.cluster.kubectl(&["delete", "--filename", path.to_str().expect("a path")]).run().ok();
}
