//! `kubectl confrev show`: pods, revisions by number, Secrets, and objects that are not opted in.

use serde_json::{Value, json};

use super::Commands as _;
use crate::manifests::{config_map, list};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, text};
use confrev_controlplane::wait_for;

/// A workload that reads ConfigMap `demo` and Secret `keys`.
fn workload(kind: &str, api_version: &str, enabled: bool) -> Value {
    let spec = json!({"containers": [{"name": "app", "image": "app:1",
        "envFrom": [{"configMapRef": {"name": "demo"}}, {"secretRef": {"name": "keys"}}]}]});
    let mut workload = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": "web", "labels": {"confrev.dev/enabled": enabled.to_string()}},
        "spec": {"selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec}}});
    if kind == "StatefulSet" {
        workload["spec"]["serviceName"] = json!("web");
    }
    if kind == "Rollout" {
        workload["spec"]["strategy"] = json!({"canary": {}});
    }
    workload
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"password": "hunter2"}})
}

/// The one source of that kind in the output.
fn source<'s>(shown: &'s Value, name: &str) -> &'s Value {
    let found = shown["sources"].as_array().into_iter().flatten().find(|source| source["source"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing in {shown}"))
}

#[test]
fn every_kind_shows_content_of_each_revision() {
    let _confrev = running();
    for (kind, api_version) in [
        ("Deployment", "apps/v1"),
        ("StatefulSet", "apps/v1"),
        ("DaemonSet", "apps/v1"),
        ("Rollout", "argoproj.io/v1alpha1"),
    ] {
        let world = World::new("show");
        world.apply(&list(&[config_map("demo", "A"), secret(), workload(kind, api_version, true)])).ok();
        let lower = kind.to_lowercase();
        let shown = |of: &str| world.confrev_json(&["show", &format!("{lower}/web{of}")]);
        let content = |shown: &Value| source(shown, "ConfigMap/demo")["content"]["text"].clone();
        wait_for("the first revision", LIMIT, || {
            let said = world.confrev(&["show", &format!("{lower}/web@1")]);
            (said.code == 0).then_some(()).ok_or(said.stderr)
        });
        world.set_config("demo", "B");
        wait_for("the second revision", LIMIT, || {
            let said = world.confrev(&["show", &format!("{lower}/web@2")]);
            (said.code == 0).then_some(()).ok_or(said.stderr)
        });
        let (first, second) = (shown("@1"), shown("@2"));
        assert_eq!((content(&first), content(&second)), (json!("A"), json!("B")), "{kind}");
        assert_eq!(content(&shown("")), json!("B"), "{kind}");
        let (first, second) = (source(&first, "ConfigMap/demo"), source(&second, "ConfigMap/demo"));
        assert_eq!((&first["state"], &second["state"]), (&json!("differs"), &json!("present")), "{kind}");
        assert_eq!(first["differsIn"], json!(["text"]));
        assert!(text(&first["changedBy"]).starts_with("kubectl-client-side-apply (Update)"), "{first}");
        assert!(text(&second["changedAt"]).parse::<jiff::Timestamp>().is_ok(), "{second}");

        let error = world.confrev(&["show", &format!("{lower}/web@9")]).failed(1);
        assert!(error.contains(&format!("{kind}/web has no revision 9: it has 1, 2")), "{error}");
    }
}

/// Of a workload that is not opted in, and of its pods.
#[test]
fn pod_shows_content_and_hides_secrets() {
    let _confrev = running();
    let world = World::new("show");
    world.apply(&list(&[config_map("demo", "A"), secret(), workload("Deployment", "apps/v1", false)])).ok();
    let pod = wait_for("a pod", LIMIT, || {
        let pods = world.cluster.list("pod", world.name(), "");
        pods.first().map(name_of).ok_or("there is no pod")
    });
    let pod = format!("pod/{pod}");
    let shown = world.confrev_json(&["show", &pod]);
    assert_eq!(source(&shown, "ConfigMap/demo")["state"], "as-written");
    let keys = source(&shown, "Secret/keys");
    assert!(keys["content"].is_null() && keys["differsIn"].is_null(), "{keys}");
    let table = world.confrev(&["show", &pod]).ok();
    assert!(table.contains("  values hidden, --show-values shows them\n"), "{table}");
    assert!(!table.contains("password") && !shown.to_string().contains("password"), "{table}");
    assert!(!table.contains("hunter2") && !table.contains("kube-root-ca.crt"), "{table}");
    let table = world.confrev(&["show", &pod, "--show-values"]).ok();
    assert!(table.contains("    hunter2\n"), "{table}");

    world.delete("secret", "keys");
    wait_for("the Secret to be deleted", LIMIT, || {
        expect(&source(&world.confrev_json(&["show", &pod]), "Secret/keys")["state"], "missing")
    });
    for (object, named) in [("pod/none", "Pod/none does not exist"), ("pod/a@1", "Pod/a has no revisions")] {
        let said = world.confrev(&["show", object]);
        assert!(said.code != 0 && said.stderr.contains(named), "{said:?}");
    }
    let error = world.confrev(&["show", "service/web"]).failed(2);
    assert!(error.contains("unknown kind of object \"service\""), "{error}");
}
