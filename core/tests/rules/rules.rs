//! The rules, in the order of the events that users see.

use confrev::{
    annotations,
    resolve::{NamespaceOptIn, Need},
    snapshot::DIGITS,
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, world},
    world::{World, annotate, annotation, configmap, deployment, kind, remembered, template, volume},
};

/// A second roll changes nothing, and the previous snapshot still exists.
#[test]
fn roll_resolves_to_new_content_once() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&first, 0), BLUE);
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    assert_eq!(volume(&second, 0), GREEN);
    let third = poke(&mut world, &second, 2);
    assert_eq!(template(&third), template(&second));
    assert_eq!(world.data(BLUE), &json!({"color": "blue"}), "the snapshot of the old content still exists");
}

#[test]
fn previous_content_restores_previous_template() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    world.set("demo", json!({"color": "blue"}));
    let third = poke(&mut world, &second, 2);
    assert_eq!(template(&third), template(&first));
}

#[test]
fn apply_with_source_name_resolves_to_present_content() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    // A server-side apply restores the source's name; `replace` also drops everything that confrev wrote.
    for keep_metadata in [true, false] {
        let mut new = if keep_metadata { first.clone() } else { deployment(&["demo"]) };
        new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
        assert_eq!(volume(&world.update(&new, &first), 0), GREEN);
    }
}

#[test]
fn apply_without_change_keeps_stored_object() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(world.update(&first, &first), first);
    assert_eq!(world.update(&deployment(&["demo"]), &first), first);
}

#[test]
fn image_change_includes_pending_roll() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(volume(&world.update(&new, &first), 0), GREEN);
}

#[test]
fn volume_rename_includes_pending_roll() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["volumes"][0]["name"] = json!("renamed");
    assert_eq!(volume(&world.update(&new, &first), 0), GREEN);
}

#[test]
fn paused_workload_rolls_only_by_apply_or_user() {
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::TRACK, "false");
    let first = world.create(&object);
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let second = world.update(&new, &first);
    assert_eq!(volume(&second, 0), BLUE);
    assert_eq!(volume(&poke(&mut world, &second, 1), 0), BLUE);
    assert_eq!(volume(&world.update(&object, &second), 0), GREEN, "applied");
    let mut new = second.clone();
    annotate(&mut new, annotations::ROLL, "x");
    assert_eq!(volume(&world.update(&new, &second), 0), GREEN, "a user asks for it");
}

#[test]
fn unread_keys_make_no_new_template() {
    let mut world = World::default();
    world.set("demo", json!({"read": "1", "unread": "1"}));
    let mut object = deployment(&[]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "read"}}}]);
    let first = world.create(&object);
    world.set("demo", json!({"read": "1", "unread": "2"}));
    let poked = poke(&mut world, &first, 1);
    assert_eq!(template(&poked), template(&first));
    assert_ne!(remembered(&poked, "seen"), remembered(&first, "seen"));
    assert_eq!(template(&world.update(&object, &poked)), template(&first), "a later apply changes nothing");
    world.set("demo", json!({"read": "2", "unread": "2"}));
    assert_ne!(template(&poke(&mut world, &poked, 2)), template(&first));
    // If one reference reads the whole source, every key counts.
    let mut whole = object.clone();
    whole["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{"configMapRef": {"name": "demo"}}]);
    let whole = world.create(&whole);
    world.set("demo", json!({"read": "2", "unread": "3"}));
    assert_ne!(template(&poke(&mut world, &whole, 3)), template(&whole));
}

#[test]
fn missing_source_is_reported_and_resolved_later() {
    let mut world = World::default();
    let admitted = world.admit(&deployment(&["demo"]), None);
    assert_eq!(admitted.object, deployment(&["demo"]));
    assert_eq!(
        admitted.decision.warnings,
        [
            "ConfigMap \"demo\" does not exist in namespace \"ns\": pods that refer to it do not start until it does"
        ]
    );
    world.set("demo", json!({"color": "blue"}));
    assert_eq!(volume(&poke(&mut world, &admitted.object, 1), 0), BLUE);
}

