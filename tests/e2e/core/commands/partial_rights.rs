//! Users who may read a part: the answer has that part, and a warning names the rest.

use confrev_controlplane::wait_for;
use serde_json::json;

use super::Commands as _;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{LIMIT, World};

#[test]
fn reader_of_deployments_sees_no_rollouts() {
    let _confrev = running();
    let world = World::new("partial");
    world.set_config("demo", "A");
    for (kind, name) in [(Kind::Deployment, "web"), (Kind::Rollout, "shop")] {
        let labelled = Workload::new(kind, name, &["demo"]).replicas(0);
        world.apply(&labelled.manifest()).ok();
    }
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "some"}, "rules": [
        {"apiGroups": ["apps"], "resources": ["deployments", "replicasets"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
    ]});
    world.apply(&role).ok();
    world.kubectl(&["create", "rolebinding", "some", "--role=some", "--user=partial"]).ok();
    let run = |arguments: &[&str]| world.confrev(&[arguments, &["--as=partial"]].concat());
    let said = wait_for("the right to read", LIMIT, || {
        let said = run(&["status"]);
        if said.code == 0 { Ok(said) } else { Err(said.stderr) }
    });
    assert!(said.stdout.contains("Deployment/web") && !said.stdout.contains("Rollout/shop"), "{said:?}");
    assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    for part in ["warning: you may not list ", "pods", "rollouts.argoproj.io", "left out of the answer"] {
        assert!(said.stderr.contains(part), "{part}: {said:?}");
    }
    for line in [&["tree", "web"][..], &["history", "demo"], &["impact", "demo"], &["wait", "deployment/web"]]
    {
        let said = run(line);
        assert!(said.code == 0 && said.stderr.contains("rollouts.argoproj.io"), "{line:?}: {said:?}");
    }
    // A kind that is not installed is not missing, though the API server refuses its list too.
    let said = run(&["status", "--kind=none.example.com/v1/foos/Foo=spec.template"]);
    assert!(said.code == 0 && !said.stderr.contains("foos"), "{said:?}");
    // A part would mislead.
    for line in [&["wait", "configmap/demo"][..], &["undo", "web"], &["wait", "-l", "app=web"]] {
        let refusal = run(line).failed(1);
        assert!(
            refusal.contains("you may not list") && refusal.contains("incomplete"),
            "{line:?}: {refusal}"
        );
    }
    assert!(run(&["prune"]).failed(1).contains("cannot list"));
    let refusal = run(&["pin", "shop", "demo", "~0"]).failed(1);
    assert!(
        refusal.contains("no opted-in workload \"shop\"") && refusal.contains("you may not list"),
        "{refusal}"
    );
}

#[test]
fn labels_select_workloads() {
    let _confrev = running();
    let world = World::new("selector");
    world.set_config("demo", "A");
    for name in ["web", "shop"] {
        let mut object = Workload::new(Kind::Deployment, name, &["demo"]).replicas(0).manifest();
        object["metadata"]["labels"]["team"] = json!(name);
        world.apply(&object).ok();
    }
    let names = |selector: &str| world.confrev(&["status", "-o", "name", "-l", selector]).ok();
    assert_eq!(names("team=web"), "deployment/web\n");
    assert_eq!(names("team in (web, shop)"), "deployment/shop\ndeployment/web\n");
    let said = world.confrev(&["status", "--selector=team=none"]);
    assert!(said.stderr.contains("no opted-in workloads with labels team=none in namespace"), "{said:?}");
    assert!(world.confrev(&["wait", "-l", "team=shop"]).ok().contains("1 workload runs"));
}
