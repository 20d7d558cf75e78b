//! Events about rolls, undos and problems, on the workload or source concerned.

use std::collections::BTreeMap;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::commands::Commands as _;
use crate::manifests::Workload;
use crate::shared::running;
use crate::undo::undone;
use crate::world::{LIMIT, World, each_kind, text};

/// The messages of confrev's Events in a namespace, by `Reason Kind/name`.
pub(crate) fn told(world: &World) -> BTreeMap<String, Vec<String>> {
    let mut told = BTreeMap::<String, Vec<String>>::new();
    for event in world.cluster.list("events", world.name(), "") {
        if event["reportingComponent"] != "confrev.dev/controller" {
            continue;
        }
        let of = |field: &str| text(&event["involvedObject"][field]);
        assert!(!of("uid").is_empty(), "{event}");
        let what = format!("{} {}/{}", text(&event["reason"]), of("kind"), of("name"));
        told.entry(what).or_default().push(text(&event["message"]));
    }
    told
}

/// Each Event is on the workload and, if it exists, on the source.
#[test]
fn roll_undo_and_missing_source_emit_one_event() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("events");
        let web = undone(&world, kind, 0);
        let [first, second] = ["A", "B"].map(|text| world.snapshot_name("demo", text));
        let lost = Workload::new(kind, "lost", &["nowhere"]).replicas(0);
        world.apply(&lost.manifest()).ok();
        let kind = text(&world.live(&web)["kind"]);
        let wanted = [
            ("Pinned ConfigMap/demo".to_owned(), first.clone()),
            (format!("Pinned {kind}/web"), first.clone()),
            ("Rolled ConfigMap/demo".to_owned(), second.clone()),
            (format!("Rolled {kind}/web"), format!("from {first} to {second}")),
            (format!("SourceMissing {kind}/lost"), "nowhere".to_owned()),
        ];
        let names: Vec<_> = wanted.iter().map(|(name, _)| name).collect();
        let events = wait_for("the Events", LIMIT, || {
            let events = told(&world);
            if events.keys().collect::<Vec<_>>() == names { Ok(events) } else { Err(format!("{events:?}")) }
        });
        for (name, part) in &wanted {
            let said = &events[name];
            assert!(said.len() == 1 && said[0].contains(part), "{name}: {said:?}");
        }
    });
}

