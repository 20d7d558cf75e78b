//! An undo and a pin stay until their source changes again.

use std::time::Duration;

use confrev_controlplane::holds_for;

use crate::manifests::{Kind, Workload};
use crate::shared::running;
use crate::world::{World, each_kind, expect};

#[test]
fn undo_holds_until_config_map_changes_again() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("undo");
        let web = undone(&world, kind, 1);
        world.wait_reads(&web, "demo", &["A"]);
        world.reads_for(10, &web, "demo", &["A"]);
        assert_eq!(world.replica_sets(&web).len(), 2);

        world.set_config("demo", "C");
        world.wait_reads(&web, "demo", &["C"]);
        assert_eq!(world.replica_sets(&web).len(), 3);
    });
}

#[test]
fn undo_counts_pending_change_as_seen() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("undo-pending");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("min-interval", "1h");
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        world.wait_replica_sets(&web, 2);
        // This change is pending: the roll to B was less than an interval ago.
        world.set_config("demo", "C");
        world.undo(&web);
        world.kubectl(&["annotate", &web.reference(), "--overwrite", "confrev.dev/min-interval=0"]).ok();
        holds_for("the undo", Duration::from_secs(6), || world.resolves_to(&web, "demo", "A"));
        assert_eq!(world.replica_sets(&web).len(), 2);
    });
}

#[test]
fn undo_holds_when_another_source_changes() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("undo-two");
        let web = Workload::new(kind, "web", &["demo", "other"]).replicas(0);
        world.set_config("demo", "A");
        world.set_config("other", "1");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        world.wait_replica_sets(&web, 2);
        world.undo(&web);
        world.wait_resolved(&web, "demo", "A");

        world.set_config("other", "2");
        world.wait_resolved(&web, "other", "2");
        holds_for("the undo", Duration::from_secs(3), || {
            world.resolves_to(&web, "demo", "A")?;
            world.resolves_to(&web, "other", "2")
        });
        world.wait_replica_sets(&web, 3);
        world.set_config("demo", "C");
        world.wait_resolved(&web, "demo", "C");
        world.resolves_to(&web, "other", "2").unwrap();
    });
}

/// kubectl replaces the annotations of a Deployment by those of the old ReplicaSet.
#[test]
fn undo_of_deployment_keeps_its_settings() {
    let _confrev = running();
    let world = World::new("undo-settings");
    let web = Workload::new(Kind::Deployment, "web", &["demo", "other"]).replicas(0);
    world.set_config("demo", "A");
    world.set_config("other", "1");
    world.apply(&web.manifest()).ok();
    world.wait_replica_sets(&web, 1);
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    world.wait_replica_sets(&web, 2);
    let settings = ["confrev.dev/track=false", "confrev.dev/min-interval=1h"];
    let reference = web.reference();
    world.kubectl(&["annotate", &reference, "--overwrite", settings[0], settings[1]]).ok();
    world.set_config("other", "2");
    world.undo(&web);
    world.wait_resolved(&web, "demo", "A");
    holds_for("the settings", Duration::from_secs(3), || {
        let annotations = &world.live(&web)["metadata"]["annotations"];
        expect(&annotations["confrev.dev/track"], "false")?;
        expect(&annotations["confrev.dev/min-interval"], "1h")?;
        world.resolves_to(&web, "other", "1")
    });
    assert_eq!(world.replica_sets(&web).len(), 2);
}

#[test]
fn undo_of_image_leaves_pending_change_alone() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("undo-image");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);
        world.set_image(&web, "app:2").ok();
        world.wait_replica_sets(&web, 2);
        // The change waits for `--settle`.
        world.set_config("demo", "B");
        world.undo(&web);
        holds_for("the undo", Duration::from_secs(4), || {
            let image = &world.live(&web)["spec"]["template"]["spec"]["containers"][0]["image"];
            expect(image, "app:1")?;
            world.resolves_to(&web, "demo", "A")
        });
        world.set_config("demo", "C");
        world.wait_resolved(&web, "demo", "C");
    });
}

/// A workload that rolled from A to B, with an undo to A.
pub(crate) fn undone(world: &World, kind: Kind, replicas: usize) -> Workload {
    let web = Workload::new(kind, "web", &["demo"]).replicas(replicas);
    let texts = |text| vec![text; replicas];
    world.set_config("demo", "A");
    world.apply(&web.manifest()).ok();
    world.wait_replica_sets(&web, 1);
    world.wait_reads(&web, "demo", &texts("A"));
    world.set_config("demo", "B");
    world.wait_resolved(&web, "demo", "B");
    world.wait_replica_sets(&web, 2);
    world.wait_reads(&web, "demo", &texts("B"));
    world.undo(&web);
    world.wait_resolved(&web, "demo", "A");
    web
}
