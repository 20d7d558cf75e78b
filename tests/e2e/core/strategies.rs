//! Strategies of the installation: settings for sources that have none of their own.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::json;

use crate::any_kind::Load;
use crate::commands::Commands as _;
use crate::manifests;
use crate::rolls::moved_to;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Three workloads at rest, whose source has this content and no setting.
fn three(world: &World, content: &str) -> [Load; 3] {
    world.set_config("demo", content);
    let loads = ["one", "two", "three"].map(|name| Load::new("deployments", name, &["demo"]));
    let loads = loads.map(|load| load.spec(json!({"replicas": 1})));
    world.apply(&manifests::list(&loads.each_ref().map(|load| load.manifest.clone()))).ok();
    for load in &loads {
        load.wait_reads(world, "demo", &[content]);
    }
    world.wait_at_rest();
    loads
}

/// The source chooses, or its namespace. In the first wave, one workload moves.
#[test]
fn strategy_applies_where_source_sets_nothing() {
    let _confrev = running();
    let world = World::new("strategies");
    world.annotate_namespace("confrev.dev/strategy=careful");
    let loads = three(&world, "A");
    let moves = |content: &'static str, count: usize| {
        let moved = || expect(&moved_to(&world, &loads, content).len(), &count);
        wait_for("the workloads to move", LIMIT, moved);
        holds_for("the others", Duration::from_secs(3), moved);
    };
    let source = |setting: &str| {
        world.kubectl(&["annotate", "--overwrite", "configmap/demo", setting]).ok();
    };

    world.set_config("demo", "B");
    moves("B", 1);
    let waves = world.confrev_json(&["waves", "demo"]);
    assert_eq!((text(&waves["strategy"]), &waves["limit"]), ("careful".to_owned(), &json!(1)), "{waves}");
    let status = world.confrev_json(&["status"]);
    assert_eq!(status[0]["sources"][0]["strategy"], "careful", "{status}");
    for command in [&["waves"][..], &["status", "-o", "wide"]] {
        let table = world.confrev(command).ok();
        assert!(table.contains("STRATEGY") && table.contains("careful"), "{table}");
    }

    // Its own choice comes before that of its namespace, and its own settings before those of a strategy.
    source("confrev.dev/strategy=immediate");
    moves("B", 3);
    world.set_config("demo", "C");
    moves("C", 3);
    source("confrev.dev/strategy-");
    source("confrev.dev/waves=2");
    world.set_config("demo", "D");
    moves("D", 2);
    source("confrev.dev/waves-");
    world.annotate_namespace("confrev.dev/strategy=immediate");
    moves("D", 3);
}

/// The webhook refuses it on a source. On a Namespace, which has no webhook, it holds all changes.
#[test]
fn unknown_strategy_moves_nothing_until_corrected() {
    let _confrev = running();
    let world = World::new("strategy-unknown");
    world.annotate_namespace("confrev.dev/strategy=carefull");
    let loads = three(&world, "A");
    world.set_config("demo", "B");
    let moved = |count: usize| expect(&moved_to(&world, &loads, "B").len(), &count);
    let events = || world.cluster.list("events", world.name(), "");
    let event = wait_for("an Event", LIMIT, || {
        let event = events().into_iter().find(|event| event["reason"] == "SettingInvalid");
        event.ok_or("no Event")
    });
    let unknown = "the installation has no strategy \"carefull\"";
    assert!(text(&event["message"]).contains(unknown), "{event}");
    holds_for("the hold", Duration::from_secs(3), || moved(0));
    let status = world.confrev_json(&["status"]);
    assert!(text(&status[0]["sources"][0]["reason"]).contains(unknown), "{status}");
    world.annotate_namespace("confrev.dev/strategy-");
    wait_for("all workloads to move", LIMIT, || moved(3));

    let refusal = world.kubectl(&["annotate", "configmap/demo", "confrev.dev/strategy=carefull"]).refused();
    assert!(refusal.contains(unknown), "{refusal}");
}
