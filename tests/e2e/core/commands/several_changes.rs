//! Changes of several sources at once, each in its own waves.

use confrev_controlplane::wait_for;
use serde_json::json;

use super::{Commands as _, windows::closed};
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Each source has an order of its own, and none waits for the other. A workload on hold takes no place in either.
#[test]
fn two_sources_with_waves_reach_all_workloads() {
    let _confrev = running();
    let world = World::new("several-changes");
    for source in ["demo", "other"] {
        world.set_config(source, "A");
        let settings = ["confrev.dev/waves=1, 2", "confrev.dev/bake=2s"];
        world.kubectl(&["annotate", &format!("configmap/{source}"), settings[0], settings[1]]).ok();
    }
    let loads = ["one", "two", "three", "four", "five"]
        .map(|name| Workload::new(Kind::Deployment, name, &["demo", "other"]).replicas(1));
    for load in &loads {
        world.apply(&load.manifest()).ok();
    }
    for load in &loads {
        world.wait_reads(load, "demo", &["A"]);
    }
    let [held, rest @ ..] = &loads;
    let hold = ["demo", "other"].map(|source| world.snapshot_name(source, "A")).join(", ");
    world.kubectl(&["annotate", &held.reference(), &format!("confrev.dev/hold={hold}")]).ok();
    world.wait_at_rest();

    world.set_config("demo", "B");
    world.set_config("other", "B");
    wait_for("both changes to reach all others", 3 * LIMIT, || {
        rest.iter().try_for_each(|load| {
            world.resolves_to(load, "demo", "B")?;
            world.resolves_to(load, "other", "B")
        })
    });
    world.resolves_to(held, "demo", "A").expect("it is on hold");
    world.confrev(&["wait", "deployment/two", "--complete", "--timeout=1m"]).ok();
    let listed = world.confrev(&["waves"]);
    assert_eq!(listed.stderr.trim(), "no change in waves is in progress", "{}", listed.stdout);
    assert!(world.confrev(&["waves", "demo"]).ok().contains("\nWAVE       complete\n"));

    // The reason names the window that keeps the next workload.
    world.kubectl(&["annotate", "configmap/demo", &format!("confrev.dev/window={}", closed())]).ok();
    world.set_config("demo", "C");
    wait_for("the reason", LIMIT, || {
        let shown = world.confrev_json(&["waves", "demo"]);
        let reason = text(&shown["reason"]);
        let is_shown = reason.contains(": outside the window of ConfigMap \"demo\"");
        expect(&(is_shown, shown["movedWorkloads"] == json!([])), &(true, true))
            .map_err(|_| format!("{shown}"))
    });
}

/// One source is not resolved yet, and waits for its wave. The other one has no limits.
#[test]
fn waiting_source_holds_no_other_one() {
    let _confrev = running();
    let world = World::new("several-waiting");
    world.set_config("other", "A");
    let first = Workload::new(Kind::Deployment, "first", &["demo"]).annotation("order", "-1");
    let second = Workload::new(Kind::Deployment, "second", &["demo", "other"]);
    for load in [&first, &second] {
        world.apply(&load.manifest()).ok();
    }
    world.wait_resolved(&second, "other", "A");
    let mut demo = config_map("demo", "A");
    demo["metadata"]["annotations"] = json!({"confrev.dev/waves": "1", "confrev.dev/bake": "1h"});
    world.apply(&demo).ok();
    world.wait_resolved(&first, "demo", "A");

    world.set_config("other", "B");
    world.wait_resolved(&second, "other", "B");
    assert_eq!(world.resolved(&second, "demo"), None, "its wave has not come");
    wait_for("the reason", LIMIT, || {
        let shown = world.confrev_json(&["status", "second"])[0]["sources"].clone();
        let of = |source: &str| shown.as_array()?.iter().find(|used| used["source"] == source).cloned();
        let reason = text(&of("ConfigMap/demo").unwrap_or_default()["reason"]);
        let other = text(&of("ConfigMap/other").unwrap_or_default()["state"]);
        expect(&(reason.contains("bakes until"), other.as_str()), &(true, "current"))
            .map_err(|_| format!("{shown}"))
    });
}
