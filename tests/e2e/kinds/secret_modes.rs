//! Sources that change their mode.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::rolls::roll_time;
use crate::shared::running;
use crate::world::{LIMIT, World, expect};
use confrev_controlplane::{holds_for, wait_for};

fn secret(mode: Option<&str>) -> Value {
    let labels = mode.map_or(json!({}), |mode| json!({"confrev.dev/enabled": mode}));
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
           "metadata": {"name": "db", "labels": labels}, "stringData": {"text": "A"}})
}

/// The name in the template's volume.
fn named(world: &World, web: &Load) -> String {
    let live = web.live(world);
    live["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].as_str().unwrap().to_owned()
}

#[test]
fn snapshot_comes_back_when_mode_is_taken_off() {
    let _confrev = running();
    let world = World::new("live-off");
    world.apply(&secret(Some("live"))).ok();
    let mut web = Load::new("deployments", "web", &[]).annotation("secrets", "true");
    web.manifest["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "s", "secret": {"secretName": "db"}}]);
    web.apply(&world).ok();
    world.wait_at_rest();
    assert_eq!(named(&world, &web), "db");
    let revisions = || world.cluster.list("replicasets", world.name(), "app=web").len();
    let before = revisions();
    world.apply(&secret(None)).ok();
    wait_for("the snapshot to come back", LIMIT, || {
        let name = named(&world, &web);
        if name.starts_with("db-") { Ok(()) } else { Err(name) }
    });
    wait_for("the roll", LIMIT, || expect(&revisions(), &(before + 1)));
    world.wait_at_rest();
    holds_for("one roll", std::time::Duration::from_secs(3), || expect(&revisions(), &(before + 1)));
}

/// Each workload rolls once, as at a change of the content.
#[test]
fn change_of_mode_follows_the_limit() {
    const READY: i64 = 4;
    let _confrev = running();
    let world = World::new("mode-limit");
    world.set_config("demo", "A");
    world.kubectl(&["annotate", "configmap/demo", "confrev.dev/max-in-flight=1"]).ok();
    let loads: Vec<_> = (0..3)
        .map(|number| {
            let load = Load::new("deployments", &format!("web-{number}"), &["demo"]);
            load.spec(json!({"replicas": 1, "minReadySeconds": READY}))
        })
        .collect();
    for load in &loads {
        load.apply(&world).ok();
        load.wait_reads(&world, "demo", &["A"]);
    }
    world.wait_at_rest();
    let is_live = |load: &&Load| {
        load.live(&world)["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == "demo"
    };
    for (mode, live) in [("confrev.dev/enabled=live", 3), ("confrev.dev/enabled-", 0)] {
        world.kubectl(&["label", "configmap/demo", mode]).ok();
        wait_for("all workloads to roll", 4 * LIMIT, || expect(&loads.iter().filter(is_live).count(), &live));
        let mut times: Vec<_> = loads.iter().filter_map(|load| roll_time(&load.live(&world))).collect();
        times.sort();
        // Times of conditions have whole seconds.
        let least = SignedDuration::from_secs(READY - 1);
        let apart = times.windows(2).all(|two| two[1].duration_since(two[0]) >= least);
        assert!(times.len() == 3 && apart, "{mode}: {times:?}");
        world.wait_at_rest();
    }
}
