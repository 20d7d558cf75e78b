//! A configured kind whose CRD is installed after confrev has started.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};

use crate::any_kind::{Load, crd, owners};
use crate::chart_setup::LATE_CRD;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

/// Its workloads are resolved, rolled and bound.
#[test]
fn configured_kind_works_once_its_crd_exists() {
    let _confrev = running();
    let world = World::new("clones");
    let web = Load::new("apps.kruise.io/v1alpha1/clonesets", "web", &["demo"]);
    world.set_config("demo", "A");
    install(&world, &web);
    // confrev gets no event about the new CRD: it looks for the kind again after a while.
    web.wait_resolved(&world, "demo", "A");
    wait_owned(&world, "A");

    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");
    let live = web.live(&world);
    assert!(text(&live["metadata"]["annotations"]["confrev.dev/roll"]).starts_with("auto-"), "{live}");
    wait_owned(&world, "B");
    // confrev does not know the revisions of this kind, so only the present snapshot is kept.
    world.wait_snapshot_texts("demo", &["B"]);
    web.apply(&world).ok();
    let generation = live["metadata"]["generation"].clone();
    holds_for("no more changes", Duration::from_secs(3), || {
        expect(&web.live(&world)["metadata"]["generation"], &generation)
    });

    // This deletes all CloneSets. A missing kind does not delay the other kinds.
    world.kubectl(&["delete", "customresourcedefinition", LATE_CRD]).ok();
    let other = Load::new("deployments", "other", &["demo"]);
    other.apply(&world).ok();
    world.set_config("demo", "C");
    other.wait_resolved(&world, "demo", "C");
    install(&world, &web);
    world.set_config("demo", "D");
    web.wait_resolved(&world, "demo", "D");
    wait_owned(&world, "D");
}

/// Creates the CRD, and the workload once that is possible.
fn install(world: &World, web: &Load) {
    world.cluster.create(
        "customresourcedefinitions",
        "",
        &crd("apps.kruise.io", "v1alpha1", "clonesets", "CloneSet"),
    );
    wait_for("the API server to serve the new kind", LIMIT, || {
        let applied = web.apply(world);
        if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
    });
}

fn wait_owned(world: &World, wanted: &str) {
    wait_for("the workload to own its snapshot", LIMIT, || {
        let snapshot = world.cluster.get("configmap", world.name(), &world.snapshot_name("demo", wanted));
        let owners = owners(&snapshot.expect("the object exists"));
        if owners.contains("CloneSet/web") { Ok(()) } else { Err(format!("{owners:?}")) }
    });
}
