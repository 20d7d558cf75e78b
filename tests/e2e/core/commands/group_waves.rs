//! `waves` for a change that is in several namespaces: each of them shows all of it, and decides about all of it.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::{Value, json};

use super::Commands as _;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Two namespaces of a group, in the order of their names. The group has the name of one of them.
pub(super) fn group(prefix: &str) -> ([World; 2], String) {
    let mut worlds: [World; 2] = World::group(prefix, 2).try_into().ok().expect("two");
    let name = worlds[0].name().to_owned();
    worlds.sort_by(|a, b| a.name().cmp(b.name()));
    (worlds, name)
}

/// The workloads pause in the middle of their rollouts, so no wave proves healthy by itself.
#[test]
fn decisions_reach_all_namespaces_of_a_group() {
    let _confrev = running();
    let (worlds, group) = group("group-waves");
    let loads =
        ["one", "two"].map(|name| Workload::new(Kind::Rollout, name, &["demo"]).replicas(2).pausing());
    for world in &worlds {
        world.set_config("demo", "A");
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/waves=1, 2"]).ok();
        for load in &loads {
            world.apply(&load.manifest()).ok();
        }
    }
    for world in &worlds {
        for load in &loads {
            world.wait_reads(load, "demo", &["A", "A"]);
        }
        world.wait_at_rest();
    }
    for world in &worlds {
        world.set_config("demo", "B");
    }
    let has_moved = |world: &World, load: &Workload| world.resolves_to(load, "demo", "B").is_ok();
    let on = || {
        let all = worlds.iter().flat_map(|world| loads.iter().map(move |load| (world, load)));
        all.filter(|(world, load)| has_moved(world, load)).count()
    };
    wait_for("the first wave", LIMIT, || expect(&on(), &1));
    let b = worlds[0].snapshot_name("demo", "B");
    for world in &worlds {
        wait_for("the progress of the first wave", LIMIT, || {
            let shown = world.confrev_json(&["waves", "demo"]);
            let fields = ["group", "namespace", "snapshot", "wave", "waves", "limit", "moved", "workloads"];
            let wanted = json!([group, world.name(), b, 1, 3, 1, 1, 4]);
            expect(&json!(fields.map(|key| &shown[key])), &wanted)?;
            let rolling = text(&shown["rolling"][0]);
            let is_own = loads.iter().any(|load| has_moved(world, load));
            expect(&rolling.starts_with("Rollout/"), &is_own)?;
            let reason = text(&shown["reason"]);
            if reason.contains("not healthy yet") { Ok(()) } else { Err(reason) }
        });
        let waiting = loads.iter().find(|load| !has_moved(world, load)).expect("one waits");
        let status = world.confrev(&["status", &waiting.name]).ok();
        let says = ["in the group", "not healthy yet"].iter().any(|part| status.contains(part));
        assert!(says && !status.contains("others come first"), "{status}");
    }

    let [first, second] = &worlds;
    let said = second.confrev(&["waves", "promote", "demo"]).ok();
    assert_eq!(said, format!("ConfigMap/demo: wave 2 of 3 of {b} begins now, in 2 namespaces\n"));
    wait_for("the second wave", LIMIT, || expect(&on(), &2));
    let said = first.confrev(&["waves", "abort", "demo"]).ok();
    assert_eq!(said, format!("ConfigMap/demo: no further workload moves to {b}, in 2 namespaces\n"));
    let stopped = second.confrev(&["waves", "promote", "demo"]).failed(1);
    assert!(stopped.contains("is aborted, so no workload moves to it"), "{stopped}");
    holds_for("the aborted change", Duration::from_secs(3), || expect(&on(), &2));
    for world in &worlds {
        let shown = world.confrev_json(&["waves", "demo"]);
        let reason = text(&shown["reason"]);
        assert!(shown["aborted"] == true && reason.starts_with("aborted; to continue"), "{shown}");
    }
    let said = second.confrev(&["waves", "retry", "demo"]).ok();
    assert_eq!(said, format!("ConfigMap/demo: {b} moves on in waves, in 2 namespaces\n"));
    first.confrev(&["waves", "promote", "demo"]).ok();
    wait_for("the rest", LIMIT, || expect(&on(), &4));
    // A namespace with other content is a change of its own.
    first.set_config("demo", "C");
    wait_for("the change of one namespace", LIMIT, || {
        let shown = [first, second].map(|world| world.confrev_json(&["waves", "demo"])["workloads"].clone());
        expect(&shown, &[json!(2), json!(2)])
    });
    holds_for("the other namespace", Duration::from_secs(3), || {
        loads.iter().try_for_each(|load| second.resolves_to(load, "demo", "B"))
    });
}

/// The content bakes in another namespace of the group.
#[test]
fn impact_counts_other_namespaces_of_the_group() {
    let _confrev = running();
    let ([first, second], _) = group("group-impact");
    let load = Workload::new(Kind::Deployment, "web", &["demo"]);
    let with = |content: &str| {
        let mut object = config_map("demo", content);
        object["metadata"]["annotations"] = json!({"confrev.dev/waves": "1", "confrev.dev/bake": "1h"});
        object
    };
    for world in [&first, &second] {
        world.apply(&with("A")).ok();
        world.apply(&load.manifest()).ok();
    }
    for world in [&first, &second] {
        world.wait_resolved(&load, "demo", "A");
        world.wait_at_rest();
    }
    let file = second.file("b.yaml", &with("B").to_string());
    assert_eq!(second.confrev_json(&["impact", "-f", &file])[0]["delay"], Value::Null, "it may be the first");
    first.apply(&with("B")).ok();
    first.wait_resolved(&load, "demo", "B");
    wait_for("the bake time in the other namespace", LIMIT, || {
        let impact = second.confrev_json(&["impact", "-f", &file]);
        let delay = text(&impact[0]["delay"]);
        if impact[0]["rolls"] == true && delay.contains("bakes until") { Ok(()) } else { Err(impact) }
    });
}

/// The source of this namespace has no settings, but that of the other namespace has.
#[test]
fn strictest_source_of_group_decides_in_impact() {
    let _confrev = running();
    let ([first, second], _) = group("group-limit");
    let loads = ["one", "two"].map(|name| Workload::new(Kind::Deployment, name, &["demo"]));
    second.set_config("demo", "A");
    for load in &loads {
        second.apply(&load.manifest()).ok();
    }
    for load in &loads {
        second.wait_resolved(load, "demo", "A");
    }
    let mut limited = config_map("demo", "B");
    limited["metadata"]["annotations"] = json!({"confrev.dev/max-in-flight": "1"});
    let file = second.file("b.yaml", &config_map("demo", "B").to_string());
    let delays = || {
        let impact = second.confrev_json(&["impact", "-f", &file]);
        impact.as_array().into_iter().flatten().map(|effect| text(&effect["delay"])).collect::<Vec<_>>()
    };
    assert_eq!(delays(), [""; 2], "nothing limits the change");
    first.apply(&limited).ok();
    assert_eq!(delays(), ["at most 1 workload rolls at once (max-in-flight)"; 2]);
}
