//! Writes while confrev does not answer: the API server keeps the snapshots that a workload has, refuses what it cannot decide, and
//! confrev decides when it is back.

use std::time::Duration;

use confrev_controlplane::{ControlPlane, Output, Program, holds_for, wait_for};
use serde_json::{Value, json};

use crate::any_kind::{KINDS, Load};
use crate::manifests::config_map;
use crate::shared::exclusive;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, expect};

/// The workloads of one kind.
struct Scene {
    world: World,
    /// Its source changes meanwhile.
    web: Load,
    /// Its source does not.
    same: Load,
    /// It is undone meanwhile; with the template before.
    undone: Load,
    before: Value,
    /// How many templates each of them has had.
    changes: [usize; 3],
}

impl Scene {
    fn set(resource: &'static str) -> Self {
        let world = World::new("away");
        let [web, same, undone] = [("web", "demo"), ("same", "other"), ("undone", "third")]
            .map(|(name, source)| Load::new(resource, name, &[source]));
        for source in ["demo", "other", "third"] {
            world.set_config(source, "A");
            // A kind without revisions has no other owner of an earlier snapshot.
            world.kubectl(&["annotate", "configmap", source, "confrev.dev/keep=3"]).ok();
        }
        for load in [&web, &same, &undone] {
            load.apply(&world).ok();
            wait_for("its first revision", LIMIT, || (load.changes(&world) > 0).then_some(()));
        }
        let before = undone.stored(&world);
        if web.kind().rolls {
            world.set_config("third", "B");
            undone.wait_resolved(&world, "third", "B");
        }
        let changes = [&web, &same, &undone].map(|load| load.changes(&world));
        Self { world, web, same, undone, before, changes }
    }

    fn writes_while_confrev_is_away(&self) {
        let Self { world, web, same, undone, before, .. } = self;
        let created = Load::new(web.kind().resource, "new", &["demo"]).apply(world).refused();
        assert!(
            created.contains("confrev does not answer") && created.contains("ConfigMap demo"),
            "{created}"
        );
        world.apply(&config_map("demo", "B")).ok();
        web.apply(world).ok();
        world.kubectl(&["annotate", &web.reference(), "team=shop"]).ok();
        if !web.kind().rolls {
            assert_eq!(marks(web, world), [Value::Null, Value::Null]);
            return web.resolves_to(world, "demo", "A").unwrap();
        }
        for (load, source) in [(web, "demo"), (same, "other")] {
            let decided = load.decided(world);
            for image in ["app:2", "app:3"] {
                let earlier = load.changes(world);
                with_image(load, image).apply(world).ok();
                load.resolves_to(world, source, "A").unwrap();
                // The kind's controller makes one revision of two templates if the second one is written at once.
                let what = format!("the revision of {} with {image}", load.reference());
                wait_for(&what, LIMIT, || (load.changes(world) > earlier).then_some(()));
            }
            assert_eq!(load.decided(world), decided, "{}: only the image changes", load.reference());
            let applied = with_image(load, "app:3").manifest;
            world.with_file(&["apply", "--dry-run=server"], &applied).ok();
            let generation = || load.live(world)["metadata"]["generation"].clone();
            let stored = generation();
            world.apply(&applied).ok();
            if load.kind().name != "Rollout" {
                assert_eq!(generation(), stored, "{}: a second apply writes nothing", load.reference());
            }
            assert_eq!(marks(load, world), [json!("true"), json!(format!("configmaps/{source}"))]);
        }
        let mut more = web.clone();
        let volumes = format!("{}/spec/volumes", web.template);
        let list = more.manifest.pointer_mut(&volumes).and_then(Value::as_array_mut).expect("a list");
        list.push(json!({"name": "more", "configMap": {"name": "more"}}));
        let refusal = more.apply(world).refused();
        assert!(refusal.contains("ConfigMap more, of which no snapshot"), "{refusal}");
        undone.undo(world, before);
        undone.resolves_to(world, "third", "A").unwrap();
        assert_eq!(marks(undone, world)[1], "=configmaps/third");
    }

    fn is_decided_afterwards(&self) {
        let Self { world, web, same, undone, changes, .. } = self;
        if !web.kind().rolls {
            return web.resolves_to(world, "demo", "A").unwrap();
        }
        for load in [web, same, undone] {
            let what = format!("confrev to decide on {}", load.reference());
            wait_for(&what, LIMIT, || expect(&marks(load, world), &[Value::Null, Value::Null]));
        }
        web.wait_resolved(world, "demo", "B");
        // Two images, and the new content.
        let wanted = [(web, changes[0] + 3), (same, changes[1] + 2)];
        holds_for("one roll if the content differs, and none otherwise", Duration::from_secs(3), || {
            for (load, count) in wanted.iter().filter(|(load, _)| load.kind().has_revisions()) {
                expect(&load.changes(world), count)?;
            }
            same.resolves_to(world, "other", "A")?;
            undone.resolves_to(world, "third", "A")
        });
    }
}

