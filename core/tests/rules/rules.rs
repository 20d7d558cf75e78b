//! The rules, in the order of the events that users see.

use confrev::{names, snapshot::DIGITS};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, world},
    world::{World, annotate, annotation, configmap, deployment, kind, template, volume},
};

#[test]
fn a_change_takes_effect_at_the_poke_and_a_second_poke_changes_nothing() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(volume(&first, 0), BLUE);
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    assert_eq!(volume(&second, 0), GREEN);
    let third = poke(&mut world, &second, 2);
    assert_eq!(template(&third), template(&second));
    assert_eq!(world.data(BLUE), &json!({"color": "blue"}), "the old content is still there");
}

#[test]
fn the_old_content_again_is_the_old_template_again() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    world.set("demo", json!({"color": "blue"}));
    let third = poke(&mut world, &second, 2);
    assert_eq!(template(&third), template(&first));
}

#[test]
fn an_apply_of_names_in_git_takes_the_present_content() {
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
fn an_apply_without_a_change_is_the_stored_object_again() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    assert_eq!(world.update(&first, &first), first);
    assert_eq!(world.update(&deployment(&["demo"]), &first), first);
}

#[test]
fn a_pending_roll_goes_along_with_another_change() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(volume(&world.update(&new, &first), 0), GREEN);
}

#[test]
fn a_pending_roll_is_not_lost_when_a_volume_is_renamed() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["volumes"][0]["name"] = json!("renamed");
    assert_eq!(volume(&world.update(&new, &first), 0), GREEN);
}

#[test]
fn without_track_only_an_apply_or_a_person_moves_it() {
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, names::TRACK, "false");
    let first = world.create(&object);
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let second = world.update(&new, &first);
    assert_eq!(volume(&second, 0), BLUE);
    assert_eq!(volume(&poke(&mut world, &second, 1), 0), BLUE);
    assert_eq!(volume(&world.update(&object, &second), 0), GREEN, "applied");
    let mut new = second.clone();
    annotate(&mut new, names::ROLL, "x");
    assert_eq!(volume(&world.update(&new, &second), 0), GREEN, "asked for");
}

