//! Undo and pin: their effects, and the events that end them.

use confrev::annotations;
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo, world},
    undo_by_revision::replica_set,
    world::{World, annotate, configmap, deployment, remembered, template, volume},
};

/// A workload at blue, and the same workload after its source changed to green.
fn rolled() -> (World, Value, Value) {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    (world, first, second)
}

#[test]
fn undo_holds_until_source_changes_again() {
    let (mut world, first, second) = rolled();
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!(volume(&undone, 0), BLUE);
    // An image change, or a poke for another reason: the undo stays.
    let mut new = undone.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let changed = world.update(&new, &undone);
    assert_eq!(volume(&changed, 0), BLUE);
    assert_eq!(volume(&poke(&mut world, &changed, 2), 0), BLUE);
    world.set("demo", json!({"color": "red"}));
    assert_eq!(volume(&poke(&mut world, &changed, 3), 0), "demo-354d33e656");
}

#[test]
fn undo_restores_mounted_snapshot() {
    let mut world = world("blue");
    let mut object = deployment(&[]);
    annotate(&mut object, annotations::MOUNT, "demo");
    let first = world.create(&object);
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    assert!(second["spec"].to_string().contains(GREEN), "{}", second["spec"]);
    assert_eq!(template(&world.update(&undo(&second, &first), &second)), template(&first));
}

/// The pin writes the snapshot's name alone into the volume. Any other name there is replaced.
#[test]
fn pin_of_mounted_snapshot_holds() {
    let mut world = world("blue");
    world.set("other", json!({"color": "other"}));
    let mut object = deployment(&[]);
    annotate(&mut object, annotations::MOUNT, "demo");
    let first = world.create(&object);
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let named = |name: &str| {
        let text = second["spec"]
            .to_string()
            .replace(&format!("{{\"name\":\"{GREEN}\"}}"), &format!("{{\"name\":\"{name}\"}}"));
        let mut object = second.clone();
        object["spec"] = serde_json::from_str(&text).unwrap();
        assert_ne!(object, second);
        object
    };
    let pinned = world.update(&named(BLUE), &second);
    assert_eq!(template(&pinned), template(&first));
    assert_eq!(template(&poke(&mut world, &pinned, 2)), template(&first), "the pin holds");
    for name in ["demo", "other", "missing"] {
        assert_eq!(template(&world.update(&named(name), &second)), template(&second), "{name}");
    }
    assert_eq!(
        template(&world.update(&named("demo"), &pinned)),
        template(&second),
        "the source's name ends it"
    );
}

#[test]
fn missing_snapshot_of_undo_or_copy_is_reported() {
    let (mut world, first, second) = rolled();
    world.remove(BLUE);
    world.revisions.push(replica_set(&first));
    let undone = world.admit(&undo(&second, &first), Some(&second));
    let copied = World::default().admit(&first, None);
    for (what, admitted, name) in [("an undo", undone, BLUE), ("a copy without its source", copied, "demo")] {
        assert_eq!(volume(&admitted.object, 0), name, "{what}");
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains(&format!("{name:?} does not exist")), "{what}: {warning}");
    }
}

/// When the source exists again, the workload rolls to its content.
#[test]
fn apply_ends_undo_while_source_is_missing() {
    let (world, first, second) = rolled();
    for (color, wanted) in [("green", GREEN), ("blue", BLUE)] {
        let mut world = world.clone();
        world.remove("demo");
        let undone = world.update(&undo(&second, &first), &second);
        let mut applied = deployment(&["demo"]);
        applied["metadata"]["annotations"] = undone["metadata"]["annotations"].clone();
        let applied = world.update(&applied, &undone);
        assert_eq!(volume(&applied, 0), BLUE, "there is no other content");
        assert_eq!(world.update(&applied, &applied), applied);
        assert_eq!(world.update(&applied, &undone), applied, "admitted again, after another webhook");
        world.set("demo", json!({"color": color}));
        let was_news = poke(&mut world, &applied, 2);
        assert_eq!(volume(&was_news, 0), wanted);
        let of = |object: &Value| template(object).clone();
        assert_eq!(of(&was_news) == of(&applied), color == "blue", "equal content causes no roll");
        // Without the apply, the undo holds.
        assert_eq!(volume(&poke(&mut world, &undone, 2), 0), BLUE);
    }
}

