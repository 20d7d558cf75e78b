//! The changes that the controller rolls a workload for.

use confrev::{
    annotations,
    resolve::{
        Health, MemberState, NamespaceOptIn, Observed, Present, Record, Use, Workload, WorkloadView,
        is_pending,
    },
    snapshot::{Digest, ObjectName, SourceKind},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    story::{BLUE, poke, undo, world},
    world::{NAMESPACE, World, annotate, configmap, deployment, kind, volume},
};

fn record(of: &str, stored: &Value, world: &World) -> Record {
    let (kind, text) = (kind(of), stored.to_string());
    let workload = Workload::parse(&kind, &text).unwrap();
    assert_eq!(workload.namespace(), NAMESPACE);
    Record::of(&workload, Health::Settled, &world.rotated)
}

/// Whether the controller rolls this Deployment.
fn pending(world: &World, stored: &Value) -> bool {
    let present = |name: &ObjectName| world.observe(name).as_ref().map(Present::from);
    is_pending(&record("Deployment", stored, world), present)
}

#[test]
fn setting_for_secrets_affects_no_configmap() {
    for secrets in ["true", "false"] {
        let mut world = world("blue");
        let mut object = deployment(&["demo"]);
        annotate(&mut object, annotations::SECRETS, secrets);
        let stored = world.create(&object);
        assert!(!pending(&world, &stored));
        world.set("demo", json!({"color": "green"}));
        assert!(pending(&world, &stored), "{secrets}");
    }
}

/// The Secret did not exist when the workload was admitted.
#[test]
fn new_secret_rolls_workload_that_asks_for_secrets() {
    for secrets in [Some("true"), Some("false"), None] {
        let mut world = World::default();
        let mut object = deployment(&[]);
        object["spec"]["template"]["spec"]["volumes"] =
            json!([{"name": "s", "secret": {"secretName": "demo"}}]);
        if let Some(secrets) = secrets {
            annotate(&mut object, annotations::SECRETS, secrets);
        }
        let stored = world.create(&object);
        let secret = json!({"metadata": {"name": "demo"}, "data": {"password": "YQ=="}});
        world.objects.insert(ObjectName::new(SourceKind::Secret, "demo"), secret);
        assert_eq!(pending(&world, &stored), secrets == Some("true"), "{secrets:?}");
    }
}

/// The first snapshot decides for the source.
#[test]
fn second_snapshot_of_a_source_rolls_nothing() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    let second = poke(&mut world, &first, 1);
    let mut both = second.clone();
    let pinned = json!({"name": "old", "configMap": {"name": BLUE}});
    both["spec"]["template"]["spec"]["volumes"].as_array_mut().unwrap().push(pinned);
    let both = world.update(&both, &second);
    assert_eq!(volume(&both, 1), BLUE);
    assert!(!pending(&world, &both));
}

/// One roll lists the object in `sources`, where its revisions are found.
#[test]
fn new_mode_bind_rolls_once() {
    let object = deployment(&["demo"]);
    let resolved = world("blue").create(&object);
    for (what, stored) in [("admitted without confrev", &object), ("resolved to a snapshot", &resolved)] {
        let mut world = world("blue");
        world.create(&object);
        world.labelled("demo", "bind");
        assert!(pending(&world, stored), "{what}");
        let rolled = poke(&mut world, stored, 1);
        assert_eq!(volume(&rolled, 0), "demo", "{what}");
        assert!(!pending(&world, &rolled), "{what}");
    }
}

/// A reference that confrev rewrote returns to the source's name.
#[test]
fn new_mode_false_rolls_only_rewritten_references() {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.labelled("demo", "false");
    assert!(pending(&world, &first));
    let written = poke(&mut world, &first, 1);
    assert_eq!(volume(&written, 0), "demo");
    assert!(!pending(&world, &written));
    let pinned = world.update(&undo(&written, &first), &written);
    assert_eq!(volume(&pinned, 0), BLUE);
    assert!(!pending(&world, &pinned), "the user named the snapshot");
}

