//! What users ask for with annotations: when to roll by itself, and what to keep.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, text};

#[test]
fn many_quick_changes_make_one_automatic_roll_per_interval_and_end_on_the_last() {
    const INTERVAL: SignedDuration = SignedDuration::from_secs(4);
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("interval");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("min-interval", "4s");
        world.set_config("demo", "0");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);

        let mut rolls = BTreeSet::new();
        let mut look = || {
            let roll = text(&world.live(&web)["metadata"]["annotations"]["confrev.dev/roll"]);
            rolls.extend(roll.strip_prefix("auto-").map(|at| at.parse::<Timestamp>().expect("a time")));
        };
        let start = Instant::now();
        let mut changes = 0;
        while start.elapsed() < Duration::from_secs(7) {
            changes += 1;
            world.set_config("demo", &changes.to_string());
            look();
            // Changes must be apart in time here: that they are is the input, nothing is waited for.
            thread::sleep(Duration::from_millis(150));
        }
        let last = changes.to_string();
        wait_for("the last content to be taken up", LIMIT, || {
            let resolved = world.resolves_to(&web, "demo", &last);
            // Afterwards, so that the roll that did it is among them.
            look();
            resolved
        });
        let rolls: Vec<_> = rolls.into_iter().collect();
        assert!(rolls.len() >= 2 && changes > 2 * rolls.len(), "{changes} changes, rolls at {rolls:?}");
        for pair in rolls.windows(2) {
            assert!(pair[1].duration_since(pair[0]) >= INTERVAL, "rolls at {rolls:?}");
        }
        world.wait_replica_sets(&web, rolls.len() + 1);
    });
}

#[test]
fn a_workload_that_does_not_track_takes_the_newest_when_it_is_applied_or_told_to_and_only_then() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("track");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("track", "false");
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.set_config("demo", "B");
        holds_for("A", Duration::from_secs(4), || world.resolves_to(&web, "demo", "A"));

        world.set_image(&web, "app:2").ok();
        world.resolves_to(&web, "demo", "A").expect("another change of the template is no reason");
        world.apply(&web.manifest()).ok();
        world.resolves_to(&web, "demo", "B").expect("an apply takes the newest");
        world.set_config("demo", "C");
        world.kubectl(&["annotate", &web.reference(), "confrev.dev/roll=now"]).ok();
        world.resolves_to(&web, "demo", "C").expect("a new value of `roll` takes the newest");
    });
}

#[test]
fn a_new_value_of_roll_leaves_a_pin() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("roll");
        let web = crate::undo::undone(&world, kind, 0);
        world.kubectl(&["annotate", &web.reference(), "confrev.dev/roll=now", "--overwrite"]).ok();
        world.resolves_to(&web, "demo", "B").unwrap();
    });
}

#[test]
fn as_many_of_the_newest_snapshots_live_on_as_the_source_says_and_one_where_it_does_not() {
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
        }
        let last = newest_snapshot(&world);
        // Their age tells which are the newest, in whole seconds.
        wait_for("another second", LIMIT, || (Timestamp::now().as_second() > last.as_second()).then_some(()));
    }
    world.wait_snapshot_texts("three", &["3", "4", "5"]);
    world.wait_snapshot_texts("one", &["5"]);
    holds_for("the kept ones", Duration::from_secs(6), || {
        crate::world::expect(&world.snapshot_texts("three"), &["3", "4", "5"])
    });
}

fn newest_snapshot(world: &World) -> Timestamp {
    let created = |snapshot: &serde_json::Value| {
        text(&snapshot["metadata"]["creationTimestamp"]).parse::<Timestamp>().expect("a time")
    };
    world.snapshots().iter().map(created).max().expect("there is a snapshot")
}
