//! ConfigMaps that are not there yet, and such as are there no more.

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{World, each_kind};

#[test]
fn a_workload_without_its_config_map_is_admitted_with_a_warning_and_resolved_when_it_comes() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("not-yet");
        let web = Workload::new(kind, "web", &["demo"]);
        let applied = world.apply(&web.manifest());
        assert!(applied.stderr.contains("Warning:"), "{applied}");
        assert!(applied.stderr.contains("does not exist"), "{applied}");
        applied.ok();
        world.wait_reads(&web, "demo", &["there is no ConfigMap demo"]);
        assert_eq!(world.resolved(&web, "demo"), None);

        world.set_config("demo", "A");
        world.wait_resolved(&web, "demo", "A");
        world.wait_replica_sets(&web, 2);
        world.wait_reads(&web, "demo", &["A"]);
    });
}

#[test]
fn without_its_config_map_a_running_workload_keeps_starting_pods_and_keeps_its_snapshot() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("no-more");
        let web = Workload::new(kind, "web", &["demo"]).replicas(2);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A", "A"]);
        let snapshot = world.resolved(&web, "demo");
        // As soon as there is something to lose: before the source is its only owner, too.
        world.delete("configmap", "demo");
        world.lose_pod(&web, "demo", "A");
        world.reads_for(6, &web, "demo", &["A", "A"]);

        let changed = world.set_image(&web, "app:2");
        assert!(
            changed.stderr.contains("Warning:") && changed.stderr.contains("no longer exists"),
            "{changed}"
        );
        changed.ok();
        world.wait_replica_sets(&web, 2);
        assert_eq!(world.resolved(&web, "demo"), snapshot);
        world.wait_reads(&web, "demo", &["A", "A"]);
        // From the manifest, with the name of the source in it, too.
        world.apply(&web.clone().image("app:3").manifest()).ok();
        world.wait_replica_sets(&web, 3);
        assert_eq!(world.resolved(&web, "demo"), snapshot);
        world.wait_reads(&web, "demo", &["A", "A"]);

        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B", "B"]);
    });
}
