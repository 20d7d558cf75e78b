//! Holds: the annotation `hold` comes before all rules.

use confrev::{
    annotations,
    resolve::{Health, Need, Present, Record, Workload, is_pending},
    snapshot::{ObjectName, Rotated, SourceKind},
};
use serde_json::{Value, json};

use super::{
    story::{BLUE, GREEN, poke, undo, world},
    world::{World, annotate, configmap, deployment, kind, remembered, template, volume},
};

/// The snapshot of red.
const RED: &str = "demo-354d33e656";

/// A workload at blue, and the same workload after its source changed to green.
fn rolled() -> (World, Value, Value) {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    (world, first, second)
}

/// The request that sets the annotation of a stored workload, or removes it.
fn with_hold(stored: &Value, hold: Option<&str>) -> Value {
    let mut new = stored.clone();
    match hold {
        Some(hold) => annotate(&mut new, annotations::HOLD, hold),
        None => drop(new["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::HOLD)),
    }
    new
}

/// A world with a workload that is held at blue, while its source is green.
fn held() -> (World, Value) {
    let (mut world, _, second) = rolled();
    let held = world.update(&with_hold(&second, Some(BLUE)), &second);
    (world, held)
}

/// What a tool sends that applies the manifest again: annotations of others stay.
fn applied(manifest: &Value, stored: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"] = manifest["spec"].clone();
    new
}

fn hold_of(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][annotations::HOLD].as_str()
}

#[test]
fn hold_decides_whatever_a_request_names() {
    let (mut world, held) = held();
    assert_eq!(volume(&held, 0), BLUE, "the write of the annotation moves the workload");
    for color in ["green", "red", "blue", "green"] {
        world.set("demo", json!({"color": color}));
        let mut named = held.clone();
        named["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(GREEN);
        let mut roll = held.clone();
        annotate(&mut roll, annotations::ROLL, "now please");
        let mut untracked = applied(&deployment(&["demo"]), &held);
        annotate(&mut untracked, annotations::TRACK, "false");
        let mut excluded = applied(&deployment(&["demo"]), &held);
        annotate(&mut excluded, annotations::EXCLUDE, "demo");
        for (what, new) in [
            ("an apply", applied(&deployment(&["demo"]), &held)),
            ("the name of another snapshot", named),
            ("a roll by a person", roll),
            ("a workload that does not track", untracked),
            ("an exclusion", excluded),
        ] {
            let admitted = world.clone().update(&new, &held);
            assert_eq!(volume(&admitted, 0), BLUE, "{what}, {color}");
            assert_eq!(template(&admitted), template(&held), "{what}, {color}");
        }
        assert_eq!(volume(&poke(&mut world.clone(), &held, 9), 0), BLUE, "a roll by confrev, {color}");
    }
    world.remove("demo");
    assert_eq!(volume(&world.update(&applied(&deployment(&["demo"]), &held), &held), 0), BLUE, "no source");
}

/// GitOps tools compare the answer to a dry run with the stored object.
#[test]
fn repeated_apply_of_held_workload_changes_nothing() {
    let (mut world, held) = held();
    for color in ["green", "red", "blue"] {
        world.set("demo", json!({"color": color}));
        let objects = world.objects.clone();
        assert_eq!(world.update(&applied(&deployment(&["demo"]), &held), &held), held, "{color}");
        assert_eq!(world.update(&held, &held), held, "{color}");
        assert_eq!(world.objects, objects, "{color}: nothing is created");
    }
}

#[test]
fn removed_hold_rolls_to_present_content() {
    for (color, wanted) in [("green", GREEN), ("red", RED), ("blue", BLUE)] {
        let (mut world, held) = held();
        world.set("demo", json!({"color": color}));
        let mut object = world.objects[&configmap("demo")].clone();
        object["metadata"]["annotations"] = json!({annotations::MAX_IN_FLIGHT: "1"});
        world.set_object("demo", object);
        let mut untracked = with_hold(&held, None);
        annotate(&mut untracked, annotations::TRACK, "false");
        for (what, new) in [
            ("alone", with_hold(&held, None)),
            ("with an apply", applied(&deployment(&["demo"]), &with_hold(&held, None))),
            ("of a workload that does not track", untracked),
        ] {
            let free = world.clone().update(&new, &held);
            assert_eq!(volume(&free, 0), wanted, "{color}, {what}");
            assert_eq!(world.clone().update(&free, &held), free, "{color}, {what}: admitted again");
        }
        // A pin in the same request replaces the hold.
        let mut pinned = with_hold(&held, None);
        pinned["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(GREEN);
        assert_eq!(volume(&world.update(&pinned, &held), 0), GREEN, "{color}");
    }
}

#[test]
fn hold_of_one_source_leaves_others_alone() {
    let (mut world, first, _) = rolled();
    world.set("other", json!({"n": "1"}));
    let stored = world.update(&applied(&deployment(&["demo", "other"]), &first), &first);
    let held = world.update(&with_hold(&stored, Some(BLUE)), &stored);
    let other = volume(&held, 1).to_owned();
    world.set("other", json!({"n": "2"}));
    let rolled = poke(&mut world, &held, 5);
    assert_eq!(volume(&rolled, 0), BLUE);
    assert_ne!(volume(&rolled, 1), other, "the source that is not on hold rolls");
    // Two holds, of which one is removed.
    let both = world.update(&with_hold(&rolled, Some(&format!("{BLUE}, {other}"))), &rolled);
    assert_eq!((volume(&both, 0), volume(&both, 1)), (BLUE, other.as_str()));
    let one = world.update(&with_hold(&both, Some(&other)), &both);
    assert_eq!((volume(&one, 0), volume(&one, 1)), (GREEN, other.as_str()));
}

/// The annotation is new, or opts in with the workload. A name that was accepted before is not refused again.
#[test]
fn hold_of_no_snapshot_is_refused() {
    let (mut world, _, second) = rolled();
    world.set("other", json!({"n": "1"}));
    let mut tampered = world.objects[&configmap(BLUE)].clone();
    tampered["data"]["color"] = json!("another");
    world.set_object("demo-0123456789", tampered);
    for (hold, part) in [
        ("demo-ffffffffff", "ConfigMap \"demo-ffffffffff\" does not exist in namespace \"ns\""),
        ("demo", "ConfigMap \"demo\" is not a snapshot in namespace \"ns\""),
        ("other", "is not a snapshot"),
        ("demo-0123456789", "is not a snapshot"),
        ("secret/demo-3a18d34e26", "Secret \"demo-3a18d34e26\" does not exist"),
        ("demo-3a18d34e26, demo-736a916696", "are both snapshots of ConfigMap \"demo\": name one of them"),
        ("demo-3a18d34e26, nothing", "\"nothing\" does not exist"),
        ("", "is not allowed, use names of snapshots"),
        ("Not A Name", "is not allowed, use names of snapshots"),
        ("pod/web", "is not allowed, use names of snapshots"),
    ] {
        let mut unlabelled = second.clone();
        unlabelled["metadata"]["labels"] = json!({});
        annotate(&mut unlabelled, annotations::HOLD, hold);
        let mut created = deployment(&["demo"]);
        annotate(&mut created, annotations::HOLD, hold);
        let mut requests = vec![
            (with_hold(&second, Some(hold)), Some(&second)),
            (with_hold(&second, Some(hold)), Some(&unlabelled)),
        ];
        // A workload that is created may be an export, and its snapshot may be missing.
        if !part.contains("does not exist") {
            requests.push((created, None));
        }
        for (new, old) in requests {
            let denial = world.review(&kind("Deployment"), &new, old).decision.denial.unwrap_or_default();
            assert!(denial.contains(part) && denial.contains(annotations::HOLD), "{hold}: {denial}");
        }
    }
    let (mut world, held) = held();
    world.remove(BLUE);
    let admitted = world.admit(&applied(&deployment(&["demo"]), &held), Some(&held));
    assert_eq!(volume(&admitted.object, 0), BLUE, "a lost snapshot ends no hold");
}

#[test]
fn value_of_on_undo_is_hold() {
    let (mut world, _, second) = rolled();
    for (value, refused) in [("hold", false), ("true", true), ("", true)] {
        let mut new = second.clone();
        annotate(&mut new, annotations::ON_UNDO, value);
        let denial = world.review(&kind("Deployment"), &new, Some(&second)).decision.denial;
        assert_eq!(denial.is_some_and(|denial| denial.contains("use \"hold\"")), refused, "{value}");
    }
}

/// Each warning appears when the annotation is written, or when a request asks for something that a hold prevents.
#[test]
fn requests_without_effect_are_reported() {
    let (mut world, first, second) = rolled();
    world.set("other", json!({"n": "1"}));
    let other = volume(&world.create(&deployment(&["other"])), 0).to_owned();
    let unused = world.admit(&with_hold(&second, Some(&other)), Some(&second));
    let said = format!(
        "annotation confrev.dev/hold: the template does not refer to ConfigMap \"other\", so {other:?} is not held"
    );
    assert_eq!(unused.decision.warnings, [said]);
    assert_eq!(world.admit(&unused.object, Some(&unused.object)).decision.warnings, Vec::<String>::new());

    let held = world.update(&with_hold(&second, Some(GREEN)), &second);
    let undone = world.admit(&undo(&held, &first), Some(&held));
    assert_eq!(volume(&undone.object, 0), GREEN);
    let mut roll = held.clone();
    annotate(&mut roll, annotations::ROLL, "now please");
    let rolled = world.admit(&roll, Some(&held));
    let stays = "annotation confrev.dev/hold: ConfigMap \"demo\" stays at \"demo-736a916696\": ";
    let end = "; remove the annotation to end the hold";
    assert_eq!(
        undone.decision.warnings,
        [format!("{stays}this request does not change it to {BLUE:?}{end}")]
    );
    assert_eq!(
        rolled.decision.warnings,
        [format!("{stays}annotation confrev.dev/roll does not change it{end}")]
    );
    assert_eq!(poked_warnings(&mut world, &held), Vec::<String>::new());
}

fn poked_warnings(world: &mut World, stored: &Value) -> Vec<String> {
    let mut new = stored.clone();
    annotate(&mut new, annotations::ROLL, "auto-2026-01-01T00:00:00Z *");
    world.admit(&new, Some(stored)).decision.warnings
}

#[test]
fn snapshot_on_hold_is_bound_at_once() {
    let (mut world, _, second) = rolled();
    let admitted = world.admit(&with_hold(&second, Some(BLUE)), Some(&second));
    assert_eq!(admitted.decision.adopt, [configmap(BLUE)]);
    assert_eq!(admitted.decision.refers, [configmap(BLUE)]);
}

/// A hold needs no more reads than any other apply, and those of the snapshot only if the template requires more keys. A snapshot that
/// was on hold before is bound already.
#[test]
fn hold_checks_newly_required_keys() {
    let (mut world, held) = held();
    let requiring = |keys: &[&str]| {
        let variables: Vec<_> = keys
            .iter()
            .map(|key| json!({"name": key, "valueFrom": {"configMapKeyRef": {"name": "demo", "key": key}}}))
            .collect();
        let mut manifest = deployment(&["demo"]);
        manifest["spec"]["template"]["spec"]["containers"][0]["env"] = json!(variables);
        manifest
    };
    let stored = world.update(&applied(&requiring(&["color"]), &held), &held);
    for (stored, keys, missing) in [
        (&held, &[][..], None),
        (&held, &["color"], None),
        (&held, &["size"], Some("size")),
        (&stored, &["color"], None),
        (&stored, &["color", "size"], Some("size")),
        (&stored, &[], None),
    ] {
        let new = applied(&requiring(keys), stored);
        let requires_more = stored["spec"] == held["spec"] && !keys.is_empty() || missing.is_some();
        let needs = world.needs(&kind("Deployment"), &new, stored);
        assert_eq!(needs.contains(&Need::Object(configmap(BLUE))), requires_more, "{keys:?}");
        let admitted = world.admit(&new, Some(stored));
        let warnings = &admitted.decision.warnings;
        let says = |key: &str| warnings.iter().any(|warning| warning.contains(&format!("no key \"{key}\"")));
        assert_eq!(
            (warnings.len(), missing.is_none_or(says)),
            (usize::from(missing.is_some()), true),
            "{keys:?}"
        );
        assert_eq!(admitted.decision.adopt, [], "{keys:?}");
    }
}

/// From then on, it stays as it is.
#[test]
fn new_hold_marks_present_content_as_seen() {
    let (mut world, _, second) = rolled();
    let seen = |object: &Value| remembered(object, "seen")["configmaps"]["demo"].clone();
    for color in ["green", "red", "blue"] {
        world.set("demo", json!({"color": color}));
        let held = world.update(&with_hold(&second, Some(BLUE)), &second);
        let fresh = world.clone().create(&deployment(&["demo"]));
        assert_eq!(seen(&held), seen(&fresh), "{color}");
    }
}

#[test]
fn denial_names_every_wrong_hold() {
    let (mut world, _, second) = rolled();
    world.secrets_disabled = true;
    let new = with_hold(&second, Some("secret/db-0123456789, demo-0123456789, demo"));
    let denial = world.review(&kind("Deployment"), &new, Some(&second)).decision.denial.unwrap();
    for part in ["Secrets are disabled", "\"demo-0123456789\" does not exist", "\"demo\" is not a snapshot"] {
        assert!(denial.contains(part), "{denial}");
    }
}

#[test]
fn hold_without_template_is_warned_about() {
    let mut world = World::default();
    let mut rollout = deployment(&[]);
    rollout["kind"] = json!("Rollout");
    rollout["spec"] = json!({"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
    world.target_enabled = Some(true);
    let warnings = |world: &mut World, rollout: &Value| {
        let decision = world.review(&kind("Rollout"), rollout, None).decision;
        assert_eq!(decision.denial, None);
        decision.warnings
    };
    let others = warnings(&mut world, &rollout);
    annotate(&mut rollout, annotations::HOLD, BLUE);
    let mut all = warnings(&mut world, &rollout);
    all.retain(|warning| !others.contains(warning));
    let said = "annotation confrev.dev/hold has no effect: set it on the object that has the template";
    assert_eq!(all, [said]);
}

/// A workload whose undos become holds.
fn holding_undos() -> (World, Value, Value) {
    let (mut world, first, second) = rolled();
    let mut new = second.clone();
    annotate(&mut new, annotations::ON_UNDO, "hold");
    let second = world.update(&new, &second);
    (world, first, second)
}

#[test]
fn undo_becomes_hold_on_request() {
    let (mut world, first, second) = holding_undos();
    assert_eq!(hold_of(&second), None);
    let admitted = world.admit(&undo(&second, &first), Some(&second));
    let undone = admitted.object;
    assert_eq!((volume(&undone, 0), hold_of(&undone)), (BLUE, Some(BLUE)));
    assert!(admitted.decision.warnings[0].contains("is now held at"), "{:?}", admitted.decision.warnings);
    assert_eq!(world.update(&undone, &second), undone, "admitted again after a change by another webhook");
    assert_eq!(world.update(&applied(&deployment(&["demo"]), &undone), &undone), undone);
    // A second undo moves the hold, and one to the present content ends it.
    world.set("demo", json!({"color": "red"}));
    let third = world.update(&undo(&undone, &second), &undone);
    assert_eq!((volume(&third, 0), hold_of(&third)), (GREEN, Some(GREEN)));
    world.set("demo", json!({"color": "blue"}));
    let back = world.update(&undo(&third, &first), &third);
    assert_eq!((volume(&back, 0), hold_of(&back)), (BLUE, None));
    assert_eq!(world.update(&back, &third), back);
    world.set("demo", json!({"color": "green"}));
    assert_eq!(volume(&poke(&mut world, &back, 7), 0), GREEN, "and the workload follows changes again");
}

#[test]
fn undo_of_present_content_makes_no_hold() {
    let (mut world, first, second) = holding_undos();
    world.set("demo", json!({"color": "blue"}));
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!((volume(&undone, 0), hold_of(&undone)), (BLUE, None));
    // A creation and an apply are not undos.
    let mut copy = undone.clone();
    copy["metadata"]["name"] = json!("copy");
    assert_eq!(hold_of(&world.create(&copy)), None);
    world.set("demo", json!({"color": "green"}));
    assert_eq!(hold_of(&world.update(&applied(&deployment(&["demo"]), &undone), &undone)), None);
}

/// One of two references is pinned: the hold decides for both.
#[test]
fn automatic_hold_covers_every_reference_to_its_source() {
    let (mut world, _, _) = rolled();
    let mut object = deployment(&["demo", "demo"]);
    object["spec"]["template"]["spec"]["volumes"][1]["name"] = json!("second");
    annotate(&mut object, annotations::ON_UNDO, "hold");
    let stored = world.create(&object);
    let mut pin = stored.clone();
    pin["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = json!(BLUE);
    let pinned = world.update(&pin, &stored);
    assert_eq!((volume(&pinned, 0), volume(&pinned, 1)), (BLUE, BLUE));
    assert_eq!(world.update(&pinned, &stored), pinned);
}

/// `kubectl rollout undo` of a Deployment replaces the annotations by those of the ReplicaSet, which has no hold.
#[test]
fn undo_of_deployment_keeps_and_makes_holds() {
    for holds_undos in [false, true] {
        let mut world = world("blue");
        let mut object = deployment(&["demo"]);
        object["metadata"]["uid"] = json!("uid-web");
        let first = world.create(&object);
        let set = json!({
            "metadata": {
                "labels": template(&first)["metadata"]["labels"],
                "annotations": first["metadata"]["annotations"],
                "ownerReferences": [{"uid": "uid-web", "controller": true}],
            },
            "spec": {"template": template(&first)},
        });
        world.revisions.push((0, set));
        world.set("demo", json!({"color": "green"}));
        let mut new = poke(&mut world, &first, 1);
        if holds_undos {
            annotate(&mut new, annotations::ON_UNDO, "hold");
        } else {
            annotate(&mut new, annotations::HOLD, GREEN);
        }
        let second = world.update(&new, &first);
        let mut request = undo(&second, &first);
        request["metadata"]["annotations"] = first["metadata"]["annotations"].clone();
        let undone = world.update(&request, &second);
        let wanted = if holds_undos { BLUE } else { GREEN };
        assert_eq!((volume(&undone, 0), hold_of(&undone)), (wanted, Some(wanted)));
        assert_eq!(
            undone["metadata"]["annotations"][annotations::ON_UNDO].as_str(),
            holds_undos.then_some("hold")
        );
        assert_eq!(world.update(&undone, &second), undone, "admitted again");
    }
}

/// A roll that is pending when the undo comes is rejected by it.
#[test]
fn undo_under_a_pending_change_becomes_hold() {
    let (mut world, first, second) = holding_undos();
    world.set("demo", json!({"color": "red"}));
    let undone = world.update(&undo(&second, &first), &second);
    assert_eq!((volume(&undone, 0), hold_of(&undone)), (BLUE, Some(BLUE)));
}

#[test]
fn hold_comes_before_the_mode_of_the_source() {
    for mode in ["false", "live", "bind"] {
        let (mut world, held) = held();
        world.labelled("demo", mode);
        let again = world.update(&applied(&deployment(&["demo"]), &held), &held);
        assert_eq!(volume(&again, 0), BLUE, "{mode}");
        let free = world.update(&with_hold(&again, None), &again);
        assert_eq!(volume(&free, 0), "demo", "{mode}: without the hold, the reference is as written");
    }
}

#[test]
fn hold_of_secrets_snapshot_names_its_kind() {
    let secret = |name: &str| ObjectName::new(SourceKind::Secret, name);
    let mut world = World::default();
    let content = |value: &str| json!({"metadata": {"name": "db", "uid": "uid-db"}, "type": "Opaque", "data": {"k": value}});
    world.objects.insert(secret("db"), content("YQ=="));
    let mut object = deployment(&[]);
    annotate(&mut object, annotations::SECRETS, "true");
    object["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "db"}}]);
    let name = |object: &Value| {
        let volume = &object["spec"]["template"]["spec"]["volumes"][0];
        volume["secret"]["secretName"].as_str().unwrap().to_owned()
    };
    let first = world.create(&object);
    world.objects.insert(secret("db"), content("Yg=="));
    let second = poke(&mut world, &first, 1);
    assert_ne!(name(&first), name(&second));
    let hold = format!("secret/{}", name(&first));
    let held = world.update(&with_hold(&second, Some(&hold)), &second);
    assert_eq!(name(&held), name(&first));
    assert_eq!(world.update(&applied(&object, &held), &held), held);
    let denial = world.review(&kind("Deployment"), &with_hold(&second, Some(&name(&first))), Some(&second));
    assert!(denial.decision.denial.unwrap().contains("ConfigMap"), "a name without a kind is a ConfigMap's");
    // Without Secrets in the installation, the hold lasts, and no Secret is read, whatever the workload has seen.
    world.secrets_disabled = true;
    let mut unseen = held.clone();
    unseen["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::STATE);
    for stored in [&held, &unseen] {
        let mut new = applied(&object, stored);
        new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        assert_eq!(name(&world.update(&new, stored)), name(&first));
        let needs = world.needs(&kind("Deployment"), &new, stored);
        assert!(
            needs.iter().all(|need| !matches!(need, Need::Object(name) if name.kind == SourceKind::Secret)),
            "{needs:?}"
        );
    }
}

/// The controller's question: a workload on hold is never pending for that source.
#[test]
fn held_source_makes_nothing_pending() {
    let (mut world, held) = held();
    for color in ["green", "red"] {
        world.set("demo", json!({"color": color}));
        let record = |object: &Value| {
            let text = object.to_string();
            let kind = kind("Deployment");
            let workload = Workload::parse(&kind, &text).unwrap();
            Record::of(&workload, Health::Settled, &Rotated::default())
        };
        let observed = world.observe(&configmap("demo")).unwrap();
        let present = |_: &ObjectName| Some(Present::from(&observed));
        let record_held = record(&held);
        assert!(record_held.is_on_hold(&configmap("demo")));
        assert!(!is_pending(&record_held, present), "{color}");
        let free = with_hold(&held, None);
        assert!(!record(&free).is_on_hold(&configmap("demo")));
        assert_eq!(is_pending(&record(&free), present), color == "red");
    }
}

#[test]
fn seen_stays_during_a_hold() {
    let (mut world, held) = held();
    let seen = |object: &Value| remembered(object, "seen");
    let before = seen(&held);
    world.set("demo", json!({"color": "red"}));
    let again = world.update(&applied(&deployment(&["demo"]), &held), &held);
    assert_eq!(seen(&again), before);
    let free = world.update(&with_hold(&again, None), &again);
    assert_ne!(seen(&free), before);
}
