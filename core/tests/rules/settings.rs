//! The settings in a workload's annotations, and the answers to malformed ones.

use confrev::annotations;
use confrev::resolve::{
    Carried, Facts, Need, Pass, Request, Workload, malformed, parse_keep, parse_max_in_flight, resolve,
};
use confrev::snapshot::Rotated;
use serde_json::{Value, json};

use super::{
    story::{BLUE, poke, world},
    world::{World, annotate, deployment, kind, volume},
};

/// The warning names the right key. A tool that applies the same object again gets no second warning.
#[test]
fn keys_without_effect_are_reported_once() {
    let mut world = World::default();
    world.set("demo", json!({"a": "1"}));
    for (place, key, part) in [
        (
            "annotations",
            "confrev.dev/exclud",
            "annotation confrev.dev/exclud has no effect: did you mean confrev.dev/exclude?",
        ),
        ("annotations", "confrev.dev/minInterval", "did you mean confrev.dev/min-interval?"),
        ("annotations", "confrev.dev/enabled", "annotation confrev.dev/enabled has no effect: it is a label"),
        ("labels", "confrev.dev/track", "label confrev.dev/track has no effect: it is an annotation"),
        (
            "labels",
            "confrev.dev/enabld",
            "label confrev.dev/enabld has no effect: did you mean confrev.dev/enabled?",
        ),
        ("labels", "confrev.dev/keep", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/max-in-flight", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/set", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/schema", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/schema-keys", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/schema-for", "it is an annotation of a ConfigMap or Secret"),
        ("annotations", "confrev.dev/secrets-mode", "it is an annotation of a Namespace"),
        ("annotations", "confrev.dev/anything", "confrev has no such key; use confrev.dev/secrets, "),
    ] {
        let mut object = deployment(&["demo"]);
        object["metadata"][place][key] = json!("true");
        let admitted = world.admit(&object, None);
        let [warning] = &admitted.decision.warnings[..] else {
            panic!("{key}: {:?}", admitted.decision.warnings)
        };
        assert!(warning.contains(part), "{warning}");
        let mut again = object.clone();
        again["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        assert_eq!(world.admit(&again, Some(&admitted.object)).decision.warnings, [""; 0], "{key}");
    }
    // Users do not write these keys, and tools copy them.
    let mut copied = deployment(&["demo"]);
    copied["metadata"]["labels"][annotations::REVISION] = json!("0123456789");
    annotate(&mut copied, annotations::STATE, "{}");
    assert_eq!(world.admit(&copied, None).decision.warnings, [""; 0]);
    let mut object = deployment(&["demo"]);
    annotate(&mut object, annotations::EXCLUDE, "demo, dmeo");
    let admitted = world.admit(&object, None);
    let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
    assert!(warning.contains("does not refer to ConfigMap \"dmeo\""), "{warning}");
    assert_eq!(world.admit(&object, Some(&admitted.object)).decision.warnings, [""; 0]);
}

/// It is reported when it is new on an opted-in workload, or when the workload opts in with it.
#[test]
fn restarts_by_another_tool_are_reported_once() {
    let mut world = World::default();
    world.set("demo", json!({"a": "1"}));
    let auto = "reloader.stakater.com/auto";
    let mut object = deployment(&["demo"]);
    let plain = world.admit(&object, None).object;
    annotate(&mut object, auto, "true");
    let mut out = object.clone();
    out["metadata"]["labels"][annotations::ENABLED] = json!("false");
    assert_eq!(world.admit(&out, None).decision.warnings, [""; 0], "confrev does not roll it");
    for old in [None, Some(&plain), Some(&out)] {
        let admitted = world.admit(&object, old);
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains(auto) && warning.contains("Reloader also restarts Deployment"), "{warning}");
        assert_eq!(world.admit(&object, Some(&admitted.object)).decision.warnings, [""; 0]);
    }
    annotate(&mut object, auto, "false");
    assert_eq!(world.admit(&object, None).decision.warnings, [""; 0]);
}

#[test]
fn missing_reference_is_reported_denied_or_allowed() {
    let mut world = world("blue");
    let mut object = deployment(&["gone"]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "nokey"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "nokey2", "optional": true}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "gone2", "key": "k", "optional": true}}},
    ]);
    let warned = world.admit(&object, None).decision.warnings;
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(warned[1].contains("ConfigMap \"demo\" has no key \"nokey\""), "{warned:?}");
    annotate(&mut object, annotations::MISSING, "allow");
    assert!(world.admit(&object, None).decision.warnings.is_empty());
    annotate(&mut object, annotations::MISSING, "deny");
    let denial = world.review(&kind("Deployment"), &object, None).decision.denial.unwrap();
    for part in
        ["Deployment \"web\"", "ConfigMap \"gone\"", "ConfigMap \"demo\"", "\"nokey\"", annotations::MISSING]
    {
        assert!(denial.contains(part), "{denial} names {part}");
    }
}

