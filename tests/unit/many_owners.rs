//! Snapshots with very many users.

use std::sync::Arc;

use confrev::{
    annotations,
    cluster::ApiError,
    controller::{Action, Outcome},
    resolve::{Health, Use},
    world::{BoundRecord, Owner, Revision, RevisionKey, SnapshotRecord, SourceMeta, Verified, Version},
};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{BLUE, Desk, key, name, observed, record, snapshot, stored, web_on_blue},
    world::World,
};

/// The snapshot of `demo` when it is green.
const GREEN: &str = "demo-736a916696";

/// The largest number of owners of a snapshot.
const MOST: usize = 2048;

/// Adds ReplicaSets that use the snapshot.
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

/// The owners that the tasks due now set.
fn owners_set(desk: &mut Desk) -> Option<Vec<Owner>> {
    desk.act(&json!({"color": "blue"}), &json!({}), "1").into_iter().find_map(|action| match action {
        Action::SetOwners { owners, .. } => Some(owners),
        _ => None,
    })
}

/// It never has more owners than the limit.
#[test]
fn snapshot_with_too_many_users_keeps_source_owner() {
    let stale = || sets(5000..5000 + MOST);
    for present in [vec![], vec![source()], sets(0..10), sets(0..MOST), stale()] {
        let (_, web, mut desk) = web_on_blue();
        let uses = record(&web, Health::Settled).uses;
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &present)), desk.now);
        use_by(&mut desk, &uses, 0..MOST + 500);
        owners_set(&mut desk);
        desk.pass(10);
        let owners = owners_set(&mut desk).expect("owners are set");
        assert_eq!(owners.len(), MOST, "with {} present owners", present.len());
        assert!(owners.contains(&source()), "with {} present owners", present.len());
        // Once the watch reports the owners, nothing is left to do.
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "2", &owners)), desk.now);
        desk.pass(60);
        assert_eq!(owners_set(&mut desk), None);
    }
}

/// If confrev is down, the garbage collector deletes a snapshot once its owners are deleted, even if other objects use it.
#[test]
fn source_owns_old_snapshot_with_too_many_users() {
    for (users, wanted) in [(MOST - 1, false), (MOST, true), (MOST + 500, true)] {
        let (_, web, mut desk) = web_on_blue();
        let mut uses = record(&web, Health::Settled).uses;
        let mut elsewhere = record(&web, Health::Settled);
        elsewhere.uses.iter_mut().for_each(|used| used.snapshot = Some(GREEN.into()));
        desk.state.apply_workload(&key("web"), Some(elsewhere), desk.now);
        uses.truncate(1);
        let green = json!({"color": "green"});
        desk.state.apply_snapshot(&name(GREEN), Some(snapshot("green", "1", &[source()])), desk.now);
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &sets(0..10))), desk.now);
        use_by(&mut desk, &uses, 0..users);
        let mut owners = None;
        for _ in 0..10 {
            for action in desk.act(&green, &json!({}), "2") {
                if let Action::SetOwners { snapshot, owners: set, .. } = action
                    && snapshot == name(BLUE)
                {
                    owners = Some(set);
                }
            }
            desk.pass(2);
        }
        let owners = owners.expect("owners are set");
        assert_eq!(owners.contains(&source()), wanted, "{users} users");
        assert_eq!(owners.len(), MOST.min(users), "{users} users");
    }
}

#[test]
fn new_owner_waits_longer_with_many_owners() {
    for (present, wait) in [(1, 505), (100, 1000), (900, 5000), (2000, 5500)] {
        let (_, web, mut desk) = web_on_blue();
        let uses = record(&web, Health::Settled).uses;
        let known: Vec<_> = sets(0..present - 1).into_iter().chain([source()]).collect();
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &known)), desk.now);
        use_by(&mut desk, &uses, 0..present - 1);
        owners_set(&mut desk);
        desk.now += SignedDuration::from_millis(wait - 1);
        assert_eq!(owners_set(&mut desk), None, "{present} owners: too early");
        desk.now += SignedDuration::from_millis(1);
        assert!(owners_set(&mut desk).is_some_and(|owners| owners.len() == present + 1), "{present} owners");
    }
}

