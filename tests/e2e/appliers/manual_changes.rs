//! Manual changes, with the tools of the kind.

use std::process::Command;

use confrev_controlplane::Output;

use crate::helm::run;
use crate::manifests::{Kind, Workload, config_map, list};
use crate::shared::running;
use crate::world::{World, each_kind};

/// `kubectl edit`, with this as the editor.
fn edit(world: &World, workload: &Workload, editor: &str) -> Output {
    let mut kubectl = Command::new(world.cluster.bin("kubectl"));
    kubectl.args(["edit", &workload.reference(), "--namespace", world.name()]);
    run(kubectl.env("KUBECONFIG", world.cluster.kubeconfig()).env("KUBE_EDITOR", editor))
}

fn set_image(world: &World, workload: &Workload, image: &str) {
    let image = format!("app={image}");
    match workload.kind {
        Kind::Rollout => world.argo(&["set", "image", &workload.name, &image]).ok(),
        Kind::Deployment => world.kubectl(&["set", "image", &workload.reference(), &image]).ok(),
    };
}

/// Each makes only the revisions that it would make without confrev.
#[test]
fn edit_scale_image_and_restart_keep_the_config() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("by-hand");
        let web = Workload::new(kind, "web", &["demo"]);
        world.set_config("demo", "A");
        world.apply(&web.manifest()).ok();
        world.wait_replica_sets(&web, 1);
        world.wait_reads(&web, "demo", &["A"]);
        world.wait_at_rest();
        let generation = || world.live(&web)["metadata"]["generation"].clone();
        let snapshot = world.resolved(&web, "demo");

        let before = generation();
        edit(&world, &web, "true").ok();
        assert_eq!(generation(), before, "an edit without a change");
        for _ in 0..2 {
            world.kubectl(&["scale", &web.reference(), "--replicas=2"]).ok();
            world.wait_reads(&web, "demo", &["A", "A"]);
        }
        world.wait_replica_sets(&web, 1);
        for _ in 0..2 {
            set_image(&world, &web, "app:2");
            world.wait_replica_sets(&web, 2);
        }
        edit(&world, &web, "sed -i s/app:2/app:3/").ok();
        assert!(world.live(&web).to_string().contains("app:3"), "the edit is stored");
        world.wait_replica_sets(&web, 3);
        match kind {
            // This restarts pods, and makes no revision.
            Kind::Rollout => world.argo(&["restart", "web"]).ok(),
            Kind::Deployment => world.kubectl(&["rollout", "restart", "deployment/web"]).ok(),
        };
        world.wait_at_rest();
        world.wait_replica_sets(&web, if kind == Kind::Rollout { 3 } else { 4 });
        world.wait_reads(&web, "demo", &["A", "A"]);
        assert_eq!(world.resolved(&web, "demo"), snapshot);
        assert_eq!(world.snapshot_texts("demo"), ["A"]);
    });
}

/// A field that a webhook changes belongs to no field manager, and confrev's controller writes one annotation only.
#[test]
fn server_side_apply_conflicts_only_with_manual_changes() {
    let _confrev = running();
    let world = World::new("conflict");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    let objects = |text| list(&[config_map("demo", text), web.manifest()]);
    let apply = |text| world.with_file(&["apply", "--server-side"], &objects(text));
    apply("A").ok();
    world.wait_replica_sets(&web, 1);
    set_image(&world, &web, "app:2");
    world.wait_replica_sets(&web, 2);
    let refused = apply("B").refused();
    assert!(refused.contains(".spec.template.spec.containers[name=\"app\"].image"), "{refused}");
    let conflicts = refused.lines().filter(|line| line.starts_with("- ") || line.contains("conflict with"));
    let conflicts: Vec<_> = conflicts.filter(|line| !line.contains(".image")).collect();
    assert_eq!(conflicts, [""; 0], "{refused}");
    // The ConfigMap was applied, so the workload rolls although the tool failed.
    world.wait_resolved(&web, "demo", "B");
    world.wait_replica_sets(&web, 3);
    set_image(&world, &web, "app:1");
    world.wait_replica_sets(&web, 4);
    world.wait_at_rest();
    apply("B").ok();
    world.wait_at_rest();
    world.wait_replica_sets(&web, 4);
}
