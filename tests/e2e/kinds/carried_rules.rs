//! The policies `confrev-carry` and `confrev-unresolved` of the chart and the second implementation of their rules, which the model and
//! the rules' tests use, decide the same: the API server is asked about random changes while confrev is away.

use confrev::{annotations, kinds::WorkloadKind};
use confrev_controlplane::wait_for;
use confrev_core_test_support::{
    carry::{carry, needs_confrev, remove, set, unresolved},
    world::{is_marked, kind, pruned},
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Value, json};

use crate::any_kind::Load;
use crate::manifests::config_map;
use crate::shared::exclusive;
use crate::threads::in_threads;
use crate::world::{LIMIT, World, snapshot_of};

/// The kinds, with their names in the API: templates at three depths, a strict schema and one without fields.
const KINDS: [&str; 4] = ["deployments", "cronjobs", "rollouts", "test.confrev.dev/v1/webs"];
/// The last one as confrev is configured with it.
const WEB: &str = "test.confrev.dev/v1/webs/Web=spec.pods.template";
/// Random changes of each stored workload.
const CASES: u32 = 60;

/// The names in a template, and whether it is a Secret's.
const SLOTS: [(&str, bool); 7] = [
    ("/spec/volumes/0/configMap/name", false),
    ("/spec/volumes/1/projected/sources/0/configMap/name", false),
    ("/spec/volumes/1/projected/sources/1/secret/name", true),
    ("/spec/volumes/2/secret/secretName", true),
    ("/spec/containers/0/envFrom/0/configMapRef/name", false),
    ("/spec/containers/0/env/0/valueFrom/secretKeyRef/name", true),
    ("/spec/initContainers/0/env/0/valueFrom/configMapKeyRef/name", false),
];

/// A part of a change.
#[derive(Clone, Debug)]
enum Edit {
    /// Writes the name with this number into a slot.
    Name(usize, usize),
    /// Drops the last volume.
    Volume,
    /// Sets an annotation of the object, or removes it.
    Note(&'static str, Option<&'static str>),
    /// Sets a label of the object, or removes it.
    Label(&'static str, Option<&'static str>),
    /// Drops the template's annotations and labels of confrev's.
    Bare,
    /// Gives the template the sources of the earlier one, or a text that is none.
    Sources(bool),
}

fn edit() -> impl Strategy<Value = Edit> {
    let notes = [
        (annotations::EXCLUDE, vec![Some("new"), Some("demo, secret/new"), Some("configmap/new"), None]),
        (annotations::SECRETS, vec![Some("true"), Some("false"), None]),
        (annotations::CARRIED, vec![Some("configmaps/demo"), Some("=configmaps/other"), Some("?"), None]),
        (annotations::ROLL, vec![Some("now"), None]),
        (annotations::MOUNT, vec![Some("demo:/etc/demo"), None]),
    ];
    let notes = select(notes.to_vec())
        .prop_flat_map(|(key, values)| select(values).prop_map(move |value| Edit::Note(key, value)));
    let labels = [
        (annotations::ENABLED, Some("false")),
        (annotations::ENABLED, None),
        (annotations::CARRIED, Some("true")),
    ];
    prop_oneof![
        6 => (0..SLOTS.len(), 0..9_usize).prop_map(|(slot, name)| Edit::Name(slot, name)),
        1 => Just(Edit::Volume),
        3 => notes,
        1 => select(labels.to_vec()).prop_map(|(key, value)| Edit::Label(key, value)),
        1 => Just(Edit::Bare),
        2 => any::<bool>().prop_map(Edit::Sources),
    ]
}

/// A stored workload, and what changes of it may name.
struct Scene {
    world: World,
    load: Load,
    kind: WorkloadKind,
    /// The template's record of its sources before the last roll.
    earlier: String,
    /// For ConfigMaps and Secrets.
    names: [Vec<String>; 2],
}

