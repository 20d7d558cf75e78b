//! The story of the README: a canary, a pod loss in the middle of it, promotion, undo, and the end of old revisions.

use serde_json::json;

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{LIMIT, World, each_kind, expect};
use confrev_controlplane::wait_for;

/// Tested from canary to promotion and undo, until the revision is deleted.
#[test]
fn each_revision_keeps_its_original_config() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("story");
        let web = Workload::new(kind, "web", &["demo"]).replicas(4).pausing();
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A", "A", "A", "A"]);

        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
        world.lose_pod(&web, "demo", "A");
        world.wait_reads(&web, "demo", &["A", "A", "A", "B"]);
        world.reads_for(2, &web, "demo", &["A", "A", "A", "B"]);
        assert_eq!(world.replica_sets(&web).len(), 2);

        world.promote(&web);
        world.wait_reads(&web, "demo", &["B", "B", "B", "B"]);

        world.undo(&web);
        promote_where_it_stands_still(&world, &web);
        world.wait_reads(&web, "demo", &["A", "A", "A", "A"]);
        world.reads_for(5, &web, "demo", &["A", "A", "A", "A"]);
        assert_eq!(world.replica_sets(&web).len(), 2, "an undo reuses the old ReplicaSet");

        world.set_config("demo", "C");
        promote_where_it_stands_still(&world, &web);
        world.wait_reads(&web, "demo", &["C", "C", "C", "C"]);
        old_revisions_go(&world, &web);
    });
}

/// A Rollout pauses again. The Deployment does not: its first promotion removed the delay.
fn promote_where_it_stands_still(world: &World, web: &Workload) {
    if web.kind == crate::manifests::Kind::Rollout {
        wait_for("the canary to pause", LIMIT, || {
            let live = world.live(web);
            let current =
                live["status"]["observedGeneration"] == json!(live["metadata"]["generation"].to_string());
            (current && live["status"]["controllerPause"] == true).then_some(())
        });
        world.promote(web);
    }
}

fn old_revisions_go(world: &World, web: &Workload) {
    assert_eq!(world.snapshot_texts("demo"), ["A", "B", "C"]);
    world.patch(web, &json!({"spec": {"revisionHistoryLimit": 0}}));
    world.wait_replica_sets(web, 1);
    world.wait_snapshot_texts("demo", &["C"]);
    world.reads_for(1, web, "demo", &["C", "C", "C", "C"]);

    world.delete(web.kind.name(), &web.name);
    world.wait_replica_sets(web, 0);
    // The newest snapshot is kept as long as its source exists.
    assert_eq!(world.snapshot_texts("demo"), ["C"]);
    world.delete("configmap", "demo");
    wait_for("the last snapshot to be deleted", LIMIT, || expect(&world.snapshots().len(), &0));
}