/// The source's name in one reference counts for all references to the source, in any order of the references.
#[test]
fn partial_apply_ends_undo_of_missing_source() {
    let mut world = world("blue");
    let two = |volume: &str, env: &str| {
        let mut object = deployment(&[volume]);
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["envFrom"] = json!([{"configMapRef": {"name": env}}]);
        object
    };
    let first = world.create(&two("demo", "demo"));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    world.remove("demo");
    let seen = remembered(&first, "seen");
    for (volume, env) in [("demo", "demo"), (BLUE, "demo"), ("demo", BLUE)] {
        let mut new = two(volume, env);
        new["metadata"]["annotations"] = undone["metadata"]["annotations"].clone();
        new["spec"]["template"]["metadata"]["annotations"] =
            undone["spec"]["template"]["metadata"]["annotations"].clone();
        let applied = world.update(&new, &undone);
        assert_eq!(remembered(&applied, "seen"), seen, "{volume} {env}");
    }
}

#[test]
fn undo_with_stale_annotations_holds() {
    let (mut world, first, second) = rolled();
    // `kubectl rollout undo` of a Deployment replaces the workload's annotations, too.
    let mut new = undo(&second, &first);
    new["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    let undone = world.update(&new, &second);
    assert_eq!(volume(&undone, 0), BLUE);
    assert_eq!(
        remembered(&undone, "seen"),
        remembered(&second, "seen"),
        "the present content counts as seen"
    );
    assert_eq!(volume(&poke(&mut world, &undone, 2), 0), BLUE);
}

#[test]
fn partial_apply_moves_all_references_to_source() {
    let mut world = world("blue");
    let two = |name: &str| {
        let mut object = deployment(&["demo", "other"]);
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["envFrom"] = json!([{"configMapRef": {"name": name}}]);
        object
    };
    world.set("other", json!({"a": "1"}));
    let first = world.create(&two("demo"));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    let env = |object: &Value| {
        template(object)["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"].clone()
    };
    assert_eq!((volume(&undone, 0), env(&undone)), (BLUE, json!(BLUE)));
    // `helm upgrade` of a Rollout sends whole lists, and only those that differ from the last manifest.
    let mut new = undone.clone();
    new["spec"]["template"]["spec"]["containers"] =
        two("demo")["spec"]["template"]["spec"]["containers"].clone();
    let applied = world.update(&new, &undone);
    assert_eq!((volume(&applied, 0), env(&applied)), (GREEN, json!(GREEN)));
    // References to other sources stay as they are.
    assert_eq!(volume(&applied, 1), volume(&undone, 1));
}

#[test]
fn undo_with_older_roll_keeps_min_interval() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    world.set("demo", json!({"color": "red"}));
    let third = poke(&mut world, &second, 2);
    let roll = |workload: &Value| workload["metadata"]["annotations"][annotations::ROLL].clone();
    let undo_to = |to: &Value| {
        let mut new = undo(&third, to);
        new["metadata"]["annotations"] = to["metadata"]["annotations"].clone();
        new
    };
    for to in [&first, &second] {
        assert_ne!(roll(to), roll(&third));
        let undone = world.update(&undo_to(to), &third);
        assert_eq!(roll(&undone), roll(&third), "the interval counts from the last roll");
    }
    // A value that a user writes stays.
    let mut by_hand = undo_to(&first);
    by_hand["metadata"]["annotations"][annotations::ROLL] = json!("please");
    assert_eq!(roll(&world.update(&by_hand, &third)), "please");
}

#[test]
fn stale_roll_of_undo_keeps_other_pins() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let first = world.create(&deployment(&["demo", "other"]));
    let other = volume(&first, 1).to_owned();
    // A user rolls to the newest content of `demo`. Then `other` changes, and an undo pins its old content.
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    annotate(&mut new, annotations::ROLL, "by-hand");
    let second = world.update(&new, &first);
    world.set("other", json!({"n": "2"}));
    let third = poke(&mut world, &second, 1);
    assert_ne!(volume(&third, 1), other);
    let mut back = undo(&third, &second);
    back["metadata"]["annotations"] = second["metadata"]["annotations"].clone();
    let pinned = world.update(&back, &third);
    assert_eq!((volume(&pinned, 0), volume(&pinned, 1)), (GREEN, other.as_str()));
    // A second undo restores all annotations of the first revision, including another value of `roll`.
    let mut back = undo(&pinned, &first);
    back["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    annotate(&mut back, annotations::ROLL, "an-older-value");
    let undone = world.update(&back, &pinned);
    assert_eq!((volume(&undone, 0), volume(&undone, 1)), (BLUE, other.as_str()));
}

