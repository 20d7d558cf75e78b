//! A kind of the configuration's own, whose CRD comes after confrev.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};

use crate::load::{Load, crd, owners};
use crate::setup::LATE_CRD;
use crate::shared::running;
use crate::world::{LIMIT, World, expect, text};

#[test]
fn a_kind_of_the_configuration_is_resolved_rolled_and_bound_whenever_its_crd_is_there() {
    let _confrev = running();
    let world = World::new("clones");
    let web = Load::new("apps.kruise.io/v1alpha1/clonesets", "web", &["demo"]);
    world.set_config("demo", "A");
    install(&world, &web);
    // confrev was not told of the kind: it looks for it again after a while.
    web.wait_resolved(&world, "demo", "A");
    wait_owned(&world, "A");

    world.set_config("demo", "B");
    web.wait_resolved(&world, "demo", "B");
    let live = web.live(&world);
    assert!(text(&live["metadata"]["annotations"]["confrev.dev/roll"]).starts_with("auto-"), "{live}");
    wait_owned(&world, "B");
    // Nothing says what revisions it has, so the present one alone is kept.
    world.wait_snapshot_texts("demo", &["B"]);
    web.apply(&world).ok();
    let generation = live["metadata"]["generation"].clone();
    holds_for("no more changes", Duration::from_secs(3), || {
        expect(&web.live(&world)["metadata"]["generation"], &generation)
    });

    // All CloneSets go with it. A kind that is not there holds up none of the others.
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
    wait_for("the new kind to be served", LIMIT, || {
        let applied = web.apply(world);
        if applied.status.success() { Ok(()) } else { Err(applied.stderr) }
    });
}

fn wait_owned(world: &World, wanted: &str) {
    wait_for("the workload to own its snapshot", LIMIT, || {
        let snapshot = world.cluster.get("configmap", world.name(), &world.snapshot_name("demo", wanted));
        let owners = owners(&snapshot.expect("it is there"));
        if owners.contains("CloneSet/web") { Ok(()) } else { Err(format!("{owners:?}")) }
    });
}
