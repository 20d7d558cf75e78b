//! An undo that references alone do not show. It is detected by the live revision whose template it restores.

use confrev::{annotations, resolve::Plan};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo, world},
    world::{World, annotate, configmap, deployment, kind, remembered, template, volume},
};

const REPLICA_SET: usize = 0;
const CONTROLLER_REVISION: usize = 1;

/// The ReplicaSet of a stored Deployment: its template with a hash, and all annotations, as the controller copies them.
pub(super) fn replica_set(stored: &Value) -> (usize, Value) {
    let mut template = template(stored).clone();
    template["metadata"]["labels"]["pod-template-hash"] = json!("7d4b");
    template["metadata"]["creationTimestamp"] = Value::Null;
    template["spec"]["containers"][0]["resources"] = json!({});
    let mut annotations = stored["metadata"]["annotations"].clone();
    annotations["deployment.kubernetes.io/desired-replicas"] = json!("1");
    let object = json!({
        "metadata": {
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": owned_by(stored),
        },
        "spec": {"template": template},
    });
    (REPLICA_SET, object)
}

/// The `ownerReferences` of a revision of this workload.
fn owned_by(stored: &Value) -> Value {
    let uid = stored["metadata"]["uid"].as_str().unwrap_or_default();
    json!([{"uid": "another"}, {"uid": uid, "controller": true}])
}

/// `kubectl rollout undo` of a Deployment restores the annotations of the old ReplicaSet with its template.
fn undo_of_deployment(stored: &Value, to: &Value) -> Value {
    let mut new = undo(stored, to);
    new["metadata"]["annotations"] = to["metadata"]["annotations"].clone();
    new
}

fn with_image(object: &Value, image: &str) -> Value {
    let mut new = object.clone();
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
    new
}

fn setting<'o>(object: &'o Value, key: &str) -> Option<&'o str> {
    object["metadata"]["annotations"][key].as_str()
}

fn seen(object: &Value) -> Value {
    remembered(object, "seen")
}

/// Every annotation by which a user configures a workload.
const SETTINGS: [(&str, &str, &str); 8] = [
    (annotations::TRACK, "false", "true"),
    (annotations::MIN_INTERVAL, "1h", "5s"),
    (annotations::EXCLUDE, "unused", "unused, more"),
    (annotations::MISSING, "allow", "warn"),
    (annotations::SECRETS, "true", "false"),
    (annotations::ON_UNDO, "hold", "hold"),
    (annotations::ROLL, "now", "before"),
    ("confrev.dev/of-a-later-version", "a", "b"),
];

#[test]
fn undo_of_deployment_keeps_every_setting() {
    for (key, value, old_value) in SETTINGS {
        for in_revision in [None, Some(old_value)] {
            let mut world = world("blue");
            let mut object = deployment(&["demo"]);
            if let Some(old_value) = in_revision {
                annotate(&mut object, key, old_value);
            }
            let first = world.create(&object);
            world.revisions.push(replica_set(&first));
            let mut changed = with_image(&first, "i:2");
            annotate(&mut changed, key, value);
            let second = world.update(&changed, &first);
            let undone = world.update(&undo_of_deployment(&second, &first), &second);
            assert_eq!(setting(&undone, key), Some(value), "{key}, in the revision {in_revision:?}");
            assert_eq!(template(&undone), template(&first), "{key}");
            // Another webhook may have changed the object: the result passes admission again.
            assert_eq!(world.update(&undone, &second), undone, "{key}");
            // A setting that only the revision still has is not restored.
            let mut without = second.clone();
            without["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
            let without = world.update(&without, &second);
            let undone = world.update(&undo_of_deployment(&without, &first), &without);
            assert_eq!(setting(&undone, key), None, "{key}, in the revision {in_revision:?}");
        }
    }
}

/// `kubectl apply` and `kubectl replace` of an older state also restore its annotations. The settings are then those that the
/// user applies.
#[test]
fn apply_of_older_state_restores_its_settings() {
    const REVISION: &str = "deployment.kubernetes.io/revision";
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::LAST_APPLIED, "first");
    annotate(&mut object, REVISION, "1");
    let first = world.create(&object);
    world.revisions.push(replica_set(&first));
    let mut changed = with_image(&first, "i:2");
    annotate(&mut changed, annotations::TRACK, "false");
    annotate(&mut changed, annotations::LAST_APPLIED, "second");
    annotate(&mut changed, REVISION, "2");
    let second = world.update(&changed, &first);
    for (what, last_applied, revision, track) in [
        ("undo", "second", "2", Some("false")),
        ("apply", "first", "2", None),
        ("replace", "second", "1", None),
    ] {
        let mut new = undo_of_deployment(&second, &first);
        annotate(&mut new, annotations::LAST_APPLIED, last_applied);
        annotate(&mut new, REVISION, revision);
        assert_eq!(setting(&world.update(&new, &second), annotations::TRACK), track, "{what}");
    }
}

