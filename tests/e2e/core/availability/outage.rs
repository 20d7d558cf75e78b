//! An outage of confrev: writes that need no admission succeed, and writes that would break a promise are refused.

use confrev_controlplane::wait_for;
use serde_json::json;

use crate::commands::Commands as _;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::exclusive;
use crate::world::{LIMIT, World, each_kind, expect};

/// This concerns opted-in workloads only. Changes of sources that confrev missed roll when it is back.
#[test]
fn only_template_changes_fail_while_confrev_is_down() {
    let mut confrev = exclusive();
    let scenes = Kind::ALL.map(Scene::set);
    confrev.stop();
    each_kind(|kind| {
        let scene = scenes.iter().find(|scene| scene.web.kind == kind).expect("each kind has a scene");
        scene.what_is_opted_in_scales_and_is_annotated();
        scene.its_template_is_refused_with_the_reason();
        scene.what_is_not_opted_in_is_free();
        scene.its_config_map_can_be_written();
        let waited = scene.world.confrev(&["wait", "demo", "--timeout", "1h"]).failed(3);
        assert!(waited.contains("confrev does not answer, see kubectl confrev check"), "{waited}");
    });
    confrev.start();
    let _confrev = confrev.downgrade();
    for Scene { world, web, plain } in &scenes {
        world.wait_reads(web, "demo", &["B", "B"]);
        assert_eq!(world.replica_sets(web).len(), 2);
        world.set_image(web, "app:3").ok();
        assert_eq!(world.resolved(plain, "demo"), None, "the workload without opt-in is unchanged");
        assert!(world.live(plain)["metadata"]["annotations"]["confrev.dev/state"].is_null());
    }
}

/// A workload that is opted in and one that is not.
struct Scene {
    world: World,
    web: Workload,
    plain: Workload,
}

impl Scene {
    fn set(kind: Kind) -> Self {
        let world = World::new("outage");
        let web = Workload::new(kind, "web", &["demo"]);
        let plain = Workload::new(kind, "plain", &["demo"]).enabled(None);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_reads(&web, "demo", &["A"]);
        Self { world, web, plain }
    }

    fn what_is_opted_in_scales_and_is_annotated(&self) {
        let Self { world, web, .. } = self;
        world.kubectl(&["scale", &web.reference(), "--replicas=2"]).ok();
        world.kubectl(&["annotate", &web.reference(), "team=shop"]).ok();
        world.kubectl(&["label", &web.reference(), "team=shop"]).ok();
        // The workload's controller can write the status, too.
        wait_for("the status of the scaled workload", LIMIT, || {
            expect(&world.live(web)["status"]["readyReplicas"], &json!(2))
        });
        world.reads_for(0, web, "demo", &["A", "A"]);
    }

    fn its_template_is_refused_with_the_reason(&self) {
        let Self { world, web, .. } = self;
        let refusal = world.set_image(web, "app:2").refused();
        assert!(
            refusal.contains("workloads.confrev.dev") && refusal.contains("failed calling webhook"),
            "{refusal}"
        );
        let other = Workload::new(web.kind, "new", &["demo"]);
        let refusal = world.apply(&other.manifest()).refused();
        assert!(refusal.contains("workloads.confrev.dev"), "{refusal}");
    }

    fn what_is_not_opted_in_is_free(&self) {
        let Self { world, plain, .. } = self;
        let created = world.apply(&plain.manifest());
        assert_eq!(created.stderr, "", "not even a warning");
        created.ok();
        world.set_image(plain, "app:2").ok();
        world.wait_replica_sets(plain, 2);
        world.wait_reads(plain, "demo", &["A"]);
    }

    fn its_config_map_can_be_written(&self) {
        let Self { world, web, plain } = self;
        world.apply(&config_map("demo", "B")).ok();
        world.wait_reads(plain, "demo", &["B"]);
        world.apply(&config_map("unrelated", "1")).ok();
        world.lose_pod(web, "demo", "A");
        world.wait_reads(web, "demo", &["A", "A"]);
    }
}
