//! The limit of bytes of a source's unused snapshots, beside `keep`.

use std::{collections::BTreeMap, sync::Arc};

use confrev::{
    annotations,
    controller::{Action, Config, Next, Outcome, State, Task},
    kinds::Kinds,
    resolve::Use,
    snapshot::ObjectName,
    telemetry::metrics::Reason,
    world::{Name, Revision, RevisionKey, SnapshotRecord, SourceMeta, Verified},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::controller::{Desk, digest, name, observed, snapshot};

const MIB: u32 = 1 << 20;

/// A controller with a limit of 3 MiB, and the source `demo`, which keeps 100 snapshots.
struct Keeper {
    desk: Desk,
    records: BTreeMap<Name, SnapshotRecord>,
    /// The number of the present content.
    present: usize,
    events: Vec<Reason>,
    swept: Vec<(usize, i64)>,
}

fn named(number: usize) -> Name {
    name(&format!("demo-{}", digest(&number.to_string()).hex(10)))
}

impl Keeper {
    fn new() -> Self {
        let config = Config { rolls_per_second: 100, ..Config::default() };
        let mut state = State::new(Arc::new(Kinds::default()), config).keeping_at_most(3 << 20);
        state.set_synced();
        let mut desk = Desk { state, now: Timestamp::from_second(1_000_000).unwrap() };
        desk.state.set_labelled(&name("demo"), true, desk.now);
        Self { desk, records: BTreeMap::new(), present: 0, events: vec![], swept: vec![] }
    }

    /// Changes the content, of which the snapshot has so many bytes.
    fn change(&mut self, bytes: u32) {
        self.present += 1;
        let number = self.present;
        let created = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(number).unwrap());
        let content = digest(&number.to_string());
        let record = SnapshotRecord { created, digest: content, bytes, ..snapshot("blue", "1", &[]) };
        self.write(number.to_string());
        self.report(
            named(number),
            Some(SnapshotRecord { uid: format!("u{number}").as_str().into(), ..record }),
        );
    }

    fn write(&mut self, version: String) {
        let meta = SourceMeta { resource_version: version, always: true };
        self.desk.state.apply_source(&name("demo"), Some(&meta), self.desk.now);
    }

    fn report(&mut self, name: Name, record: Option<SnapshotRecord>) {
        self.desk.state.apply_snapshot(&name, record.clone(), self.desk.now);
        match record {
            Some(record) => self.records.insert(name, record),
            None => self.records.remove(&name),
        };
    }

    /// A ReplicaSet that uses this content, or none.
    fn uses(&mut self, number: Option<usize>) {
        let key = RevisionKey { kind: 0, namespace: Arc::from("ns"), name: Arc::from("set") };
        let revision = number.map(|number| Revision {
            uid: "set".into(),
            uses: vec![Use::new(ObjectName::clone(&name("demo").object), Some(named(number).object.name))],
        });
        self.desk.state.apply_revision(&key, revision, self.desk.now);
    }

    /// Lets so many seconds pass.
    fn pass(&mut self, seconds: i64) {
        for second in 0..seconds {
            loop {
                match self.desk.state.next_step(self.desk.now) {
                    Next::Act(task, action) => self.act(&task, action, second),
                    Next::More => {}
                    Next::Rest => break,
                }
            }
            self.desk.pass(1);
        }
    }

    fn act(&mut self, task: &Task, action: Action, second: i64) {
        let outcome = match action {
            Action::Read(_) => {
                let content = json!({"color": self.present.to_string()});
                let keep = json!({annotations::KEEP: "100"});
                Outcome::Read(Some(Box::new(observed(content, keep, &self.present.to_string()))))
            }
            Action::Verify { owners, .. } => {
                Outcome::Verified(Verified { unused: owners, ..Verified::default() })
            }
            Action::SetOwners { snapshot, owners, .. } => {
                let mut record = self.records[&snapshot].clone();
                record.owners = owners.into_iter().collect();
                record.resource_version = format!("{}-{second}", record.owners.len()).into();
                self.report(snapshot, Some(record));
                Outcome::Done
            }
            Action::Sweep { snapshot, .. } => {
                let number = (1..=self.present).find(|number| named(*number) == snapshot).unwrap();
                self.swept.push((number, second));
                self.report(snapshot, None);
                Outcome::Done
            }
            Action::WriteEvent(event) => {
                assert!(!event.note.contains(&*named(1).object.name), "one Event for all: {}", event.note);
                self.events.push(event.reason);
                Outcome::Done
            }
            _ => Outcome::Done,
        };
        self.desk.state.finish(task, Ok(outcome), self.desk.now);
    }

    /// The numbers of the contents whose snapshots exist.
    fn kept(&self) -> Vec<usize> {
        (1..=self.present).filter(|number| self.records.contains_key(&named(*number))).collect()
    }
}

