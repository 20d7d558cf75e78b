//! Sets: a workload moves when all sources of a set that it uses have the same version.

use confrev::{
    annotations,
    resolve::{
        Membership::{Missing, Stated},
        RefusedContents, SetVersion, SetWait, hold_text, invalid_set,
    },
};
use serde_json::{Value, json};

use super::{
    story::poke,
    world::{World, annotate, annotation, configmap, deployment, kind, remembered, volume},
};

fn set(world: &mut World, name: &str, content: &str, set: Option<&str>) {
    world.set(name, json!({"content": content}));
    if let Some(set) = set {
        annotate(world.objects.get_mut(&configmap(name)).unwrap(), annotations::SET, set);
    }
}

/// A workload with `db` and `demo` of the set `shop`. The versions are those that the sources have now; their contents have changed
/// if the versions have.
fn pending(db: &str, demo: &str) -> (World, Value) {
    let mut world = World::default();
    set(&mut world, "db", "shop/1", Some("shop/1"));
    set(&mut world, "demo", "shop/1", Some("shop/1"));
    let stored = world.create(&deployment(&["db", "demo"]));
    set(&mut world, "db", db, Some(db));
    set(&mut world, "demo", demo, Some(demo));
    (world, stored)
}

/// Which of the two sources move to their present content.
fn moved(before: &Value, after: &Value) -> [bool; 2] {
    let seen = |object: &Value| remembered(object, "seen")["configmaps"].clone();
    let moved = [0, 1].map(|volume_of| volume(after, volume_of) != volume(before, volume_of));
    let taken = ["db", "demo"].map(|name| seen(after)[name] != seen(before)[name]);
    assert_eq!(moved, taken, "{after}");
    moved
}

#[test]
fn moves_when_all_versions_are_equal() {
    for (db, demo, moves) in [
        ("shop/1", "shop/2", [false, false]),
        ("shop/2", "shop/3", [false, false]),
        ("shop/2", "shop/2", [true, true]),
        ("shop/1", "other/2", [false, true]),
        ("shop/1", "shop", [false, false]),
        ("/1", "shop/2", [false, true]),
    ] {
        let (mut world, stored) = pending(db, demo);
        let synced = world.update(&deployment(&["db", "demo"]), &stored);
        assert_eq!(moved(&stored, &synced), moves, "{db} and {demo}: a sync");
    }
}

/// What keeps a workload from the content of one source keeps it from those of its set: in a sync, the controller decides about all.
#[test]
fn sync_moves_a_whole_set_or_nothing() {
    for (what, key, value) in [
        ("waves", annotations::WAVES, "1"),
        ("a limit", annotations::MAX_IN_FLIGHT, "1"),
        ("it reverts", annotations::ON_FAILURE, "revert"),
        ("it fails its schema", annotations::SCHEMA, "schemas/key"),
        ("it is listed", "", ""),
    ] {
        for limited in ["db", "demo"] {
            let (mut world, stored) = pending("shop/2", "shop/2");
            set(&mut world, "demo", "another content", Some("shop/2"));
            world.schema_failures.insert(configmap(limited), "it fails".into());
            if key.is_empty() {
                let digest = world.observe(&configmap(limited)).unwrap().digest();
                world.refused = RefusedContents::read([("list", &*digest.to_string())]).0;
            } else {
                annotate(world.objects.get_mut(&configmap(limited)).unwrap(), key, value);
            }
            let admitted = world.admit(&deployment(&["db", "demo"]), Some(&stored));
            assert_eq!(moved(&stored, &admitted.object), [false; 2], "{what} of {limited}");
            let warnings = admitted.decision.warnings.join("\n");
            let expected = format!(
                "belongs to a set (annotation confrev.dev/set): ConfigMap \"{limited}\" stays behind: Deployment \"web\" keeps"
            );
            assert!(warnings.contains(&expected), "{warnings}");
        }
    }
}

/// A hold keeps all sources of the set, and its end moves all.
#[test]
fn hold_keeps_the_whole_set() {
    let mut world = World::default();
    set(&mut world, "db", "shop/1", Some("shop/1"));
    set(&mut world, "demo", "shop/1", Some("shop/1"));
    let first = world.create(&deployment(&["db", "demo"]));
    let held = |name: &str| {
        let mut held = first.clone();
        let place = usize::from(name == "demo");
        let hold = hold_text(&[configmap(volume(&first, place))]);
        annotate(&mut held, annotations::HOLD, &hold);
        (held, hold)
    };
    for name in ["db", "demo"] {
        set(&mut world, "db", "shop/1", Some("shop/1"));
        set(&mut world, "demo", "shop/1", Some("shop/1"));
        let (held, hold) = held(name);
        let stored = world.update(&held, &first);
        set(&mut world, "db", "db/2", Some("shop/2"));
        set(&mut world, "demo", "demo/2", Some("shop/2"));
        let mut synced = deployment(&["db", "demo"]);
        annotate(&mut synced, annotations::HOLD, &hold);
        assert_eq!(moved(&stored, &world.update(&synced, &stored)), [false; 2], "{name} is on hold");
        let ended = world.update(&deployment(&["db", "demo"]), &stored);
        assert_eq!(moved(&stored, &ended), [true; 2], "{name} was on hold");
    }
}

