//! `max-in-flight` at admission: the writes for which the controller decides when a limited source rolls.

use confrev::{
    annotations,
    resolve::{Observed, Plan, To},
    snapshot::SourceKind,
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo},
    world::{World, annotate, annotation, configmap, deployment, kind, remembered, volume},
};

/// Sets the content of a ConfigMap that rolls one workload at a time.
fn set_limited(world: &mut World, name: &str, data: Value) {
    world.set(name, data);
    let object = world.objects.get_mut(&configmap(name)).unwrap();
    object["metadata"]["annotations"] = json!({annotations::MAX_IN_FLIGHT: "1"});
}

/// A workload at blue, whose limited source has changed to green.
fn pending() -> (World, Value) {
    let mut world = World::default();
    set_limited(&mut world, "demo", json!({"color": "blue"}));
    let stored = world.create(&deployment(&["demo"]));
    set_limited(&mut world, "demo", json!({"color": "green"}));
    (world, stored)
}

/// The stored object with the source's own name, as an apply of a manifest leaves it.
fn applied(stored: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!("demo");
    new
}

fn with_image(object: &Value, image: &str) -> Value {
    let mut new = object.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    new
}

fn seen(object: &Value) -> Value {
    remembered(object, "seen")
}

#[test]
fn apply_of_limited_source_keeps_snapshot_and_seen() {
    let (mut world, stored) = pending();
    let replaced = deployment(&["demo"]);
    for (what, new) in [("apply", applied(&stored)), ("replace", replaced)] {
        let admitted = world.admit(&new, Some(&stored));
        assert_eq!(admitted.object["spec"], stored["spec"], "{what}");
        assert_eq!(seen(&admitted.object), seen(&stored), "{what}: the change stays pending");
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains(BLUE) && warning.contains(annotations::MAX_IN_FLIGHT), "{what}: {warning}");
        assert_eq!(admitted.decision.ensure, [], "{what}: nothing uses the new content yet");
        // Another webhook may have changed the object: the result passes admission again.
        let again = world.update(&admitted.object, &stored);
        assert_eq!(again, admitted.object, "{what}");
    }
    let rolled = poke(&mut world, &stored, 1);
    assert_eq!(volume(&rolled, 0), GREEN, "the controller rolls it");
    assert_eq!(world.update(&applied(&rolled), &rolled), rolled);
    let mut asked = applied(&stored);
    annotate(&mut asked, annotations::ROLL, "now");
    assert_eq!(volume(&world.update(&asked, &stored), 0), GREEN, "a user asks for it");
}

