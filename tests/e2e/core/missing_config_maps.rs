//! ConfigMaps that do not exist yet, and ConfigMaps that were deleted.

use crate::manifests::Workload;
use crate::shared::running;
use crate::world::{World, each_kind};

/// Until then, the workload is admitted with a warning.
#[test]
fn workload_resolves_when_missing_config_map_is_created() {
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

/// New pods of the workload start with that snapshot.
#[test]
fn workload_keeps_snapshot_of_deleted_config_map() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("no-more");
        let web = Workload::new(kind, "web", &["demo"]).replicas(2);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A", "A"]);
        let snapshot = world.resolved(&web, "demo");
        // At once, possibly before all owners of the snapshot are recorded.
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
        // Also from the manifest, which has the source's name.
        world.apply(&web.clone().image("app:3").manifest()).ok();
        world.wait_replica_sets(&web, 3);
        assert_eq!(world.resolved(&web, "demo"), snapshot);
        world.wait_reads(&web, "demo", &["A", "A"]);

        world.set_config("demo", "B");
        world.wait_reads(&web, "demo", &["B", "B"]);
    });
}

/// The export names a snapshot. It comes back before the ConfigMap does, and again after the snapshot was collected.
#[test]
fn exported_workload_resolves_without_its_snapshot() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("export");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_resolved(&web, "demo", "A");
        let mut export = web.manifest();
        export["spec"]["template"]["spec"] = world.live(&web)["spec"]["template"]["spec"].clone();
        let exported = export["spec"]["template"]["spec"].to_string();
        assert!(exported.contains("demo-"), "the export names the snapshot: {exported}");
        world.delete(kind.name(), "web");
        world.delete("configmap", "demo");
        world.wait_snapshot_texts("demo", &[]);
        let applied = world.apply(&export);
        assert!(applied.stderr.contains("ConfigMap \"demo\" does not exist"), "{applied}");
        applied.ok();
        world.set_config("demo", "B");
        world.wait_resolved(&web, "demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
        // An update from the same export: the snapshot that it names is deleted.
        world.apply(&export).ok();
        world.wait_resolved(&web, "demo", "B");
        world.wait_reads(&web, "demo", &["B"]);
    });
}