/// confrev rolled the workload before it had that revision, and not since.
#[test]
fn undo_with_equal_roll_keeps_settings() {
    let mut world = world("blue");
    let created = world.create(&deployment(&["demo"]));
    let first = poke(&mut world, &created, 1);
    world.revisions.push(replica_set(&first));
    let mut changed = with_image(&first, "i:2");
    annotate(&mut changed, annotations::TRACK, "false");
    let second = world.update(&changed, &first);
    let undone = world.update(&undo_of_deployment(&second, &first), &second);
    assert_eq!(setting(&undone, annotations::TRACK), Some("false"));
}

/// A content is back, and the change of another source waits for its turn. So the roll leads to the template of a revision; another
/// webhook may cause a second admission of it.
#[test]
fn roll_to_template_of_revision_rejects_nothing() {
    let mut world = world("blue");
    let set_other = |world: &mut World, text: &str| {
        world.set("other", json!({"n": text}));
        let other = world.objects.get_mut(&configmap("other")).unwrap();
        other["metadata"]["annotations"] = json!({annotations::WAVES: "1"});
    };
    set_other(&mut world, "1");
    let created = world.create(&deployment(&["demo", "other"]));
    let first = poke(&mut world, &created, 1);
    world.revisions.push(replica_set(&first));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 2);
    world.set("demo", json!({"color": "blue"}));
    set_other(&mut world, "2");
    let digest = world.observe(&configmap("demo")).unwrap().digest();
    let roll =
        |second, moves: &[_]| Plan::automatic(Timestamp::from_second(second).unwrap(), moves).to_value();
    let mut asked = second.clone();
    annotate(&mut asked, annotations::ROLL, &roll(3, &[(configmap("demo"), digest)]));
    let third = world.update(&asked, &second);
    assert_eq!((template(&third), volume(&third, 0)), (template(&first), BLUE));
    assert_eq!(seen(&third)["configmaps"]["other"], seen(&second)["configmaps"]["other"], "it is pending");
    assert_eq!(world.update(&third, &second), third, "admitted again");
}

#[test]
fn undo_of_paused_deployment_moves_no_other_reference() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let first = world.create(&deployment(&["demo", "other"]));
    world.revisions.push(replica_set(&first));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let mut paused = second.clone();
    annotate(&mut paused, annotations::TRACK, "false");
    let paused = world.update(&paused, &second);
    world.set("other", json!({"n": "2"}));
    let undone = world.update(&undo_of_deployment(&paused, &first), &paused);
    assert_eq!(template(&undone), template(&first));
    assert_eq!(setting(&undone, annotations::TRACK), Some("false"));
    // When the workload resumes, the change that it missed while paused is pending. The undone change is not.
    let mut resumed = undone.clone();
    resumed["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::TRACK);
    let resumed = world.update(&resumed, &undone);
    assert_eq!(volume(&resumed, 0), BLUE);
    assert_ne!(volume(&resumed, 1), volume(&first, 1));
}