/// The label and the annotation that mark an undecided write.
fn marks(load: &Load, world: &World) -> [Value; 2] {
    let live = load.live(world);
    ["labels", "annotations"].map(|map| live["metadata"][map]["confrev.dev/carried"].clone())
}

fn with_image(load: &Load, image: &str) -> Load {
    let mut load = load.clone();
    let pointer = format!("{}/spec/containers/0/image", load.template);
    *load.manifest.pointer_mut(&pointer).expect("the container has an image") = json!(image);
    load
}

fn each(scenes: &[Scene], body: impl Fn(&Scene) + Sync) {
    in_threads(scenes.iter().map(|scene| (scene.web.kind().name.to_owned(), scene)), body);
}

#[test]
fn every_kind_keeps_its_config_in_an_outage() {
    let mut confrev = exclusive();
    let scenes = in_threads(KINDS.map(|kind| (kind.name.to_owned(), kind.resource)), Scene::set);
    confrev.stop();
    each(&scenes, Scene::writes_while_confrev_is_away);
    confrev.start();
    each(&scenes, Scene::is_decided_afterwards);
}

/// Only what was deployed meanwhile is opted in, once.
#[test]
fn deployment_of_an_outage_is_opted_in_afterwards() {
    let mut confrev = exclusive();
    let world = World::new("away-next");
    let load = |name: &str| Load::new("deployments", name, &["demo"]).unlabelled();
    let (web, late) = (load("web"), load("late"));
    world.set_config("demo", "A");
    for load in [&web, &late] {
        load.apply(&world).ok();
    }
    world.opt_in_next(&load("probe").manifest);
    confrev.stop();
    with_image(&web, "app:2").apply(&world).ok();
    world.kubectl(&["scale", &late.reference(), "--replicas=3"]).ok();
    assert_eq!(marks(&web, &world)[0], "true");
    assert_eq!(marks(&late, &world)[0], Value::Null);
    confrev.start();
    web.wait_resolved(&world, "demo", "A");
    assert_eq!(marks(&web, &world), [Value::Null, Value::Null]);
    holds_for("the other workload", Duration::from_secs(3), || {
        expect(&late.live(&world)["metadata"]["labels"]["confrev.dev/enabled"], &Value::Null)
    });
}

/// How long the API server waits for a hanging confrev here, in seconds. Other tests wait longer.
const PATIENCE: u32 = 2;

/// A confrev that hangs until this is dropped, with short timeouts of all webhooks.
struct Hanging<'p> {
    confrev: &'p Program,
    /// The configurations of the webhooks before.
    before: Vec<Value>,
}

impl<'p> Hanging<'p> {
    fn new(confrev: &'p Program) -> Self {
        let cluster = ControlPlane::shared();
        let kinds = ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"];
        let before: Vec<Value> = kinds
            .iter()
            .map(|kind| {
                let text = cluster.kubectl(&["get", kind, "confrev", "--output=json"]).run().ok();
                serde_json::from_str(&text).expect("JSON")
            })
            .collect();
        for configuration in &before {
            let count = configuration["webhooks"].as_array().map_or(0, Vec::len);
            Self::set_timeouts(configuration, &vec![json!(PATIENCE); count]).ok();
        }
        confrev.pause();
        Self { confrev, before }
    }

    fn set_timeouts(configuration: &Value, seconds: &[Value]) -> Output {
        let replaced = |(number, seconds)| json!({"op": "replace", "path": format!("/webhooks/{number}/timeoutSeconds"), "value": seconds});
        let patch: Vec<_> = seconds.iter().enumerate().map(replaced).collect();
        let kind = configuration["kind"].as_str().expect("a kind");
        let patch = json!(patch).to_string();
        ControlPlane::shared().kubectl(&["patch", kind, "confrev", "--type=json", "--patch", &patch]).run()
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.confrev.resume();
        for configuration in &self.before {
            let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
            let seconds: Vec<_> = webhooks.map(|webhook| webhook["timeoutSeconds"].clone()).collect();
            // A panic beside another one would end the process of all tests.
            let restored = Self::set_timeouts(configuration, &seconds);
            if !restored.status.success() {
                eprintln!("{restored}");
            }
        }
    }
}

/// A paused process accepts connections, and never answers.
#[test]
fn hanging_confrev_counts_as_away() {
    let confrev = exclusive();
    let scene = Scene::set("deployments");
    let hanging = Hanging::new(&confrev);
    scene.writes_while_confrev_is_away();
    drop(hanging);
    scene.is_decided_afterwards();
}
