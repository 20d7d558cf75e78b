//! Windows and sets: when a change reaches a workload, and what the commands say until then.

use std::time::Duration;

use confrev_controlplane::{holds_for, wait_for};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::json;

use super::Commands as _;
use crate::manifests::{Kind, Workload, config_map};
use crate::shared::running;
use crate::world::{LIMIT, World, text};

/// How long nothing may move.
const WHILE: Duration = Duration::from_secs(4);

/// A window of each day that opens in half a day.
pub(super) fn closed() -> String {
    let at = |hours| {
        let at = Timestamp::now() + SignedDuration::from_hours(hours);
        at.to_zoned(TimeZone::UTC).strftime("%H:%M").to_string()
    };
    format!("{}-{}", at(11), at(13))
}

#[test]
fn closed_window_postpones_automatic_rolls() {
    let _confrev = running();
    let world = World::new("windows");
    let closed = closed();
    let own = format!("confrev.dev/window={closed}");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(1).annotation("window", &closed);
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["A"]);

    // The author of the write gets a warning, and nothing moves until a person acts.
    let warned = world.apply(&config_map("demo", "B"));
    assert!(warned.stderr.contains("Deployment/web will roll later: outside its window, opens "), "{warned}");
    warned.ok();
    let reason = "outside its window, opens ";
    wait_for("the reason in the status", LIMIT, || {
        let status = world.confrev(&["status", "web"]).ok();
        if status.contains(reason) && status.contains("pending: demo") { Ok(()) } else { Err(status) }
    });
    holds_for("A", WHILE, || world.resolves_to(&web, "demo", "A"));
    let impact = world.confrev_json(&["impact", "demo"]);
    assert!(text(&impact[0]["delay"]).starts_with(reason), "{impact}");
    // It does not wait for an opening that comes too late.
    let waited = world.confrev(&["wait", "deployment/web", "--timeout", "1m"]).failed(3);
    assert!(waited.contains(reason) && waited.ends_with(", after the timeout"), "{waited}");
    world.kubectl(&["annotate", &web.reference(), "confrev.dev/roll=now"]).ok();
    world.resolves_to(&web, "demo", "B").expect("a person's roll is not affected");
    world.set_config("demo", "C");
    world.apply(&web.manifest()).ok();
    world.resolves_to(&web, "demo", "C").expect("an apply is not affected");

    // All windows must be open.
    world.set_config("demo", "D");
    world.kubectl(&["annotate", "namespace", world.name(), &own]).ok();
    world.kubectl(&["annotate", "configmap/demo", &own]).ok();
    world.kubectl(&["annotate", &web.reference(), "confrev.dev/window-"]).ok();
    holds_for("C", WHILE, || world.resolves_to(&web, "demo", "C"));
    let says = |part: &str| {
        let status = world.confrev(&["status", "web"]).ok();
        if status.contains(part) { Ok(()) } else { Err(status) }
    };
    wait_for("the window of the namespace", LIMIT, || says("outside the window of "));
    world.kubectl(&["annotate", "namespace", world.name(), "confrev.dev/window-"]).ok();
    wait_for("the window of the source", LIMIT, || says("outside the window of ConfigMap \"demo\""));
    holds_for("C", WHILE, || world.resolves_to(&web, "demo", "C"));
    world.kubectl(&["annotate", "--overwrite", "configmap/demo", "confrev.dev/window=00:00-24:00"]).ok();
    wait_for("the roll in the open window", LIMIT, || world.resolves_to(&web, "demo", "D"));
}

/// One source of the set is deleted and created again, after the other one has changed.
#[test]
fn missing_source_holds_its_set() {
    let _confrev = running();
    let world = World::new("set-missing");
    let set = |name: &str, text: &str, version: &str| {
        let mut object = config_map(name, text);
        object["metadata"]["annotations"] = json!({"confrev.dev/set": format!("shop/{version}")});
        world.apply(&object).ok();
    };
    for name in ["a", "b"] {
        set(name, "A", "1");
    }
    let web = Workload::new(Kind::Deployment, "web", &["a", "b"]).replicas(0);
    world.apply(&web.manifest()).ok();
    for name in ["a", "b"] {
        world.wait_resolved(&web, name, "A");
    }
    world.delete("configmap", "b");
    set("a", "B", "2");
    wait_for("the reason in the status", LIMIT, || {
        let status = world.confrev(&["status", "web"]).ok();
        if status.contains("waits for set shop: a has 2, b does not exist") { Ok(()) } else { Err(status) }
    });
    holds_for("A", WHILE, || world.resolves_to(&web, "a", "A"));
    set("b", "B", "2");
    for name in ["a", "b"] {
        world.wait_resolved(&web, name, "B");
    }
}