/// The controller writes nothing to Jobs and to workloads that are being deleted.
#[test]
fn only_lasting_workloads_follow_sources_and_namespace() {
    for (of, is_going, expected) in [
        ("Deployment", false, true),
        ("Deployment", true, false),
        ("Job", false, false),
        ("Job", true, false),
    ] {
        let mut world = world("blue");
        world.namespace.opt_in = NamespaceOptIn::Now;
        let mut object = deployment(&["demo"]);
        object["metadata"].as_object_mut().unwrap().remove("labels");
        let mut stored = world.review(&kind(of), &object, None).object;
        if is_going {
            stored["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let record = record(of, &stored, &world);
        assert_eq!((record.track, record.by_namespace), (expected, expected), "{of}, deleted: {is_going}");
    }
}

/// What the controller knows of a workload: the sources that it uses, and the keys of them that its pods require.
#[test]
fn record_holds_used_sources_and_keys() {
    let world = World::default();
    let variable = |source: &str, key: &str, optional: bool| {
        let reference = json!({"name": source, "key": key, "optional": optional});
        json!({"name": "V", "valueFrom": {"configMapKeyRef": reference}})
    };
    let mut object = deployment(&["plain", "whole", "left", "kube-root-ca.crt"]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
        variable("keys", "a", false),
        variable("keys", "b", true),
        variable("keys", "c", true),
        variable("keys", "c", false),
        variable("whole", "d", false),
    ]);
    annotate(&mut object, annotations::EXCLUDE, "left");
    for allows in [false, true] {
        if allows {
            annotate(&mut object, annotations::MISSING, "allow");
        }
        let record = record("Deployment", &object, &world);
        let uses: Vec<_> =
            record.uses.iter().map(|used| (&*used.source.name, used.whole, used.optional)).collect();
        let of_keys = if allows {
            vec![("keys", false, true)]
        } else {
            vec![("keys", false, false), ("keys", false, true)]
        };
        let rest = [("plain", true, allows), ("whole", false, allows), ("whole", true, allows)];
        assert_eq!(uses, [of_keys, rest.to_vec()].concat());
        let reads = |source: &str| {
            let reads = record.reads(&configmap(source))?;
            Some((reads.whole, reads.keys.iter().map(|read| (&*read.key, read.required)).collect::<Vec<_>>()))
        };
        let required = !allows;
        assert_eq!(reads("keys"), Some((false, vec![("a", required), ("b", false), ("c", required)])));
        assert_eq!(reads("whole"), Some((true, vec![("d", required)])));
        assert_eq!((reads("plain"), reads("left"), reads("kube-root-ca.crt")), (None, None, None));
        assert_eq!(record.keys_of(&configmap("whole")), None);
        assert_eq!(record.keys_of(&configmap("keys")), Some(["a", "b", "c"].into()));
    }
    // A snapshot counts in any case: the reference must return to its source.
    let mut blue = super::story::world("blue");
    let mut stored = blue.create(&deployment(&["demo"]));
    annotate(&mut stored, annotations::EXCLUDE, "demo");
    let record = record("Deployment", &stored, &blue);
    let uses: Vec<_> = record.uses.iter().map(|used| (used.snapshot.as_deref(), used.excluded)).collect();
    assert_eq!(uses, [(Some(BLUE), true)]);
}

/// A reference to a source that is live, or was when the workload was admitted.
#[test]
fn live_source_is_pending_until_seen() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    let of_content = |world: &World| world.observe(&configmap("demo")).unwrap();
    let blue = of_content(&world);
    world.set("demo", json!({"color": "green"}));
    let green = of_content(&world);
    let rewritten: fn(Use) -> Use = |used| Use { snapshot: Some(BLUE.into()), ..used };
    let excluded: fn(Use) -> Use = |used| Use { excluded: true, ..used };
    let live: fn(Use) -> Use = |used| Use { live: true, ..used };
    let same: fn(Use) -> Use = |used| used;
    for (what, change, mode, has_seen, content, pending) in [
        ("a snapshot of a live source", rewritten, Some(true), true, &blue, true),
        ("a snapshot that a user named", rewritten, Some(true), false, &blue, false),
        ("a live source", live, Some(true), true, &blue, false),
        ("a changed live source", live, Some(true), true, &green, true),
        ("a live source of unknown mode", live, None, true, &blue, false),
        ("a changed live source of unknown mode", live, None, true, &green, true),
        ("a source that is no longer live", live, Some(false), true, &blue, true),
        ("a source that became live", same, Some(true), true, &blue, false),
        ("a source that is not resolved", same, None, true, &blue, true),
        ("an excluded live source", excluded, Some(true), false, &green, false),
    ] {
        let mut record = record("Deployment", &stored, &world);
        if !has_seen {
            record = record.tied(&configmap("demo"), |tie| tie.seen = None);
        }
        let plain = Use::new(configmap("demo"), None);
        let present = Present { live: mode, ..Present::from(content) };
        assert_eq!(record.is_pending_for(&change(plain), &present), pending, "{what}");
    }
}