#[test]
fn deleted_source_leaves_references_on_their_snapshot() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.remove("demo");
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let admitted = world.admit(&new, Some(&first));
    assert_eq!(volume(&admitted.object, 0), BLUE);
    assert_eq!(
        admitted.decision.warnings,
        ["ConfigMap \"demo\" no longer exists: its references keep the snapshot \"demo-3a18d34e26\""]
    );
    // An apply of the source's name gives the same result.
    let warnings = admitted.decision.warnings;
    let applied = world.admit(&deployment(&["demo"]), Some(&admitted.object));
    assert_eq!((volume(&applied.object, 0), applied.decision.warnings), (BLUE, warnings));
    let mut optional = deployment(&["demo"]);
    optional["spec"]["template"]["spec"]["volumes"][0]["configMap"]["optional"] = json!(true);
    let applied = world.admit(&optional, Some(&admitted.object));
    assert_eq!((volume(&applied.object, 0), applied.decision.warnings), (BLUE, vec![]));
    // If the source returns with the same content, nothing rolls; with other content, the workload rolls.
    world.set("demo", json!({"color": "blue"}));
    assert_eq!(template(&poke(&mut world, &first, 1)), template(&first));
    world.set("demo", json!({"color": "green"}));
    assert_eq!(volume(&poke(&mut world, &first, 2), 0), GREEN);
}

#[test]
fn name_conflict_gives_longer_snapshot_name() {
    let foreign = json!({"metadata": {"name": BLUE}, "data": {"color": "blue"}, "immutable": true});
    let mut forged = foreign.clone();
    forged["metadata"]["labels"] =
        json!({annotations::MANAGED_BY: annotations::MANAGER, annotations::SOURCE: "demo"});
    forged["metadata"]["annotations"] = json!({
        annotations::SOURCE_NAME: "demo",
        annotations::DIGEST: "sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f"});
    forged["data"] = json!({"color": "evil"});
    let mut going = forged.clone();
    going["data"] = json!({"color": "blue"});
    let sound = going.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut mutable = sound.clone();
    mutable.as_object_mut().unwrap().remove("immutable");
    let [unmanaged, unlabelled] = [annotations::MANAGED_BY, annotations::SOURCE].map(|label| {
        let mut object = sound.clone();
        object["metadata"]["labels"].as_object_mut().unwrap().remove(label);
        object
    });
    for (why, object) in [
        ("foreign", &foreign),
        ("forged", &forged),
        ("under deletion", &going),
        ("mutable", &mutable),
        ("without the label managed-by", &unmanaged),
        ("without the label source", &unlabelled),
    ] {
        let mut world = world("blue");
        world.set_object(BLUE, object.clone());
        let stored = world.create(&deployment(&["demo"]));
        assert_eq!(volume(&stored, 0), "demo-3a18d34e262fc4b7", "{why}");
        assert_eq!(world.objects[&configmap(BLUE)], *object, "{why}: untouched");
        assert_eq!(world.data("demo-3a18d34e262fc4b7"), &json!({"color": "blue"}));
    }
    let mut world = world("blue");
    world.set_object(BLUE, sound);
    assert_eq!(volume(&world.create(&deployment(&["demo"])), 0), BLUE, "a sound snapshot is used");
    assert_eq!(DIGITS[1], 16);
}

/// Re-applies and rolls cause no rollout without a change of content.
#[test]
fn longer_snapshot_name_stays_when_shorter_is_free() {
    let mut world = world("blue");
    world.set_object(BLUE, json!({"metadata": {"name": BLUE}, "data": {"color": "blue"}}));
    let stored = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&stored, 0), "demo-3a18d34e262fc4b7");
    world.remove(BLUE);
    assert_eq!(world.update(&deployment(&["demo"]), &stored), stored, "applied again");
    let mut asked = stored.clone();
    annotate(&mut asked, annotations::ROLL, "now");
    assert_eq!(
        template(&world.update(&asked, &stored)),
        template(&stored),
        "a user asks for the newest content"
    );
}

