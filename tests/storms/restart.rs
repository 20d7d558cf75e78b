//! confrev is killed and comes back, for every kind.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use serde_json::Value;

use crate::load::{KINDS, Load};
use crate::shared::{Running, exclusive, running};
use crate::world::{LIMIT, World, expect};

/// Ends confrev in the hard way, does something, and starts it; waits until it leads, which is after the Lease of the one
/// before.
pub(crate) fn killed_and_started(before: Running, meanwhile: impl FnOnce()) -> Running {
    drop(before);
    let mut confrev = exclusive();
    confrev.kill();
    meanwhile();
    confrev.start();
    let confrev = confrev.downgrade();
    wait_for("the new process to lead", LIMIT, || expect(&confrev.metric("confrev_leader"), &1.0));
    confrev
}

/// A workload in a namespace of its own, and what was stored of it before.
struct Scene {
    world: World,
    web: Load,
    before: Value,
}

impl Scene {
    /// At rest with `A`.
    fn set(resource: &'static str) -> Self {
        let world = World::new("killed");
        let web = Load::new(resource, "web", &["demo"]);
        world.set_config("demo", "A");
        // What a kind without revisions may be put back to is nobody's meanwhile.
        world.kubectl(&["annotate", "configmap/demo", "confrev.dev/keep=2"]).ok();
        web.apply(&world).ok();
        web.resolves_to(&world, "demo", "A").unwrap();
        let before = web.stored(&world);
        Self { world, web, before }
    }

    fn holds(&self, wanted: &str) -> Result<(), String> {
        self.web.resolves_to(&self.world, "demo", wanted)
    }
}

fn scenes(rolls: bool) -> Vec<Scene> {
    KINDS.iter().filter(|kind| kind.rolls || !rolls).map(|kind| Scene::set(kind.resource)).collect()
}

#[test]
fn after_a_kill_no_kind_changes_at_rest_an_undo_holds_and_a_change_that_was_missed_rolls_once() {
    let confrev = running();
    let at_rest = scenes(false);
    let undone = scenes(true);
    let missed = scenes(true);
    for Scene { world, .. } in &undone {
        world.set_config("demo", "B");
    }
    for Scene { world, web, before } in &undone {
        web.wait_resolved(world, "demo", "B");
        let revisions = || if web.changes(world) > 1 { Ok(()) } else { Err("one") };
        wait_for("a second revision", LIMIT, revisions);
        web.undo(world, before);
        web.wait_resolved(world, "demo", "A");
    }
    for scene in at_rest.iter().chain(&undone) {
        scene.world.wait_at_rest();
    }
    let versions = |scenes: &[Scene]| -> Vec<Value> {
        scenes
            .iter()
            .map(|scene| scene.web.live(&scene.world)["metadata"]["resourceVersion"].clone())
            .collect()
    };
    let snapshots = |scenes: &[Scene]| -> Vec<Vec<Value>> {
        scenes.iter().map(|scene| scene.world.snapshots()).collect()
    };
    let settled = (versions(&at_rest), versions(&undone), snapshots(&at_rest));
    let changes: Vec<_> = missed.iter().map(|scene| scene.web.changes(&scene.world)).collect();

    let _confrev = killed_and_started(confrev, || {
        for scene in &missed {
            scene.world.set_config("demo", "B");
        }
    });
    for scene in &missed {
        scene.web.wait_resolved(&scene.world, "demo", "B");
    }
    for (scene, before) in missed.iter().zip(changes) {
        let changes = || scene.web.changes(&scene.world);
        wait_for("the change", LIMIT, || expect(&changes(), &(before + 1)));
    }
    holds_for("what was at rest", Duration::from_secs(5), || {
        expect(&(versions(&at_rest), versions(&undone), snapshots(&at_rest)), &settled)?;
        undone.iter().try_for_each(|scene| scene.holds("A"))
    });
    for Scene { world, .. } in &undone {
        world.set_config("demo", "C");
    }
    for Scene { world, web, .. } in &undone {
        web.wait_resolved(world, "demo", "C");
    }
}
