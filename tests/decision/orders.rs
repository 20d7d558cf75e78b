//! Orders in which watches and answers may tell of one and the same thing.

use confrev::{
    cluster::{ApiError, Owner},
    controller::{Action, Outcome, SnapshotRecord, SourceMeta, Task},
    resolve::{Health, Record},
    snapshot::{ObjectName, SourceKind},
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
    Record { resource_version: version.to_owned(), ..record.clone() }
}

/// Pokes in so many seconds, each of which changes nothing.
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

#[test]
fn a_roll_in_vain_is_tried_again_whether_a_watch_or_the_answer_tells_of_it_first() {
    for watch_first in [false, true] {
        let (_, web, mut desk) = web_on_blue();
        let before = at_version(&record(&web, Health::Settled), "1");
        desk.state.apply_workload(&key("web"), Some(before.clone()), desk.now);
        desk.act(&json!({"color": "green"}), &json!({}), "2");
        desk.pass(2);
        // No webhook is in force: the annotation is written, and nothing else.
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
        assert!(pokes > 0, "watch first: {watch_first}: never tried again within an hour");
    }
}

#[test]
fn a_change_during_a_roll_is_rolled_whether_a_watch_or_the_answer_tells_of_the_roll_first() {
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
        // Admission has read green; red is written, told and read before the poke is answered.
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
fn a_source_that_goes_while_it_is_read_is_gone() {
    let (_, web, mut desk) = web_on_blue();
    let (task, _) = desk.actions().into_iter().find(|(_, a)| matches!(a, Action::Read(_))).unwrap();
    // The read has been answered; the deletion is told before that answer is taken in.
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
fn a_snapshot_of_a_source_that_went_while_it_was_read_is_not_given_it_as_an_owner() {
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
                // What the collector does with an owner that does not exist, beside one that does.
                version += 1;
                let left = snapshot("blue", &version.to_string(), std::slice::from_ref(&web));
                desk.state.apply_snapshot(&name(BLUE), Some(left), desk.now);
            }
        }
    }
    assert!(writes < 3, "{writes} writes in ten minutes, each undone by the collector");
}

#[test]
fn a_snapshot_that_is_made_anew_while_the_one_before_is_looked_at_is_known() {
    let (_, _, mut desk) = web_on_blue();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    desk.act(&json!({"color": "blue"}), &json!({}), "1");
    desk.pass(1);
    let (task, action) =
        desk.actions().into_iter().find(|(task, _)| *task == Task::Bind(name(BLUE))).unwrap();
    let Action::SetOwners { verify: Some(_), version, .. } = action else { panic!("{action:?}") };
    // It is gone when it is looked at, and made again before that is taken in.
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
    assert!(bound, "it is never bound");
}

#[test]
fn pauses_grow_between_rolls_in_vain_also_where_a_watch_tells_of_each_first() {
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
    assert!((5..25).contains(&pokes), "{pokes} writes in vain within an hour");
}

/// Each change is read anew, and in the meantime the workload's own controller writes its status.
#[test]
fn beside_a_source_that_never_rests_a_workload_whose_status_never_rests_is_rolled() {
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
            // What is due now is done at once.
            for (task, action) in desk.actions() {
                pokes += usize::from(matches!(action, Action::Poke { .. }));
                desk.state.finish(&task, Ok(Outcome::Done), desk.now);
            }
            desk.now += SignedDuration::from_millis(80);
        }
        assert!(pokes > 0, "status never rests: {chatty}: not within a minute");
    }
}

#[test]
fn a_clock_that_was_ahead_does_not_end_the_least_interval() {
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
                            resource_version: version.to_string(),
                            seen: [(source, seen)].into_iter().collect(),
                            ..first.clone()
                        };
                        // The next change comes, and the watch tells of the roll before its answer.
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
fn beside_a_source_that_cannot_be_read_each_change_settles() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.set("shut", json!({"color": "blue"}));
    let web = world.create(&deployment(&["demo", "shut"]));
    let mut desk = Desk::new();
    let before = Record { resource_version: "1".to_owned(), ..record(&web, Health::Settled) };
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
                        resource_version: color.to_owned(),
                        seen: [(demo, digest)].into_iter().collect(),
                        ..after.clone()
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
        "red is rolled at once, where `settle` is a second"
    );
}