#[test]
fn deployment_resolves_to_newest_content_of_limited_source() {
    let (mut world, stored) = pending();
    let deployed = world.update(&with_image(&applied(&stored), "i:2"), &stored);
    assert_eq!(volume(&deployed, 0), GREEN);
    assert_ne!(seen(&deployed), seen(&stored));
    let mut more = deployment(&["demo"]);
    more["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    assert_eq!(volume(&world.update(&more, &stored), 0), GREEN);
}

#[test]
fn image_change_keeps_snapshot_of_limited_source() {
    let (mut world, stored) = pending();
    let changed = world.admit(&with_image(&stored, "i:2"), Some(&stored));
    assert_eq!(volume(&changed.object, 0), BLUE);
    assert_eq!(seen(&changed.object), seen(&stored));
    assert_eq!(changed.decision.warnings.len(), 1);
    assert_eq!(volume(&poke(&mut world, &changed.object, 1), 0), GREEN);
}

#[test]
fn added_default_fields_do_not_count_as_deployment() {
    let (mut world, stored) = pending();
    let rollout = kind("Rollout");
    let mut written = stored.clone();
    written["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
    written["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({});
    let admitted = world.review(&rollout, &deployment(&["demo"]), Some(&written));
    assert_eq!(volume(&admitted.object, 0), BLUE);
}

#[test]
fn limit_does_not_affect_other_references() {
    // If the workload resolves only at apply, or the annotation has no valid limit, an apply rolls to the newest content.
    let (mut world, stored) = pending();
    let mut paused = stored.clone();
    annotate(&mut paused, annotations::TRACK, "false");
    assert_eq!(volume(&world.update(&applied(&paused), &paused), 0), GREEN);
    for limit in ["0", "x"] {
        world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"]
            [annotations::MAX_IN_FLIGHT] = json!(limit);
        assert_eq!(volume(&world.update(&applied(&stored), &stored), 0), GREEN, "{limit}");
    }
    // A workload that is not resolved yet has no snapshot to keep.
    let (mut world, _) = pending();
    let mut unknown = deployment(&["demo"]);
    unknown["metadata"]["labels"] = json!({});
    assert_eq!(volume(&world.update(&deployment(&["demo"]), &unknown), 0), GREEN);
    assert_eq!(volume(&world.create(&deployment(&["demo"])), 0), GREEN);
    // A renamed volume and a reference to another source are changes of the template.
    let (mut world, stored) = pending();
    let mut new = applied(&stored);
    new["spec"]["template"]["spec"]["volumes"][0]["name"] = json!("renamed");
    assert_eq!(volume(&world.update(&new, &stored), 0), GREEN);
    let (mut world, stored) = pending();
    set_limited(&mut world, "other", json!({"a": "1"}));
    let mut new = applied(&stored);
    let volumes = new["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "v-other", "configMap": {"name": "other"}}));
    assert_eq!(volume(&world.update(&new, &stored), 0), GREEN);
}

/// `kubectl replace` drops the fields that another webhook added to the stored template. That webhook adds them again after
/// confrev.
#[test]
fn completed_template_does_not_count_as_deployment() {
    let (mut world, stored) = pending();
    let complete = |object: &Value| {
        let mut new = object.clone();
        let containers = &mut new["spec"]["template"]["spec"]["containers"];
        containers.as_array_mut().unwrap().push(json!({"name": "sidecar", "image": "s:1"}));
        new
    };
    let stored = world.update(&complete(&stored), &stored);
    assert_eq!(volume(&stored, 0), BLUE);
    let first = world.update(&deployment(&["demo"]), &stored);
    assert_eq!(volume(&first, 0), GREEN, "a different template, as far as this admission can see");
    let second = world.update(&complete(&first), &stored);
    assert_eq!((&second["spec"], seen(&second)), (&stored["spec"], seen(&stored)));
    // The content that the controller or a user asked for stays, even if the result passes admission again.
    for roll in ["auto-2026-01-02T03:04:05.678Z *", "now"] {
        let mut asked = stored.clone();
        annotate(&mut asked, annotations::ROLL, roll);
        let first = world.update(&asked, &stored);
        assert_eq!(volume(&first, 0), GREEN, "{roll}");
        assert_eq!(world.update(&first, &stored), first, "{roll}");
    }
    // A user may still pin the new content.
    let mut pinned = stored.clone();
    pinned["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(GREEN);
    assert_eq!(volume(&world.update(&pinned, &stored), 0), GREEN);
}

#[test]
fn mounted_limited_source_keeps_its_snapshot() {
    let mut world = World::default();
    let mut manifest = deployment(&[]);
    annotate(&mut manifest, annotations::MOUNT, "demo");
    set_limited(&mut world, "demo", json!({"color": "blue"}));
    let stored = world.create(&manifest);
    set_limited(&mut world, "demo", json!({"color": "green"}));
    assert_eq!(world.update(&manifest, &stored)["spec"], stored["spec"]);
    // Another path is another template.
    annotate(&mut manifest, annotations::MOUNT, "demo=/etc/app");
    let moved = world.update(&manifest, &stored);
    assert!(moved["spec"].to_string().contains(GREEN), "{}", moved["spec"]);
}

#[test]
fn lost_snapshot_of_limited_source_is_not_kept() {
    let (mut world, stored) = pending();
    world.remove(BLUE);
    assert_eq!(volume(&world.update(&applied(&stored), &stored), 0), GREEN);
    assert_eq!(volume(&world.update(&with_image(&stored, "i:2"), &stored), 0), GREEN);
    // The result is the same if another object has taken the name.
    world.set_object(BLUE, json!({"metadata": {"name": BLUE}, "data": {"color": "evil"}}));
    assert_eq!(volume(&world.update(&applied(&stored), &stored), 0), GREEN);
}

/// A change by another webhook sends the result of an admission through it again.
#[test]
fn pin_to_older_content_survives_second_admission() {
    const RED: &str = "demo-354d33e656";
    let mut world = World::default();
    for color in ["red", "blue"] {
        set_limited(&mut world, "demo", json!({"color": color}));
        world.create(&deployment(&["demo"]));
    }
    let stored = world.create(&deployment(&["demo"]));
    set_limited(&mut world, "demo", json!({"color": "green"}));
    let mut pinned = stored.clone();
    pinned["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(RED);
    let first = world.update(&pinned, &stored);
    assert_eq!(volume(&first, 0), RED);
    assert_eq!(world.update(&first, &stored), first);
}

#[test]
fn change_of_unread_keys_ignores_limit() {
    let mut world = World::default();
    let reads_a = || {
        let mut object = deployment(&["demo"]);
        object["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] =
            json!([{"key": "a", "path": "a"}]);
        object
    };
    set_limited(&mut world, "demo", json!({"a": "1", "b": "1"}));
    let stored = world.create(&reads_a());
    set_limited(&mut world, "demo", json!({"a": "1", "b": "2"}));
    let admitted = world.admit(&reads_a(), Some(&stored));
    assert_eq!(admitted.object["spec"], stored["spec"]);
    assert_ne!(seen(&admitted.object), seen(&stored), "nothing is left to roll");
    assert_eq!(admitted.decision.warnings, [""; 0]);
}

#[test]
fn apply_keeps_undo_of_limited_source() {
    let (mut world, first) = pending();
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    let admitted = world.admit(&applied(&undone), Some(&undone));
    assert_eq!(admitted.object["spec"], undone["spec"]);
    assert_eq!(seen(&admitted.object), seen(&undone));
    assert!(admitted.decision.warnings[0].contains("changes again"), "{:?}", admitted.decision.warnings);
}

#[test]
fn live_source_with_limit_awaits_its_turn() {
    let mut world = World::default();
    let set = |world: &mut World, color: &str| {
        set_limited(world, "demo", json!({"color": color}));
        world.labelled("demo", "live");
    };
    set(&mut world, "blue");
    let stored = world.create(&deployment(&["demo"]));
    set(&mut world, "green");
    let live = |object: &Value| annotation(&object["spec"]["template"]["metadata"], annotations::LIVE);
    let kept = world.admit(&deployment(&["demo"]), Some(&stored));
    assert_eq!((live(&kept.object), seen(&kept.object)), (live(&stored), seen(&stored)));
    assert_eq!(kept.decision.warnings.len(), 1);
    let mut early = stored.clone();
    annotate(&mut early, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z");
    assert_eq!(live(&world.update(&early, &stored)), live(&stored));
    for roll in ["auto-2026-01-02T03:04:05.678Z *", "now"] {
        let mut asked = stored.clone();
        annotate(&mut asked, annotations::ROLL, roll);
        let rolled = world.update(&asked, &stored);
        assert_ne!(live(&rolled), live(&stored), "{roll}");
        assert_eq!(world.update(&rolled, &stored), rolled, "{roll}: admitted again");
    }
    assert_ne!(live(&world.update(&with_image(&stored, "i:2"), &stored)), live(&stored));
}

/// The source may change between the controller's decision and the admission of its write: how far the new content has spread is
/// another question.
#[test]
fn roll_moves_only_to_content_in_turn() {
    let digest = |content: &str| {
        let object = json!({"metadata": {"name": "demo", "uid": "u"}, "data": {"color": content}});
        Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).unwrap().digest()
    };
    let time = jiff::Timestamp::from_second(1).unwrap();
    let (mut world, stored) = pending();
    for (moves, volume_after) in [
        (vec![("demo", "red")], BLUE),
        (vec![], BLUE),
        (vec![("demo", "green")], GREEN),
        (vec![("other", "green")], BLUE),
    ] {
        let plan: Vec<_> = moves.iter().map(|(source, color)| (configmap(source), digest(color))).collect();
        let mut new = stored.clone();
        annotate(&mut new, annotations::ROLL, &Plan::automatic(time, &plan).to_value());
        let rolled = world.update(&new, &stored);
        assert_eq!(volume(&rolled, 0), volume_after, "{moves:?}");
        assert_eq!(
            seen(&rolled) == seen(&stored),
            volume_after == BLUE,
            "{moves:?}: the change stays pending"
        );
        assert_eq!(world.update(&rolled, &stored), rolled, "{moves:?}: admitted again");
    }
    // Nor does a source without limits move, if the plan does not name it.
    world.set("demo", json!({"color": "green"}));
    let mut new = stored.clone();
    annotate(&mut new, annotations::ROLL, &Plan::automatic(time, &[]).to_value());
    assert_eq!(volume(&world.update(&new, &stored), 0), BLUE);
}

/// An apply of one source's name would not end it.
#[test]
fn unpin_of_one_source_leaves_the_other() {
    let mut world = World::default();
    let set = |world: &mut World, color: &str| {
        for name in ["demo", "other"] {
            set_limited(world, name, json!({"color": color}));
        }
    };
    set(&mut world, "blue");
    let first = world.create(&deployment(&["demo", "other"]));
    set(&mut world, "green");
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    let unpin = |world: &mut World, stored: &Value, name: &str| {
        let mut asked = stored.clone();
        let now = jiff::Timestamp::from_second(2).unwrap();
        annotate(
            &mut asked,
            annotations::ROLL,
            &Plan::of_person(now, [(configmap(name), To::Present.into())].into()).to_value(),
        );
        world.update(&asked, stored)
    };
    let names = |object: &Value| [volume(object, 0).to_owned(), volume(object, 1).to_owned()];
    let [green, blue] = [names(&second), names(&undone)];
    for (name, wanted) in [("demo", [&green[0], &blue[1]]), ("other", [&blue[0], &green[1]])] {
        let unpinned = unpin(&mut world, &undone, name);
        assert_eq!(names(&unpinned), wanted.map(String::clone), "{name}");
        assert_eq!(unpinned, world.update(&unpinned, &undone), "{name}: admitted again");
    }
    // A pending change of the other source awaits its turn.
    set(&mut world, "red");
    let unpinned = unpin(&mut world, &second, "demo");
    assert_eq!((names(&unpinned)[1].as_str(), names(&unpinned)[0] == green[0]), (&*green[1], false));
}
