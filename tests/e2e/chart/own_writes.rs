//! Writes by the controllers of workloads: the API server sends none that changes no reference, so they need no confrev.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::empty_cluster::{Bare, LIMIT};

/// Argo's controller writes the whole Rollout at each revision, as its types write quantities and defaults. Nothing serves the
/// webhook here.
#[test]
fn argo_writes_its_notation_without_admission() {
    let bare = Bare::new();
    let namespace = bare.cluster.namespace("own-writes");
    let variable = |divisor: Value| json!({"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": divisor}}});
    let template = |source: &str, size: &str, divisor: Value| {
        json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{"name": "app", "image": "app:1", "env": [
                    variable(divisor),
                    {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "text"}}},
                ]}],
                "volumes": [
                    {"name": "scratch", "emptyDir": {"sizeLimit": size}},
                    {"name": "config", "configMap": {"name": source}},
                ],
            },
        })
    };
    let rollout = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout",
        "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"canary": {}},
            "template": template("demo", "64Mi", Value::Null),
        },
    });
    bare.cluster.create("rollouts", namespace.name(), &rollout);
    bare.install(&[]);
    let write = |template: &Value| {
        let annotations = json!({"rollout.argoproj.io/revision": "9"});
        let change =
            json!({"metadata": {"annotations": annotations}, "spec": {"template": template}}).to_string();
        let patch = ["patch", "rollout", "web", "--type=merge", "--dry-run=server", "--patch", &change];
        bare.cluster.kubectl(&patch).arg("--namespace").arg(namespace.name()).run()
    };
    let of_argo = template("demo", "65536Ki", json!("0"));
    wait_for("the webhook to be called", LIMIT, || {
        let output = write(&template("other", "64Mi", Value::Null));
        if output.status.success() { Err(output.to_string()) } else { Ok(()) }
    });
    let output = write(&of_argo);
    assert!(output.status.success(), "{output}");
}
