//! confrev is killed and comes back, for every kind.

use std::thread;
use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};
use serde_json::Value;

use crate::load::{KINDS, Load};
use crate::shared::{Running, exclusive, running};
use crate::world::{LIMIT, World, expect};

/// Ends confrev in this way, does something, and starts it; waits until it leads. After a kill that is when the Lease of
/// the one before has ended.
pub(crate) fn restarted(before: Running, end: fn(&mut Program), meanwhile: impl FnOnce()) -> Running {
    drop(before);
    let mut confrev = exclusive();
    end(&mut confrev);
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

/// One of each kind, or of each that rolls, side by side.
fn scenes(rolls: bool, then: impl Fn(&Scene) + Sync) -> Vec<Scene> {
    let kinds = KINDS.iter().filter(|kind| kind.rolls || !rolls);
    thread::scope(|scope| {
        let threads: Vec<_> = kinds
            .map(|kind| {
                let then = &then;
                let named = thread::Builder::new().name(kind.name.to_owned());
                let set = move || {
                    let scene = Scene::set(kind.resource);
                    then(&scene);
                    scene.world.wait_at_rest();
                    scene
                };
                named.spawn_scoped(scope, set).expect("a thread")
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it is set")).collect()
    })
}

/// Takes a change up, and is put back.
fn undo(Scene { world, web, before }: &Scene) {
    world.set_config("demo", "B");
    web.wait_resolved(world, "demo", "B");
    wait_for("a second revision", LIMIT, || if web.changes(world) > 1 { Ok(()) } else { Err("one") });
    web.undo(world, before);
    web.wait_resolved(world, "demo", "A");
}

#[test]
fn after_a_kill_no_kind_changes_at_rest_an_undo_holds_and_a_change_that_was_missed_rolls_once() {
    let confrev = running();
    let at_rest = scenes(false, |_| {});
    let undone = scenes(true, undo);
    let missed = scenes(true, |_| {});
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

    let _confrev = restarted(confrev, Program::kill, || {
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
