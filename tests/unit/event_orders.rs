//! Orders in which watches and responses may report the same event.

use confrev::{
    cluster::ApiError,
    controller::{Action, ObjectStep, Outcome, Task},
    resolve::{Health, Record},
    snapshot::{ObjectName, SourceKind},
    world::{Owner, SnapshotRecord, SourceMeta},
};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{BLUE, Desk, key, name, observed, record, snapshot, web_on_blue},
    world::{World, deployment},
};

pub(crate) fn told(resource_version: &str) -> SourceMeta {
    SourceMeta { resource_version: resource_version.to_owned(), always: false }
}

fn at_version(record: &Record, version: &str) -> Record {
    Record { resource_version: version.into(), ..record.clone() }
}

/// The number of pokes in this many seconds, each without effect.
pub(crate) fn pokes_for(desk: &mut Desk, seconds: i64) -> usize {
    let mut pokes = 0;
    for _ in 0..seconds * 10 {
        desk.now += SignedDuration::from_millis(100);
        for (task, action) in desk.actions() {
            pokes += usize::from(matches!(action, Action::Poke { .. }));
            desk.state.finish(&task, Ok(Outcome::Done), desk.now);
        }
    }
    pokes
}

/// This holds whether the watch or the response reports the roll first.
#[test]
fn roll_without_effect_is_retried() {
    for watch_first in [false, true] {
        let (_, web, mut desk) = web_on_blue();
        let before = at_version(&record(&web, Health::Settled), "1");
        desk.state.apply_workload(&key("web"), Some(before.clone()), desk.now);
        desk.act(&json!({"color": "green"}), &json!({}), "2");
        desk.pass(2);
        // No webhook is in effect: only the annotation is written.
        for (task, action) in desk.actions() {
            let outcome = if matches!(action, Action::Poke { .. }) {
                let after = Record { last_roll: Some(desk.now), ..at_version(&before, "2") };
                if watch_first {
                    desk.state.apply_workload(&key("web"), Some(after.clone()), desk.now);
                }
                Outcome::Poked(Box::new(after))
            } else {
                Outcome::Done
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        let pokes = pokes_for(&mut desk, 3600);
        assert!(pokes > 0, "watch first: {watch_first}: not retried within an hour");
    }
}

/// This holds whether the watch or the response reports the first roll first.
#[test]
fn change_during_a_roll_is_rolled() {
    for watch_first in [false, true] {
        let (mut world, web, mut desk) = web_on_blue();
        let before = at_version(&record(&web, Health::Settled), "1");
        desk.state.apply_workload(&key("web"), Some(before.clone()), desk.now);
        desk.act(&json!({"color": "green"}), &json!({}), "2");
        desk.pass(2);
        world.set("demo", json!({"color": "green"}));
        let after = record(&world.update(&deployment(&["demo"]), &web), Health::Settled);
        let (mut poke, mut after) = (None, at_version(&after, "2"));
        for (task, action) in desk.actions() {
            if matches!(action, Action::Poke { .. }) {
                poke = Some(task);
            } else {
                desk.state.finish(&task, Ok(Outcome::Done), desk.now);
            }
        }
        after.last_roll = Some(desk.now);
        // Admission has read green. Red is written, reported and read before the response to the poke.
        desk.state.apply_source(&name("demo"), Some(&told("3")), desk.now);
        desk.act(&json!({"color": "red"}), &json!({}), "3");
        if watch_first {
            desk.state.apply_workload(&key("web"), Some(after.clone()), desk.now);
        }
        desk.state.finish(&poke.unwrap(), Ok(Outcome::Poked(Box::new(after))), desk.now);
        let pokes = pokes_for(&mut desk, 3600);
        assert!(pokes > 0, "watch first: {watch_first}: red is not rolled within an hour");
    }
}

#[test]
fn source_deleted_while_read_causes_no_roll() {
    let (_, web, mut desk) = web_on_blue();
    let (task, _) = desk.actions().into_iter().find(|(_, a)| matches!(a, Action::Read(_))).unwrap();
    // The watch reports the deletion before the response to the read is processed.
    desk.state.apply_source(&name("demo"), None, desk.now);
    let answer = observed(json!({"color": "green"}), json!({}), "2");
    desk.state.finish(&task, Ok(Outcome::Read(Some(Box::new(answer)))), desk.now);
    let (mut pokes, before) = (0, record(&web, Health::Settled));
    for turn in 0..6000 {
        desk.now += SignedDuration::from_millis(100);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => Outcome::Read(None),
                Action::Poke { .. } => {
                    pokes += 1;
                    let version = format!("{turn}");
                    Outcome::Poked(Box::new(Record {
                        last_roll: Some(desk.now),
                        ..at_version(&before, &version)
                    }))
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
    }
    assert_eq!(pokes, 0, "writes to a workload for a source that does not exist");
}

#[test]
fn source_deleted_while_read_becomes_no_owner() {
    let (_, _, mut desk) = web_on_blue();
    let web = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let mut version = 1;
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", std::slice::from_ref(&web))), desk.now);
    let (task, _) = desk.actions().into_iter().find(|(_, a)| matches!(a, Action::Read(_))).unwrap();
    desk.state.apply_source(&name("demo"), None, desk.now);
    let answer = observed(json!({"color": "blue"}), json!({}), "2");
    desk.state.finish(&task, Ok(Outcome::Read(Some(Box::new(answer)))), desk.now);
    let mut writes = 0;
    for _ in 0..600 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let outcome = if matches!(action, Action::Read(_)) { Outcome::Read(None) } else { Outcome::Done };
            desk.state.finish(&task, Ok(outcome), desk.now);
            if let Action::SetOwners { .. } = action {
                writes += 1;
                // The garbage collector removes an owner that does not exist, if another owner exists.
                version += 1;
                let left = snapshot("blue", &version.to_string(), std::slice::from_ref(&web));
                desk.state.apply_snapshot(&name(BLUE), Some(left), desk.now);
            }
        }
    }
    assert!(writes < 3, "{writes} writes in ten minutes, each undone by the collector");
}

#[test]
fn snapshot_recreated_during_verification_is_bound() {
    let (_, _, mut desk) = web_on_blue();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    desk.act(&json!({"color": "blue"}), &json!({}), "1");
    desk.pass(1);
    let (task, action) = desk
        .actions()
        .into_iter()
        .find(|(task, _)| *task == Task::Object(name(BLUE), ObjectStep::Bind))
        .unwrap();
    let Action::SetOwners { verify: Some(_), version, .. } = action else { panic!("{action:?}") };
    // The snapshot is missing when it is read, and recreated before the result is processed.
    desk.state.apply_snapshot(&name(BLUE), None, desk.now);
    let anew = SnapshotRecord { uid: "anew".into(), ..snapshot("blue", "2", &[]) };
    desk.state.apply_snapshot(&name(BLUE), Some(anew), desk.now);
    desk.state.finish(&task, Ok(Outcome::Impostor(version)), desk.now);
    let mut bound = false;
    for _ in 0..600 {
        desk.pass(1);
        for action in desk.act(&json!({"color": "blue"}), &json!({}), "1") {
            bound |= matches!(action, Action::SetOwners { .. });
        }
    }
    assert!(bound, "the snapshot is never bound");
}

/// This holds although the watch reports each roll before the response.
#[test]
fn rolls_without_effect_back_off() {
    let (_, web, mut desk) = web_on_blue();
    let before = at_version(&record(&web, Health::Settled), "1");
    desk.state.apply_workload(&key("web"), Some(before.clone()), desk.now);
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    let mut pokes = 0;
    for _ in 0..36_000 {
        desk.now += SignedDuration::from_millis(100);
        for (task, action) in desk.actions() {
            let outcome = if matches!(action, Action::Poke { .. }) {
                pokes += 1;
                let version = (pokes + 1).to_string();
                let after = Record { last_roll: Some(desk.now), ..at_version(&before, &version) };
                desk.state.apply_workload(&key("web"), Some(after.clone()), desk.now);
                Outcome::Poked(Box::new(after))
            } else {
                Outcome::Done
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
    }
    assert!((5..25).contains(&pokes), "{pokes} writes without effect within an hour");
}

/// The source changes constantly, and each change is read. Meanwhile the workload's own controller writes its status.
#[test]
fn constant_changes_do_not_prevent_roll() {
    for chatty in [false, true] {
        let (_, web, mut desk) = web_on_blue();
        let before = record(&web, Health::Progressing);
        desk.act(&json!({"color": "blue"}), &json!({}), "1");
        let mut pokes = 0;
        for turn in 0..600 {
            let version = format!("{}", turn + 2);
            desk.state.apply_source(&name("demo"), Some(&told(&version)), desk.now);
            let (mut reads, acts) = (Vec::new(), desk.actions());
            for (task, action) in acts {
                match action {
                    Action::Read(_) => reads.push(task),
                    Action::Poke { .. } => {
                        pokes += 1;
                        desk.state.finish(&task, Ok(Outcome::Done), desk.now);
                    }
                    _ => desk.state.finish(&task, Ok(Outcome::Done), desk.now),
                }
            }
            desk.now += SignedDuration::from_millis(20);
            if chatty {
                desk.state.apply_workload(&key("web"), Some(at_version(&before, &version)), desk.now);
            }
            for task in reads {
                let found = observed(json!({"color": version}), json!({}), &version);
                desk.state.finish(&task, Ok(Outcome::Read(Some(Box::new(found)))), desk.now);
            }
            // Tasks that are due now are executed at once.
            for (task, action) in desk.actions() {
                pokes += usize::from(matches!(action, Action::Poke { .. }));
                desk.state.finish(&task, Ok(Outcome::Done), desk.now);
            }
            desk.now += SignedDuration::from_millis(80);
        }
        assert!(pokes > 0, "changing status: {chatty}: no roll within a minute");
    }
}

/// The clock was ahead when the last roll was written.
#[test]
fn last_roll_in_future_keeps_min_interval() {
    for ahead in [0, 3600] {
        let (_, web, mut desk) = web_on_blue();
        let first = Record {
            last_roll: Some(desk.now - SignedDuration::from_secs(60) + SignedDuration::from_secs(ahead)),
            ..record(&web, Health::Settled)
        };
        desk.state.apply_workload(&key("web"), Some(first.clone()), desk.now);
        let (mut pokes, mut version) = (0, 1);
        let mut color = 0;
        for turn in 0..600 {
            desk.now += SignedDuration::from_millis(100);
            if turn % 2 == 0 {
                color += 1;
                desk.state.apply_source(&name("demo"), Some(&told(&color.to_string())), desk.now);
            }
            for (task, action) in desk.actions() {
                let outcome = match action {
                    Action::Read(_) => Outcome::Read(Some(Box::new(observed(
                        json!({"color": color.to_string()}),
                        json!({}),
                        &color.to_string(),
                    )))),
                    Action::Poke { .. } => {
                        pokes += 1;
                        version += 1;
                        let source = ObjectName::new(SourceKind::ConfigMap, "demo");
                        let seen = observed(json!({"color": color.to_string()}), json!({}), "1").digest();
                        let after = Record {
                            last_roll: Some(desk.now),
                            resource_version: version.to_string().into(),
                            ..first.clone().tied(&source, |tie| tie.seen = Some(seen))
                        };
                        // The source changes again, and the watch reports the roll before its response.
                        color += 1;
                        desk.state.apply_source(&name("demo"), Some(&told(&color.to_string())), desk.now);
                        desk.state.apply_workload(&key("web"), Some(after.clone()), desk.now);
                        Outcome::Poked(Box::new(after))
                    }
                    _ => Outcome::Done,
                };
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
        }
        assert!(pokes <= 8, "{pokes} rolls in a minute with min-interval 10s, last roll {ahead} s ahead");
    }
}

#[test]
fn change_settles_beside_unreadable_source() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.set("shut", json!({"color": "blue"}));
    let web = world.create(&deployment(&["demo", "shut"]));
    let mut desk = Desk::new();
    let before = Record { resource_version: "1".into(), ..record(&web, Health::Settled) };
    desk.state.apply_workload(&key("web"), Some(before.clone()), desk.now);
    let mut after = before;
    let mut step = |desk: &mut Desk, color: &str| {
        let mut pokes = 0;
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(source) if source == name("demo") => {
                    Ok(Outcome::Read(Some(Box::new(observed(json!({"color": color}), json!({}), color)))))
                }
                Action::Read(_) => Err(ApiError::Answer { what: "read".into(), reason: "403".into() }),
                Action::Poke { .. } => {
                    pokes += 1;
                    let digest = observed(json!({"color": color}), json!({}), "1").digest();
                    let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
                    after = Record {
                        last_roll: Some(desk.now),
                        resource_version: color.into(),
                        ..after.clone().tied(&demo, |tie| tie.seen = Some(digest))
                    };
                    desk.state.apply_workload(&key("web"), Some(after.clone()), desk.now);
                    Ok(Outcome::Poked(Box::new(after.clone())))
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
        pokes
    };
    step(&mut desk, "green");
    step(&mut desk, "green");
    desk.pass(2);
    assert_eq!(step(&mut desk, "green"), 1);
    desk.pass(3600);
    desk.state.apply_source(&name("demo"), Some(&told("red")), desk.now);
    assert_eq!(
        (0..3).map(|_| step(&mut desk, "red")).sum::<i32>(),
        0,
        "red rolls at once, although `settle` is a second"
    );
}