/// The API server refuses windows and sets that could not be followed. No webhook sees namespaces, so a
/// warning and an Event report theirs.
#[test]
fn invalid_windows_and_sets_are_refused() {
    let _confrev = running();
    let world = World::new("windows-invalid");
    world.set_config("demo", "A");
    let web = Workload::new(Kind::Deployment, "web", &["demo"]).replicas(0);
    world.apply(&web.manifest()).ok();
    world.resolves_to(&web, "demo", "A").expect("resolved at admission");
    for (object, setting, says) in [
        ("configmap/demo", "window=always", "use DAYS HH:MM-HH:MM ZONE"),
        ("configmap/demo", "window=09:00-17:00 Mars/Base", "use a time zone of the IANA database"),
        ("configmap/demo", "window=09:00-09:00", "never open"),
        ("configmap/demo", "set=shop", "use NAME/VERSION"),
        (&web.reference(), "window=09:00-09:00", "never open"),
    ] {
        let setting = format!("confrev.dev/{setting}");
        let refused = world.kubectl(&["annotate", object, &setting]).refused();
        let line = refused.lines().find(|line| line.contains(says));
        assert!(line.is_some_and(|line| line.contains("is not allowed")), "{object} {setting}: {refused}");
    }
    let warned = world.kubectl(&["annotate", "namespace", world.name(), "confrev.dev/window=always"]);
    assert!(warned.stderr.contains("\"always\" is not allowed"), "{warned}");
    warned.ok();
    world.set_config("demo", "B");
    wait_for("an Event on the workload", LIMIT, || {
        let events = world.cluster.list("events", world.name(), "");
        let mut invalid = events.iter().filter(|event| event["reason"] == "SettingInvalid");
        let note = invalid.next().map(|event| text(&event["message"])).ok_or("no Event")?;
        if note.contains("\"always\" is not allowed") { Ok(()) } else { Err("another Event") }
    });
    world.resolves_to(&web, "demo", "A").expect("nothing moves");
    let waited = world.confrev(&["wait", "demo", "--timeout", "1h"]).failed(3);
    assert!(waited.contains("held by the window of its namespace"), "{waited}");
}

#[test]
fn sources_of_a_set_move_together() {
    let _confrev = running();
    let world = World::new("sets");
    let set = |name: &str, version: &str| {
        let mut source = config_map(name, version);
        source["metadata"]["annotations"] = json!({"confrev.dev/set": format!("shop/{version}")});
        world.apply(&source).ok();
    };
    set("db", "1");
    set("demo", "1");
    let web = Workload::new(Kind::Deployment, "web", &["db", "demo"]).replicas(1);
    world.apply(&web.manifest()).ok();
    world.wait_reads(&web, "demo", &["1"]);
    set("demo", "2");
    let at_version = |version| ["db", "demo"].map(|name| world.resolves_to(&web, name, version).is_ok());
    wait_for("the reason in the status", LIMIT, || {
        let status = world.confrev(&["status", "web"]).ok();
        let says = status.contains("waits for set shop: demo has 2, db has 1");
        if says { Ok(()) } else { Err(status) }
    });
    let impact = world.confrev_json(&["impact", "demo"]);
    assert!(text(&impact[0]["delay"]).starts_with("waits for set shop"), "{impact}");
    holds_for("version 1", WHILE, || {
        // A sync of all objects moves nothing either.
        world.apply(&web.manifest()).ok();
        if at_version("1") == [true; 2] { Ok(()) } else { Err("moved") }
    });
    set("db", "2");
    wait_for("version 2", LIMIT, || if at_version("2") == [true; 2] { Ok(()) } else { Err("not yet") });
    world.wait_replica_sets(&web, 2);
}
