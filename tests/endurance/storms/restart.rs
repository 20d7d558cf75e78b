//! confrev is killed and started again, for every kind.

use std::thread;
use std::time::Duration;

use confrev_controlplane::{Program, holds_for, wait_for};
use serde_json::Value;

use crate::any_kind::{KINDS, Load};
use crate::shared::{Running, exclusive, running};
use crate::world::{LIMIT, World, expect};

/// Ends confrev with `end`, runs `meanwhile`, starts confrev and waits until it leads. After a kill, it leads when the
/// previous Lease has expired.
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

/// A workload in a namespace of its own, and its stored template before the change.
struct Scene {
    world: World,
    web: Load,
    before: Value,
}

impl Scene {
    /// A workload at rest with `A`.
    fn set(resource: &'static str) -> Self {
        let world = World::new("killed");
        let web = Load::new(resource, "web", &["demo"]);
        world.set_config("demo", "A");
        // The source keeps snapshots: a kind without revisions may be undone to a snapshot that nothing uses meanwhile.
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

/// One scene of each kind, or of each kind that rolls, in parallel.
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
        threads.into_iter().map(|thread| thread.join().expect("the scene is set")).collect()
    })
}

/// Rolls the workload to `B` and undoes the roll.
fn undo(Scene { world, web, before }: &Scene) {
    world.set_config("demo", "B");
    web.wait_resolved(world, "demo", "B");
    wait_for("a second revision", LIMIT, || if web.changes(world) > 1 { Ok(()) } else { Err("one") });
    web.undo(world, before);
    web.wait_resolved(world, "demo", "A");
}

/// After a kill, workloads at rest do not change, undone workloads keep their content, and a missed change rolls once.
#[test]
fn killed_confrev_rolls_only_missed_changes() {
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
    holds_for("the state of the workloads at rest", Duration::from_secs(5), || {
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
