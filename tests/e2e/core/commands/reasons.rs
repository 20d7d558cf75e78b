//! Why a workload does not roll, or not yet: `status`, `wait` and `impact` say so.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use super::Commands as _;
use super::effects::{reference, rolled};
use crate::events::told;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect};

/// The row of `status` for the workload.
fn status(world: &World, name: &str) -> String {
    let table = world.confrev(&["status", name]).ok();
    table.lines().nth(1).unwrap_or_default().to_owned()
}

#[track_caller]
fn wait_status(world: &World, name: &str, part: &str) {
    wait_for(&format!("status to show {part:?}"), LIMIT, || {
        let row = status(world, name);
        if row.contains(part) { Ok(()) } else { Err(row) }
    });
}

/// `wait` ends long before its timeout, with exit code 3.
#[track_caller]
fn stuck(world: &World, object: &str) -> String {
    let line = world.confrev(&["wait", object, "--timeout=10m"]).failed(3);
    assert!(!line.contains("timed out"), "{line}");
    line
}

#[test]
fn commands_say_that_secrets_are_off() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("reasons-secrets");
        world.set_config("demo", "A");
        world.kubectl(&["create", "secret", "generic", "keys", "--from-literal=token=t"]).ok();
        let web = Workload::new(kind, "web", &["demo"]).annotation("secrets", "true");
        let mut manifest = web.manifest();
        let variable =
            json!({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}});
        manifest["spec"]["template"]["spec"]["containers"][0]["env"] = json!([variable]);
        world.apply(&manifest).ok();
        world.wait_resolved(&web, "demo", "A");
        let row = status(&world, "web");
        assert!(row.contains("secrets off: keys") && row.contains("(--secrets)"), "{row}");
        for object in ["secret/keys", &web.reference()] {
            let line = stuck(&world, object);
            assert!(line.contains("confrev.dev/secrets"), "{line}");
        }
        let impact = world.confrev_json(&["impact", "secret/keys"]);
        assert_eq!(impact[0]["rolls"], false, "{impact}");
        assert!(impact[0]["why"].to_string().contains("(--secrets)"), "{impact}");
    });
}

/// A policy refuses every change of a template. A user who may not try the roll sees that it is pending.
#[test]
fn refused_roll_is_shown_with_its_reason() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let name = world.name().to_owned();
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]});
        world.apply(&role).ok();
        world.kubectl(&["create", "rolebinding", "reader", "--role=reader", "--user=viewer"]).ok();
        let (group, resource) = match kind {
            Kind::Deployment => ("apps", "deployments"),
            Kind::Rollout => ("argoproj.io", "rollouts"),
        };
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource]}],
            },
            "validations": [{"expression": "object.spec.template == oldObject.spec.template", "message": "the templates are frozen"}],
        }});
        let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        for object in [&policy, &binding] {
            world.cluster.kubectl(&["create", "--filename", "-"]).stdin(object).run().ok();
        }
        wait_for("the policy to take effect", LIMIT, || {
            let tried = world.confrev(&["undo", "web", "--dry-run"]);
            if tried.code == 0 { Err(tried.stdout) } else { Ok(()) }
        });
        world.set_config("demo", "C");
        wait_status(&world, "web", "refused: demo");
        let row = status(&world, "web");
        assert!(row.contains("the templates are frozen"), "{row}");
        let line = stuck(&world, "configmap/demo");
        assert!(line.contains("the templates are frozen") && line.contains("remove the cause"), "{line}");
        wait_for("the Event about the refusal", LIMIT, || {
            let events = told(&world);
            let is_refusal = |about: &&String| about.starts_with("RollRefused");
            events.keys().find(is_refusal).map(drop).ok_or_else(|| format!("{events:?}"))
        });
        // Other writes of the source, later than the Event, hide no reason.
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1", "note=later"]).ok();
        wait_for("the reason in waves", LIMIT, || {
            let reason = world.confrev_json(&["waves", "demo"])["reason"].to_string();
            if reason.contains("the templates are frozen") { Ok(()) } else { Err(reason) }
        });
        world.confrev(&["waves", "promote", "demo"]).ok();
        wait_status(&world, "web", "refused: demo");
        let impact = world.confrev_json(&["impact", "demo"]);
        assert!(impact[0]["refused"] == true && impact[0]["rolls"] == false, "{impact}");
        // No command takes a reason from an Event, not even from confrev's own.
        let said = world.confrev(&["status", "--as=viewer"]);
        assert!(said.stdout.contains("pending: demo") && !said.stdout.contains("are frozen"), "{said:?}");
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            world.cluster.kubectl(&["delete", kind, &name]).run().ok();
        }
        world.wait_reads(&web, "demo", &["C", "C"]);
        wait_status(&world, "web", "current");
    });
}

