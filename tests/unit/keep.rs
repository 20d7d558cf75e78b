//! A source that keeps many snapshots: a change of one snapshot does not reconcile the others.

use std::collections::HashMap;

use confrev::{
    annotations,
    controller::{Action, Next, ObjectStep, Outcome, Task},
    snapshot::Digest,
    world::{Name, SnapshotRecord, SourceMeta, Verified},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::controller::{Desk, digest, name, observed, snapshot, web_on_blue};

/// A desk with many snapshots of `demo`, of which half are kept. It counts the snapshots that are reconciled.
struct Keeper {
    desk: Desk,
    /// The snapshots as they were created.
    records: HashMap<Name, SnapshotRecord>,
    keep: usize,
    /// The source's annotation `revoked`.
    revoked: String,
    version: usize,
}

/// The snapshot of the content `number`, created this many seconds after the first.
fn numbered(number: usize) -> (Name, SnapshotRecord) {
    let content = digest(&number.to_string());
    let created = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(number).unwrap());
    let record = SnapshotRecord { created, digest: content, ..snapshot("blue", "1", &[]) };
    let record = SnapshotRecord { uid: format!("uid-{number}").into(), ..record };
    (name(&format!("demo-{}", content.hex(10))), record)
}

impl Keeper {
    fn new(snapshots: usize) -> Self {
        let (_, _, mut desk) = web_on_blue();
        let records: HashMap<_, _> = (0..snapshots).map(numbered).collect();
        for (name, record) in &records {
            desk.state.apply_snapshot(name, Some(record.clone()), desk.now);
        }
        let mut new =
            Self { desk, records, keep: snapshots / 2, revoked: String::new(), version: snapshots - 1 };
        new.settle();
        new
    }

    /// Lets half a minute pass. Returns the number of reconciled snapshots, and the snapshots that were written or swept.
    fn settle(&mut self) -> (usize, Vec<Name>) {
        let (mut looked, mut written) = (0, Vec::new());
        for _ in 0..30 {
            loop {
                match self.desk.state.next_step(self.desk.now) {
                    Next::Act(task, action) => {
                        looked += usize::from(matches!(
                            task,
                            Task::Object(_, ObjectStep::Bind | ObjectStep::Unbind)
                        ));
                        let outcome = match action {
                            Action::Read(_) => {
                                let content = json!({"color": self.version.to_string()});
                                let notes = json!({
                                    annotations::KEEP: self.keep.to_string(), annotations::REVOKED: self.revoked,
                                });
                                let read = observed(content, notes, &self.resource_version());
                                Outcome::Read(Some(Box::new(read)))
                            }
                            Action::Verify { owners, .. } => {
                                Outcome::Verified(Verified { unused: owners, ..Verified::default() })
                            }
                            Action::SetOwners { snapshot, owners, .. } => {
                                // The watch reports the write.
                                let mut record = self.records[&snapshot].clone();
                                record.owners = owners.into_iter().collect();
                                record.resource_version = format!("{looked}-{}", written.len()).into();
                                self.desk.state.apply_snapshot(&snapshot, Some(record), self.desk.now);
                                written.push(snapshot);
                                Outcome::Done
                            }
                            // A snapshot that lost its last owner.
                            Action::Sweep { snapshot, .. } => {
                                self.desk.state.apply_snapshot(&snapshot, None, self.desk.now);
                                written.push(snapshot);
                                Outcome::Done
                            }
                            _ => Outcome::Done,
                        };
                        self.desk.state.finish(&task, Ok(outcome), self.desk.now);
                    }
                    Next::More => {}
                    Next::Rest => break,
                }
            }
            self.desk.pass(1);
        }
        (looked, written)
    }

    /// Changes the source's content, and creates the snapshot.
    fn change(&mut self) -> (usize, Vec<Name>) {
        self.version += 1;
        self.write();
        let (name, record) = numbered(self.version);
        self.desk.state.apply_snapshot(&name, Some(record.clone()), self.desk.now);
        self.records.insert(name, record);
        self.settle()
    }

    fn resource_version(&self) -> String {
        format!("{}-{}-{}", self.version, self.keep, self.revoked)
    }

    fn write(&mut self) {
        let meta = SourceMeta { resource_version: self.resource_version(), always: false };
        self.desk.state.apply_source(&name("demo"), Some(&meta), self.desk.now);
        self.desk.state.apply_source(&name("demo"), Some(&meta), self.desk.now);
    }
}