#[test]
fn use_restarts_grace_period_of_snapshot() {
    let (_, web, _) = web_on_blue();
    let uses = record(&web, Health::Settled).uses;
    for used in [false, true] {
        let mut desk = Desk::new();
        // The snapshot has many owners, all deleted, so its owners are rarely reconciled.
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &sets(0..1000))), desk.now);
        desk.state.apply_snapshot(&name(GREEN), Some(snapshot("green", "1", &[])), desk.now);
        let swept = |desk: &mut Desk| {
            let acts = desk.act(&json!({"color": "green"}), &json!({}), "1");
            acts.iter().any(|action| matches!(action, Action::Sweep { .. }))
        };
        let wait = |desk: &mut Desk, seconds: i64| {
            desk.pass(seconds);
            swept(desk)
        };
        swept(&mut desk);
        // The grace period begins with the first reconciliation.
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

#[test]
fn blocked_sweep_backs_off() {
    let mut desk = Desk::new();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[source()])), desk.now);
    desk.state.apply_snapshot(&name(GREEN), Some(snapshot("green", "1", &[])), desk.now);
    let mut tried = 0;
    for _ in 0..1200 {
        desk.now += SignedDuration::from_millis(500);
        for (task, action) in desk.actions() {
            let outcome = match &action {
                Action::Sweep { snapshot, .. } if *snapshot == name(BLUE) => {
                    tried += 1;
                    Err(ApiError::Conflict { what: "sweep".to_owned() })
                }
                Action::Read(_) => {
                    Ok(Outcome::Read(Some(Box::new(observed(json!({"color": "green"}), json!({}), "1")))))
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    assert!((8..30).contains(&tried), "{tried} times in ten minutes");
}

/// After a change, the source is removed from the snapshot of its previous content no sooner than three seconds later. Another
/// owner of the snapshot is already due for removal.
#[test]
fn source_is_removed_as_owner_after_delay() {
    let (blue, green) = (json!({"color": "blue"}), json!({"color": "green"}));
    for (data, annotations) in [(&green, json!({})), (&blue, json!({annotations::KEEP: "0"}))] {
        let (_, _, mut desk) = web_on_blue();
        let web = Owner::new("apps/v1", "Deployment", "web", "uid-web");
        let stale = Owner::new("apps/v1", "ReplicaSet", "old", "old");
        desk.state.apply_snapshot(
            &name(BLUE),
            Some(snapshot("blue", "1", &[source(), web, stale])),
            desk.now,
        );
        desk.act(&blue, &json!({}), "1");
        // One owner is stale, and is removed in 3 s.
        desk.pass(1);
        assert!(desk.act(&blue, &json!({}), "1").is_empty());
        desk.now += SignedDuration::from_millis(2800);
        let (changed, meta) = (desk.now, SourceMeta { resource_version: "2".into(), always: false });
        let newest = SnapshotRecord { created: desk.now, ..snapshot("green", "1", &[]) };
        desk.state.apply_snapshot(&name(GREEN), Some(newest), desk.now);
        desk.state.apply_source(&name("demo"), Some(&meta), desk.now);
        let taken_off = (0..200).find_map(|_| {
            desk.now += SignedDuration::from_millis(100);
            let acts = desk.act(data, &annotations, "2");
            let taken_off = acts.iter().any(|action| {
                matches!(action, Action::SetOwners { snapshot, owners, .. }
                    if *snapshot == name(BLUE) && !owners.contains(&source()))
            });
            taken_off.then(|| desk.now.duration_since(changed).as_millis())
        });
        assert!(taken_off.is_some_and(|after| (3000..10_000).contains(&after)), "after {taken_off:?} ms");
    }
}

/// The garbage collector removes deleted owners, and the watch of the source may not have reported its deletion.
#[test]
fn source_removed_from_its_snapshot_is_read_again() {
    let web = || Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let former = || Owner::new("v1", "ConfigMap", "demo", "former");
    let cases = [
        ("the source", vec![source(), web()], vec![web()], "1", true),
        ("its user", vec![source(), web()], vec![source()], "1", false),
        ("a source of that name that was deleted before", vec![former(), web()], vec![web()], "1", false),
        ("the source, which does not keep the snapshot", vec![source(), web()], vec![web()], "0", false),
    ];
    for (removed, owners, left, keep, is_read) in cases {
        let (_, _, mut desk) = web_on_blue();
        let (blue, annotations) = (json!({"color": "blue"}), json!({annotations::KEEP: keep}));
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &owners)), desk.now);
        desk.act(&blue, &annotations, "1");
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "2", &left)), desk.now);
        let acts = desk.actions();
        let reads =
            acts.iter().filter(|(_, action)| matches!(action, Action::Read(read) if *read == name("demo")));
        assert_eq!(reads.count(), usize::from(is_read), "the collector removed {removed}: {acts:?}");
    }
}

