//! Sources in bind mode, and objects that are recreated.

use confrev::{
    annotations,
    controller::{Action, Outcome, Shared},
    resolve::{Health, Observed, Use},
    snapshot::{ObjectName, SourceKind},
    telemetry::Readiness,
    world::{BoundRecord, Name, Owner, Revision, RevisionKey, Verified, Version},
};
use jiff::SignedDuration;
use serde_json::json;

use super::controller::{BLUE, Desk, digest, key, name, record, snapshot, stored, web_on_blue};
use super::world::World;

/// The snapshots from which each missing object may be recreated now.
fn restores(desk: &mut Desk) -> Vec<Vec<Name>> {
    let mut found = Vec::new();
    for (task, action) in desk.actions() {
        desk.state.finish(&task, Ok(Outcome::Done), desk.now);
        if let Action::Restore { copies, .. } = action {
            found.push(copies);
        }
    }
    found
}

#[test]
fn bound_source_gets_users_and_keeps_foreign_owners() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.labelled("demo", "bind");
    let web = stored(&mut world, "web");
    let foreign = Owner::new("v1", "Thing", "t", "foreign");
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
    let bound = BoundRecord { version: version.clone(), owners: [foreign.clone()].into_iter().collect() };
    desk.state.apply_bound(&name("demo"), Some(bound), desk.now);
    assert!(desk.state.is_in_use(&name("demo")) && !desk.state.is_in_use(&name("other")));
    desk.pass(1);
    let mut owners = None;
    for (task, action) in desk.actions() {
        if let Action::SetOwners { owners: set, .. } = action {
            owners = Some(set);
        }
        desk.state.finish(&task, Ok(Outcome::Done), desk.now);
    }
    let owners = owners.unwrap();
    assert!(
        owners.contains(&foreign) && owners.iter().any(|owner| owner.uid == "uid-web".into()),
        "{owners:?}"
    );
    // Deleted while in use: a snapshot of the source may hold any earlier content.
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    desk.state.apply_bound(&name("demo"), None, desk.now);
    desk.pass(2);
    assert_eq!(restores(&mut desk), [[]]);
}

/// Without an owner, the object belongs to its tool. If its users were deleted by then, nothing would ever delete it.
#[test]
fn bound_source_is_restored_with_users_as_owners() {
    let mut desk = Desk::new();
    let source = ObjectName::new(SourceKind::ConfigMap, "demo");
    let used = {
        let snapshot = Some(source.name.clone());
        Use::new(source, snapshot)
    };
    let replica_set = RevisionKey { kind: 0, namespace: "ns".into(), name: "web-1".into() };
    let revision = Revision { uid: "rs".into(), uses: vec![used] };
    desk.state.apply_revision(&replica_set, Some(revision), desk.now);
    desk.pass(60);
    let made = desk.actions().into_iter().find_map(|(_, action)| match action {
        Action::Restore { owners, .. } => Some(owners),
        _ => None,
    });
    assert_eq!(made, Some(vec![Owner::new("apps/v1", "ReplicaSet", "web-1", "rs")]));
}

#[test]
fn bound_source_owned_by_former_users_is_released() {
    let (_, _, mut desk) = web_on_blue();
    let workload = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
    let released = |desk: &mut Desk, owners: &[&Owner]| {
        let owners = owners.iter().map(|owner| (*owner).clone()).collect();
        let bound = BoundRecord { version: version.clone(), owners };
        desk.state.apply_bound(&name("old"), Some(bound), desk.now);
        let mut actions = Vec::new();
        for _ in 0..20 {
            desk.pass(1);
            actions.extend(desk.actions());
        }
        actions.iter().filter(|(_, action)| matches!(action, Action::Release { .. })).count()
    };
    let foreign = Owner::new("v1", "Thing", "t", "foreign");
    let gone = Owner::new("apps/v1", "ReplicaSet", "web-1", "gone");
    assert_eq!(released(&mut desk, &[]), 0, "never bound: its tool may use it soon");
    assert_eq!(released(&mut desk, &[&foreign]), 0);
    assert_eq!(released(&mut desk, &[&workload, &foreign]), 0);
    assert_eq!(released(&mut desk, &[&workload, &gone]), 0, "the garbage collector is removing an owner");
    assert_eq!(released(&mut desk, &[&workload]), 1);
}

