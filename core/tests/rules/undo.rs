//! Undo and pin: their effects, and the events that end them.

use confrev::names;
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo, world},
    world::{World, annotate, annotation, configmap, deployment, template, volume},
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
fn an_undo_stays_until_the_source_changes_again() {
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
fn an_apply_while_the_source_is_gone_ends_an_undo_and_takes_whatever_comes_back() {
    let (world, first, second) = rolled();
    for (color, wanted) in [("green", GREEN), ("blue", BLUE)] {
        let mut world = world.clone();
        world.remove("demo");
        let undone = world.update(&undo(&second, &first), &second);
        let mut applied = deployment(&["demo"]);
        applied["metadata"]["annotations"] = undone["metadata"]["annotations"].clone();
        let applied = world.update(&applied, &undone);
        assert_eq!(volume(&applied, 0), BLUE, "there is nothing else");
        assert_eq!(world.update(&applied, &applied), applied);
        assert_eq!(world.update(&applied, &undone), applied, "asked once more, after another webhook");
        world.set("demo", json!({"color": color}));
        let was_news = poke(&mut world, &applied, 2);
        assert_eq!(volume(&was_news, 0), wanted);
        let of = |object: &Value| template(object).clone();
        assert_eq!(of(&was_news) == of(&applied), color == "blue", "what is there already is no news");
        // Without the apply, the undo holds.
        assert_eq!(volume(&poke(&mut world, &undone, 2), 0), BLUE);
    }
}

#[test]
fn while_the_source_is_gone_an_apply_of_one_reference_speaks_for_the_others_whichever_comes_first() {
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
    let seen = annotation(&first["metadata"], names::SEEN);
    for (volume, env) in [("demo", "demo"), (BLUE, "demo"), ("demo", BLUE)] {
        let mut new = two(volume, env);
        new["metadata"]["annotations"] = undone["metadata"]["annotations"].clone();
        new["spec"]["template"]["metadata"]["annotations"] =
            undone["spec"]["template"]["metadata"]["annotations"].clone();
        let applied = world.update(&new, &undone);
        assert_eq!(annotation(&applied["metadata"], names::SEEN), seen, "{volume} {env}");
    }
}

#[test]
fn an_undo_that_brings_stale_annotations_back_sticks_all_the_same() {
    let (mut world, first, second) = rolled();
    // `kubectl rollout undo` of a Deployment replaces the workload's annotations, too.
    let mut new = undo(&second, &first);
    new["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
    let undone = world.update(&new, &second);
    assert_eq!(volume(&undone, 0), BLUE);
    assert_eq!(
        annotation(&undone["metadata"], names::SEEN),
        annotation(&second["metadata"], names::SEEN),
        "the present content counts as seen"
    );
    assert_eq!(volume(&poke(&mut world, &undone, 2), 0), BLUE);
}

#[test]
fn an_apply_of_some_references_to_a_source_takes_the_others_along() {
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
fn an_undo_that_brings_an_older_roll_back_does_not_cut_the_interval_short() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    world.set("demo", json!({"color": "red"}));
    let third = poke(&mut world, &second, 2);
    let roll = |workload: &Value| workload["metadata"]["annotations"][names::ROLL].clone();
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
    // A value that a person writes stays.
    let mut by_hand = undo_to(&first);
    by_hand["metadata"]["annotations"][names::ROLL] = json!("please");
    assert_eq!(roll(&world.update(&by_hand, &third)), "please");
}

#[test]
fn a_stale_roll_of_an_undo_leaves_the_pins_of_other_sources_alone() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let first = world.create(&deployment(&["demo", "other"]));
    let other = volume(&first, 1).to_owned();
    // A person rolls to the newest content of `demo`. Then `other` changes, and an undo pins its old content.
    world.set("demo", json!({"color": "green"}));
    let mut new = first.clone();
    annotate(&mut new, names::ROLL, "by-hand");
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
    annotate(&mut back, names::ROLL, "an-older-value");
    let undone = world.update(&back, &pinned);
    assert_eq!((volume(&undone, 0), volume(&undone, 1)), (BLUE, other.as_str()));
}

#[test]
fn a_change_of_one_source_leaves_the_pin_of_another_alone() {
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
fn a_person_leaves_a_pin_with_a_new_value_of_roll() {
    let (mut world, first, second) = rolled();
    let undone = world.update(&undo(&second, &first), &second);
    let mut new = undone.clone();
    annotate(&mut new, names::ROLL, "now please");
    assert_eq!(volume(&world.update(&new, &undone), 0), GREEN);
}

#[test]
fn opting_out_restores_the_names_and_takes_back_all_that_was_written() {
    let mut world = world("blue");
    let original = deployment(&["demo"]);
    let stored = world.create(&original);
    for label in [Some("false"), None] {
        let mut new = poke(&mut world, &stored, 1);
        let mut expected = original.clone();
        if let Some(value) = label {
            new["metadata"]["labels"][names::ENABLED] = json!(value);
            expected["metadata"]["labels"][names::ENABLED] = json!(value);
        } else {
            new["metadata"]["labels"].as_object_mut().unwrap().remove(names::ENABLED);
            expected["metadata"]["labels"].as_object_mut().unwrap().remove(names::ENABLED);
        }
        expected["metadata"]["annotations"] = json!({});
        expected["spec"]["template"]["metadata"]["annotations"] = json!({});
        assert_eq!(world.update(&new, &stored), expected);
    }
}

/// `kubectl confrev pause` and `resume` write these annotations and nothing else. After `resume`, the workload rolls to the
/// change that it missed (docs/commands.md).
#[test]
fn a_workload_that_follows_changes_again_begins_with_the_one_that_it_missed() {
    let resumed = |object: &Value| {
        let mut new = object.clone();
        new["metadata"]["annotations"].as_object_mut().unwrap().remove(names::TRACK);
        new
    };
    let paused = |object: &Value| {
        let mut new = object.clone();
        annotate(&mut new, names::TRACK, "false");
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
    assert_eq!((image.as_str(), pending.as_str()), (GREEN, GREEN), "(after an image, while pending)");
}

/// A user may have written the `sources` of the stored template: no webhook saw it before the workload opted in. If admission
/// made the workload an owner of that object, the garbage collector would delete the object with the workload.
#[test]
fn an_object_that_is_no_snapshot_is_never_adopted_whatever_the_stored_template_says_of_it() {
    let mut world = World::default();
    world.set("precious", json!({"text": "A"}));
    let mut old = deployment(&[]);
    old["metadata"]["labels"] = json!({});
    old["metadata"]["uid"] = json!("uid-web");
    old["spec"]["template"]["metadata"]["annotations"] =
        json!({names::SOURCES: json!({"configmaps": {"x": "precious"}}).to_string()});
    let mut new = deployment(&["precious"]);
    new["metadata"]["uid"] = json!("uid-web");
    new["spec"]["template"]["metadata"]["annotations"] =
        old["spec"]["template"]["metadata"]["annotations"].clone();
    let admitted = world.admit(&new, Some(&old));
    assert_eq!(admitted.decision.adopt, [], "a user's own object would be bound to the workload");
    assert_ne!(volume(&admitted.object, 0), "precious", "it is a source like any other");
}

#[test]
fn what_bears_the_marks_of_a_snapshot_and_holds_something_else_is_not_adopted() {
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

#[test]
fn a_pin_of_one_of_two_references_made_while_paused_stays_when_changes_are_followed_again() {
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
        annotate(&mut applied, names::TRACK, "false");
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
        resumed["metadata"]["annotations"].as_object_mut().unwrap().remove(names::TRACK);
        let after = world.update(&resumed, &held);
        results.push((
            pinned,
            volume(&after, pinned) == red,
            held["metadata"]["annotations"][names::SEEN].clone(),
        ));
    }
    assert!(results.iter().all(|(_, stays, _)| *stays), "{results:?}");
}

#[test]
fn what_a_template_said_before_its_workload_opted_in_moves_no_reference_to_another_source() {
    let mut world = World::default();
    world.set("precious", json!({"text": "A"}));
    world.set("x", json!({"text": "X"}));
    let mut old = deployment(&["precious"]);
    old["metadata"]["labels"] = json!({});
    old["spec"]["template"]["metadata"]["annotations"] =
        json!({names::SOURCES: json!({"configmaps": {"x": "precious"}}).to_string()});
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({names::ENABLED: "true"});
    let after: Value = world.update(&new, &old);
    assert!(volume(&after, 0).starts_with("precious-"), "it reads {}", volume(&after, 0));
}