/// The garbage collector may be deleting a snapshot whose owners are all replaced (`hazard`).
#[test]
fn replacing_all_owners_rereads_the_snapshot() {
    let (_, web, mut desk) = web_on_blue();
    let (green, uses) = (json!({"color": "green"}), record(&web, Health::Settled).uses);
    // With this many owners, all but one deleted, adding an owner waits longer than removing one.
    let workload = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let known: Vec<_> = sets(5000..6000).into_iter().chain([workload]).collect();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &known)), desk.now);
    desk.state.apply_snapshot(&name(GREEN), Some(snapshot("green", "1", &[source()])), desk.now);
    desk.act(&green, &json!({}), "2");
    desk.pass(6);
    desk.act(&green, &json!({}), "2");
    desk.pass(1);
    let mut moved = record(&web, Health::Settled);
    moved.uses.clear();
    use_by(&mut desk, &uses, 0..1);
    desk.state.apply_workload(&key("web"), Some(moved), desk.now);
    desk.pass(2);
    let acts = desk.act(&green, &json!({}), "2");
    let set = acts.iter().find_map(|action| match action {
        Action::SetOwners { snapshot, owners, hazard, .. } if *snapshot == name(BLUE) => {
            Some((owners, hazard))
        }
        _ => None,
    });
    assert_eq!(set, Some((&sets(0..1), &true)), "{acts:?}");
}

/// A revision without its `sources` annotation, which a user removed, seems to use nothing. It is read before it is removed as
/// an owner.
#[test]
fn known_owner_is_verified_before_it_is_removed() {
    let (blue, stays) = (json!({"color": "blue"}), Owner::new("apps/v1", "ReplicaSet", "web-1", "rs"));
    for used in [true, false] {
        let (_, _, mut desk) = web_on_blue();
        let key = RevisionKey { kind: 0, namespace: "ns".into(), name: "web-1".into() };
        desk.state.apply_revision(&key, Some(Revision { uid: "rs".into(), uses: Vec::new() }), desk.now);
        let web = Owner::new("apps/v1", "Deployment", "web", "uid-web");
        let record = snapshot("blue", "1", &[source(), web, stays.clone()]);
        desk.state.apply_snapshot(&name(BLUE), Some(record), desk.now);
        desk.act(&blue, &json!({}), "1");
        let (mut looks, mut removed) = (0, false);
        for _ in 0..60 {
            desk.pass(1);
            for (task, action) in desk.actions() {
                let outcome = match action {
                    Action::Verify { owners, .. } => {
                        assert_eq!(owners, std::slice::from_ref(&stays));
                        looks += 1;
                        let (used, unused) = if used { (owners, vec![]) } else { (vec![], owners) };
                        Outcome::Verified(Verified { used, unused, ..Verified::default() })
                    }
                    Action::SetOwners { owners, .. } => {
                        assert!(looks > 0, "the owner was not read");
                        removed |= !owners.contains(&stays);
                        Outcome::Done
                    }
                    _ => Outcome::Done,
                };
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
        }
        assert_eq!((looks, removed), (1, !used), "used: {used}");
    }
}

/// The watch may be silent for a while.
#[test]
fn owners_are_written_again_after_conflicts() {
    let (_, _, mut desk) = web_on_blue();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    let mut tries = 0;
    for _ in 0..120 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::SetOwners { .. } => {
                    tries += 1;
                    Err(ApiError::Conflict { what: "owners".to_owned() })
                }
                Action::Read(_) => Ok(Outcome::Read(None)),
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
        desk.pass(1);
    }
    assert!((10..60).contains(&tries), "{tries}");
}

/// Others have already set nearly as many as a bound source may have.
#[test]
fn foreign_owners_count_to_limit_of_bound_source() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.labelled("demo", "bind");
    let mut desk = Desk::new();
    for workload in ["a", "b", "c"] {
        let object = stored(&mut world, workload);
        desk.state.apply_workload(&key(workload), Some(record(&object, Health::Settled)), desk.now);
    }
    let foreign =
        |number: usize| Owner::new("v1", "Thing", format!("t-{number}"), format!("foreign-{number}"));
    let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
    let owners = (0..MOST - 2).map(foreign).collect();
    desk.state.apply_bound(&name("demo"), Some(BoundRecord { version, owners }), desk.now);
    desk.pass(60);
    let set = desk.actions().into_iter().find_map(|(_, action)| match action {
        Action::SetOwners { owners, .. } => Some(owners),
        _ => None,
    });
    let set = set.unwrap();
    let of_confrev = set.iter().filter(|owner| &*owner.kind == "Deployment").count();
    assert_eq!((set.len(), of_confrev), (MOST, 2));
}