#[test]
fn delays_are_shown_with_their_reason() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("reasons-delays");
        world.set_config("demo", "A");
        world.set_config("slow", "A");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
        let loads = ["one", "two"].map(|name| Workload::new(kind, name, &["demo"]).replicas(2).pausing());
        let slow = Workload::new(kind, "slow", &["slow"]).annotation("min-interval", "1h");
        for load in loads.iter().chain([&slow]) {
            world.apply(&load.manifest()).ok();
        }
        for load in &loads {
            world.wait_reads(load, "demo", &["A", "A"]);
        }
        world.wait_at_rest();
        let file = world.file("b.yaml", &config_map("slow", "C").to_string());
        assert_eq!(world.confrev_json(&["impact", "-f", &file])[0]["delay"], Value::Null);
        for source in ["demo", "slow"] {
            world.set_config(source, "B");
        }
        world.wait_resolved(&slow, "slow", "B");
        let first = wait_for("one workload to roll", LIMIT, || {
            loads.iter().find(|load| world.resolves_to(load, "demo", "B").is_ok())
        });
        let held = loads.iter().find(|load| load.name != first.name).expect("another");
        wait_status(&world, &held.name, &format!("held by {}", reference(first)));
        assert!(status(&world, &held.name).contains("pending: demo"));
        let impact = world.confrev_json(&["impact", "demo"]);
        let of_held =
            impact.as_array().unwrap().iter().find(|row| row["workload"] == reference(held)).unwrap();
        assert_eq!(of_held["delay"], format!("held by {}", reference(first)), "{impact}");

        world.set_config("slow", "C");
        wait_status(&world, "slow", "min-interval, ");
        let table = world.confrev(&["impact", "-f", &file]).ok();
        let row = table.lines().nth(1).unwrap_or_default();
        assert!(
            row.contains("   later   ") && row.contains("min-interval, ") && row.ends_with(" s left"),
            "{table}"
        );
    });
}

#[test]
fn status_keeps_columns_and_shows_paused_workload() {
    let _confrev = running();
    each_kind(|kind| {
        let (world, web) = rolled(kind);
        let heads = |table: &str| {
            table.lines().next().unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let table = world.confrev(&["status"]).ok();
        assert_eq!(heads(&table), ["WORKLOAD", "CONFIG", "PODS", "STATE", "ROLLOUT", "REASON"]);
        world.confrev(&["pause", "web"]).ok();
        let row = status(&world, "web");
        assert!(row.contains("current") && row.ends_with("paused (confrev.dev/track=false)"), "{row}");
        world.apply(&Workload::new(kind, "empty", &[]).replicas(0).manifest()).ok();
        world.delete(kind.name(), "web");
        let table = world.confrev(&["status"]).ok();
        assert_eq!(heads(&table), ["WORKLOAD", "CONFIG", "PODS", "STATE", "ROLLOUT", "REASON"]);
        let is_empty = |row: &str| row.split_whitespace().skip(1).take(3).eq(["-", "-", "current"]);
        assert!(table.lines().any(|row| row.contains("/empty ") && is_empty(row)), "{table}");
        drop(web);
    });
}

#[test]
fn wait_ends_at_paused_canary() {
    let _confrev = running();
    let world = World::new("reasons-canary");
    let web = Workload::new(Kind::Rollout, "web", &["demo"]).replicas(4).pausing();
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"; 4]);
    world.set_config("demo", "B");
    let line = stuck(&world, "demo");
    for part in ["paused at step 2 (CanaryPauseStep)", "kubectl argo rollouts promote web", "--allow-paused"]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    let row = status(&world, "web");
    assert!(row.contains("   paused   ") && row.contains("paused at step 2"), "{row}");
    let said = world.confrev(&["wait", "demo", "--allow-paused"]).ok();
    assert!(said.contains("(Rollout/web: paused at step 2 (CanaryPauseStep))"), "{said}");
    world.argo(&["promote", "web"]).ok();
    world.confrev(&["wait", "demo"]).ok();
    world.wait_reads(&web, "demo", &["B"; 4]);
}

#[test]
fn wait_ends_at_partition_of_stateful_set() {
    let _confrev = running();
    let world = World::new("reasons-partition");
    world.set_config("demo", "A");
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}, "annotations": {"confrev.dev/min-interval": "0"}},
        "spec": {"replicas": 2, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"rollingUpdate": {"partition": 1}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "app:1",
                "envFrom": [{"configMapRef": {"name": "demo"}}]}]}}}});
    world.apply(&set).ok();
    world.confrev(&["wait", "sts/web", "--timeout=60s"]).ok();
    world.set_config("demo", "B");
    let line = stuck(&world, "demo");
    assert!(line.contains("1 of 2 pods updated (partition 1)"), "{line}");
    world.confrev(&["wait", "sts/web", "--allow-paused"]).ok();
    let all = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}).to_string();
    world.kubectl(&["patch", "statefulset/web", "--type=merge", "--patch", &all]).ok();
    world.confrev(&["wait", "sts/web", "--timeout=60s"]).ok();
}

