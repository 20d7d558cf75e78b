//! Annotations that determine when a workload rolls, and how many snapshots a source keeps.

use std::collections::BTreeSet;
use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::manifests::Workload;
use crate::rolls::roll_time;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, text};

/// The last change is rolled as well.
#[test]
fn min_interval_separates_rolls_of_quick_changes() {
    const INTERVAL: SignedDuration = SignedDuration::from_secs(4);
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("interval");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("min-interval", "4s");
        world.set_config("demo", "0");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);

        // A roll moves nothing if its content has been replaced meanwhile.
        let (mut rolls, mut used) = (BTreeSet::new(), BTreeSet::new());
        let mut look = || {
            rolls.extend(roll_time(&world.live(&web)));
            used.extend(world.resolved(&web, "demo"));
            rolls.len()
        };
        let mut changes = 0;
        // The time between changes, at least that between two looks, is part of the test's input.
        wait_for("two rolls, while the content changes", 2 * LIMIT, || {
            changes += 1;
            world.set_config("demo", &changes.to_string());
            // The last content may need one more.
            let is_enough = look() >= 2 && changes > 8;
            if is_enough { Ok(()) } else { Err(format!("fewer, or only {changes} changes")) }
        });
        let last = changes.to_string();
        wait_for("the workload to roll to the last content", LIMIT, || {
            let resolved = world.resolves_to(&web, "demo", &last);
            // After that, so that the last roll is recorded too.
            look();
            resolved
        });
        let rolls: Vec<_> = rolls.into_iter().collect();
        assert!(rolls.len() >= 2 && changes > 2 * rolls.len(), "{changes} changes, rolls at {rolls:?}");
        for pair in rolls.windows(2) {
            assert!(pair[1].duration_since(pair[0]) >= INTERVAL, "rolls at {rolls:?}");
        }
        assert!(used.len() >= 2 && used.len() <= rolls.len() + 1, "{used:?}, rolls at {rolls:?}");
        world.wait_replica_sets(&web, used.len());
    });
}

#[test]
fn untracked_workload_moves_only_on_apply_or_roll() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("track");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("track", "false");
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.set_config("demo", "B");
        holds_for("A", Duration::from_secs(4), || world.resolves_to(&web, "demo", "A"));

        world.set_image(&web, "app:2").ok();
        world.resolves_to(&web, "demo", "A").expect("another change of the template keeps the snapshot");
        world.apply(&web.manifest()).ok();
        world.resolves_to(&web, "demo", "B").expect("an apply resolves to the newest content");
        world.set_config("demo", "C");
        world.kubectl(&["annotate", &web.reference(), "confrev.dev/roll=now"]).ok();
        world.resolves_to(&web, "demo", "C").expect("a new value of `roll` resolves to the newest content");
    });
}

#[test]
fn new_value_of_roll_ends_a_pin() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("roll");
        let web = crate::undo::undone(&world, kind, 0);
        world.kubectl(&["annotate", &web.reference(), "confrev.dev/roll=now", "--overwrite"]).ok();
        world.resolves_to(&web, "demo", "B").unwrap();
    });
}

/// The clock of an earlier leader was ahead.
#[test]
fn workload_moves_after_a_plan_of_the_future() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("future-plan");
        let future = "auto-2099-01-01T00:00:00.000Z";
        let web = Workload::new(kind, "web", &["demo"]).replicas(1).annotation("roll", future);
        let of_web = |key: &str| text(&world.live(&web)["metadata"]["annotations"][key]);
        world.set_config("demo", "A");
        world.kubectl(&["annotate", "configmap", "demo", "confrev.dev/max-in-flight=1"]).ok();
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        assert_eq!(of_web("confrev.dev/roll"), future);
        for content in ["B", "C"] {
            world.set_config("demo", content);
            world.wait_reads(&web, "demo", &[content]);
        }
        let (roll, state) = (of_web("confrev.dev/roll"), of_web("confrev.dev/state"));
        assert!(roll.starts_with("auto-2099-01-01T00:00:00.002Z"), "{roll}");
        assert!(state.contains(r#""moved":"#), "the controller knows that it moved the workload: {state}");
    });
}

/// Without `confrev.dev/keep`, the source keeps one.
#[test]
fn source_keeps_as_many_snapshots_as_configured() {
    let _confrev = running();
    let world = World::new("keep");
    for (name, keep) in [("three", Some("3")), ("one", None)] {
        let metadata = json!({
            "name": name,
            "labels": {"confrev.dev/enabled": "true"},
            "annotations": {"confrev.dev/keep": keep},
        });
        world.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).ok();
    }
    for version in ["1", "2", "3", "4", "5"] {
        for source in ["three", "one"] {
            world.set_config(source, version);
            // Of two changes in a moment, only the last one gets a snapshot.
            wait_for("a snapshot of the change", LIMIT, || {
                let texts = world.snapshot_texts(source);
                if texts.iter().any(|text| text == version) { Ok(()) } else { Err(format!("{texts:?}")) }
            });
        }
        let last = newest_snapshot(&world);
        // The age of a snapshot is in whole seconds, so the next one must be created in a later second.
        wait_for("another second", LIMIT, || (Timestamp::now().as_second() > last.as_second()).then_some(()));
    }
    world.wait_snapshot_texts("three", &["3", "4", "5"]);
    world.wait_snapshot_texts("one", &["5"]);
    holds_for("the kept snapshots", Duration::from_secs(6), || {
        crate::world::expect(&world.snapshot_texts("three"), &["3", "4", "5"])
    });
}

fn newest_snapshot(world: &World) -> Timestamp {
    let created = |snapshot: &serde_json::Value| {
        text(&snapshot["metadata"]["creationTimestamp"]).parse::<Timestamp>().expect("a time")
    };
    world.snapshots().iter().map(created).max().expect("a snapshot exists")
}
