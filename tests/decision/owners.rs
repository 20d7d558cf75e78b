//! Snapshots that very many use.

use std::sync::Arc;

use confrev::{
    cluster::Owner,
    controller::{Action, Revision, RevisionKey},
    resolve::{Health, Use},
};
use jiff::SignedDuration;
use serde_json::json;

use super::controller::{BLUE, Desk, name, record, snapshot, web_on_blue};

/// What a snapshot may have at most.
const MOST: usize = 2048;

/// Lets so many ReplicaSets use the snapshot.
fn use_by(desk: &mut Desk, uses: &[Use], numbers: std::ops::Range<usize>) {
    for number in numbers {
        let key = RevisionKey { kind: 0, namespace: Arc::from("ns"), name: format!("set-{number}").into() };
        let revision = Revision { uid: format!("uid-{number}").into(), uses: uses.to_vec() };
        desk.state.apply_revision(&key, Some(revision), desk.now);
    }
}

fn sets(numbers: std::ops::Range<usize>) -> Vec<Owner> {
    numbers.map(|i| Owner::new("apps/v1", "ReplicaSet", format!("set-{i}"), format!("uid-{i}"))).collect()
}

fn source() -> Owner {
    Owner::new("v1", "ConfigMap", "demo", "u")
}

/// The owners that are set when all is due.
fn owners_set(desk: &mut Desk) -> Option<Vec<Owner>> {
    desk.act(&json!({"color": "blue"}), &json!({}), "1").into_iter().find_map(|action| match action {
        Action::SetOwners { owners, .. } => Some(owners),
        _ => None,
    })
}

#[test]
fn of_a_snapshot_that_too_many_use_the_source_is_an_owner_and_there_are_never_too_many() {
    let stale = || sets(5000..5000 + MOST);
    for present in [vec![], vec![source()], sets(0..10), sets(0..MOST), stale()] {
        let (_, web, mut desk) = web_on_blue();
        let uses = record(&web, Health::Settled).uses;
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &present)), desk.now);
        use_by(&mut desk, &uses, 0..MOST + 500);
        owners_set(&mut desk);
        desk.pass(10);
        let owners = owners_set(&mut desk).expect("owners are set");
        assert_eq!(owners.len(), MOST, "beside {} that were there", present.len());
        assert!(owners.contains(&source()), "beside {} that were there", present.len());
        // Known as set, nothing is left to do.
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "2", &owners)), desk.now);
        desk.pass(60);
        assert_eq!(owners_set(&mut desk), None);
    }
}

#[test]
fn the_more_owners_a_snapshot_has_the_longer_it_waits_for_another_one() {
    for (present, wait) in [(1, 505), (100, 1000), (900, 5000), (2000, 5500)] {
        let (_, web, mut desk) = web_on_blue();
        let uses = record(&web, Health::Settled).uses;
        let known: Vec<_> = sets(0..present - 1).into_iter().chain([source()]).collect();
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &known)), desk.now);
        use_by(&mut desk, &uses, 0..present - 1);
        owners_set(&mut desk);
        desk.now += SignedDuration::from_millis(wait - 1);
        assert_eq!(owners_set(&mut desk), None, "{present} owners: before its time");
        desk.now += SignedDuration::from_millis(1);
        assert!(owners_set(&mut desk).is_some_and(|owners| owners.len() == present + 1), "{present} owners");
    }
}

#[test]
fn a_snapshot_that_was_used_in_between_is_left_for_its_whole_grace_from_then_on() {
    let (_, web, _) = web_on_blue();
    let uses = record(&web, Health::Settled).uses;
    for used in [false, true] {
        let mut desk = Desk::new();
        // Those that own it are gone, and many: its owners are looked at seldom.
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &sets(0..1000))), desk.now);
        desk.state.apply_snapshot(&name("demo-736a916696"), Some(snapshot("green", "1", &[])), desk.now);
        let swept = |desk: &mut Desk| {
            let acts = desk.act(&json!({"color": "green"}), &json!({}), "1");
            acts.iter().any(|action| matches!(action, Action::Sweep { .. }))
        };
        let wait = |desk: &mut Desk, seconds: i64| {
            desk.pass(seconds);
            swept(desk)
        };
        swept(&mut desk);
        // The grace begins with the first look.
        assert!(!wait(&mut desk, 6) && !wait(&mut desk, 12));
        if used {
            use_by(&mut desk, &uses, 5000..5001);
            assert!(!wait(&mut desk, 1));
            let key = RevisionKey { kind: 0, namespace: Arc::from("ns"), name: "set-5000".into() };
            desk.state.apply_revision(&key, None, desk.now);
        } else {
            desk.pass(1);
        }
        assert_eq!(wait(&mut desk, 3), !used, "used in between: {used}");
        assert_eq!(wait(&mut desk, 6) || wait(&mut desk, 15), used, "used in between: {used}");
    }
}
