//! Properties over random templates, contents and orders of events.

use confrev::{
    annotations,
    snapshot::{Object, SourceKind},
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::world::{World, annotate, deployment, template};

const SOURCES: [&str; 3] = ["alpha", "beta", "gamma"];

fn reference() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(SOURCES.to_vec());
    (name, 0..5_u8, prop::sample::select(vec!["k1", "k2"]), any::<bool>()).prop_map(|(name, form, key, optional)| {
        match form {
            0 => json!({"volume": {"configMap": {"name": name, "optional": optional}}}),
            1 => json!({"volume": {"configMap": {"name": name, "items": [{"key": key, "path": "p"}]}}}),
            2 => json!({"volume": {"projected": {"sources": [{"configMap": {"name": name}}, {"downwardAPI": {}}]}}}),
            3 => json!({"env": {"valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}}),
            _ => json!({"envFrom": {"configMapRef": {"name": name, "optional": optional}}}),
        }
    })
}

/// A Deployment with these references, spread over volumes and two containers.
fn workload(references: &[Value]) -> Value {
    let mut object = deployment(&[]);
    let (mut volumes, mut env, mut env_from) = (Vec::new(), Vec::new(), Vec::new());
    for (i, reference) in references.iter().enumerate() {
        if let Some(volume) = reference.get("volume") {
            let mut volume = volume.clone();
            volume["name"] = json!(format!("v{i}"));
            volumes.push(volume);
        } else if let Some(variable) = reference.get("env") {
            let mut variable = variable.clone();
            variable["name"] = json!(format!("E{i}"));
            env.push(variable);
        } else {
            env_from.push(reference["envFrom"].clone());
        }
    }
    let spec = &mut object["spec"]["template"]["spec"];
    spec["volumes"] = json!(volumes);
    spec["containers"] = json!([{"name": "c", "env": env}]);
    spec["initContainers"] = json!([{"name": "i", "envFrom": env_from}]);
    object
}

fn contents() -> impl Strategy<Value = Vec<Option<(u8, u8)>>> {
    prop::collection::vec(prop::option::weighted(0.8, (0..2_u8, 0..2_u8)), SOURCES.len())
}

fn set_all(world: &mut World, contents: &[Option<(u8, u8)>]) {
    for (name, content) in SOURCES.iter().zip(contents) {
        match content {
            Some((k1, k2)) => world.set(name, json!({"k1": k1.to_string(), "k2": k2.to_string()})),
            None => world.remove(name),
        }
    }
}

/// Reverts the changes of admission independently of confrev's code: snapshot names become source names.
fn taken_back(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = &mut object["spec"]["template"]["metadata"];
    let sources: Value = metadata["annotations"][annotations::SOURCES]
        .as_str()
        .map_or_else(|| json!({}), |text| serde_json::from_str(text).unwrap());
    metadata["labels"].as_object_mut().unwrap().remove(annotations::REVISION);
    metadata.as_object_mut().unwrap().remove("annotations");
    object["metadata"].as_object_mut().unwrap().remove("annotations");
    let mut text = object.to_string();
    for (source, snapshot) in sources["configmaps"].as_object().into_iter().flatten() {
        text = text.replace(&snapshot.to_string(), &json!(source).to_string());
    }
    serde_json::from_str(&text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn patch_changes_references_and_own_keys_only(
        references in prop::collection::vec(reference(), 0..8),
        contents in contents(),
    ) {
        let mut world = World::default();
        set_all(&mut world, &contents);
        let object = workload(&references);
        let stored = world.create(&object);
        prop_assert_eq!(&taken_back(&stored), &object, "only names and confrev's own keys change");
        let text = template(&stored)["spec"].to_string();
        for (name, content) in SOURCES.iter().zip(&contents) {
            let by_source_name = text.contains(&format!("\"name\":\"{name}\""));
            prop_assert!(!(by_source_name && content.is_some()), "{} is resolved in every form", name);
        }
    }

    #[test]
    fn decision_on_its_own_result_changes_nothing(
        references in prop::collection::vec(reference(), 0..8),
        before in contents(),
        after in contents(),
        by_person in any::<bool>(),
    ) {
        let mut world = World::default();
        set_all(&mut world, &before);
        let first = world.create(&workload(&references));
        prop_assert_eq!(&world.update(&first, &first), &first);
        set_all(&mut world, &after);
        let applied = world.clone().update(&workload(&references), &first);
        let again = world.clone().update(&applied, &first);
        prop_assert_eq!(&again, &applied, "admitted again after a change by another webhook");
        let mut poked = first.clone();
        annotate(&mut poked, annotations::ROLL, if by_person { "x" } else { "auto-2026-01-01T00:00:00Z *" });
        let second = world.update(&poked, &first);
        let objects = world.objects.clone();
        prop_assert_eq!(&world.update(&second, &second), &second);
        prop_assert_eq!(&world.update(&workload(&references), &second)["spec"], &second["spec"], "applied again");
        prop_assert_eq!(world.objects, objects, "and creates nothing");
    }

    #[test]
    fn snapshots_never_change(
        references in prop::collection::vec(reference(), 1..6),
        history in prop::collection::vec(contents(), 1..6),
    ) {
        let mut world = World::default();
        let mut stored: Option<Value> = None;
        let mut taken: std::collections::BTreeMap<_, Value> = std::collections::BTreeMap::new();
        for (step, contents) in history.iter().enumerate() {
            set_all(&mut world, contents);
            let next = match &stored {
                None => world.create(&workload(&references)),
                Some(old) => {
                    let mut new = old.clone();
                    annotate(&mut new, annotations::ROLL, &format!("auto-2026-01-01T00:00:{step:02}Z *"));
                    world.update(&new, old)
                }
            };
            stored = Some(next);
            for (name, object) in world.objects.iter().filter(|(name, _)| name.name.contains('-')) {
                let before = taken.entry(name.clone()).or_insert_with(|| object.clone());
                prop_assert_eq!(before, object);
                prop_assert_eq!(&object["immutable"], &json!(true));
            }
        }
    }

    #[test]
    fn digest_depends_only_on_content(
        entries in prop::collection::btree_map("[a-z.]{1,4}", ".{0,8}", 0..6),
        seed in any::<u64>(),
        note in ".{0,8}",
    ) {
        let digest = |object: &Value| {
            Object::parse(object.to_string().as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap()
        };
        let ordered: Map<String, Value> = entries.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        let mut shuffled: Vec<_> = entries.iter().collect();
        shuffled.sort_by_key(|(key, _)| seed.wrapping_mul(key.len() as u64 + 1).rotate_left(key.as_bytes()[0].into()));
        let text = shuffled.iter().map(|(k, v)| format!("{}:{}", json!(k), json!(v))).collect::<Vec<_>>().join(",");
        let other = format!(
            "{{\"data\":{{{text}}},\"metadata\":{{\"name\":\"x\",\"labels\":{{\"l\":{}}}}},\"immutable\":true}}", json!(note));
        let of_text = Object::parse(other.as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap();
        prop_assert_eq!(digest(&json!({"data": ordered})), of_text);
        let mut changed = ordered.clone();
        changed.insert("zzzzz".to_owned(), json!(""));
        prop_assert_ne!(digest(&json!({"data": ordered})), digest(&json!({"data": changed})));
    }
}