#[test]
fn roll_reads_only_source_and_new_snapshot() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut poked = stored.clone();
    annotate(&mut poked, annotations::ROLL, "auto-2026-01-01T00:00:00Z *");
    let needs = world.needs(&kind("Deployment"), &poked, &stored);
    let read = needs.iter().filter_map(|need| match need {
        Need::Object(name) => Some(name.clone()),
        _ => None,
    });
    assert_eq!(read.collect::<Vec<_>>(), [configmap("demo"), configmap(GREEN)]);
}

/// The garbage collector deletes such a snapshot when its last owner is deleted, possibly before the controller binds it.
#[test]
fn snapshot_owned_by_others_only_is_adopted() {
    let owner = |uid: &str| json!({"uid": uid});
    for (owners, is_adopted) in [
        (json!([]), false),
        (json!([owner("another")]), true),
        (json!([owner("uid-demo")]), false),
        (json!([owner("another"), owner("uid-demo")]), false),
    ] {
        let mut world = world("blue");
        let stored = world.create(&deployment(&["demo"]));
        let snapshot = world.objects.get_mut(&configmap(BLUE)).unwrap();
        snapshot["metadata"]["ownerReferences"] = owners.clone();
        let adopted = world.admit(&deployment(&["demo"]), None).decision.adopt;
        assert_eq!(adopted, if is_adopted { vec![configmap(BLUE)] } else { vec![] }, "{owners}");
        let applied = world.admit(&deployment(&["demo"]), Some(&stored)).decision.adopt;
        assert_eq!(applied, [], "{owners}: the stored template refers to it");
    }
}

