//! Events about rolls, undos and problems, on the workload or source concerned.

use std::collections::BTreeMap;

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

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
        let path = format!("/api/v1/namespaces/{}/configmaps/demo", world.name());
        let change = json!({"data": {"text": null, "other": "B"}});
        let (code, answer) = world.cluster.api().patch(&path, "application/merge-patch+json", &change);
        assert!(code < 300, "{code} {answer}");
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
    for reason in
        ["Rolled", "Pinned", "SourceMissing", "RollHeld", "RollRefused", "SnapshotLost", "SnapshotRestored"]
    {
        assert!(count(reason, "failed") < 1.0 || count(reason, "written") > 0.0, "{reason}");
    }
    assert!(count("Rolled", "written") > 0.0);
    // Each roll waited at least for `--settle`.
    assert!(confrev.metric("confrev_roll_delay_seconds_sum") > 0.0);
}
