//! Sources in bind mode: the first owner is a revision. The garbage collector deletes an object with its last owner, so a workload that
//! was never run must not become the only one.

use confrev::{
    controller::{Action, Outcome},
    kinds::Kinds,
    resolve::{Health, Record, Use},
    snapshot::{ObjectName, SourceKind},
    world::{BoundRecord, Owner, Revision, RevisionKey, Version, WorkloadKey},
};

use super::controller::{Desk, key, name, web_on_blue};

/// A reference to the bound object `next`, as written.
fn reference() -> Use {
    let source = ObjectName::new(SourceKind::ConfigMap, "next");
    let snapshot = Some(source.name.clone());
    Use::new(source, snapshot)
}

fn bound(owners: &[Owner]) -> BoundRecord {
    let version = Version { uid: "n".to_owned(), resource_version: owners.len().to_string() };
    BoundRecord { version, owners: owners.iter().cloned().collect() }
}

/// The kind and name of each owner that the object gets in a minute; none if its owners are not written.
fn owners(desk: &mut Desk, present: &[Owner]) -> Vec<String> {
    desk.state.apply_bound(&name("next"), Some(bound(present)), desk.now);
    let mut set: Option<Vec<Owner>> = None;
    for _ in 0..20 {
        desk.pass(3);
        for (task, action) in desk.actions() {
            match action {
                Action::SetOwners { snapshot, owners, .. } if snapshot == name("next") => set = Some(owners),
                Action::Release { .. } | Action::Sweep { .. } => panic!("the object is deleted: {action:?}"),
                _ => {}
            }
            desk.state.finish(&task, Ok(Outcome::Done), desk.now);
        }
    }
    let set = set.unwrap_or_default();
    let mut names: Vec<_> = set.iter().map(|owner| format!("{}/{}", owner.kind, owner.name)).collect();
    names.sort();
    names
}

/// A workload of this kind that refers to the object.
fn workload(desk: &mut Desk, kind: &str, name: &str) -> WorkloadKey {
    let number = Kinds::default().iter().position(|known| known.kind == kind).unwrap();
    let key = WorkloadKey { kind: number, ..key(name) };
    let (_, web, _) = web_on_blue();
    let read = super::controller::record(&web, Health::Settled);
    let uid = format!("uid-{name}").as_str().into();
    let record = Record { uid, uses: vec![reference()], ..read };
    desk.state.apply_workload(&key, Some(record), desk.now);
    key
}

/// A ReplicaSet (0) or Job (2) that refers to the object.
fn revision(desk: &mut Desk, kind: usize, name: &str) {
    let key = RevisionKey { kind, namespace: "ns".into(), name: name.into() };
    let revision = Revision { uid: format!("uid-{name}").as_str().into(), uses: vec![reference()] };
    desk.state.apply_revision(&key, Some(revision), desk.now);
}

#[test]
fn workload_is_never_the_first_owner() {
    for kind in ["Deployment", "StatefulSet", "CronJob"] {
        let mut desk = Desk::new();
        let web = workload(&mut desk, kind, "web");
        assert_eq!(owners(&mut desk, &[]), [""; 0], "{kind}: nothing has used the object");
        desk.state.apply_workload(&web, None, desk.now);
        assert_eq!(owners(&mut desk, &[]), [""; 0], "{kind}: it is deleted, and the object stays");
    }
}

#[test]
fn first_revision_binds_the_workload_too() {
    let mut desk = Desk::new();
    workload(&mut desk, "Deployment", "web");
    revision(&mut desk, 0, "web-1");
    assert_eq!(owners(&mut desk, &[]), ["Deployment/web", "ReplicaSet/web-1"]);
}

/// The Job of a CronJob is deleted before the next one is created. Another CronJob has no Job yet.
#[test]
fn used_object_gets_each_workload_as_owner() {
    let mut desk = Desk::new();
    workload(&mut desk, "CronJob", "nightly");
    workload(&mut desk, "CronJob", "weekly");
    let nightly = Owner::new("batch/v1", "CronJob", "nightly", "uid-nightly");
    assert_eq!(owners(&mut desk, &[nightly]), ["CronJob/nightly", "CronJob/weekly"]);
}
