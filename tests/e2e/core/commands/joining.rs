//! `impact --opt-in`: it names the workloads that roll when the namespace opts in, and no others.

use serde_json::{Value, json};

use super::Commands as _;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{World, text};

#[test]
fn impact_of_opt_in_names_what_rolls() {
    let _confrev = running();
    let world = World::new("impact-opt-in");
    let apart =
        |kind, name: &str, sources: &[&str]| Workload::new(kind, name, sources).replicas(0).enabled(None);
    let web = apart(Kind::Deployment, "web", &["demo", "other"]);
    let canary = apart(Kind::Rollout, "canary", &["demo"]).pausing();
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"suspend": true, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "demo"}}]}],
        }}},
    });
    let mut nightly = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 3 * * *", "suspend": true, "jobTemplate": {}},
    });
    nightly["spec"]["jobTemplate"]["spec"] = json!({"template": job["spec"]["template"]});
    world.set_config("demo", "A");
    world.set_config("other", "AB");
    for manifest in [
        web.manifest(),
        apart(Kind::Deployment, "plain", &[]).manifest(),
        Workload::new(Kind::Deployment, "not", &["demo"]).enabled(Some("false")).manifest(),
        canary.manifest(),
        job,
        nightly,
    ] {
        world.apply(&manifest).ok();
    }
    let before = world.versions();
    let found = world.confrev_json(&["impact", "--opt-in", world.name()]);
    let row = |row: &Value| (text(&row["workload"]), row["rolls"] == true, text(&row["why"]));
    let rows: Vec<_> = found.as_array().expect("a list").iter().map(row).collect();
    assert_eq!(
        rows.iter().map(|(workload, rolls, why)| (&**workload, *rolls, &**why)).collect::<Vec<_>>(),
        [
            ("CronJob/nightly", false, "its next run uses the snapshots"),
            ("Deployment/plain", false, "it uses no ConfigMap that would get a snapshot"),
            ("Deployment/web", true, "its references get the names of snapshots"),
            ("Job/once", false, "a stored Job never changes"),
            ("Rollout/canary", true, "its rollout pauses until a person promotes it"),
        ]
    );
    assert_eq!(found[2]["sources"], json!(["ConfigMap/demo", "ConfigMap/other"]));
    let said = world.confrev(&["impact", "--opt-in", world.name()]);
    assert!(said.stderr.contains("2 of 5 would roll; confrev would store 2 snapshots of "), "{said:?}");
    assert_eq!(world.versions(), before, "nothing was written");

    // It was the truth.
    world.cluster.kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled=true"]).run().ok();
    for workload in [&web, &canary] {
        world.wait_resolved(workload, "demo", "A");
    }
    world.wait_at_rest();
    for name in ["plain", "not"] {
        let live = world.cluster.get("deployment", world.name(), name).expect("the object exists");
        assert_eq!(live["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1", "{name}");
    }
    let missing = world.confrev(&["impact", "--opt-in", "no-such"]).failed(1);
    assert_eq!(missing, "error: namespace \"no-such\" does not exist");
}
