//! What the API server refuses, and what is as large as it takes: a right answer each time, and the others go on.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, name_of, text};

/// A name as long as may be.
fn longest() -> String {
    ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(60), "e".repeat(9)].join(".")
}

#[test]
fn five_thousand_references_are_resolved_or_refused_with_the_option_that_limits_them() {
    let _confrev = running();
    let world = World::new("many");
    world.set_config("demo", "A");
    let with = |name: &str, sources: usize| {
        let references = 5000;
        let mut object = Workload::new(Kind::Deployment, name, &["demo"]).replicas(0).manifest();
        let names = (0..references).map(|i| if i < sources { format!("s-{i}") } else { "demo".to_owned() });
        let env: Vec<_> = names
            .enumerate()
            .map(|(i, name)| json!({"name": format!("E{i}"), "valueFrom": {"configMapKeyRef": {"name": name, "key": "text"}}}))
            .collect();
        object["spec"]["template"]["spec"]["containers"][0]["env"] = json!(env);
        object["metadata"]["annotations"] = json!({"confrev.dev/missing": "allow"});
        object
    };
    // One source by 5,000 references.
    world.with_file(&["create"], &with("web", 0)).ok();
    let live = world.cluster.get("deployment", world.name(), "web").expect("it is there");
    let env = live["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("it has variables");
    let named = |variable: &Value| text(&variable["valueFrom"]["configMapKeyRef"]["name"]);
    let snapshot = world.snapshot_name("demo", "A");
    assert_eq!(env.iter().filter(|variable| named(variable) == snapshot).count(), 5000);
    // 5,000 sources, each of which would be read. (A server-side apply over the other ones takes the API server seconds.)
    let refusal = world.with_file(&["create"], &with("more", 5000)).refused();
    assert!(refusal.contains("--max-reads"), "{refusal}");
}

#[test]
fn names_and_contents_as_large_as_may_be_are_snapshotted() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("largest");
        let name = longest();
        assert_eq!(name.len(), 253);
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let mut object = web.manifest();
        object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(name);
        // Just within what the API server takes of one.
        let large = "x".repeat((1 << 20) - 100);
        world.with_file(&["create"], &config_map(&name, &large)).ok();
        world.apply(&object).ok();
        let snapshot = world.resolved(&web, &name).expect("it is resolved");
        assert_eq!(snapshot.len(), 253);
        let taken = world.cluster.get("configmap", world.name(), &snapshot).expect("there is a snapshot");
        assert!(taken["data"]["text"] == *large, "it holds the content");
        assert_eq!(taken["metadata"]["annotations"]["confrev.dev/source-name"], *name);
        world.set_config(&name, &"y".repeat((1 << 20) - 100));
        wait_for("the next one to be taken", LIMIT, || {
            let now = world.resolved(&web, &name).expect("it is resolved");
            if now == snapshot { Err(now) } else { Ok(()) }
        });
    });
}

#[test]
fn where_a_quota_refuses_the_snapshot_the_workload_is_refused_with_the_reason_and_goes_on_when_there_is_room()
{
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("quota");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        // As many as there are, kube-root-ca.crt among them.
        wait_for("the namespace's own ConfigMap", LIMIT, || {
            expect(&world.cluster.list("configmap", world.name(), "").len(), &2)
        });
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"},
            "spec": {"hard": {"count/configmaps": "2"}}});
        world.with_file(&["create"], &quota).ok();
        wait_for("the quota to count", LIMIT, || {
            let stored = world.cluster.get("v1/resourcequotas", world.name(), "full").expect("it is there");
            let used = text(&stored["status"]["used"]["count/configmaps"]);
            // The quota controller counts from a cache, which may lag, and counts again only minutes later.
            if used == "1" {
                world.delete("resourcequota", "full");
                world.with_file(&["create"], &quota).ok();
            }
            expect(&used, "2")
        });
        let refusal = world.apply(&web.manifest()).refused();
        assert!(refusal.contains("exceeded quota") && refusal.contains("confrev"), "{refusal}");
        // The source itself can be written: it is confrev that lacks the room.
        world.set_config("demo", "B");
        world.delete("resourcequota", "full");
        wait_for("the workload to be admitted", LIMIT, || {
            let applied = world.apply(&web.manifest());
            if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
        });
        world.wait_reads(&web, "demo", &["B"]);
    });
}