#[test]
fn keys_that_nobody_reads_make_no_new_template() {
    let mut world = World::default();
    world.set("demo", json!({"read": "1", "unread": "1"}));
    let mut object = deployment(&[]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "read"}}}]);
    let first = world.create(&object);
    world.set("demo", json!({"read": "1", "unread": "2"}));
    let poked = poke(&mut world, &first, 1);
    assert_eq!(template(&poked), template(&first));
    assert_ne!(poked["metadata"]["annotations"][names::SEEN], first["metadata"]["annotations"][names::SEEN]);
    assert_eq!(template(&world.update(&object, &poked)), template(&first), "a later apply makes none either");
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
fn a_source_that_does_not_exist_is_told_and_resolved_when_it_comes() {
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
fn a_source_that_is_gone_leaves_its_users_on_the_snapshot_they_have() {
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
    assert_eq!(volume(&world.update(&deployment(&["demo"]), &admitted.object), 0), BLUE);
    // If the source returns with the same content, nothing rolls; with other content, the workload rolls.
    world.set("demo", json!({"color": "blue"}));
    assert_eq!(template(&poke(&mut world, &first, 1)), template(&first));
    world.set("demo", json!({"color": "green"}));
    assert_eq!(volume(&poke(&mut world, &first, 2), 0), GREEN);
}

#[test]
fn a_name_taken_by_another_object_makes_a_longer_name() {
    let foreign = json!({"metadata": {"name": BLUE}, "data": {"color": "blue"}, "immutable": true});
    let mut forged = foreign.clone();
    forged["metadata"]["labels"] = json!({names::MANAGED_BY: names::MANAGER, names::SOURCE: "demo"});
    forged["metadata"]["annotations"] = json!({
        names::SOURCE_NAME: "demo",
        names::DIGEST: "sha256:3a18d34e262fc4b788874349f3267bd04db95e4530b1e16909c791de7634513f"});
    forged["data"] = json!({"color": "evil"});
    let mut going = forged.clone();
    going["data"] = json!({"color": "blue"});
    let sound = going.clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut mutable = sound.clone();
    mutable.as_object_mut().unwrap().remove("immutable");
    for (why, object) in
        [("foreign", &foreign), ("forged", &forged), ("going", &going), ("mutable", &mutable)]
    {
        let mut world = world("blue");
        world.set_object(BLUE, object.clone());
        let stored = world.create(&deployment(&["demo"]));
        assert_eq!(volume(&stored, 0), "demo-3a18d34e262fc4b7", "{why}");
        assert_eq!(world.objects[&configmap(BLUE)], *object, "{why}: untouched");
        assert_eq!(world.data("demo-3a18d34e262fc4b7"), &json!({"color": "blue"}));
    }
    let mut world = world("blue");
    world.set_object(BLUE, sound);
    assert_eq!(volume(&world.create(&deployment(&["demo"])), 0), BLUE, "a sound one is taken");
    assert_eq!(DIGITS[1], 16);
}

#[test]
fn a_namespace_gives_the_label_and_takes_it_back_but_a_workloads_own_wins() {
    let mut world = world("blue");
    let mut bare = deployment(&["demo"]);
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    assert_eq!(world.create(&bare), bare, "nothing opts it in");
    world.namespace.enabled = true;
    let stored = world.create(&bare);
    assert_eq!(stored["metadata"]["labels"][names::ENABLED], "true");
    assert_eq!(volume(&stored, 0), BLUE);
    let mut out = bare.clone();
    out["metadata"]["labels"] = json!({names::ENABLED: "false"});
    assert_eq!(world.create(&out), out, "its own label wins");
    let own = world.create(&deployment(&["demo"]));
    world.namespace.enabled = false;
    let left = poke(&mut world, &stored, 1);
    assert_eq!(left["metadata"]["labels"].get(names::ENABLED), None);
    assert_eq!(volume(&left, 0), "demo");
    assert_eq!(volume(&poke(&mut world, &own, 1), 0), BLUE, "its own label stays");
    // An applier that sets the label makes it the workload's own.
    let mut stated = stored.clone();
    stated["metadata"]["managedFields"] =
        json!([{"fieldsV1": {"f:metadata": {"f:labels": {"f:confrev.dev/enabled": {}}}}}]);
    assert_eq!(volume(&world.update(&stated, &stored), 0), BLUE);
    // A client-side apply of the same labels makes its applier no owner. The last applied configuration shows it.
    for (labels, wanted) in [(json!({names::ENABLED: "true"}), BLUE), (json!({"a": "b"}), "demo")] {
        let mut applied = stored.clone();
        annotate(&mut applied, names::LAST_APPLIED, &json!({"metadata": {"labels": labels}}).to_string());
        assert_eq!(volume(&world.update(&applied, &stored), 0), wanted);
    }
}

#[test]
fn a_label_that_a_person_took_off_is_not_the_workloads_own_by_what_was_applied_before_until_another_apply() {
    let mut world = world("blue");
    let applied = |note: &str, labels: Value| {
        json!({"metadata": {"labels": labels, "annotations": {"note": note}}}).to_string()
    };
    let (states, silent) = (json!({names::ENABLED: "true"}), json!({}));
    let apply = |world: &mut World, stored: &Value, text: &str| {
        let mut new = stored.clone();
        annotate(&mut new, names::LAST_APPLIED, text);
        world.update(&new, stored)
    };
    let off = |object: &Value| {
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().unwrap().remove("labels");
        bare
    };
    let mut own = deployment(&["demo"]);
    annotate(&mut own, names::LAST_APPLIED, &applied("one", states.clone()));
    let own = world.create(&own);
    world.namespace.enabled = true;
    // `kubectl label deployment web confrev.dev/enabled-`: the namespace gives the label again at once.
    let given = world.update(&off(&own), &own);
    assert_eq!(given["metadata"]["labels"][names::ENABLED], "true");
    assert_eq!(world.update(&given, &given), given);
    // `kubectl rollout undo` restores all annotations of an older ReplicaSet except the last applied configuration.
    let mut undone = given.clone();
    undone["metadata"]["annotations"] = own["metadata"]["annotations"].clone();
    undone["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:0");
    let undone = world.update(&undone, &given);
    // An apply sets the label again; so does an apply of the first manifest.
    let again = apply(&mut world, &given, &applied("two", states.clone()));
    let mut without = off(&given);
    annotate(&mut without, names::LAST_APPLIED, &applied("two", silent));
    let without = world.update(&without, &given);
    let back = apply(&mut world, &without, &applied("one", states));
    world.namespace.enabled = false;
    for (what, object, wanted) in [
        ("it was the namespace's", &given, "demo"),
        ("after an undo too", &undone, "demo"),
        ("an apply states it anew", &again, BLUE),
        ("an apply goes back", &back, BLUE),
    ] {
        assert_eq!(volume(&poke(&mut world, object, 1), 0), wanted, "{what}");
    }
}

#[test]
fn a_copy_stays_on_its_snapshot_here_and_takes_the_present_content_elsewhere() {
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

#[test]
fn two_snapshots_of_one_source_are_both_named_in_sources_and_move_on_together() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let mut new = second.clone();
    let pinned = json!({"name": "old", "configMap": {"name": BLUE}});
    new["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(pinned);
    let both = world.update(&new, &second);
    assert_eq!((volume(&both, 0), volume(&both, 1)), (GREEN, BLUE));
    let sources = annotation(&template(&both)["metadata"], names::SOURCES);
    assert_eq!(sources, json!({"configmaps": {"demo": GREEN, BLUE: BLUE}}));
    assert_eq!(world.update(&both, &both), both);
    world.set("demo", json!({"color": "red"}));
    let moved = poke(&mut world, &both, 2);
    assert_eq!((volume(&moved, 0), volume(&moved, 1)), ("demo-354d33e656", "demo-354d33e656"));
}

#[test]
fn a_stored_job_is_left_alone() {
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

#[test]
fn a_mount_puts_configmaps_into_every_container_moves_with_them_and_goes_with_the_annotation() {
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
        annotate(&mut object, names::MOUNT, "demo,other=/etc/app");
        let stored = world.create(&object);
        let spec = &template(&stored)["spec"];
        let volume = spec["volumes"].as_array().unwrap().last().unwrap().clone();
        let other = volume["projected"]["sources"][1]["configMap"]["name"].as_str().unwrap().to_owned();
        let sources = json!([{"configMap": {"name": BLUE}}, {"configMap": {"name": other}}]);
        assert_eq!(volume, json!({"name": "confrev-mount", "projected": {"sources": sources}}));
        let mount = json!({"name": "confrev-mount", "mountPath": "/etc/app", "readOnly": true});
        for container in [&spec["containers"][0], &spec["containers"][1], &spec["initContainers"][0]] {
            assert_eq!(container["volumeMounts"].as_array().unwrap().last(), Some(&mount));
        }
        assert_eq!(world.update(&stored, &stored), stored, "a fixed point");
        assert_eq!(world.update(&object, &stored), stored, "applied again");
        world.set("demo", json!({"color": "green"}));
        let moved = poke(&mut world, &stored, 1);
        assert_eq!(
            template(&moved).to_string(),
            template(&stored).to_string().replace(BLUE, GREEN).replace(&revision(&stored), &revision(&moved)),
            "only the name moves"
        );
        // Another path and another list, then no annotation.
        let mut new = moved.clone();
        annotate(&mut new, names::MOUNT, "demo");
        let default = world.update(&new, &moved);
        let text = template(&default).to_string();
        assert_eq!(text.matches("/etc/kubernetes/configmaps").count(), 3);
        assert!(!text.contains(&other) && !text.contains("/etc/app"), "{text}");
        let mut new = default.clone();
        new["metadata"]["annotations"].as_object_mut().unwrap().remove(names::MOUNT);
        let gone = world.update(&new, &default);
        let text = template(&gone).to_string();
        assert!(!text.contains("confrev-mount"), "{text}");
        let mut out = default.clone();
        out["metadata"]["labels"][names::ENABLED] = json!("false");
        let left = world.update(&out, &default)["spec"]["template"]["spec"].to_string();
        assert!(!left.contains("confrev-mount"), "{left}");
        assert_eq!(plain["spec"]["template"]["spec"]["containers"][1], json!({"name": "d"}));
        world.set("demo", json!({"color": "blue"}));
    }
}

fn revision(object: &Value) -> String {
    template(object)["metadata"]["labels"][names::REVISION].as_str().unwrap().to_owned()
}
