//! Writes that the API server refuses, and objects of the maximum size. confrev answers each of them correctly, and
//! continues to serve other clients.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect, name_of, text};

/// A name of the maximum length.
fn longest() -> String {
    ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(60), "e".repeat(9)].join(".")
}

/// 5,000 references to one source are resolved; 5,000 sources are refused with the name of the option that limits them.
#[test]
fn limit_counts_sources_and_not_references() {
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
    // 5,000 references to one source.
    world.with_file(&["create"], &with("web", 0)).ok();
    let live = world.cluster.get("deployment", world.name(), "web").expect("the object exists");
    let env = live["spec"]["template"]["spec"]["containers"][0]["env"]
        .as_array()
        .expect("the container has variables");
    let named = |variable: &Value| text(&variable["valueFrom"]["configMapKeyRef"]["name"]);
    let snapshot = world.snapshot_name("demo", "A");
    assert_eq!(env.iter().filter(|variable| named(variable) == snapshot).count(), 5000);
    // 5,000 sources, each of which would be read. (The API server would need seconds for a server-side apply over the others.)
    let refusal = world.with_file(&["create"], &with("more", 5000)).refused();
    assert!(refusal.contains("--max-reads"), "{refusal}");
}

#[test]
fn longest_names_and_largest_contents_are_snapshotted() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("largest");
        let name = longest();
        assert_eq!(name.len(), 253);
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        let mut object = web.manifest();
        object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(name);
        // Just below the API server's limit for a ConfigMap.
        let large = "x".repeat((1 << 20) - 100);
        world.with_file(&["create"], &config_map(&name, &large)).ok();
        // On a busy machine, confrev may not read and write so much before the timeout of the webhook.
        wait_for("the workload to be admitted", LIMIT, || {
            let applied = world.apply(&object);
            if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
        });
        let snapshot = world.resolved(&web, &name).expect("the reference is resolved");
        assert_eq!(snapshot.len(), 253);
        let taken = world.cluster.get("configmap", world.name(), &snapshot).expect("the snapshot exists");
        assert!(taken["data"]["text"] == *large, "the snapshot has the content");
        assert_eq!(taken["metadata"]["annotations"]["confrev.dev/source-name"], *name);
        world.set_config(&name, &"y".repeat((1 << 20) - 100));
        wait_for("the workload to roll to the next snapshot", LIMIT, || {
            let now = world.resolved(&web, &name).expect("the reference is resolved");
            if now == snapshot { Err(now) } else { Ok(()) }
        });
    });
}

/// The refusal gives the reason. The workload is admitted as soon as the quota has room.
#[test]
fn workload_is_refused_when_quota_refuses_its_snapshot() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("quota");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        // As many as exist, including kube-root-ca.crt.
        wait_for("the namespace's own ConfigMap", LIMIT, || {
            expect(&world.cluster.list("configmap", world.name(), "").len(), &2)
        });
        world.limit_config_maps(2);
        let refusal = world.apply(&web.manifest()).refused();
        assert!(refusal.contains("exceeded quota") && refusal.contains("confrev"), "{refusal}");
        // The source itself can be written: only the new snapshot would exceed the quota.
        world.set_config("demo", "B");
        world.delete("resourcequota", "full");
        wait_for("the workload to be admitted", LIMIT, || {
            let applied = world.apply(&web.manifest());
            if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
        });
        world.wait_reads(&web, "demo", &["B"]);
    });
}

/// The refusal contains the policy's message.
#[test]
fn workload_is_refused_when_policy_refuses_its_snapshot() {
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
    wait_for("the policy to take effect", LIMIT, || {
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
fn terminating_namespace_is_deleted_and_refuses_writes() {
    let confrev = running();
    let world = World::new("terminating");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]);
    world.set_config("demo", "A");
    // Its finalizer delays the deletion of the namespace.
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    world.apply(&held).ok();
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);
    let mut kept = Workload::new(Kind::Deployment, "kept", &["demo"]).replicas(0).manifest();
    kept["metadata"]["finalizers"] = json!(["example.com/held"]);
    world.apply(&kept).ok();
    world.cluster.kubectl(&["delete", "namespace", world.name(), "--wait=false"]).run().ok();
    wait_for("all objects without a finalizer to be deleted", LIMIT, || {
        let left = world.cluster.list("configmap", world.name(), "");
        let left: Vec<_> = left.iter().map(name_of).collect();
        expect(&left, &vec!["held".to_owned()])?;
        // The deletion of the Deployment with a finalizer has begun.
        let kept = world.cluster.get("deployment", world.name(), "kept").ok_or("it does not exist")?;
        if kept["metadata"]["deletionTimestamp"].is_null() {
            Err("its deletion has not begun".to_owned())
        } else {
            Ok(())
        }
    });
    // The snapshots are deleted, and none can be created. The Deployment can still be changed and released.
    let refusal = world.apply(&config_map("other", "1")).refused();
    assert!(refusal.contains("being terminated"), "{refusal}");
    let refusal = world.apply(&Workload::new(Kind::Deployment, "new", &["demo"]).manifest()).refused();
    assert!(refusal.contains("being terminated") || refusal.contains("not found"), "{refusal}");
    // That includes a change of its template that would need another snapshot.
    let change =
        json!([{"op": "replace", "path": "/spec/template/spec/volumes/0/configMap/name", "value": "held"}]);
    world.kubectl(&["patch", "deployment/kept", "--type=json", "--patch", &change.to_string()]).ok();
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    for object in ["deployment/kept", "configmap/held"] {
        world.kubectl(&["patch", object, "--type=merge", "--patch", &free]).ok();
    }
    wait_for("the namespace to be deleted", LIMIT, || {
        let namespace = world.cluster.get("namespace", "", world.name());
        namespace.map_or(Ok(()), |namespace| Err(namespace["status"].to_string()))
    });
    assert!(!confrev.log().contains("panicked"), "{}", confrev.log_tail());
}
