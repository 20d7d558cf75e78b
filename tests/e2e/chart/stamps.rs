//! Another part of admission that writes another value into a template at each write, as a webhook that stamps the time. It must
//! leave out confrev's own writes, and the refusal says so.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT, apply, reads, web};

const PLACE: &str = "stamped";
const STAMP: &str = "stamp";

/// A policy that changes the template of each Deployment at each write, under these conditions.
fn policy(conditions: &Value) -> [Value; 2] {
    let rule = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"],
    });
    let stamp = "Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{\
                 annotations: {\"stamp\": object.metadata.resourceVersion}}}}}";
    let spec = json!({
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": conditions,
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": stamp}}],
    });
    let object = |kind: &str, spec: Value| {
        let version = "admissionregistration.k8s.io/v1";
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": STAMP}, "spec": spec})
    };
    let binding = object("MutatingAdmissionPolicyBinding", json!({"policyName": STAMP}));
    [object("MutatingAdmissionPolicy", spec), binding]
}

#[test]
fn stamps_of_another_webhook_must_exclude_confrev() {
    let bare = Bare::new();
    let policies = ["get", "mutatingadmissionpolicies.v1.admissionregistration.k8s.io"];
    if !bare.cluster.kubectl(&policies).run().status.success() {
        eprintln!("skipped: this version of Kubernetes has no MutatingAdmissionPolicy of version v1");
        return;
    }
    let (_program, _) = bare.running();
    bare.cluster.kubectl(&["delete", "namespace", PLACE, "--ignore-not-found"]).run().ok();
    bare.cluster.kubectl(&["create", "namespace", PLACE]).run().ok();
    apply(&bare, PLACE, &web("app:1", "A")).ok();
    let at_a = reads(&bare, PLACE);
    assert!(at_a.starts_with("demo-"), "{at_a}");
    let put = |conditions: Value| {
        for object in policy(&conditions) {
            bare.cluster.kubectl(&["apply", "--filename", "-"]).stdin(object).run().ok();
        }
    };
    put(json!([]));
    wait_for("the policy to stamp", LIMIT, || {
        bare.cluster
            .kubectl(&["annotate", "deployment/web", "touch=1", "--overwrite", "--namespace", PLACE])
            .run()
            .ok();
        let live = bare.cluster.get("deployment", PLACE, "web").expect("the Deployment exists");
        live["spec"]["template"]["metadata"]["annotations"][STAMP].as_str().map(str::to_owned)
    });

    // An apply of the Deployment would move it too.
    apply(&bare, PLACE, &web("app:1", "B")["items"][0]).ok();
    let told = wait_for("an Event about the refusal", LIMIT, || {
        let events = bare.cluster.list("events.k8s.io/v1/events", PLACE, "");
        let refused = events.into_iter().find(|event| event["reason"] == "RollRefused");
        refused.map(|event| event["note"].as_str().unwrap_or_default().to_owned())
    });
    assert!(told.contains("another webhook changes the workload in the same write"), "{told}");
    assert!(told.contains("'confrev-self'"), "{told}");
    assert_eq!(reads(&bare, PLACE), at_a, "the roll was refused");

    let other_user = "request.userInfo.username != 'system:serviceaccount:confrev:confrev'";
    put(json!([{"name": "not-confrev", "expression": other_user}]));
    wait_for("the roll", LIMIT, || if reads(&bare, PLACE) == at_a { Err(at_a.clone()) } else { Ok(()) });
    for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
        bare.cluster.kubectl(&["delete", kind, STAMP]).run().ok();
    }
}
