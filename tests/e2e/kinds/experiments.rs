//! Experiments and analyses within a canary.

use std::collections::BTreeSet;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{Load, owners};
use crate::manifests::config_map;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, name_of, snapshot_of, text};

/// The template names of an Experiment's ReplicaSets, each with the content that its pods read.
fn of_experiments(world: &World) -> BTreeSet<(String, String)> {
    let pods = world.cluster.ready_pods(world.name(), "");
    let sets = world.cluster.list("replicasets", world.name(), "");
    let experiments = sets.iter().filter(|set| owners(set).iter().any(|o| o.starts_with("Experiment/")));
    experiments
        .flat_map(|set| {
            let template = text(&set["metadata"]["annotations"]["experiment.argoproj.io/template-name"]);
            let of_set = format!("ReplicaSet/{}", name_of(set));
            pods.iter()
                .filter(move |pod| owners(pod).contains(&of_set))
                .map(move |pod| (template.clone(), world.pod_reads(pod, "demo")))
        })
        .collect()
}

fn pair(template: &str, text: &str) -> (String, String) {
    (template.to_owned(), text.to_owned())
}

#[test]
fn experiment_keeps_snapshots_of_both_contents() {
    let _confrev = running();
    let world = World::new("experiment");
    // A separate label for each, so that their ReplicaSets differ from the Rollout's.
    let template = |name: &str| json!({"name": name, "specRef": name, "metadata": {"labels": {"run": name}}});
    let web = Load::new("rollouts", "web", &["demo"]).spec(json!({
        "replicas": 1,
        // Without a history, only the Experiment uses the previous content.
        "revisionHistoryLimit": 0,
        "strategy": {"canary": {"steps": [
            {"experiment": {"templates": [template("stable"), template("canary")]}},
            {"pause": {}},
        ]}},
    }));
    world.set_config("demo", "A");
    web.apply(&world).ok();
    web.wait_reads(&world, "demo", &["A"]);

    world.set_config("demo", "B");
    let both = BTreeSet::from([pair("stable", "A"), pair("canary", "B")]);
    wait_for("the Experiment's pods", LIMIT, || expect(&of_experiments(&world), &both));
    let bound = |text: &str| -> BTreeSet<String> {
        let snapshots = world.snapshots();
        let snapshot = snapshots.iter().find(|snapshot| snapshot["data"]["text"] == text);
        snapshot.map(owners).unwrap_or_default()
    };
    let sets = || -> Vec<Value> {
        let mut sets = world.cluster.list("replicasets", world.name(), "");
        sets.retain(|set| owners(set).iter().any(|owner| owner.starts_with("Experiment/")));
        sets
    };
    wait_for("the Experiment's ReplicaSets to own the snapshots", LIMIT, || {
        let missing = sets().into_iter().find(|set| {
            let name = snapshot_of(&set["spec"]["template"], "demo").expect("the template names a snapshot");
            let content = if name == world.snapshot_name("demo", "A") { "A" } else { "B" };
            !bound(content).contains(&format!("ReplicaSet/{}", name_of(set)))
        });
        missing.map_or(Ok(()), |set| Err(format!("{} does not", name_of(&set))))
    });
    // Even if the source and the pods are deleted.
    world.delete("configmap", "demo");
    for pod in world.cluster.ready_pods(world.name(), "run") {
        world.delete("pod", &name_of(&pod));
    }
    // Longer than unowned snapshots are kept.
    holds_for("the snapshots", Duration::from_secs(7), || expect(&world.snapshot_texts("demo"), &["A", "B"]));
    wait_for("the Experiment's pods again", LIMIT, || expect(&of_experiments(&world), &both));
}

/// An AnalysisTemplate whose metric is a Job that reads the ConfigMap.
fn analysis(name: &str, labels: &Value) -> Value {
    let pods = json!({"metadata": {"labels": {"run": name}}, "spec": {
        "restartPolicy": "Never",
        "containers": [{
            "name": "app", "image": "app:1",
            "volumeMounts": [{"name": "demo", "mountPath": "/demo"}],
        }],
        "volumes": [{"name": "demo", "configMap": {"name": "demo"}}],
    }});
    let job = json!({"metadata": {"labels": labels}, "spec": {"backoffLimit": 0, "template": pods}});
    json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": name},
        "spec": {"metrics": [{"name": name, "count": 1, "provider": {"job": job}}]},
    })
}

#[test]
fn analysis_job_resolves_only_with_own_label() {
    let _confrev = running();
    let world = World::new("analysis");
    world.apply(&analysis("opted-in", &json!({"confrev.dev/enabled": "true"}))).ok();
    world.apply(&analysis("plain", &json!({}))).ok();
    let step = |name: &str| json!({"analysis": {"templates": [{"templateName": name}]}});
    let web = Load::new("rollouts", "web", &["demo"]).spec(json!({
        "replicas": 1,
        "strategy": {"canary": {"steps": [step("opted-in"), step("plain"), {"pause": {}}]}},
    }));
    world.set_config("demo", "A");
    web.apply(&world).ok();
    web.wait_reads(&world, "demo", &["A"]);
    assert!(world.cluster.list("jobs", world.name(), "").is_empty());

    world.apply(&config_map("demo", "B")).ok();
    let job = |run: &str| {
        let mut jobs = world.cluster.list("jobs", world.name(), "");
        jobs.retain(|job| job["spec"]["template"]["metadata"]["labels"]["run"] == run);
        jobs.pop()
    };
    let volume = |job: &Value| text(&job["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]);
    let opted_in = wait_for("the first analysis", LIMIT, || job("opted-in"));
    assert_eq!(volume(&opted_in), world.snapshot_name("demo", "B"));
    let owner = format!("Job/{}", name_of(&opted_in));
    wait_for("the Job to own the snapshot", LIMIT, || {
        let name = world.snapshot_name("demo", "B");
        let owners = owners(&world.cluster.get("configmap", world.name(), &name).expect("the object exists"));
        if owners.contains(&owner) { Ok(()) } else { Err(format!("{owners:?}")) }
    });
    let plain = wait_for("the second analysis", LIMIT, || job("plain"));
    assert_eq!(volume(&plain), "demo");

    // confrev neither starts nor ends these Jobs.
    let names = || world.cluster.list("jobs", world.name(), "").iter().map(name_of).collect::<BTreeSet<_>>();
    let two = BTreeSet::from([name_of(&opted_in), name_of(&plain)]);
    holds_for("two Jobs", Duration::from_secs(3), || expect(&names(), &two));
}