#[test]
fn unused_snapshots_stay_within_the_limit_of_bytes() {
    let mut keeper = Keeper::new();
    for _ in 0..6 {
        keeper.change(MIB);
        keeper.pass(5);
    }
    keeper.pass(30);
    assert_eq!(keeper.kept(), [4, 5, 6], "keep asks for 100");
    assert_eq!(keeper.desk.state.take_dropped_snapshots(), 3);
    assert_eq!(keeper.desk.state.take_dropped_snapshots(), 0, "each counts once");
    assert_eq!(keeper.events, [Reason::SnapshotsDropped], "one Event in ten minutes");
    let small = keeper.present;
    for _ in 0..20 {
        keeper.change(1024);
        keeper.pass(2);
    }
    keeper.pass(30);
    assert_eq!(keeper.kept().first(), Some(&(small - 1)), "two large ones and many small ones fit");
}

#[test]
fn newest_snapshot_stays_whatever_its_size() {
    let mut keeper = Keeper::new();
    for bytes in [MIB, MIB, MIB, 100 * MIB] {
        keeper.change(bytes);
        keeper.pass(5);
    }
    // Also longer than a snapshot is kept that was never bound.
    keeper.pass(120);
    assert_eq!(keeper.kept(), [4]);
}

#[test]
fn snapshot_in_use_stays_and_does_not_count() {
    let mut keeper = Keeper::new();
    keeper.change(MIB);
    keeper.uses(Some(1));
    for _ in 0..5 {
        keeper.change(MIB);
        keeper.pass(5);
    }
    keeper.pass(30);
    assert_eq!(keeper.kept(), [1, 4, 5, 6]);
    // Once it is unused, it is the oldest.
    keeper.uses(None);
    keeper.pass(30);
    assert_eq!(keeper.kept(), [4, 5, 6]);
    // A snapshot that becomes used makes room for those that are left.
    keeper.uses(Some(6));
    keeper.change(MIB);
    keeper.pass(30);
    assert_eq!(keeper.kept(), [4, 5, 6, 7]);
    keeper.uses(None);
    keeper.pass(30);
    assert_eq!(keeper.kept(), [5, 6, 7], "the change of its users concerns an older one");
}

/// Changes in quick succession leave snapshots that were never bound. They may be needed by a write in progress, for a minute.
#[test]
fn quick_changes_exceed_the_limit_for_a_minute() {
    let mut keeper = Keeper::new();
    for _ in 0..60 {
        keeper.change(MIB);
    }
    keeper.pass(40);
    assert_eq!(keeper.kept().len(), 60);
    keeper.pass(40);
    assert_eq!(keeper.kept(), [58, 59, 60]);
}

/// A source that changes faster than its old snapshots are deleted gets no more in advance, until there is room.
#[test]
fn crowded_source_gets_its_snapshot_later() {
    let mut keeper = Keeper::new();
    for _ in 0..8 {
        keeper.change(MIB);
    }
    keeper.present += 1;
    keeper.write("9".to_owned());
    let mut ensured = vec![];
    for second in 0..120 {
        loop {
            match keeper.desk.state.next_step(keeper.desk.now) {
                Next::Act(task, action) => {
                    if let Action::Ensure { .. } = action {
                        ensured.push(second);
                    }
                    keeper.act(&task, action, second);
                }
                Next::More => {}
                Next::Rest => break,
            }
        }
        keeper.desk.pass(1);
    }
    assert!(ensured.first().is_some_and(|first| *first >= 15), "{ensured:?} {:?}", keeper.swept);
}
