//! The snippets of docs/argocd.md, with objects as an API server stores them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics when an expectation fails")]

use std::collections::BTreeMap;

use confrev_argocd::{run, run_open};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../docs/argocd.md");
const HELD: &str = "demo-3a18d34e26";

/// The entries of `argocd-cm` on the page.
fn entries() -> BTreeMap<String, String> {
    let (_, rest) = PAGE.split_once("```yaml\n").unwrap();
    let (yaml, _) = rest.split_once("\n```").unwrap();
    let file: BTreeMap<String, BTreeMap<String, String>> = serde_saphyr::from_str(yaml).unwrap();
    file["data"].clone()
}

fn script(entry: &str) -> String {
    entries()
        .remove(&format!("resource.customizations.{entry}"))
        .unwrap_or_else(|| panic!("no entry {entry}"))
}

fn health(kind: &str, object: &Value) -> (String, String) {
    let script = script(&format!("health.{kind}"));
    let is_open =
        entries().get(&format!("resource.customizations.useOpenLibs.{kind}")).is_some_and(|on| on == "true");
    let answer = if is_open { run_open(&script, object) } else { run(&script, object, None) }.unwrap();
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

/// The actions of a kind: the script that lists them, and the script of each.
fn actions(kind: &str) -> (String, BTreeMap<String, String>) {
    let text = script(&format!("actions.{kind}"));
    let parsed: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(parsed["mergeBuiltinActions"], true, "{kind}: the built-in actions stay");
    let name = |definition: &Value| definition["name"].as_str().unwrap().to_owned();
    let lua = |definition: &Value| definition["action.lua"].as_str().unwrap().to_owned();
    let definitions = parsed["definitions"].as_array().unwrap().iter();
    (
        parsed["discovery.lua"].as_str().unwrap().to_owned(),
        definitions.map(|definition| (name(definition), lua(definition))).collect(),
    )
}

/// A Deployment that is opted in, with a rollout that has ended.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "web",
            "generation": 4,
            "labels": {"confrev.dev/enabled": "true"},
            "annotations": {
                "confrev.dev/state": "{\"configmaps\":{\"demo\":{\"seen\":\"sha256:736a916696f9f0695c10a0eb02f63f6a9e3308ae9aaf617a4e9cdf5ba4ae5bf1\"}}}",
                "deployment.kubernetes.io/revision": "2",
            },
        },
        "spec": {"replicas": 3, "template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"confrev.dev/sources": "{\"configmaps\":{\"demo\":\"demo-3a18d34e26\"}}"}},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        }},
        "status": {
            "observedGeneration": 4, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3,
            "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}],
        },
    })
}

fn rollout() -> Value {
    let mut object = deployment();
    object["apiVersion"] = json!("argoproj.io/v1alpha1");
    object["kind"] = json!("Rollout");
    object["status"] = json!({"observedGeneration": "4", "phase": "Healthy", "replicas": 3});
    object
}

fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = object.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    changed.pointer_mut(parent).unwrap()[field.replace("~1", "/")] = value;
    changed
}

const HOLD: &str = "/metadata/annotations/confrev.dev~1hold";

#[test]
fn health_of_workloads_shows_holds() {
    for (kind, object) in [("apps_Deployment", deployment()), ("argoproj.io_Rollout", rollout())] {
        assert_eq!(health(kind, &object), ("Healthy".to_owned(), String::new()), "{kind}");
        let held = with(&object, HOLD, json!(HELD));
        assert_eq!(health(kind, &held), ("Healthy".to_owned(), format!("held at {HELD}")), "{kind}");
        // A workload without annotations or labels is none of confrev's.
        let mut plain = object.clone();
        plain["metadata"] = json!({"name": "web", "generation": 4});
        assert_eq!(health(kind, &plain), ("Healthy".to_owned(), String::new()), "{kind}");
        plain.as_object_mut().unwrap().remove("status");
        assert_eq!(health(kind, &plain).0, "Progressing", "{kind}");
    }
}