/// What is expected of a workload's kind, of a source with this content, after this change of the record.
type StateCase<'a> = (&'a str, &'a str, &'a str, &'a Observed, &'a dyn Fn(&mut Record));

/// The state of a workload towards the content of a source: for each change of its record, what it waits for or has done.
#[test]
fn member_state_follows_record_and_present_content() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    let of_content = |world: &World| world.observe(&configmap("demo")).unwrap();
    let blue = of_content(&world);
    world.set("demo", json!({"color": "green"}));
    let green = of_content(&world);
    let second = Timestamp::from_second;
    let state = |of: &str, source: &str, content: &Observed, change: &dyn Fn(&mut Record)| {
        let record = record("Deployment", &stored, &world);
        let mut record = record.tied(&configmap("demo"), |tie| tie.moved = second(5).ok());
        change(&mut record);
        let view = WorkloadView {
            kind: &kind(of),
            path: [NAMESPACE, "web"],
            namespace_order: None,
            health: Health::Settled,
            source: &configmap(source),
            present: &content.into(),
            set: None,
        };
        let held = |used: &Use| match used.snapshot.as_deref() {
            Some(BLUE) => content.digest(),
            _ => Digest::of_bytes("other"),
        };
        match record.member_state(&view, |used| Some(held(used))) {
            MemberState::Apart => "apart",
            MemberState::Unaffected => "unaffected",
            MemberState::Waits(_) => "waits",
            MemberState::Moved(moved) if moved.rolled_back => "rolled back",
            MemberState::Moved(moved) if moved.written_since => "moved, written since",
            MemberState::Moved(_) => "moved",
        }
    };
    let named = |used: &mut Use, name: &str| used.snapshot = Some(name.into());
    let keys_only = |record: &mut Record| {
        named(&mut record.uses[0], "demo-other");
        record.uses[0].whole = false;
    };
    let pinned = |record: &mut Record| {
        keys_only(record);
        let keys = Some(Box::new(Digest::of_bytes("keys")));
        *record = record.clone().tied(&configmap("demo"), |tie| tie.pinned = keys);
    };
    let written = |at: i64| move |record: &mut Record| record.pace.written = second(at).ok();
    let cases: [StateCase<'_>; 15] = [
        ("waits", "Deployment", "demo", &green, &|_| ()),
        ("apart", "Deployment", "demo", &green, &|record| record.track = false),
        ("apart", "Deployment", "demo", &green, &|record| record.uses[0].on_hold = true),
        ("apart", "Job", "demo", &green, &|_| ()),
        ("apart", "Deployment", "another", &green, &|_| ()),
        ("waits", "Deployment", "demo", &green, &|record| record.uses[0].excluded = true),
        ("apart", "Deployment", "demo", &green, &|record| {
            (record.uses[0].excluded, record.uses[0].snapshot) = (true, None);
        }),
        ("moved", "Deployment", "demo", &blue, &|_| ()),
        ("moved", "Deployment", "demo", &blue, &written(4)),
        ("moved", "Deployment", "demo", &blue, &written(5)),
        ("moved, written since", "Deployment", "demo", &blue, &written(6)),
        ("rolled back", "Deployment", "demo", &blue, &|record| named(&mut record.uses[0], "demo-other")),
        ("unaffected", "Deployment", "demo", &blue, &keys_only),
        ("rolled back", "Deployment", "demo", &blue, &pinned),
        ("apart", "Deployment", "demo", &blue, &|record| {
            keys_only(record);
            record.track = false;
        }),
    ];
    for (number, (expected, of, source, content, change)) in cases.into_iter().enumerate() {
        assert_eq!(state(of, source, content, change), expected, "case {number}");
    }
}