#[test]
fn refused_roll_is_an_event_with_its_reason() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("events-refused");
        world.set_config("demo", "A");
        let web = Workload::new(kind, "web", &["demo"]).replicas(0).annotation("missing", "deny");
        let mut object = web.manifest();
        object["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "TEXT", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "text"}}}]);
        world.apply(&object).ok();
        world.resolves_to(&web, "demo", "A").unwrap();
        let change = json!({"data": {"text": null, "other": "B"}}).to_string();
        let patch = ["patch", "configmap", "demo", "--type=merge", "--patch", &change];
        // On a busy machine, the review of a source may end before confrev has answered.
        wait_for("the warning", LIMIT, || {
            let warned = world.kubectl(&[&patch[..], &["--dry-run=server"]].concat()).stderr;
            let is_told = warned.contains(r#"lacks the key "text", required by"#) && warned.contains("/web");
            if is_told { Ok(()) } else { Err(warned) }
        });
        world.kubectl(&patch).ok();
        let kind = text(&world.live(&web)["kind"]);
        for about in [format!("RollRefused {kind}/web"), "RollRefused ConfigMap/demo".to_owned()] {
            let said = wait_for(&format!("the Event {about}"), LIMIT, || {
                let events = told(&world);
                events.get(&about).cloned().ok_or_else(|| format!("{events:?}"))
            });
            assert!(said.len() == 1 && said[0].contains(r#"has no key "text""#), "{said:?}");
        }
        world.resolves_to(&web, "demo", "A").unwrap();
    });
}

/// A Deployment and a Rollout that read one key of a ConfigMap with three keys: an undo, and its end.
#[test]
fn undo_of_key_lasts_until_read_key_changes() {
    let _confrev = running();
    each_kind(|kind| {
        let world = World::new("events-key");
        let demo = |mine: &str, other: &str| {
            let data = json!({"mine": mine, "other": other});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"}, "data": data})
        };
        let apply =
            |mine: &str, other: &str| world.with_file(&["apply", "--warnings-as-errors"], &demo(mine, other));
        let impact = |mine: &str, other: &str| {
            let file = world.file("demo.json", &demo(mine, other).to_string());
            world.confrev(&["impact", "-f", &file]).stdout
        };
        apply("1", "1").ok();
        let web = Workload::new(kind, "web", &[]).replicas(0);
        let mut object = web.manifest();
        object["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "MINE", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "mine"}}}]);
        world.apply(&object).ok();
        world.wait_replica_sets(&web, 1);
        let held = || {
            let env = &world.live(&web)["spec"]["template"]["spec"]["containers"][0]["env"][0];
            text(&env["valueFrom"]["configMapKeyRef"]["name"])
        };
        let first = held();
        // An ordinary change makes no warning.
        apply("2", "1").ok();
        wait_for("the roll", LIMIT, || if held() == first { Err(first.clone()) } else { Ok(()) });
        world.wait_replica_sets(&web, 2);
        world.undo(&web);
        let kind = text(&world.live(&web)["kind"]);
        let seen = || text(&world.live(&web)["metadata"]["annotations"]["confrev.dev/state"]);
        let event = |reason: &str, count: usize| {
            for about in [format!("{reason} {kind}/web"), format!("{reason} ConfigMap/demo")] {
                wait_for(&format!("{count} Events {about}"), LIMIT, || {
                    let events = told(&world);
                    let found = events.get(&about).map_or(0, Vec::len);
                    if found == count { Ok(()) } else { Err(format!("{events:?}")) }
                });
            }
        };
        event("Pinned", 1);
        assert!(
            told(&world)[&format!("Pinned {kind}/web")][0]
                .contains("until a key that the workload reads changes")
        );
        assert_eq!(held(), first);
        // Another key changes: the undo stays.
        let said = impact("2", "2");
        assert!(said.contains(" no ") && said.contains("its undo or pin stays"), "{said}");
        let before = seen();
        apply("2", "2").ok();
        wait_for(
            "the change to be seen",
            LIMIT,
            || if seen() == before { Err(before.clone()) } else { Ok(()) },
        );
        assert_eq!((held(), world.replica_sets(&web).len()), (first.clone(), 2));
        // The key that it reads changes: the writer learns that the undo ends.
        let said = impact("3", "2");
        assert!(said.contains(" yes ") && said.contains("this ends its undo or pin"), "{said}");
        let refused = apply("3", "2").refused();
        assert!(
            refused.contains("ends an undo or a pin") && refused.contains(&format!("{kind}/web")),
            "{refused}"
        );
        wait_for("the roll", LIMIT, || if held() == first { Err(first.clone()) } else { Ok(()) });
        event("Unpinned", 1);
        // The other key's change began no undo.
        event("Pinned", 1);
        // A second undo in a short time is reported too.
        world.wait_replica_sets(&web, 3);
        world.undo(&web);
        event("Pinned", 2);
    });
}

/// Users look for Events with `kubectl describe`.
#[test]
fn kubectl_describe_shows_the_events_of_a_workload() {
    let _confrev = running();
    let world = World::new("events-described");
    let web = undone(&world, crate::manifests::Kind::Deployment, 0);
    let shown = |what: &str| {
        wait_for("kubectl describe to show the Events", LIMIT, || {
            let output = world.kubectl(&["describe", what]).ok();
            let lines = output.lines().filter(|line| line.contains("confrev.dev/controller")).count();
            if lines >= 2 { Ok(()) } else { Err(output) }
        });
    };
    shown(&web.reference());
    shown("configmap/demo");
}

/// Events that the API server refuses would be lost without a trace. It refuses all Events in a terminating namespace,
/// such as those of other tests. So only a reason that was refused and never written fails the test.
#[test]
fn all_events_are_accepted_and_rolls_are_counted() {
    let confrev = running();
    let world = World::new("events-counted");
    undone(&world, crate::manifests::Kind::Deployment, 0);
    wait_for("an Event", LIMIT, || if told(&world).is_empty() { Err(Value::Null) } else { Ok(()) });
    let count = |reason: &str, outcome: &str| {
        confrev.metric(&format!("confrev_events_total{{reason=\"{reason}\",outcome=\"{outcome}\"}}"))
    };
    for reason in [
        "Rolled",
        "Pinned",
        "Unpinned",
        "Held",
        "HoldEnded",
        "SourceMissing",
        "RollHeld",
        "RollReleased",
        "RollRefused",
        "SnapshotLost",
        "SnapshotRestored",
    ] {
        assert!(count(reason, "failed") < 1.0 || count(reason, "written") > 0.0, "{reason}");
    }
    assert!(count("Rolled", "written") > 0.0);
    // Each roll waited at least for `--settle`.
    assert!(confrev.metric("confrev_roll_delay_seconds_sum") > 0.0);
}