#[test]
fn where_a_policy_refuses_the_snapshot_the_workload_is_refused_with_its_words() {
    let _confrev = running();
    let world = World::new("policy-refuses");
    let name = world.name().to_owned();
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "A");
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": name}, "spec": {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        },
        "validations": [{"expression": "!has(object.immutable) || !object.immutable", "message": "no immutable ones here"}],
    }});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    for object in [&policy, &binding] {
        world.cluster.kubectl(&["create", "--filename", "-"]).stdin(object).run().ok();
    }
    let probe =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}, "immutable": true});
    wait_for("the policy to hold", LIMIT, || {
        let tried = world.with_file(&["create", "--dry-run=server"], &probe);
        if tried.status.success() { Err("not yet") } else { Ok(()) }
    });
    let refusal = world.apply(&web.manifest()).refused();
    assert!(refusal.contains("no immutable ones here"), "{refusal}");
    world.set_config("demo", "B");
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        world.cluster.kubectl(&["delete", kind, &name]).run().ok();
    }
    wait_for("the workload to be admitted", LIMIT, || {
        let applied = world.apply(&web.manifest());
        if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
    });
    world.wait_reads(&web, "demo", &["B"]);
}

#[test]
fn a_namespace_that_is_going_away_goes_and_whoever_writes_there_is_told_so() {
    let confrev = running();
    let world = World::new("terminating");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "A");
    // It keeps the namespace from going.
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    world.apply(&held).ok();
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);
    let mut kept = Workload::new(Kind::Deployment, "kept", &["demo"]).replicas(0).manifest();
    kept["metadata"]["finalizers"] = json!(["example.com/held"]);
    world.apply(&kept).ok();
    world.cluster.kubectl(&["delete", "namespace", world.name(), "--wait=false"]).run().ok();
    wait_for("all that may go to be gone", LIMIT, || {
        let left = world.cluster.list("configmap", world.name(), "");
        let left: Vec<_> = left.iter().map(name_of).collect();
        expect(&left, &vec!["held".to_owned()])?;
        // What holds on has been asked to go, too.
        let kept = world.cluster.get("deployment", world.name(), "kept").ok_or("it is gone")?;
        if kept["metadata"]["deletionTimestamp"].is_null() {
            Err("not yet asked to go".to_owned())
        } else {
            Ok(())
        }
    });
    // The snapshots are gone, and none can be made: what holds on can still be changed, and let go.
    let refusal = world.apply(&config_map("other", "1")).refused();
    assert!(refusal.contains("being terminated"), "{refusal}");
    let refusal = world.apply(&Workload::new(Kind::Deployment, "new", &["demo"]).manifest()).refused();
    assert!(refusal.contains("being terminated") || refusal.contains("not found"), "{refusal}");
    // Even a change of its template that would need another snapshot.
    let change =
        json!([{"op": "replace", "path": "/spec/template/spec/volumes/0/configMap/name", "value": "held"}]);
    world.kubectl(&["patch", "deployment/kept", "--type=json", "--patch", &change.to_string()]).ok();
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    for object in ["deployment/kept", "configmap/held"] {
        world.kubectl(&["patch", object, "--type=merge", "--patch", &free]).ok();
    }
    wait_for("the namespace to be gone", LIMIT, || {
        let namespace = world.cluster.get("namespace", "", world.name());
        namespace.map_or(Ok(()), |namespace| Err(namespace["status"].to_string()))
    });
    assert!(!confrev.log().contains("panicked"), "{}", confrev.log_tail());
}