#[test]
fn excluded_references_stay_as_written() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let mut object = deployment(&["demo", "other"]);
    annotate(&mut object, annotations::EXCLUDE, "other");
    let stored = world.create(&object);
    assert_eq!((volume(&stored, 0), volume(&stored, 1)), (BLUE, "other"));
    for enabled in ["false", "bind"] {
        let mut world = world.clone();
        world.labelled("demo", enabled);
        let written = world.create(&deployment(&["demo"]));
        assert_eq!(volume(&written, 0), "demo");
        // A reference that confrev rewrote returns to the name that the user wrote.
        assert_eq!(volume(&poke(&mut world, &stored, 1), 0), "demo");
    }
}

/// `sources` does not list them, so confrev never becomes responsible for their deletion.
#[test]
fn excluded_or_rotated_source_is_not_bound() {
    for (is_excluded, rotated) in [(true, &[][..]), (false, &["demo"])] {
        let mut world = world("blue");
        world.labelled("demo", "bind");
        world.rotated = Rotated::with(rotated.iter().map(|&name: &&str| name.to_owned()));
        let mut object = deployment(&["demo"]);
        if is_excluded {
            annotate(&mut object, annotations::EXCLUDE, "demo");
        }
        assert_eq!(world.create(&object), object, "excluded: {is_excluded}");
    }
}

/// Its newest snapshot would be read together with it.
#[test]
fn reads_no_snapshot_of_excluded_or_rotated_source() {
    for (is_excluded, is_rotated) in [(false, false), (true, false), (false, true)] {
        let mut object = deployment(&["demo"]);
        if is_excluded {
            annotate(&mut object, annotations::EXCLUDE, "demo");
        }
        let (kind, text) = (kind("Deployment"), object.to_string());
        let new = Workload::parse(&kind, &text).unwrap();
        let request = Request { namespace: "ns", secrets: true, new, old: None, carried: Carried::default() };
        let mut facts = Facts::default();
        facts.set_rotated(Rotated::with(is_rotated.then(|| "demo".to_owned())));
        let Pass::Needs(needs) = resolve(&request, &facts) else { panic!("nothing is read") };
        let reads_newest = needs.iter().any(|need| matches!(need, Need::Newest { .. }));
        assert_eq!(
            reads_newest,
            !is_excluded && !is_rotated,
            "excluded: {is_excluded}, rotated: {is_rotated}"
        );
    }
}

#[test]
fn malformed_setting_is_refused_with_allowed_values() {
    let mut world = world("blue");
    for (key, value, allowed) in [
        (annotations::TRACK, "yes", "\"true\" or \"false\""),
        (annotations::SECRETS, "1", "\"true\" or \"false\""),
        (annotations::MISSING, "fail", "\"warn\", \"deny\" or \"allow\""),
        (annotations::MIN_INTERVAL, "10", "a duration"),
        (annotations::EXCLUDE, "a b", "names of ConfigMaps"),
        (annotations::ORDER, "first", "a whole number"),
        (annotations::PROGRESS_DEADLINE, "0s", "a duration"),
        (annotations::PROGRESS_DEADLINE, "soon", "a duration"),
        (annotations::ON_UNDO, "true", "\"hold\""),
    ] {
        let mut object = deployment(&["demo"]);
        annotate(&mut object, key, value);
        let denial = world.review(&kind("Deployment"), &object, None).decision.denial.unwrap();
        assert_eq!(error_of(&object), Some(denial.clone()), "the validating webhook refuses it, too");
        for part in ["Deployment \"web\"", key, &format!("{value:?}"), allowed] {
            assert!(denial.contains(part), "{denial} says {part}");
        }
    }
    let mut object = deployment(&["demo"]);
    object["metadata"]["labels"][annotations::ENABLED] = json!("True");
    let denial = world.review(&kind("Deployment"), &object, None).decision.denial.unwrap();
    assert!(denial.contains(annotations::ENABLED) && denial.contains("\"True\""), "{denial}");
    assert_eq!(error_of(&object), Some(denial));
}