/// The garbage collector may delete these snapshots before they are bound. A snapshot that the decision creates has no owner yet.
#[test]
fn decision_lists_existing_snapshots_newly_referred_to() {
    let mut world = world("blue");
    let created = world.admit(&deployment(&["demo"]), None);
    assert_eq!(created.decision.refers, []);
    assert_eq!(world.admit(&deployment(&["demo"]), None).decision.refers, [configmap(BLUE)]);
    let mut image = created.object.clone();
    image["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(world.admit(&image, Some(&created.object)).decision.refers, []);
}

/// The workload reads one key, and that key has the same value in the object that took the snapshot's name.
#[test]
fn equal_object_is_kept_only_if_sound() {
    for (why, is_kept) in
        [("sound", true), ("mutable", false), ("of another source", false), ("foreign", false)]
    {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue", "other": "1"}));
        let mut manifest = deployment(&["demo"]);
        manifest["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
            json!([{"key": "color", "path": "color"}]);
        let first = world.create(&manifest);
        let held = volume(&first, 0).to_owned();
        let snapshot = world.objects.get_mut(&configmap(&held)).unwrap();
        match why {
            "mutable" => drop(snapshot.as_object_mut().unwrap().remove("immutable")),
            "of another source" => {
                snapshot["metadata"]["annotations"][annotations::SOURCE_NAME] = json!("other");
            }
            "foreign" => *snapshot = json!({"metadata": {"name": held}, "data": {"color": "blue"}}),
            _ => {}
        }
        world.set("demo", json!({"color": "blue", "other": "2"}));
        let second = poke(&mut world, &first, 1);
        assert_eq!(volume(&second, 0) == held, is_kept, "{why}: {}", volume(&second, 0));
    }
}

/// A label of the workload's own takes precedence.
#[test]
fn namespace_adds_and_removes_enabled_label() {
    let mut world = world("blue");
    let mut bare = deployment(&["demo"]);
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    assert_eq!(world.create(&bare), bare, "neither label nor namespace opts it in");
    world.namespace.opt_in = NamespaceOptIn::Now;
    let stored = world.create(&bare);
    assert_eq!(stored["metadata"]["labels"][annotations::ENABLED], "true");
    assert_eq!(volume(&stored, 0), BLUE);
    let mut out = bare.clone();
    out["metadata"]["labels"] = json!({annotations::ENABLED: "false"});
    assert_eq!(world.create(&out), out, "its own label wins");
    let own = world.create(&deployment(&["demo"]));
    world.namespace.opt_in = NamespaceOptIn::Out;
    let left = poke(&mut world, &stored, 1);
    assert_eq!(left["metadata"]["labels"].get(annotations::ENABLED), None);
    assert_eq!(volume(&left, 0), "demo");
    assert_eq!(volume(&poke(&mut world, &own, 1), 0), BLUE, "its own label stays");
    // An applier that sets the label makes it the workload's own.
    let mut stated = stored.clone();
    stated["metadata"]["managedFields"] =
        json!([{"fieldsV1": {"f:metadata": {"f:labels": {"f:confrev.dev/enabled": {}}}}}]);
    assert_eq!(volume(&world.update(&stated, &stored), 0), BLUE);
    // A client-side apply of an unchanged label does not own it. Only the last applied configuration shows the label.
    for (labels, wanted) in [(json!({annotations::ENABLED: "true"}), BLUE), (json!({"a": "b"}), "demo")] {
        let mut applied = stored.clone();
        annotate(
            &mut applied,
            annotations::LAST_APPLIED,
            &json!({"metadata": {"labels": labels}}).to_string(),
        );
        assert_eq!(volume(&world.update(&applied, &stored), 0), wanted);
    }
}

/// A workload of a namespace with the label `next` stays as it is until it is deployed, and is opted in from then on.
#[test]
fn next_deployment_opts_in() {
    let mut world = world("blue");
    let mut bare = deployment(&["demo"]);
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    let edit = |object: &Value, change: &dyn Fn(&mut Value)| {
        let mut edited = object.clone();
        change(&mut edited);
        edited
    };
    let image =
        |object: &mut Value| object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let label = |object: &Value| object["metadata"]["labels"].get(annotations::ENABLED).cloned();
    for (what, change, is_deployment) in [
        ("nothing", &(|_: &mut Value| {}) as &dyn Fn(&mut Value), false),
        ("replicas", &|object| object["spec"]["replicas"] = json!(5), false),
        ("a setting", &|object| annotate(object, annotations::MIN_INTERVAL, "1h"), false),
        ("a plan", &|object| annotate(object, annotations::ROLL, "1"), false),
        ("the notation", &|object| object["spec"]["template"]["spec"]["hostNetwork"] = json!(false), false),
        ("the image", &image, true),
        (
            "a restart",
            &|object| object["spec"]["template"]["metadata"]["annotations"]["at"] = json!("9"),
            true,
        ),
    ] {
        world.namespace.opt_in = NamespaceOptIn::Next;
        let new = edit(&bare, change);
        let stored = world.update(&new, &bare);
        if !is_deployment {
            assert_eq!(stored, new, "{what}");
            continue;
        }
        assert_eq!(label(&stored), Some(json!("true")), "{what}");
        // From then on, every write is one of an opted-in workload, also one that takes the label away.
        let without = edit(&stored, &|object| object["metadata"]["labels"].as_object_mut().unwrap().clear());
        assert_eq!(world.update(&without, &stored), stored, "{what}");
        world.set("demo", json!({"color": "green"}));
        assert_ne!(volume(&poke(&mut world, &stored, 1), 0), "demo", "{what}");
        world.set("demo", json!({"color": "blue"}));
        world.namespace.opt_in = NamespaceOptIn::Out;
        assert_eq!(label(&poke(&mut world, &stored, 2)), None, "{what}");
    }
    world.namespace.opt_in = NamespaceOptIn::Next;
    assert_eq!(volume(&world.create(&bare), 0), BLUE, "a creation is a deployment");
    let mut marked = bare.clone();
    marked["metadata"]["labels"] = json!({annotations::CARRIED: "true"});
    annotate(&mut marked, annotations::CARRIED, "configmaps/demo");
    assert_eq!(
        volume(&poke(&mut world, &marked, 3), 0),
        BLUE,
        "it was deployed while confrev did not answer"
    );
    let out = edit(&bare, &|object| object["metadata"]["labels"] = json!({annotations::ENABLED: "false"}));
    assert_eq!(world.update(&edit(&out, &image), &out), edit(&out, &image), "its own label wins");
}

/// Until then the label is the namespace's, even if the last applied configuration has it.
#[test]
fn removed_label_counts_as_own_after_next_apply() {
    let mut world = world("blue");
    let applied = |note: &str, labels: Value| {
        json!({"metadata": {"labels": labels, "annotations": {"note": note}}}).to_string()
    };
    let (states, silent) = (json!({annotations::ENABLED: "true"}), json!({}));
    let apply = |world: &mut World, stored: &Value, text: &str| {
        let mut new = stored.clone();
        annotate(&mut new, annotations::LAST_APPLIED, text);
        world.update(&new, stored)
    };
    let off = |object: &Value| {
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        bare
    };
    let mut own = deployment(&["demo"]);
    annotate(&mut own, annotations::LAST_APPLIED, &applied("one", states.clone()));
    let own = world.create(&own);
    world.namespace.opt_in = NamespaceOptIn::Now;
    // `kubectl label deployment web confrev.dev/enabled-`: the namespace gives the label again at once.
    let given = world.update(&off(&own), &own);
    assert_eq!(given["metadata"]["labels"][annotations::ENABLED], "true");
    assert_eq!(world.update(&given, &given), given);
    // `kubectl rollout undo` restores all annotations of an older ReplicaSet except the last applied configuration.
    let mut undone = given.clone();
    undone["metadata"]["annotations"] = own["metadata"]["annotations"].clone();
    undone["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:0");
    let undone = world.update(&undone, &given);
    // An apply with another manifest that sets the label, and an apply of the first manifest after one without the label.
    let again = apply(&mut world, &given, &applied("two", states.clone()));
    let mut without = off(&given);
    annotate(&mut without, annotations::LAST_APPLIED, &applied("two", silent));
    let without = world.update(&without, &given);
    let back = apply(&mut world, &without, &applied("one", states));
    world.namespace.opt_in = NamespaceOptIn::Out;
    for (what, object, wanted) in [
        ("the namespace set the label", &given, "demo"),
        ("the namespace set the label, and an undo followed", &undone, "demo"),
        ("an apply sets the label again", &again, BLUE),
        ("an apply of the first manifest sets the label again", &back, BLUE),
    ] {
        assert_eq!(volume(&poke(&mut world, object, 1), 0), wanted, "{what}");
    }
}

/// If the snapshot does not exist, as in another cluster, the copy resolves to the present content.
#[test]
fn copied_workload_keeps_snapshot_if_it_exists() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut copy = stored.clone();
    copy["metadata"]["name"] = json!("copy");
    assert_eq!(volume(&world.create(&copy), 0), BLUE);
    let mut elsewhere = World::default();
    elsewhere.set("demo", json!({"color": "green"}));
    assert_eq!(volume(&elsewhere.create(&copy), 0), GREEN);
}

/// `sources` names both.
#[test]
fn two_snapshots_of_one_source_roll_together() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let mut new = second.clone();
    let pinned = json!({"name": "old", "configMap": {"name": BLUE}});
    new["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(pinned);
    let both = world.update(&new, &second);
    assert_eq!((volume(&both, 0), volume(&both, 1)), (GREEN, BLUE));
    let sources = annotation(&template(&both)["metadata"], annotations::SOURCES);
    assert_eq!(sources, json!({"configmaps": {"demo": GREEN, BLUE: BLUE}}));
    assert_eq!(world.update(&both, &both), both);
    world.set("demo", json!({"color": "red"}));
    let moved = poke(&mut world, &both, 2);
    assert_eq!((volume(&moved, 0), volume(&moved, 1)), ("demo-354d33e656", "demo-354d33e656"));
}

#[test]
fn stored_job_stays_unchanged() {
    let mut world = world("blue");
    let job = kind("Job");
    let stored = world.review(&job, &deployment(&["demo"]), None).object;
    assert_eq!(volume(&stored, 0), BLUE);
    world.set("demo", json!({"color": "green"}));
    assert_eq!(world.review(&job, &stored, Some(&stored)).object, stored);
    // A repeated apply keeps the stored template: the API server refuses any change.
    let applied = world.review(&job, &deployment(&["demo"]), Some(&stored)).object;
    assert_eq!(applied["spec"], stored["spec"]);
}

/// The volume is mounted into every container, and removed with the annotation or when the workload opts out.
#[test]
fn mount_adds_updates_and_removes_volume() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    for existing_volumes in [json!([{"name": "e", "emptyDir": {}}]), Value::Null] {
        let mut object = deployment(&[]);
        object["spec"]["template"]["spec"] = json!({
            "volumes": existing_volumes,
            "containers": [{"name": "c", "volumeMounts": [{"name": "e", "mountPath": "/e"}]}, {"name": "d"}],
            "initContainers": [{"name": "i"}],
        });
        let plain = object.clone();
        annotate(&mut object, annotations::MOUNT, "demo,other=/etc/app");
        let stored = world.create(&object);
        let spec = &template(&stored)["spec"];
        let volume = spec["volumes"].as_array().unwrap().last().unwrap().clone();
        let other = volume["projected"]["sources"][1]["configMap"]["name"].as_str().unwrap().to_owned();
        assert!(other.starts_with("other-"), "{other}");
        let sources = json!([{"configMap": {"name": BLUE}}, {"configMap": {"name": other}}]);
        assert_eq!(volume, json!({"name": "confrev-mount", "projected": {"sources": sources}}));
        let mount = json!({"name": "confrev-mount", "mountPath": "/etc/app", "readOnly": true});
        for container in [&spec["containers"][0], &spec["containers"][1], &spec["initContainers"][0]] {
            assert_eq!(container["volumeMounts"].as_array().unwrap().last(), Some(&mount));
        }
        let own = &object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0];
        assert_eq!(&spec["containers"][0]["volumeMounts"][0], own);
        assert_eq!(world.admit(&stored, Some(&stored)).decision.patch.0, [], "a fixed point");
        assert_eq!(world.update(&object, &stored), stored, "applied again");
        // The API server adds a default.
        let mut stored = stored.clone();
        let volumes = stored["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap();
        volumes.last_mut().unwrap()["projected"]["defaultMode"] = json!(420);
        world.set("demo", json!({"color": "green"}));
        let moved = poke(&mut world, &stored, 1);
        assert_eq!(
            template(&moved).to_string(),
            template(&stored).to_string().replace(BLUE, GREEN).replace(&revision(&stored), &revision(&moved)),
            "only the name changes"
        );
        // Another path and another list, then no annotation.
        let mut new = moved.clone();
        annotate(&mut new, annotations::MOUNT, "demo");
        let default = world.update(&new, &moved);
        let text = template(&default).to_string();
        assert_eq!(text.matches("/etc/kubernetes/configmaps").count(), 3);
        assert!(!text.contains(&other) && !text.contains("/etc/app"), "{text}");
        let mut new = default.clone();
        new["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::MOUNT);
        let gone = world.update(&new, &default);
        let text = template(&gone).to_string();
        assert!(!text.contains("confrev-mount"), "{text}");
        let mut out = default.clone();
        out["metadata"]["labels"][annotations::ENABLED] = json!("false");
        let left = world.update(&out, &default)["spec"]["template"]["spec"].to_string();
        assert!(!left.contains("confrev-mount"), "{left}");
        assert_eq!(plain["spec"]["template"]["spec"]["containers"][1], json!({"name": "d"}));
        world.set("demo", json!({"color": "blue"}));
    }
}

fn revision(object: &Value) -> String {
    template(object)["metadata"]["labels"][annotations::REVISION].as_str().unwrap().to_owned()
}
