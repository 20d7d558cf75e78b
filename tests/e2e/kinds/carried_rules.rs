//! The policies `confrev-carry` and `confrev-unresolved` of the chart and the second implementation of their rules, which the model and
//! the rules' tests use, decide the same: the API server is asked about random changes while confrev is away.

use std::thread;

use confrev::{
    annotations,
    kinds::{Kinds, WorkloadKind},
};
use confrev_controlplane::wait_for;
use confrev_core_test_support::carry::{carry, needs_confrev, unresolved};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Map, Value, json};

use crate::any_kind::Load;
use crate::manifests::config_map;
use crate::shared::exclusive;
use crate::world::{LIMIT, World, snapshot_of};

/// The kinds, with their names in the API: templates at three depths, a strict schema and one without fields.
const KINDS: [&str; 4] = ["deployments", "cronjobs", "rollouts", "test.confrev.dev/v1/webs"];
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
struct Scene<'w> {
    world: &'w World,
    load: Load,
    kind: WorkloadKind,
    /// The template's record of its sources before the last roll.
    earlier: String,
    /// For ConfigMaps and Secrets.
    names: [Vec<String>; 2],
}

impl<'w> Scene<'w> {
    /// A workload that has rolled once.
    fn set(world: &'w World, resource: &'static str) -> Self {
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
            let output = load.apply(world);
            if output.status.success() { Ok(()) } else { Err(output.to_string()) }
        });
        let first = load.stored(world);
        world.apply(&config_map("demo", "B")).ok();
        load.wait_resolved(world, "demo", "B");
        let second = load.stored(world);
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
            kind: kind_of(load.kind().name, load.template),
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
            let stored = self.load.live(self.world);
            let new = self.edited(&stored, edits);
            let answer = self.load.replace(self.world, &new, true);
            (answer.0 != 409).then_some((stored, new, answer))
        });
        let carried = carry(&self.kind, &new, Some(&stored), false);
        let is_marked = carried["metadata"]["labels"].get(annotations::CARRIED).is_some();
        let unknown = unresolved(&self.kind, &carried, Some(&stored));
        let is_refused =
            is_marked && (!unknown.is_empty() || needs_confrev(&self.kind, &carried, Some(&stored)));
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
            let of = |object: &Value| without_empty(&json!([object.pointer(pointer)]));
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

/// A kind as the program is configured with it.
fn kind_of(name: &str, template: &str) -> WorkloadKind {
    let built_in = Kinds::default().iter().find(|kind| kind.kind == name).cloned();
    built_in.unwrap_or_else(|| WorkloadKind {
        group: "test.confrev.dev".to_owned(),
        version: "v1".to_owned(),
        kind: name.to_owned(),
        plural: "webs".to_owned(),
        template: template.split('/').skip(1).map(str::to_owned).collect(),
        rolls: true,
    })
}

/// Sets or removes a value of a map that may be missing.
fn put(object: &mut Value, at: &str, map: &str, key: &str, value: Option<&str>) {
    let fields = object.pointer_mut(at).and_then(Value::as_object_mut).unwrap();
    let fields = fields.entry(map).or_insert_with(|| Value::Object(Map::new()));
    match (fields.as_object_mut(), value) {
        (Some(fields), Some(value)) => drop(fields.insert(key.to_owned(), json!(value))),
        (Some(fields), None) => drop(fields.remove(key)),
        (None, _) => {}
    }
}

/// A value without empty maps and nulls, which the API server drops.
fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), without_empty(value)));
            let kept: Map<_, _> = kept.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) => Value::Array(items.iter().map(without_empty).collect()),
        other => other.clone(),
    }
}

fn keys() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"text": "A"}})
}

#[test]
fn policies_of_an_outage_agree_with_their_rules() {
    let mut confrev = exclusive();
    let worlds = KINDS.map(|_| World::new("carried"));
    let scenes: Vec<_> = thread::scope(|scope| {
        let set = KINDS.iter().zip(&worlds).map(|(kind, world)| {
            scope.spawn(move || {
                for object in [config_map("demo", "A"), config_map("other", "A"), keys()] {
                    world.apply(&object).ok();
                }
                Scene::set(world, kind)
            })
        });
        let set: Vec<_> = set.collect();
        set.into_iter().map(|scene| scene.join().expect("a scene")).collect()
    });
    confrev.stop();
    let each = |body: &(dyn Fn(&Scene<'_>) + Sync)| {
        thread::scope(|scope| scenes.iter().for_each(|scene| drop(scope.spawn(move || body(scene)))));
    };
    each(&|scene: &Scene<'_>| scene.agrees_on_random_changes());
    // The same with a workload that is marked, and that was undone in part.
    each(&|scene: &Scene<'_>| {
        let stored = scene.load.live(scene.world);
        let (code, answer) = scene.load.replace(
            scene.world,
            &scene.edited(&stored, &[Edit::Name(0, 3), Edit::Name(4, 0)]),
            false,
        );
        assert_eq!(code, 200, "{answer}");
        scene.agrees_on_random_changes();
    });
    confrev.start();
}