/// An entry for a kind replaces Argo CD's own check, so it must show the same states.
#[test]
fn health_of_workloads_shows_their_rollouts() {
    let condition = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
    for (pointer, value, status) in [
        ("/metadata/generation", json!(5), "Progressing"),
        ("/status/updatedReplicas", json!(1), "Progressing"),
        ("/status/replicas", json!(4), "Progressing"),
        ("/status/availableReplicas", json!(2), "Progressing"),
        ("/spec/paused", json!(true), "Suspended"),
        ("/status/conditions", condition, "Degraded"),
    ] {
        let (found, message) = health("apps_Deployment", &with(&deployment(), pointer, value.clone()));
        assert_eq!(found, status, "{pointer}");
        assert!(!message.is_empty(), "{pointer}");
        let held = with(&with(&deployment(), pointer, value), HOLD, json!(HELD));
        let (found, said) = health("apps_Deployment", &held);
        assert_eq!((found.as_str(), said), (status, format!("held at {HELD}: {message}")), "{pointer}");
    }
    for (phase, status) in [
        ("Degraded", "Degraded"),
        ("Paused", "Suspended"),
        ("Progressing", "Progressing"),
        ("other", "Progressing"),
    ] {
        assert_eq!(health("argoproj.io_Rollout", &with(&rollout(), "/status/phase", json!(phase))).0, status);
    }
}