#[test]
fn user_may_remove_setting_with_image_change() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.revisions.push(replica_set(&first));
    let mut changed = with_image(&first, "i:2");
    annotate(&mut changed, annotations::TRACK, "false");
    let second = world.update(&changed, &first);
    world.revisions.push(replica_set(&second));
    let without = |mut object: Value| {
        object["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::TRACK);
        object
    };
    // `kubectl edit` with an image that no revision has.
    let edited = world.update(&without(with_image(&second, "i:3")), &second);
    assert_eq!(setting(&edited, annotations::TRACK), None);
    // `kubectl apply` of the older manifest without the setting.
    let mut applied = deployment(&["demo"]);
    annotate(&mut applied, annotations::LAST_APPLIED, "{}");
    let applied = world.update(&applied, &second);
    assert_eq!(setting(&applied, annotations::TRACK), None);
    // `kubectl edit` back to the image of a revision that has other annotations.
    let mut back = without(with_image(&second, "i:1"));
    annotate(&mut back, annotations::MIN_INTERVAL, "1m");
    assert_eq!(setting(&world.update(&back, &second), annotations::TRACK), None);
}

/// A workload with two revisions that name the same snapshot, and a pending change.
fn two_images(kind_name: &str) -> (World, Value, Value) {
    let (mut world, kind) = (world("blue"), kind(kind_name));
    let first = world.review(&kind, &deployment(&["demo"]), None).object;
    let second = world.review(&kind, &with_image(&first, "i:2"), Some(&first)).object;
    assert_eq!(volume(&second, 0), BLUE);
    world.set("demo", json!({"color": "green"}));
    (world, first, second)
}