/// The error that the validating webhook answers for a Deployment.
fn error_of(object: &Value) -> Option<String> {
    let (kind, text) = (kind("Deployment"), object.to_string());
    let new = Workload::parse(&kind, &text).unwrap();
    malformed(&Request { namespace: "ns", secrets: true, new, old: None, carried: Carried::default() })
}

#[test]
fn numbers_on_a_source_are_only_digits() {
    for (text, keep, limit) in [
        ("0", Some(0), None),
        ("1", Some(1), Some(1)),
        ("1000", Some(1000), Some(1000)),
        ("+1", None, None),
        ("-1", None, None),
        (" 1", None, None),
        ("1.0", None, None),
        ("", None, None),
        ("99999999999999999999999", None, None),
    ] {
        assert_eq!((parse_keep(Some(text)), parse_max_in_flight(text)), (keep, limit), "{text:?}");
    }
}

/// With the annotation `mount`, such a workload is refused.
#[test]
fn users_volume_named_like_mount_stays_unchanged() {
    let mut world = world("blue");
    let object = deployment(&["demo"]);
    let projected =
        |source| json!({"name": "confrev-mount", "projected": {"sources": [{"configMap": source}]}});
    for own in [
        json!({"name": "confrev-mount", "emptyDir": {}}),
        projected(json!({"name": "late", "optional": true})),
        projected(json!({"name": "late", "items": [{"key": "k", "path": "p"}]})),
    ] {
        let mut object = object.clone();
        object["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(own.clone());
        object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "confrev-mount", "mountPath": "/scratch"}]);
        let stored = world.create(&object);
        let spec = &stored["spec"]["template"]["spec"];
        assert_eq!((volume(&stored, 0), &spec["volumes"][1]), (BLUE, &own));
        assert_eq!(spec["containers"], object["spec"]["template"]["spec"]["containers"]);
        annotate(&mut object, annotations::MOUNT, "demo");
        let denial = world.review(&kind("Deployment"), &object, None).decision.denial.unwrap();
        assert!(denial.contains(annotations::MOUNT) && denial.contains("\"confrev-mount\""), "{denial}");
    }
}

#[test]
fn opting_out_removes_mount_of_missing_configmap() {
    let mut world = world("blue");
    let mut object = deployment(&[]);
    annotate(&mut object, annotations::MOUNT, "gone");
    let stored = world.create(&object);
    assert!(stored["spec"].to_string().contains("confrev-mount"), "{stored}");
    let mut out = stored.clone();
    out["metadata"]["labels"][annotations::ENABLED] = json!("false");
    let left = world.update(&out, &stored)["spec"].to_string();
    assert!(!left.contains("confrev-mount"), "{left}");
}

/// Values that the chart does not send to the validating webhook.
#[test]
fn values_that_skip_the_webhook_are_valid() {
    let intervals = (0..1000).flat_map(|count| {
        ["ms", "s", "m", "h"].into_iter().flat_map(move |unit| {
            [format!("{count}{unit}"), format!("{count:02}{unit}"), format!("{count:03}{unit}")]
        })
    });
    let values = |all: &[&str]| all.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
    for (key, pattern, values) in [
        (annotations::SECRETS, "^(true|false)$", values(&["true", "false"])),
        (annotations::TRACK, "^(true|false)$", values(&["true", "false"])),
        (annotations::MISSING, "^(warn|allow)$", values(&["warn", "allow"])),
        (
            annotations::MIN_INTERVAL,
            "^(0|[0-9]{1,3}(ms|s|m|h))$",
            intervals.chain(["0".to_owned()]).collect(),
        ),
    ] {
        let row = annotations::KEYS.iter().find(|row| row.name == key).unwrap();
        assert_eq!(row.plain, Some(pattern), "{key}");
        for value in values {
            let mut object = deployment(&["demo"]);
            annotate(&mut object, key, &value);
            assert_eq!(error_of(&object), None, "{key}: {value}");
        }
    }
}
