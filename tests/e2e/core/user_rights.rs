//! Users with few rights can do no more through confrev than without it.

use std::time::Duration;

use confrev_controlplane::{Api, holds_for, wait_for};
use serde_json::{Value, json};

use crate::manifests::{Workload, config_map};
use crate::shared::running;
use crate::snapshots::digest_line;
use crate::world::{LIMIT, World, each_kind, expect};

/// A client of a user with all rights on the namespace's ConfigMaps, and no others.
fn config_editor(world: &World) -> Api {
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    let group = "rbac.authorization.k8s.io";
    world.cluster.create("role", world.name(), &json!({"metadata": {"name": "editor"}, "rules": rules}));
    let binding = json!({
        "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "editor"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "config-editor"}],
    });
    world.cluster.create("rolebinding", world.name(), &binding);
    let kubeconfig = world.cluster.kubeconfig_for_user("config-editor", &[]).expect("the tests' own cluster");
    let api = world.cluster.api_as(&kubeconfig);
    wait_for("the rights to take effect", LIMIT, || {
        let (code, answer) = api.get(&format!("/api/v1/namespaces/{}/configmaps", world.name()));
        if code == 200 { Ok(()) } else { Err(answer) }
    });
    api
}

/// Only an administrator may create it, with all labels and with the digest of the true content.
#[test]
fn forged_snapshot_is_refused_and_never_used() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("forged");
        let [_, digest, name] = digest_line(&config_map("demo", "A"));
        let forged = json!({
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
                "annotations": {
                    "confrev.dev/source-name": "demo",
                    "confrev.dev/digest": digest,
                },
            },
            "immutable": true,
            "data": {"text": "evil"},
        });
        let path = format!("/api/v1/namespaces/{}/configmaps", world.name());
        let editor = config_editor(&world);
        // The API server enforces the guard a moment after its installation.
        wait_for("an editor to be refused", LIMIT, || {
            let (code, answer) = editor.post(&format!("{path}?dryRun=All"), &forged);
            if code == 403 { Ok(()) } else { Err(answer) }
        });
        world.cluster.create("configmap", world.name(), &forged);

        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        let taken = world.resolved(&web, "demo").expect("the reference is resolved");
        assert!(taken.starts_with(&name) && taken != name, "{taken}");
        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
        world.undo(&web);
        world.wait_reads(&web, "demo", &["A"]);
        holds_for("that the forged snapshot has no owner", Duration::from_secs(6), || {
            let object = world.cluster.get("configmap", world.name(), &name).ok_or("it was deleted")?;
            if object["metadata"]["ownerReferences"].is_null() { Ok(()) } else { Err("it was bound") }
        });
    });
}

#[test]
fn config_map_editor_affects_only_opted_in_workloads() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::labelled("editor", &[("confrev.dev/enabled", "true")]);
        world.set_config("demo", "A");
        let asked = Workload::new(kind, "asked", &["demo"]);
        let others = [
            Workload::new(kind, "out", &["demo"]).enabled(Some("false")),
            Workload::new(kind, "at-apply", &["demo"]).annotation("track", "false"),
            Workload::new(kind, "excluded", &["demo"]).annotation("exclude", "demo"),
            Workload::new(kind, "elsewhere", &["other"]).annotation("missing", "allow"),
        ];
        for workload in others.iter().chain([&asked]) {
            world.apply(&workload.manifest()).ok();
        }
        world.wait_resolved(&asked, "demo", "A");
        world.wait_at_rest();
        let specs = || others.each_ref().map(|workload| world.live(workload)["spec"].clone());
        let before = specs();

        let editor = config_editor(&world);
        let path = format!("/api/v1/namespaces/{}/configmaps", world.name());
        let merge = |name: &str, change: &Value| {
            editor.patch(&format!("{path}/{name}"), "application/merge-patch+json", change)
        };
        let snapshot = world.resolved(&asked, "demo").expect("the reference is resolved");
        // All of confrev's labels and annotations that such a user may try.
        for value in ["true", "bind", "false"] {
            let change = json!({"metadata": {"labels": {"confrev.dev/enabled": value},
                "annotations": {"confrev.dev/keep": "9", "confrev.dev/max-in-flight": "9",
                    "confrev.dev/roll": "now", "confrev.dev/track": "true"}},
                "data": {"text": format!("B-{value}")}});
            assert_eq!(merge("demo", &change).0, 200);
        }
        assert_eq!(merge("demo", &json!({"metadata": {"labels": null}, "data": {"text": "B"}})).0, 200);
        // The user can neither change a snapshot, nor create one, nor pass off a source under a snapshot's name as one.
        assert_eq!(merge(&snapshot, &json!({"data": {"text": "evil"}})).0, 422);
        let mut copy = world.cluster.get("configmap", world.name(), &snapshot).expect("the object exists");
        copy["metadata"] = json!({"name": "other", "labels": copy["metadata"]["labels"],
            "annotations": copy["metadata"]["annotations"]});
        assert_eq!(editor.post(&path, &copy).0, 403);
        let [.., foreign] = digest_line(&config_map("demo", "C"));
        assert_eq!(editor.post(&path, &config_map(&foreign, "evil")).0, 201);
        assert_eq!(merge("demo", &json!({"data": {"text": "C"}})).0, 200);

        world.wait_resolved(&asked, "demo", "C");
        world.wait_at_rest();
        expect(&specs(), &before).expect("no other workload changes");
    });
}