#[test]
fn health_of_snapshots_shows_refusals() {
    let snapshot = json!({"metadata": {
        "name": HELD,
        "labels": {"app.kubernetes.io/managed-by": "confrev", "confrev.dev/source": "demo"},
        "annotations": {"confrev.dev/source-name": "demo"},
    }});
    let verdict =
        r#"{"failed":{"at":"2026-01-01T00:00:00Z","reason":"Deployment/web failed"},"promoted":"2"}"#;
    let refused = with(&snapshot, "/metadata/annotations/confrev.dev~1verdict", json!(verdict));
    let aborted = with(&snapshot, "/metadata/annotations/confrev.dev~1verdict", json!(r#"{"aborted":true}"#));
    let foreign = with(&refused, "/metadata/labels/app.kubernetes.io~1managed-by", json!("helm"));
    let healthy = ("Healthy".to_owned(), String::new());
    for kind in ["ConfigMap", "Secret"] {
        assert_eq!(health(kind, &snapshot), healthy, "{kind}");
        assert_eq!(health(kind, &aborted), healthy, "{kind}: no workload failed");
        assert_eq!(health(kind, &foreign), healthy, "{kind}: anyone may write this annotation");
        assert_eq!(health(kind, &json!({"metadata": {"name": "plain"}})), healthy, "{kind}");
        let expected = ("Degraded".to_owned(), "failed: Deployment/web failed".to_owned());
        assert_eq!(health(kind, &refused), expected, "{kind}");
    }
}

#[test]
fn health_of_sources_shows_their_change() {
    let source = json!({"metadata": {"name": "demo", "annotations": {"confrev.dev/report": "true"}}});
    let change = |phase: &str, gate: &str| {
        let gate = if gate.is_empty() { String::new() } else { format!(r#""gate":"{gate}","#) };
        format!(
            r#"{{"digest":"sha256:1","phase":"{phase}","moved":1,"of":3,{gate}"since":"2026-01-01T00:00:00Z"}}"#
        )
    };
    for kind in ["ConfigMap", "Secret"] {
        assert_eq!(health(kind, &source).0, "Progressing", "{kind}: it is not known yet");
        for (phase, gate, status, message) in [
            ("complete", "", "Healthy", ""),
            ("rolling", "", "Progressing", "rolling, 1 of 3 workloads have the content"),
            ("waiting", "wave", "Progressing", "waiting, 1 of 3 workloads have the content, gate wave"),
            (
                "waiting",
                "max-in-flight",
                "Progressing",
                "waiting, 1 of 3 workloads have the content, gate max-in-flight",
            ),
            ("waiting", "failed", "Degraded", "waiting, 1 of 3 workloads have the content, gate failed"),
            ("refused", "refused", "Degraded", "refused, 1 of 3 workloads have the content, gate refused"),
        ] {
            let said = with(&source, "/metadata/annotations/confrev.dev~1change", json!(change(phase, gate)));
            assert_eq!(health(kind, &said), (status.to_owned(), message.to_owned()), "{kind} {phase} {gate}");
        }
    }
}

#[test]
fn actions_are_offered_to_opted_in_workloads() {
    for (kind, object) in [("apps_Deployment", deployment()), ("argoproj.io_Rollout", rollout())] {
        let (discovery, scripts) = actions(kind);
        for (label, disabled) in [("true", false), ("false", true)] {
            let object = with(&object, "/metadata/labels/confrev.dev~1enabled", json!(label));
            let offered = run(&discovery, &object, None).unwrap();
            let offered = offered.as_object().unwrap();
            assert!(offered.keys().eq(scripts.keys()), "{kind}: {offered:?}");
            assert!(offered.values().all(|action| action["disabled"] == disabled), "{kind}: {offered:?}");
        }
        let plain = with(&object, "/metadata", json!({"name": "web"}));
        let offered = run(&discovery, &plain, None).unwrap();
        assert!(offered.as_object().unwrap().values().all(|action| action["disabled"] == true));
    }
}

#[test]
fn undo_writes_the_hold_and_unpin_ends_it() {
    for (kind, object) in [("apps_Deployment", deployment()), ("argoproj.io_Rollout", rollout())] {
        let (_, scripts) = actions(kind);
        let act =
            |name: &str, object: &Value, parameters: Value| run(&scripts[name], object, Some(&parameters));
        let held = act("undo", &object, json!({"snapshot": HELD})).unwrap();
        assert_eq!(held.pointer(HOLD), Some(&json!(HELD)), "{kind}");
        // Nothing else changes: the result is stored as a patch.
        assert_eq!(held["spec"], as_lua_has_it(&object["spec"]), "{kind}");
        assert!(act("undo", &object, json!({"snapshot": ""})).is_err(), "{kind}");
        assert!(act("undo", &object, json!({})).is_err(), "{kind}");

        let free = act("unpin", &held, json!({})).unwrap();
        assert_eq!(free.pointer(HOLD), None, "{kind}");
        let before = |object: &Value| {
            let mut annotations = object["metadata"]["annotations"].clone();
            annotations.as_object_mut().unwrap().remove("confrev.dev/hold");
            annotations
        };
        assert_eq!(free["metadata"]["annotations"], before(&held), "{kind}: only the hold is removed");
        // Without a hold, a new value of `roll` ends an undo or a pin.
        let rolled = act("unpin", &object, json!({})).unwrap();
        let roll = rolled["metadata"]["annotations"]["confrev.dev/roll"].as_str().unwrap().to_owned();
        assert!(roll.starts_with("unpin-20"), "{kind}: {roll}");
        let bare = with(&object, "/metadata", json!({"name": "web"}));
        assert_eq!(act("undo", &bare, json!({"snapshot": HELD})).unwrap().pointer(HOLD), Some(&json!(HELD)));
    }
}

/// The object after a round through Lua, whose numbers are all floating-point.
fn as_lua_has_it(value: &Value) -> Value {
    run("return obj", value, None).unwrap()
}

/// Argo CD loads no string library for these scripts, so the test must not either.
#[test]
fn interpreter_has_no_string_library() {
    for script in [
        "return {string.upper('a')}",
        "return {('a'):upper()}",
        "return {io.open('x')}",
        "return {os.execute('true')}",
    ] {
        assert!(run(script, &json!({}), None).is_err(), "{script}");
    }
    assert!(run("local os = require('os') return {os.date('!%Y')}", &json!({}), None).is_ok());
}