/// Only the label of the workload with the template protects it.
#[test]
fn status_names_unprotected_template_of_rollout() {
    let _confrev = running();
    let world = World::new("reasons-reference");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    world.apply(&web.clone().enabled(None).manifest()).ok();
    let mut shop = Workload::new(Kind::Rollout, "shop", &[]).manifest();
    shop["spec"].as_object_mut().unwrap().remove("template");
    shop["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    shop["spec"]["workloadRef"] = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    world.apply(&shop).ok();
    let row = status(&world, "shop");
    assert!(row.contains("not protected: Deployment/web is not opted in"), "{row}");
    let tree = world.confrev(&["tree", "rollout/shop"]).ok();
    assert!(tree.starts_with("Rollout/shop   not protected: Deployment/web is not opted in"), "{tree}");
    let line = stuck(&world, "rollout/shop");
    assert!(line.contains("label Deployment/web"), "{line}");
    world.apply(&web.manifest()).ok();
    let row = status(&world, "shop");
    assert!(row.contains("see Deployment/web"), "{row}");
}

/// Without any source, the pods and their ReplicaSet have no revision.
#[test]
fn pods_without_source_are_shown() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("reasons-pods");
        let web = Workload::new(kind, "web", &["demo"]).replicas(2).annotation("missing", "allow");
        let mut manifest = web.manifest();
        let pods = &mut manifest["spec"]["template"]["spec"];
        pods["volumes"][0]["configMap"]["optional"] = json!(true);
        pods["containers"][0]["envFrom"][0]["configMapRef"]["optional"] = json!(true);
        world.apply(&manifest).ok();
        wait_for("two ready pods", LIMIT, || {
            expect(&world.cluster.ready_pods(world.name(), "app=web").len(), &2)
        });
        let row = status(&world, "web");
        assert!(row.contains("2 present"), "{row}");
        let tree = world.confrev(&["tree", "web"]).ok();
        assert_eq!(tree.matches("Pod/web-").count(), 2, "{tree}");
        world.set_config("demo", "A");
        world.wait_reads(&web, "demo", &["A", "A"]);
        wait_status(&world, "web", "2 present");
    });
}

#[test]
fn impact_shows_bound_and_missing_sources() {
    let _confrev = running();
    let world = World::new("reasons-impact");
    let mut bound = config_map("demo", "A");
    bound["metadata"]["labels"] = json!({"confrev.dev/enabled": "bind"});
    world.apply(&bound).ok();
    world.apply(&Workload::new(Kind::Deployment, "web", &["demo"]).manifest()).ok();
    bound["data"]["text"] = json!("B");
    let file = world.file("bound.yaml", &bound.to_string());
    for arguments in [&["impact", "demo"][..], &["impact", "-f", &file]] {
        let impact = world.confrev_json(arguments);
        assert_eq!(impact[0]["rolls"], false, "{impact}");
        assert!(impact[0]["why"].to_string().contains("it is bound"), "{impact}");
    }
    let line = world.confrev(&["impact", "nothing"]).failed(1);
    assert!(line.contains("ConfigMap \"nothing\" does not exist"), "{line}");
}
