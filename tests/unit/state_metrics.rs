//! The controller's state as operators see it: the counts in its metrics.

use confrev::{resolve::Health, telemetry::metrics::StateCounts};
use serde_json::json;

use super::{
    controller::{BLUE, Desk, key, name, record, snapshot},
    story::{poke, undo},
    world::{World, deployment},
};

const GREEN: &str = "demo-736a916696";

/// Other replicas report only the counts of known objects.
#[test]
fn only_leader_reports_pending_and_pinned_workloads() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    let mut desk = Desk::new();
    let green = json!({"color": "green"});
    let known = StateCounts { workloads: 1, sources: 1, snapshots: 2, ..StateCounts::default() };
    for (snapshot_name, color) in [(BLUE, "blue"), (GREEN, "green")] {
        desk.state.apply_snapshot(&name(snapshot_name), Some(snapshot(color, "1", &[])), desk.now);
    }
    for (object, pending, pinned) in [(&first, 1, 0), (&second, 0, 0), (&undone, 0, 1)] {
        desk.state.apply_workload(&key("web"), Some(record(object, Health::Settled)), desk.now);
        desk.act(&green, &json!({}), "2");
        let known = StateCounts { index_bytes: desk.state.counts(true).index_bytes, ..known };
        assert_eq!(desk.state.counts(true), StateCounts { pending, pinned, ..known });
        assert_eq!(desk.state.counts(false), known);
    }
}

/// A workload is not unresolved if the reference is optional, or `missing` is `allow`.
#[test]
fn workload_with_missing_source_is_unresolved() {
    for (optional, missing, unresolved) in
        [(false, "warn", 1), (true, "warn", 0), (false, "deny", 1), (false, "allow", 0)]
    {
        let mut object = deployment(&["demo"]);
        object["metadata"]["annotations"] = json!({"confrev.dev/missing": missing});
        object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["optional"] = json!(optional);
        let mut desk = Desk::new();
        desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
        assert_eq!(desk.state.counts(true).unresolved, 0, "it is not known yet whether the source exists");
        desk.find_nothing();
        assert_eq!(desk.state.counts(true).unresolved, unresolved, "{optional} {missing}");
        desk.state.apply_workload(&key("web"), None, desk.now);
        assert_eq!(desk.state.counts(true), StateCounts::default());
    }
}

/// Another replica remembers the content, and restores the snapshot soon after this one found nothing.
#[test]
fn snapshot_that_another_replica_restores_is_not_lost() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = world.create(&deployment(&["demo"]));
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    desk.find_nothing();
    desk.pass(2);
    for _ in 0..3 {
        assert_eq!(desk.look_in_vain().len(), 1);
        desk.pass(4);
        assert_eq!(desk.state.counts(true).lost, 0);
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
        desk.pass(60);
        assert_eq!(desk.look_in_vain().len(), 0);
        // The snapshot is deleted again: the time in which other replicas may restore it starts again.
        desk.state.apply_snapshot(&name(BLUE), None, desk.now);
    }
    assert_eq!(desk.state.counts(true).lost, 0);
    assert_eq!(desk.lose().len(), 1);
    assert_eq!(desk.state.counts(true).lost, 1);
}

#[test]
fn snapshot_is_lost_until_restored_or_unused() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = world.create(&deployment(&["demo"]));
    for comes_back in [true, false] {
        let mut desk = Desk::new();
        desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
        desk.find_nothing();
        desk.pass(2);
        assert_eq!(desk.state.counts(true).lost, 0);
        assert!(desk.lose().iter().any(|lost| *lost == name(BLUE)));
        assert_eq!(desk.state.counts(true).lost, 1);
        if comes_back {
            desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
        } else {
            desk.state.apply_workload(&key("web"), None, desk.now);
        }
        assert_eq!(desk.state.counts(true).lost, 0);
    }
}