#[test]
fn undo_between_images_keeps_the_snapshot() {
    for (of, revision) in [
        ("Deployment", REPLICA_SET),
        ("Rollout", REPLICA_SET),
        ("StatefulSet", CONTROLLER_REVISION),
        ("DaemonSet", CONTROLLER_REVISION),
    ] {
        let (mut world, first, second) = two_images(of);
        let object = if revision == REPLICA_SET {
            replica_set(&first).1
        } else {
            let mut template = template(&first).clone();
            template["$patch"] = json!("replace");
            let labels = template["metadata"]["labels"].clone();
            json!({
                "metadata": {"labels": labels, "ownerReferences": owned_by(&first)},
                "data": {"spec": {"template": template}},
            })
        };
        world.revisions.push((revision, object));
        let undone = world.review(&kind(of), &undo(&second, &first), Some(&second)).object;
        assert_eq!(template(&undone), template(&first), "{of}");
        assert_ne!(seen(&undone), seen(&second), "{of}: the present content counts as seen");
        let mut poked = undone.clone();
        annotate(&mut poked, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
        assert_eq!(volume(&world.review(&kind(of), &poked, Some(&undone)).object, 0), BLUE, "{of}");
        // A change to an image that no revision has is not an undo.
        let other = world.review(&kind(of), &with_image(&second, "i:3"), Some(&second)).object;
        assert_eq!(volume(&other, 0), GREEN, "{of}");
    }
}

/// The undo restores a `roll` that confrev wrote, in place of one that a user wrote, or of none. It is not a roll by confrev.
#[test]
fn undo_restores_config_before_manual_roll() {
    for by_hand in [Some("now"), None] {
        let mut world = world("blue");
        let first = world.create(&deployment(&["demo"]));
        world.set("demo", json!({"color": "green"}));
        let second = poke(&mut world, &first, 1);
        world.revisions.push(replica_set(&second));
        let mut changed = with_image(&second, "i:2");
        changed["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::ROLL);
        if let Some(value) = by_hand {
            annotate(&mut changed, annotations::ROLL, value);
        }
        let third = world.update(&changed, &second);
        world.set("demo", json!({"color": "red"}));
        let undone = world.update(&undo_of_deployment(&third, &second), &third);
        assert_eq!(template(&undone), template(&second), "{by_hand:?}");
        assert_eq!(setting(&undone, annotations::ROLL), by_hand);
    }
}

/// Another workload with the same labels may have had the template that this one gets now.
#[test]
fn template_of_another_workload_is_no_undo() {
    for controller in [json!("another"), Value::Null] {
        let (mut world, first, second) = two_images("Deployment");
        let (kind_of, mut object) = replica_set(&first);
        object["metadata"]["ownerReferences"] = match controller {
            Value::Null => json!([{"uid": ""}]),
            uid => json!([{"uid": "", "controller": false}, {"uid": uid, "controller": true}]),
        };
        world.revisions.push((kind_of, object));
        let changed = world.review(&kind("Deployment"), &undo(&second, &first), Some(&second)).object;
        assert_eq!(volume(&changed, 0), GREEN);
    }
}

#[test]
fn undo_of_deployment_with_older_roll_stays() {
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::ROLL, "by-hand-1");
    let first = world.create(&object);
    world.revisions.push(replica_set(&first));
    let mut changed = with_image(&first, "i:2");
    annotate(&mut changed, annotations::ROLL, "by-hand-2");
    let second = world.update(&changed, &first);
    world.set("demo", json!({"color": "green"}));
    let undone = world.update(&undo_of_deployment(&second, &first), &second);
    assert_eq!(template(&undone), template(&first), "the older value of `roll` causes no roll");
    assert_eq!(setting(&undone, annotations::ROLL), Some("by-hand-2"));
}

/// The revisions of a workload are read only if they may change the decision.
#[test]
fn reads_revisions_only_if_needed() {
    let (world, first, second) = two_images("Deployment");
    let mut settled = World { revisions: Vec::new(), ..world.clone() };
    settled.set("demo", json!({"color": "blue"}));
    let poked = |object: &Value| {
        let mut new = object.clone();
        annotate(&mut new, annotations::ROLL, "auto-2026-01-02T03:04:05.678Z *");
        new
    };
    for (what, world, new, reads) in [
        ("an image change while nothing is pending", &settled, with_image(&second, "i:3"), false),
        ("an image change while a change is pending", &world, with_image(&second, "i:3"), true),
        ("a poke", &world, poked(&second), false),
        ("an apply by name", &world, with_image(&deployment(&["demo"]), "i:3"), false),
        ("an undo to another snapshot", &settled, undo(&second, &first), false),
    ] {
        assert_eq!(world.reads_revisions(&kind("Deployment"), &new, &second), reads, "{what}");
    }
    // After a change by another webhook, a roll passes admission again.
    let mut world = world;
    let stored = poke(&mut world, &second, 1);
    world.set("demo", json!({"color": "red"}));
    let rolled = poke(&mut world, &stored, 2);
    assert_ne!(template(&rolled), template(&stored));
    assert!(!world.reads_revisions(&kind("Deployment"), &rolled, &stored), "a roll, admitted again");
}

/// A selector of other labels could match the revisions of other workloads, or all. Reviews may be forged.
#[test]
fn reads_revisions_by_valid_labels_only() {
    for (labels, reads) in [
        (json!({"app": "web", "a.b/c": "d_e-f"}), true),
        (json!({}), false),
        (json!({"app": "web", "tier": "a,b"}), false),
        (json!({"app": "web", "a in (b)": "c"}), false),
    ] {
        let (world, _, mut second) = two_images("Deployment");
        second["spec"]["template"]["metadata"]["labels"] = labels.clone();
        let new = with_image(&second, "i:3");
        assert_eq!(world.reads_revisions(&kind("Deployment"), &new, &second), reads, "{labels}");
    }
}

/// An undo cannot restore the template of a Job.
#[test]
fn reads_no_revisions_of_cronjob() {
    let cronjob = kind("CronJob");
    let mut world = world("blue");
    let mut object = deployment(&["demo"]);
    object["spec"] = json!({"jobTemplate": {"spec": {"template": template(&object)}}});
    let stored = world.review(&cronjob, &object, None).object;
    world.set("demo", json!({"color": "green"}));
    let mut new = stored.clone();
    new["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert!(!world.reads_revisions(&cronjob, &new, &stored));
}