/// It is created between the writes of two sources.
#[test]
fn beginning_with_mixed_versions_is_warned_about() {
    for (db, demo, is_mixed) in
        [("shop/1", "shop/2", true), ("shop/2", "shop/2", false), ("shop/1", "other/2", false)]
    {
        let mut world = World::default();
        set(&mut world, "db", db, Some(db));
        set(&mut world, "demo", demo, Some(demo));
        let created = world.review(&kind("Deployment"), &deployment(&["db", "demo"]), None).decision;
        assert_eq!(created.denial, None);
        let found =
            created.warnings.iter().any(|text| text.contains(annotations::SET) && text.contains("has 2"));
        assert_eq!(found, is_mixed, "{db} {demo}: {:?}", created.warnings);
    }
}

/// A person decides, and so does a change of the template.
#[test]
fn users_move_workloads_of_a_set() {
    let (mut world, stored) = pending("shop/1", "shop/2");
    let mut deployed = deployment(&["db", "demo"]);
    deployed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    assert_eq!(moved(&stored, &world.update(&deployed, &stored)), [false, true], "a deployment");
    let mut asked = stored.clone();
    annotate(&mut asked, annotations::ROLL, "now");
    assert_eq!(moved(&stored, &world.update(&asked, &stored)), [false, true], "a roll");
    let warned = world.admit(&deployment(&["db", "demo"]), Some(&stored)).decision.warnings;
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    assert!(warning.contains("waits for set shop: demo has 2, db has 1"), "{warning}");
}

/// A sync waits for the set; the controller has checked that, and a person decides.
#[test]
fn live_source_of_a_set_waits_for_it() {
    for (db, roll, moves) in [
        ("shop/1", None, false),
        ("shop/1", Some("auto-1970-01-01T00:00:05Z *"), true),
        ("shop/1", Some("now"), true),
        ("shop/2", None, true),
    ] {
        let mut world = World::default();
        set(&mut world, "db", "a", Some("shop/1"));
        set(&mut world, "demo", "a", Some("shop/1"));
        world.labelled("demo", "live");
        let stored = world.create(&deployment(&["db", "demo"]));
        set(&mut world, "db", db, Some(db));
        set(&mut world, "demo", "b", Some("shop/2"));
        world.labelled("demo", "live");
        let mut new = stored.clone();
        if let Some(roll) = roll {
            annotate(&mut new, annotations::ROLL, roll);
        }
        let live = |object: &Value| annotation(&object["spec"]["template"]["metadata"], annotations::LIVE);
        let rolled = world.update(&new, &stored);
        assert_eq!(live(&rolled) != live(&stored), moves, "{db} and {roll:?}");
    }
}

/// Sources that the workload leaves as written do not count.
#[test]
fn excluded_source_is_not_waited_for() {
    for label in [false, true] {
        let mut world = World::default();
        let mut wanted = deployment(&["db", "demo"]);
        set(&mut world, "db", "a", Some("shop/1"));
        set(&mut world, "demo", "a", Some("shop/1"));
        if label {
            world.labelled("db", "false");
        } else {
            annotate(&mut wanted, annotations::EXCLUDE, "db");
        }
        let stored = world.create(&wanted);
        set(&mut world, "demo", "b", Some("shop/2"));
        assert_ne!(volume(&poke(&mut world, &stored, 5), 1), volume(&stored, 1), "by label: {label}");
    }
}

/// It is deleted, and created again with other content after the other one has changed.
#[test]
fn missing_source_of_a_set_is_waited_for() {
    for (set_of_db, moves) in [("shop/1", false), ("other/1", true)] {
        let mut world = World::default();
        set(&mut world, "db", "a", Some(set_of_db));
        set(&mut world, "demo", "a", Some("shop/1"));
        let stored = world.create(&deployment(&["db", "demo"]));
        world.objects.remove(&configmap("db"));
        set(&mut world, "demo", "b", Some("shop/2"));
        let waits = world.update(&deployment(&["db", "demo"]), &stored);
        assert_eq!(moved(&stored, &waits), [false, moves], "{set_of_db} is missing");
        set(&mut world, "db", "b", Some("shop/2"));
        let synced = world.update(&deployment(&["db", "demo"]), &waits);
        assert_eq!(moved(&stored, &synced), [true, true], "{set_of_db} is there again");
    }
}

#[test]
fn reason_names_all_other_versions() {
    let (db, demo) = (configmap("db"), configmap("demo"));
    let reason = |used: &[(_, _)]| SetWait::of(&demo, used.iter().copied()).map(|wait| wait.to_string());
    let waits = |db| Some(format!("waits for set shop: demo has 1.2, db {db}"));
    let own = (&demo, Stated("shop/1.2"));
    for (used, expected) in [
        (&[(&db, Stated("shop/1.1")), own][..], waits("has 1.1")),
        (&[(&db, Missing("shop")), own], waits("does not exist")),
        (&[(&db, Stated("shop/1.2")), own], None),
        (&[(&db, Stated("shop/1.1"))], None),
        (&[(&db, Stated("other/1.1")), own], None),
        (&[(&db, Missing("other")), own], None),
    ] {
        assert_eq!(reason(used), expected, "{used:?}");
    }
}

#[test]
fn reads_name_and_version() {
    assert_eq!(SetVersion::parse("shop/1.2"), Some(SetVersion { name: "shop", version: "1.2" }));
    let long = format!("shop/{}", "1".repeat(249));
    for text in ["", "shop", "shop/", "/1.2", "/", "shop/1/2", "shop/ 1", "sh op/1", "shop/1\n", &long] {
        assert_eq!(SetVersion::parse(text), None, "{text:?}");
        assert!(invalid_set(text).is_some_and(|why| why.contains("use NAME/VERSION")), "{text:?}");
    }
}