#[test]
fn change_of_one_source_keeps_other_pins() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let first = world.create(&deployment(&["demo", "other"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    world.set("other", json!({"n": "2"}));
    let rolled = poke(&mut world, &undone, 2);
    assert_eq!(volume(&rolled, 0), BLUE, "pinned");
    assert_ne!(volume(&rolled, 1), volume(&undone, 1), "rolled");
}

#[test]
fn new_roll_value_ends_pin() {
    let (mut world, first, second) = rolled();
    let undone = world.update(&undo(&second, &first), &second);
    let mut new = undone.clone();
    annotate(&mut new, annotations::ROLL, "now please");
    assert_eq!(volume(&world.update(&new, &undone), 0), GREEN);
}

#[test]
fn opting_out_reverts_all_changes() {
    let mut world = world("blue");
    let original = deployment(&["demo"]);
    let stored = world.create(&original);
    for label in [Some("false"), None] {
        let mut new = poke(&mut world, &stored, 1);
        let mut expected = original.clone();
        if let Some(value) = label {
            new["metadata"]["labels"][annotations::ENABLED] = json!(value);
            expected["metadata"]["labels"][annotations::ENABLED] = json!(value);
        } else {
            new["metadata"]["labels"].as_object_mut().unwrap().remove(annotations::ENABLED);
            expected["metadata"]["labels"].as_object_mut().unwrap().remove(annotations::ENABLED);
        }
        expected["metadata"]["annotations"] = json!({});
        expected["spec"]["template"]["metadata"]["annotations"] = json!({});
        assert_eq!(world.update(&new, &stored), expected);
    }
}

#[test]
fn opting_out_reverts_each_change_alone() {
    let world = world("blue");
    let sources = json!({"configmaps": {"demo": BLUE}}).to_string();
    let live = json!({"configmaps": {"demo": format!("sha256:{}", "0".repeat(64))}}).to_string();
    for (key, in_template, value) in [
        (annotations::STATE, false, "{}"),
        (annotations::ENABLED_BY, false, "namespace"),
        (annotations::SOURCES, true, &sources),
        (annotations::LIVE, true, &live),
    ] {
        let mut out = deployment(&["demo"]);
        out["metadata"]["labels"][annotations::ENABLED] = json!("false");
        if in_template {
            out["spec"]["template"]["metadata"]["annotations"] = json!({key: value});
        } else {
            annotate(&mut out, key, value);
        }
        if key == annotations::SOURCES {
            out["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(BLUE);
        }
        let mut stored = out.clone();
        stored["metadata"]["labels"][annotations::ENABLED] = json!("true");
        for old in [None, Some(&stored)] {
            let left = world.clone().admit(&out, old).object;
            assert!(!left.to_string().contains(&format!("{key}\"")), "{key}: {left}");
            assert_eq!(volume(&left, 0), "demo", "{key}");
        }
    }
}

/// The workload has a volume like the one that confrev makes for the annotation `mount`.
#[test]
fn opting_out_changes_nothing_if_confrev_wrote_nothing() {
    for (opted_in, has_annotation) in [(false, true), (true, false)] {
        let mut old = deployment(&["demo"]);
        old["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(
            json!({"name": "confrev-mount", "projected": {"sources": [{"configMap": {"name": "late"}}]}}),
        );
        if has_annotation {
            annotate(&mut old, annotations::MOUNT, "late");
        }
        let mut out = old.clone();
        old["metadata"]["labels"][annotations::ENABLED] = json!(opted_in.to_string());
        out["metadata"]["labels"][annotations::ENABLED] = json!("false");
        assert_eq!(
            world("blue").update(&out, &old),
            out,
            "opted in: {opted_in}, annotation: {has_annotation}"
        );
    }
}

/// `kubectl confrev pause` and `resume` write these annotations and nothing else. After `resume`, the workload rolls to the
/// change that it missed (docs/commands.md).
#[test]
fn resumed_workload_rolls_to_missed_change() {
    let resumed = |object: &Value| {
        let mut new = object.clone();
        new["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::TRACK);
        new
    };
    let paused = |object: &Value| {
        let mut new = object.clone();
        annotate(&mut new, annotations::TRACK, "false");
        new
    };
    // The only change came while the workload was paused.
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    let held = world.update(&paused(&first), &first);
    world.set("demo", json!({"color": "green"}));
    assert_eq!(volume(&world.update(&resumed(&held), &held), 0), GREEN);

    // The same change, and an image change while the workload was paused.
    let mut new = held.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let edited = world.update(&new, &held);
    assert_eq!(volume(&edited, 0), BLUE);
    let image = volume(&world.update(&resumed(&edited), &edited), 0).to_owned();

    // The change was already pending (`min-interval`, `max-in-flight`, `--settle`) when the workload was paused.
    let held = world.update(&paused(&first), &first);
    assert_eq!(volume(&held, 0), BLUE);
    let pending = volume(&world.update(&resumed(&held), &held), 0).to_owned();
    assert_eq!((image.as_str(), pending.as_str()), (GREEN, GREEN), "(after an image change, while pending)");
}

/// A user may have written the `sources` of the stored template: no webhook saw it before the workload opted in. If admission
/// made the workload an owner of that object, the garbage collector would delete the object with the workload.
#[test]
fn users_object_is_never_adopted_as_snapshot() {
    let mut world = World::default();
    world.set("precious", json!({"text": "A"}));
    let mut old = deployment(&[]);
    old["metadata"]["labels"] = json!({});
    old["metadata"]["uid"] = json!("uid-web");
    old["spec"]["template"]["metadata"]["annotations"] =
        json!({annotations::SOURCES: json!({"configmaps": {"x": "precious"}}).to_string()});
    let mut new = deployment(&["precious"]);
    new["metadata"]["uid"] = json!("uid-web");
    new["spec"]["template"]["metadata"]["annotations"] =
        old["spec"]["template"]["metadata"]["annotations"].clone();
    let admitted = world.admit(&new, Some(&old));
    assert_eq!(admitted.decision.adopt, [], "a user's object would be bound to the workload");
    assert_ne!(volume(&admitted.object, 0), "precious", "the object is a source like any other");
}

/// Its labels and annotations are those of a snapshot, but its content is not.
#[test]
fn tampered_snapshot_is_not_adopted() {
    for (tampered, adopted) in [(false, 1), (true, 0)] {
        let (mut world, first, second) = rolled();
        if tampered {
            world.objects.get_mut(&configmap(BLUE)).unwrap()["data"]["color"] = json!("another");
        }
        let admitted = world.admit(&undo(&second, &first), Some(&second));
        assert_eq!(admitted.decision.adopt.len(), adopted, "tampered with: {tampered}");
        assert_eq!(volume(&admitted.object, 0), BLUE);
    }
}

/// Only one of two references to the source is pinned.
#[test]
fn pin_made_while_paused_survives_resume() {
    let two = |names: [&str; 2]| {
        let mut object = deployment(&[]);
        object["spec"]["template"]["spec"]["volumes"] = json!([
            {"name": "a", "configMap": {"name": names[0]}},
            {"name": "b", "configMap": {"name": names[1]}},
        ]);
        object
    };
    let mut results = Vec::new();
    for pinned in [0, 1] {
        let mut world = World::default();
        world.set("demo", json!({"color": "red"}));
        let first = world.create(&two(["demo", "demo"]));
        let red = volume(&first, 0).to_owned();
        world.set("demo", json!({"color": "blue"}));
        let mut applied = two(["demo", "demo"]);
        annotate(&mut applied, annotations::TRACK, "false");
        let blue = world.update(&applied, &first);
        assert_eq!(volume(&blue, 0), BLUE);
        world.set("demo", json!({"color": "green"}));
        // The source is green now; one reference is pinned to red.
        let mut new = blue.clone();
        new["spec"]["template"]["spec"]["volumes"][pinned]["configMap"]["name"] = json!(red);
        let held = world.update(&new, &blue);
        assert_eq!(volume(&held, pinned), red);
        // The source does not change again.
        let mut resumed = held.clone();
        resumed["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::TRACK);
        let after = world.update(&resumed, &held);
        results.push((pinned, volume(&after, pinned) == red, remembered(&held, "seen").clone()));
    }
    assert!(results.iter().all(|(_, stays, _)| *stays), "{results:?}");
}

/// A `sources` annotation from before the opt-in could move a reference to another source.
#[test]
fn sources_from_before_opt_in_are_ignored() {
    let mut world = World::default();
    world.set("precious", json!({"text": "A"}));
    world.set("x", json!({"text": "X"}));
    let mut old = deployment(&["precious"]);
    old["metadata"]["labels"] = json!({});
    old["spec"]["template"]["metadata"]["annotations"] =
        json!({annotations::SOURCES: json!({"configmaps": {"x": "precious"}}).to_string()});
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({annotations::ENABLED: "true"});
    let after: Value = world.update(&new, &old);
    assert!(volume(&after, 0).starts_with("precious-"), "it reads {}", volume(&after, 0));
}

/// Many reviews may hold a thousand revisions each.
#[test]
fn revision_is_remembered_by_digests_alone() {
    use confrev::{kinds::REVISION_KINDS, resolve::Past};
    let set = REVISION_KINDS.iter().find(|kind| kind.kind == "ReplicaSet").unwrap();
    let of = |note: &str| {
        let annotations = json!({"confrev.dev/note": note, "other": note});
        let set_json = json!({"metadata": {"annotations": annotations}, "spec": {"template": {"spec": {}}}});
        Past::read(set, &set_json.to_string()).unwrap()
    };
    let (one, other) = (of(&"x".repeat(250_000)), of(&"y".repeat(250_000)));
    assert_ne!(one, other);
    assert!(format!("{one:?}").len() < 300, "the annotations are kept");
    assert!(size_of_val(&one) <= 128);
}
