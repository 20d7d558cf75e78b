//! `migrate`: what other tools roll comes to confrev, without a restart or with one.

use serde_json::{Value, json};

use super::Commands as _;
use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{World, each_kind, text};

const AUTO: &str = "reloader.stakater.com/auto";

/// A workload that Reloader has restarted once.
fn of_reloader(kind: Kind, name: &str, annotations: &Value) -> (Workload, Value) {
    let workload = Workload::new(kind, name, &["demo", "other"]).enabled(None);
    let mut manifest = workload.manifest();
    manifest["metadata"]["annotations"] = annotations.clone();
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    let left = json!({"name": "STAKATER_DEMO_CONFIGMAP", "value": "6f3d"});
    match container["env"].as_array_mut() {
        Some(variables) => variables.push(left),
        None => container["env"] = json!([left]),
    }
    (workload, manifest)
}

/// A write that changes no template restarts nothing, and the next deployment follows what the tool followed.
#[test]
fn migrate_keeps_what_a_tool_followed_without_restart() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::labelled("migrate", &[("confrev.dev/enabled", "next")]);
        world.set_config("demo", "A");
        world.set_config("other", "A");
        let named = json!({
            "configmap.reloader.stakater.com/reload": "demo",
            "deployment.reloader.stakater.com/pause-period": "5m",
        });
        // It is created before the namespace opts in with the next deployment.
        world.cluster.kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled-"]).run().ok();
        let (web, manifest) = of_reloader(kind, "web", &named);
        world.apply(&manifest).ok();
        world.wait_reads(&web, "demo", &["A"]);
        world.wait_at_rest();
        world.cluster.kubectl(&["label", "namespace", world.name(), "confrev.dev/enabled=next"]).run().ok();
        let before = world.versions();
        let rows = world.confrev_json(&["migrate", "--from", "reloader"]);
        let becomes: Vec<_> =
            rows.as_array().expect("a list").iter().map(|row| text(&row["becomes"])).collect();
        let interval = match kind {
            Kind::Deployment => "confrev.dev/min-interval: 5m",
            Kind::Rollout => "nothing: Reloader does not use it",
        };
        let expected = ["opted in; confrev.dev/exclude: other", interval, "stays; --opt-in removes it"];
        assert_eq!(becomes, expected);
        assert_eq!(world.versions(), before, "nothing was written");

        let (spec, sets) = (world.live(&web)["spec"].clone(), world.replica_sets(&web).len());
        world.confrev(&["migrate", "--yes"]).ok();
        let live = world.live(&web);
        assert_eq!((&live["spec"], world.replica_sets(&web).len()), (&spec, sets), "nothing restarts");
        assert_eq!(live["metadata"]["annotations"]["confrev.dev/exclude"], "other");
        let interval = &live["metadata"]["annotations"]["confrev.dev/min-interval"];
        assert_eq!(*interval == "5m", kind == Kind::Deployment, "{interval}");
        assert!(live["metadata"]["annotations"]["configmap.reloader.stakater.com/reload"].is_null());
        let again = world.confrev_json(&["migrate"]);
        assert_eq!(again.as_array().map(Vec::len), Some(1), "the variable is left: {again}");

        world.set_image(&web, "app:2").ok();
        world.wait_resolved(&web, "demo", "A");
        assert_eq!(world.resolved(&web, "other"), None, "Reloader did not follow it");
    });
}

#[test]
fn migrate_with_opt_in_restarts_each_workload_once() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("migrate-opt-in");
        world.set_config("demo", "A");
        world.set_config("other", "A");
        let (web, manifest) = of_reloader(kind, "web", &json!({AUTO: "true"}));
        let (left, alone) = of_reloader(kind, "left", &json!({AUTO: "false"}));
        for (workload, manifest) in [(&web, manifest), (&left, alone)] {
            world.apply(&manifest).ok();
            world.wait_reads(workload, "demo", &["A"]);
        }
        world.wait_at_rest();
        let said = world.confrev(&["migrate", "--yes", "--opt-in"]);
        assert!(said.stderr.contains("migrated: 2 workloads"), "{said:?}");
        world.wait_resolved(&web, "demo", "A");
        world.wait_resolved(&web, "other", "A");
        world.wait_at_rest();
        assert_eq!(world.replica_sets(&web).len(), 2, "it restarted once");
        assert!(!world.live(&web)["spec"].to_string().contains("STAKATER"), "the variable is removed");
        let alone = world.live(&left);
        assert_eq!(alone["metadata"]["labels"]["confrev.dev/enabled"], "false");
        assert_eq!(alone["metadata"]["annotations"][AUTO], "false");
        assert_eq!(world.replica_sets(&left).len(), 1, "it does not restart");
    });
}

/// A write that would restart pods is not made, nor one after which no tool would roll the workload. They stop no other one.
#[test]
fn migrate_names_workloads_that_stay_as_they_are() {
    let _confrev = running();
    let world = World::new("migrate-restart");
    world.set_config("demo", "A");
    world.set_config("other", "A");
    let only = json!({"configmap.reloader.stakater.com/reload": "demo"});
    let (_, mut restarting) = of_reloader(Kind::Deployment, "restarting", &only);
    let (_, mut known) = of_reloader(Kind::Deployment, "known", &json!({AUTO: "true"}));
    for manifest in [&mut restarting, &mut known] {
        manifest["metadata"]["labels"]["confrev.dev/enabled"] = "true".into();
    }
    let (_, alone) = of_reloader(Kind::Deployment, "alone", &only);
    for manifest in [&restarting, &known, &alone] {
        world.apply(manifest).ok();
    }
    for name in ["restarting", "known"] {
        world.wait_resolved(&Workload::new(Kind::Deployment, name, &["demo", "other"]), "other", "A");
    }
    world.wait_at_rest();
    let said = world.confrev(&["migrate", "--yes"]);
    assert_eq!(said.code, 1, "{said:?}");
    let migrated = format!("Deployment/known in namespace {} migrated\n", world.name());
    assert_eq!(said.stdout, migrated, "{said:?}");
    for (name, why) in [("restarting", "its settings would restart pods"), ("alone", "no tool would roll it")]
    {
        let place = format!("Deployment/{name} in namespace {} stays as it is: ", world.name());
        assert!(said.stderr.contains(&place) && said.stderr.contains(why), "{said:?}");
    }
    assert!(said.stderr.contains("error: not migrated: 2 workloads;"), "{said:?}");
}

#[test]
fn migrate_prints_manifests_as_they_become() {
    let _confrev = running();
    let world = World::new("migrate-files");
    let (_, manifest) = of_reloader(Kind::Rollout, "web", &json!({AUTO: "true"}));
    let file = world.cluster.state_dir().join(format!("{}.json", world.name()));
    std::fs::write(&file, manifest.to_string()).expect("the state folder can be written");
    let path = file.display().to_string();
    let table = world.confrev(&["migrate", "-f", &path]).ok();
    assert!(table.contains("Rollout/web") && table.contains("opted in"), "{table}");
    let printed = world.confrev_json(&["migrate", "-f", &path, "--opt-in"]);
    let becomes = &printed["items"][0];
    assert_eq!(becomes["metadata"]["labels"]["confrev.dev/enabled"], "true");
    assert!(!becomes.to_string().contains("STAKATER") && !becomes.to_string().contains(AUTO), "{becomes}");
    world.set_config("demo", "A");
    world.set_config("other", "A");
    world.apply(becomes).ok();
    world.wait_resolved(&Workload::new(Kind::Rollout, "web", &["demo", "other"]), "demo", "A");
}