/// Its controller may still create a revision of a previous template.
#[test]
fn bound_source_of_unobserved_workload_is_not_released() {
    let (_, web, mut desk) = web_on_blue();
    let workload = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
    let bound = BoundRecord { version, owners: [workload].into_iter().collect() };
    desk.state.apply_bound(&name("old"), Some(bound), desk.now);
    for (health, is_released) in [(Health::Unobserved, false), (Health::Progressing, true)] {
        desk.state.apply_workload(&key("web"), Some(record(&web, health)), desk.now);
        let mut released = 0;
        for _ in 0..5 {
            desk.pass(60);
            for (task, action) in desk.actions() {
                released += usize::from(matches!(action, Action::Release { .. }));
                desk.state.finish(&task, Ok(Outcome::Done), desk.now);
            }
        }
        assert_eq!(released > 0, is_released, "{health:?}");
    }
}

/// The watch reports that a ReplicaSet no longer uses the object: its annotation may have been removed. The ReplicaSet is read
/// after a few seconds, since it may be needed again. Owners that others added stay.
#[test]
fn bound_owner_is_read_before_its_removal() {
    for is_used in [true, false] {
        let mut desk = Desk::new();
        let source = ObjectName::new(SourceKind::ConfigMap, "demo");
        let snapshot = Some(source.name.clone());
        let used = Use {
            source,
            snapshot,
            live: false,
            whole: true,
            excluded: false,
            unless_labelled: confrev::resolve::ExcludedLabels::default(),
            optional: false,
            on_hold: false,
        };
        let set = |name: &str| RevisionKey { kind: 0, namespace: "ns".into(), name: name.into() };
        for (name, uses) in [("web-1", Vec::new()), ("web-2", vec![used])] {
            let revision = Revision { uid: name.into(), uses };
            desk.state.apply_revision(&set(name), Some(revision), desk.now);
        }
        let [old, new] = ["web-1", "web-2"].map(|name| Owner::new("apps/v1", "ReplicaSet", name, name));
        let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
        let foreign = Owner::new("v1", "Thing", "t", "foreign");
        let owners = [old.clone(), new.clone(), foreign.clone()].into_iter().collect();
        desk.state.apply_bound(&name("demo"), Some(BoundRecord { version, owners }), desk.now);
        let (mut read, mut set) = (0, Vec::new());
        for second in 1..60 {
            desk.pass(1);
            for (task, action) in desk.actions() {
                let mut outcome = Outcome::Done;
                match action {
                    Action::Verify { owners, .. } => {
                        assert_eq!(owners, std::slice::from_ref(&old));
                        assert!(second > 3, "read after {second} s");
                        read += 1;
                        let (used, unused) = if is_used { (owners, vec![]) } else { (vec![], owners) };
                        outcome = Outcome::Verified(Verified { used, unused, ..Verified::default() });
                    }
                    Action::SetOwners { owners, own: true, .. } => {
                        assert!(read > 0, "{owners:?} are set before the live read");
                        set.push(owners.clone());
                        let version = Version { uid: "u".to_owned(), resource_version: "2".to_owned() };
                        let record = BoundRecord { version, owners: owners.into_iter().collect() };
                        desk.state.apply_bound(&name("demo"), Some(record), desk.now);
                    }
                    _ => {}
                }
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
        }
        let wanted = if is_used { vec![] } else { vec![vec![new, foreign]] };
        assert_eq!((read, set), (1, wanted), "used: {is_used}");
        assert_eq!(desk.state.next_due(), None, "used: {is_used}: nothing is left to do");
    }
}

/// It was made before the source was labelled `bind`.
#[test]
fn bound_source_keeps_no_unused_snapshot() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    world.labelled("demo", "bind");
    let web = stored(&mut world, "web");
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    let version = Version { uid: "u".to_owned(), resource_version: "1".to_owned() };
    let workload = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let bound = BoundRecord { version, owners: [workload].into_iter().collect() };
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    desk.state.apply_bound(&name("demo"), Some(bound), desk.now);
    let object = world.objects[&name("demo").object].to_string();
    let (mut owned, mut swept) = (0, 0);
    for _ in 0..900 {
        desk.pass(1);
        for (task, action) in desk.actions() {
            let mut outcome = Outcome::Done;
            match action {
                Action::Read(_) => {
                    let observed = Observed::read(SourceKind::ConfigMap, object.clone().into_bytes());
                    outcome = Outcome::Read(Some(Box::new(observed.unwrap())));
                }
                Action::SetOwners { snapshot, .. } if snapshot == name(BLUE) => owned += 1,
                Action::Sweep { .. } => swept += 1,
                _ => {}
            }
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
    }
    assert!(owned == 0 && swept > 0, "{owned} {swept}");
}

/// Both bound sources and snapshots.
#[test]
fn new_leader_restores_missing_objects() {
    for bound in [true, false] {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        if bound {
            world.labelled("demo", "bind");
        }
        let web = stored(&mut world, "web");
        let mut desk = Desk::new();
        desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
        // A follower does nothing, and may become the leader.
        desk.state.leave_to_the_leader();
        desk.pass(60);
        assert_eq!(restores(&mut desk), [[]; 0]);
        desk.state.reconcile_all(desk.now);
        desk.pass(60);
        assert_eq!(restores(&mut desk), [[]]);
    }
}

/// This holds whether `sources` has its own name or that of the source.
#[test]
fn restores_second_snapshot_under_its_source() {
    let [own, source] = [BLUE, "demo"].map(|name| ObjectName::new(SourceKind::ConfigMap, name));
    let of = |entry: &ObjectName, uid: &str| {
        let snapshot = Some(BLUE.to_owned());
        let used = Use::new(entry.clone(), snapshot.map(Into::into));
        Revision { uid: uid.into(), uses: vec![used] }
    };
    // The deleted snapshot was admitted recently, or another template refers to it by its source.
    for remembered in [true, false] {
        let mut desk = Desk::new();
        let revisions = [("web-1", of(&own, "a")), ("web-2", of(&source, "b"))];
        for (name, revision) in revisions.into_iter().take(if remembered { 1 } else { 2 }) {
            let key = RevisionKey { kind: 0, namespace: "ns".into(), name: name.into() };
            desk.state.apply_revision(&key, Some(revision), desk.now);
        }
        let (now, config_map) = (desk.now + SignedDuration::from_secs(60), SourceKind::ConfigMap);
        let shared = Shared::new(desk.state, Readiness::new().register("caches"));
        if remembered {
            let text = json!({
                "metadata": {
                    "name": BLUE, "uid": "u", "resourceVersion": "1",
                    "labels": {"app.kubernetes.io/managed-by": "confrev", annotations::SOURCE: "demo"},
                    "annotations": {annotations::SOURCE_NAME: "demo", annotations::DIGEST: digest("blue").to_string()},
                },
                "immutable": true,
                "data": {"color": "blue"},
            });
            let snapshot = Observed::read(config_map, text.to_string().into_bytes()).unwrap();
            shared.remember(&name(BLUE), &snapshot);
        }
        let mut state = shared.lock();
        let mut actions = std::iter::from_fn(|| state.next_action(now));
        let source = actions.find_map(|(_, action)| match action {
            Action::Restore { source, .. } => Some(source),
            _ => None,
        });
        assert_eq!(source.as_deref(), Some("demo"), "remembered: {remembered}");
    }
}

#[test]
fn restores_no_secret_snapshots_when_secrets_are_disabled() {
    let mut desk = Desk::new();
    let [source, snapshot] =
        ["keys", "keys-0123456789"].map(|name| ObjectName::new(SourceKind::Secret, name));
    let used = Use::new(source, Some(snapshot.name));
    let replica_set = RevisionKey { kind: 0, namespace: "ns".into(), name: "web-1".into() };
    let revision = Revision { uid: "rs".into(), uses: vec![used] };
    desk.state.apply_revision(&replica_set, Some(revision), desk.now);
    desk.pass(60);
    assert_eq!(restores(&mut desk), [[]; 0]);
    desk.state.reconcile_all(desk.now);
    desk.pass(60);
    assert_eq!(restores(&mut desk), [[]; 0]);
}