impl Scene {
    /// A workload that has rolled once.
    fn set(world: World, resource: &'static str) -> Self {
        let name = resource.rsplit('/').next().unwrap();
        let mut load = Load::new(resource, name, &[]).annotation("secrets", "true");
        let template = load.manifest.pointer_mut(load.template).unwrap();
        template["spec"]["volumes"] = json!([
            {"name": "demo", "configMap": {"name": "demo"}},
            {"name": "projected", "projected": {"sources": [
                {"configMap": {"name": "other"}}, {"secret": {"name": "keys"}},
            ]}},
            {"name": "secret", "secret": {"secretName": "keys"}},
        ]);
        let variable = |field: &str, name: &str| json!({"name": "ONE", "valueFrom": {field: {"name": name, "key": "text", "optional": true}}});
        template["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "demo"}}]);
        template["spec"]["containers"][0]["env"] = json!([variable("secretKeyRef", "keys")]);
        template["spec"]["initContainers"] =
            json!([{"name": "init", "image": "app:1", "env": [variable("configMapKeyRef", "demo")]}]);
        // The CRD of its kind may be new.
        wait_for("the first apply", LIMIT, || {
            let output = load.apply(&world);
            if output.status.success() { Ok(()) } else { Err(output.to_string()) }
        });
        let first = load.stored(&world);
        world.apply(&config_map("demo", "B")).ok();
        load.wait_resolved(&world, "demo", "B");
        let second = load.stored(&world);
        let snapshots =
            |source: &str| [&first, &second].map(|template| snapshot_of(template, source).unwrap());
        let [earlier, present] = snapshots("demo");
        let [other, _] = snapshots("other");
        let made = second.pointer("/spec/volumes/2/secret/secretName").unwrap();
        let keys = made.as_str().unwrap().to_owned();
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let config_maps =
            ["demo", "other", "new", &earlier, &present, &other, "demo-0123456789", "other-0123", "x"];
        let secrets =
            ["keys", "new", &keys, "keys-0123456789", "keys-0123", "demo", &earlier, "x", "release"];
        let text = &first["metadata"]["annotations"][annotations::SOURCES];
        Self {
            kind: if resource.contains('/') { WEB.parse().unwrap() } else { kind(load.kind().name) },
            earlier: text.as_str().unwrap().to_owned(),
            names: [named(&config_maps), named(&secrets)],
            world,
            load,
        }
    }

    fn edited(&self, stored: &Value, edits: &[Edit]) -> Value {
        let mut new = stored.clone();
        let at = self.load.template;
        // Without a change of the template, most of these are not sent to the policies.
        let image = new.pointer_mut(&format!("{at}/spec/containers/0/image")).unwrap();
        *image = json!(if image == "app:1" { "app:2" } else { "app:1" });
        for edit in edits {
            match edit {
                Edit::Name(slot, name) => {
                    let (pointer, is_secret) = SLOTS[*slot];
                    if let Some(reference) = new.pointer_mut(&format!("{at}{pointer}")) {
                        *reference = json!(self.names[usize::from(is_secret)][*name]);
                    }
                }
                Edit::Volume => {
                    let volumes = new.pointer_mut(&format!("{at}/spec/volumes")).unwrap();
                    volumes.as_array_mut().unwrap().truncate(2);
                }
                Edit::Note(key, value) => put(&mut new, "/metadata", "annotations", key, *value),
                Edit::Label(key, value) => put(&mut new, "/metadata", "labels", key, *value),
                Edit::Bare => {
                    let template = format!("{at}/metadata");
                    for key in [annotations::SOURCES, annotations::LIVE] {
                        put(&mut new, &template, "annotations", key, None);
                    }
                    put(&mut new, &template, "labels", annotations::REVISION, None);
                }
                Edit::Sources(is_earlier) => {
                    let text = if *is_earlier { &*self.earlier } else { "{" };
                    put(&mut new, &format!("{at}/metadata"), "annotations", annotations::SOURCES, Some(text));
                }
            }
        }
        new
    }

    /// What the rules say and what the API server answers are the same.
    fn agrees(&self, edits: &[Edit]) -> Result<(), TestCaseError> {
        // The kind's own controller may have written meanwhile.
        let (stored, new, (code, answer)) = wait_for("an answer without a conflict", LIMIT, || {
            let stored = self.load.live(&self.world);
            let new = self.edited(&stored, edits);
            let answer = self.load.replace(&self.world, &new, true);
            (answer.0 != 409).then_some((stored, new, answer))
        });
        let carried = carry(&self.kind, &new, Some(&stored), false);
        let unknown = unresolved(&self.kind, &carried, Some(&stored));
        let is_refused = is_marked(&carried)
            && (!unknown.is_empty() || needs_confrev(&self.kind, &carried, Some(&stored)));
        if is_refused {
            prop_assert_eq!(code, 403, "{:?} of {}", &unknown, new);
            let message = answer["message"].as_str().unwrap_or_default();
            prop_assert!(message.contains("confrev does not answer"), "{}", message);
            for object in unknown.iter().take(5) {
                let named = format!("{} {}", object.kind.as_str(), object.name);
                prop_assert!(message.contains(&named), "{} in {}", named, message);
            }
            return Ok(());
        }
        prop_assert_eq!(code, 200, "{}", answer);
        for pointer in ["/metadata/labels", "/metadata/annotations", self.load.template] {
            let of = |object: &Value| pruned(&json!({"it": object.pointer(pointer)}));
            prop_assert_eq!(of(&answer), of(&carried), "{} of {}", pointer, new);
        }
        Ok(())
    }

    fn agrees_on_random_changes(&self) {
        let config =
            Config { cases: CASES, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
        let changes = vec(edit(), 0..5);
        TestRunner::new(config).run(&changes, |edits| self.agrees(&edits)).unwrap();
    }
}

/// Sets a key of a map, or removes it.
fn put(object: &mut Value, at: &str, map: &str, key: &str, value: Option<&str>) {
    match value {
        Some(value) => set(object, at, map, key, value),
        None => remove(object, &format!("{at}/{map}"), key),
    }
}

fn keys() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"text": "A"}})
}

#[test]
fn policies_of_an_outage_agree_with_their_rules() {
    let mut confrev = exclusive();
    let set = |resource: &'static str| {
        let world = World::new("carried");
        for object in [config_map("demo", "A"), config_map("other", "A"), keys()] {
            world.apply(&object).ok();
        }
        Scene::set(world, resource)
    };
    let scenes = in_threads(KINDS.map(|resource| (resource.to_owned(), resource)), set);
    confrev.stop();
    let each = |body: &(dyn Fn(&Scene) + Sync)| {
        in_threads(scenes.iter().map(|scene| (scene.load.name.clone(), scene)), body);
    };
    each(&Scene::agrees_on_random_changes);
    // The same with a workload that is marked, and that was undone in part.
    each(&|scene| {
        let new = scene.edited(&scene.load.live(&scene.world), &[Edit::Name(0, 3), Edit::Name(4, 0)]);
        let (code, answer) = scene.load.replace(&scene.world, &new, false);
        assert_eq!(code, 200, "{answer}");
        scene.agrees_on_random_changes();
    });
    confrev.start();
}