/// Without its annotation, a rollout may take as long as a Deployment's may by default.
#[test]
fn record_has_deadline_of_rollouts_in_seconds() {
    for (text, seconds) in [(None, 600), (Some("90s"), 90), (Some("1h30m"), 5_400), (Some("500ms"), 1)] {
        let mut world = world("blue");
        let mut object = deployment(&["demo"]);
        if let Some(text) = text {
            annotate(&mut object, annotations::PROGRESS_DEADLINE, text);
        }
        let stored = world.create(&object);
        assert_eq!(record("Deployment", &stored, &world).pace.deadline_seconds, seconds, "{text:?}");
    }
}

type Change<'a> = &'a dyn Fn(&mut Record);

/// Whether a workload has one place in the orders of two changes: where it must move to both contents at once.
#[test]
fn joint_moves_have_one_order() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    let content = |world: &mut World, color: &str| {
        world.set("demo", json!({"color": color}));
        world.observe(&configmap("demo")).unwrap()
    };
    let contents = ["green", "red"].map(|color| content(&mut world, color));
    let places = |set: Option<&str>, health: Health, change: Change<'_>| {
        contents.each_ref().map(|content| {
            let mut record = record("Deployment", &stored, &world);
            change(&mut record);
            let view = WorkloadView {
                kind: &kind("Deployment"),
                path: [NAMESPACE, "web"],
                namespace_order: None,
                health,
                source: &configmap("demo"),
                present: &content.into(),
                set,
            };
            match record.member_state(&view, |_| Some(Digest::of_bytes("other"))) {
                MemberState::Waits(waiting) => waiting.place,
                other => panic!("{other:?}"),
            }
        })
    };
    let plain = |used: &Use| Use { snapshot: None, ..used.clone() };
    let own = |record: &mut Record| record.uses[0] = plain(&record.uses[0]);
    let other = |record: &mut Record| {
        record.uses.push(Use { source: configmap("other"), ..plain(&record.uses[0]) });
    };
    let [none, set] = [None, Some("shop/1")];
    let cases: [(&str, Option<&str>, Change<'_>, bool); 5] = [
        ("it is resolved", none, &|_| (), false),
        ("in a set", set, &|_| (), true),
        ("its reference is new", none, &own, false),
        ("the same, in a set", set, &own, true),
        ("a reference to another source is new, in a set", set, &other, true),
    ];
    for (what, set, change, is_one) in cases {
        let [one, another] = places(set, Health::Settled, change);
        assert_eq!(one == another, is_one, "{what}");
    }
    // Whether it was unhealthy before must not depend on the source, either.
    let unhealthy = |record: &mut Record| {
        *record = record.clone().tied(&configmap("other"), |tie| tie.unhealthy = true);
    };
    let nothing = |_: &mut Record| ();
    for (set, is_same) in [(none, true), (set, false)] {
        let [sound, sick]: [_; 2] =
            [&nothing as Change<'_>, &unhealthy].map(|of| places(set, Health::Failed, of)[0]);
        assert!(sound <= sick && (sound == sick) == is_same, "{set:?}");
    }
}