#[test]
fn change_reconciles_few_of_many_snapshots() {
    for snapshots in [20, 200, 2000] {
        let mut keeper = Keeper::new(snapshots);
        for _ in 0..10 {
            let (looked, written) = keeper.change();
            // The new snapshot, and the snapshot that it displaces with the adjacent snapshots.
            assert!(looked <= 20, "{looked} of {snapshots} reconciled");
            let pushed_out = numbered(keeper.version - keeper.keep).0;
            assert_eq!(written, [numbered(keeper.version).0, pushed_out], "of {snapshots}");
        }
    }
}

#[test]
fn kept_snapshots_follow_keep_and_content() {
    let mut keeper = Keeper::new(200);
    let of = |numbers: std::ops::Range<usize>| numbers.map(|number| numbered(number).0).collect::<Vec<_>>();
    let sorted = |mut names: Vec<Name>| {
        names.sort();
        names
    };
    // 100 to 199 are kept.
    keeper.keep = 120;
    keeper.write();
    assert_eq!(sorted(keeper.settle().1), sorted(of(80..100)));
    keeper.keep = 90;
    keeper.write();
    assert_eq!(sorted(keeper.settle().1), sorted(of(80..110)));
    // An old snapshot's content becomes the present one: the snapshot displaces the oldest kept one.
    keeper.version = 3;
    keeper.write();
    assert_eq!(sorted(keeper.settle().1), sorted([of(3..4), of(110..111)].concat()));
    // A kept snapshot is deleted: the next older snapshot is kept instead.
    keeper.desk.state.apply_snapshot(&numbered(150).0, None, keeper.desk.now);
    assert_eq!(keeper.settle().1, of(79..80));
}

/// Their rank stays as it is: no other snapshot is kept in their place.
#[test]
fn revoked_snapshots_are_not_kept() {
    for many in [6, 60] {
        let mut keeper = Keeper::new(many);
        let last = keeper.version;
        keeper.revoked = format!("{}, {}", numbered(last - 1).0.object.name, numbered(last).0.object.name);
        keeper.write();
        let (_, written) = keeper.settle();
        let swept: std::collections::BTreeSet<_> = written.into_iter().collect();
        // The last one holds the present content, which the source keeps.
        let kept = last + 1 - keeper.keep..=last;
        let numbers: Vec<_> = kept.filter(|number| swept.contains(&numbered(*number).0)).collect();
        assert_eq!(numbers, [last - 1], "of {many}");
    }
}

#[test]
fn few_tasks_are_decided_under_one_lock() {
    let (_, _, mut desk) = web_on_blue();
    for number in 0..1000 {
        let (name, record) = numbered(number);
        desk.state.apply_snapshot(&name, Some(record), desk.now);
    }
    desk.act(&json!({"color": "blue"}), &json!({annotations::KEEP: "0"}), "1");
    desk.pass(3600);
    // Each of the 1,000 is reconciled without an action, since its grace period has not ended.
    let mut locks = 0;
    loop {
        match desk.state.next_step(desk.now) {
            Next::Act(task, _) => desk.state.finish(&task, Ok(Outcome::Done), desk.now),
            Next::More => {}
            Next::Rest => break,
        }
        locks += 1;
    }
    assert!(locks >= 1000 / 64, "{locks} locks for 1,000 tasks");
}

/// A snapshot of another source with the same content, in a cluster with many others.
#[test]
fn restore_finds_equal_content_of_other_sources() {
    let (_, web, mut desk) = web_on_blue();
    let twin = |source: &str, content: Digest| {
        let record = SnapshotRecord { source: source.into(), digest: content, ..snapshot("blue", "1", &[]) };
        (name(&format!("{source}-{}", content.hex(10))), record)
    };
    let blue = digest("blue");
    for (name, record) in [twin("other", blue), twin("third", digest("green")), twin("demo", blue)] {
        desk.state.apply_snapshot(&name, Some(record), desk.now);
    }
    let mut elsewhere = twin("fourth", blue);
    elsewhere.0.namespace = "elsewhere".into();
    desk.state.apply_snapshot(&elsewhere.0, Some(elsewhere.1), desk.now);
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    drop(web);
    desk.state.apply_snapshot(&twin("demo", blue).0, None, desk.now);
    let copies = desk.actions().into_iter().find_map(|(_, action)| match action {
        Action::Restore { copies, .. } => Some(copies),
        _ => None,
    });
    assert_eq!(copies.expect("it is restored"), [twin("other", blue).0]);
}
