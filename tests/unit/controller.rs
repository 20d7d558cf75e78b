//! The controller's state without a cluster: the actions that follow from it.

use std::{collections::BTreeSet, sync::Arc};

use confrev::{
    annotations,
    cluster::ApiError,
    controller::{Action, Config, Outcome, RawObject, State, Task, WorkloadsSubject, take},
    kinds::Kinds,
    resolve::{Health, Observed, Record, Workload},
    snapshot::{Digest, ObjectName, Rotated, SourceKind},
    world::{
        Name, Owner, Precondition, Revision, RevisionKey, SnapshotRecord, SourceMeta, Verified, Version,
        WorkloadKey,
    },
};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::world::{World, deployment, kind};

pub(crate) const BLUE: &str = "demo-3a18d34e26";

pub(crate) struct Desk {
    pub state: State,
    pub now: Timestamp,
}

pub(crate) fn name(object: &str) -> Name {
    Name::new("ns", ObjectName::new(SourceKind::ConfigMap, object))
}

pub(crate) fn key(workload: &str) -> WorkloadKey {
    let kind = Kinds::default().iter().position(|kind| kind.kind == "Deployment").unwrap();
    WorkloadKey { kind, namespace: Arc::from("ns"), name: Arc::from(workload) }
}

pub(crate) fn record(stored: &Value, health: Health) -> Record {
    let kind = kind("Deployment");
    Record::of(&Workload::read(&kind, stored).unwrap(), health, &Rotated::default())
}

pub(crate) fn observed(data: Value, annotations: Value, version: &str) -> Observed {
    let metadata =
        json!({"name": "demo", "uid": "u", "resourceVersion": version, "annotations": annotations});
    let object = json!({"metadata": metadata, "data": data});
    Observed::read(SourceKind::ConfigMap, object.to_string().into_bytes()).unwrap()
}

pub(crate) fn digest(color: &str) -> Digest {
    observed(json!({"color": color}), json!({}), "1").digest()
}

pub(crate) fn snapshot(color: &str, version: &str, owners: &[Owner]) -> SnapshotRecord {
    SnapshotRecord {
        uid: format!("uid-{color}").into(),
        resource_version: version.into(),
        source: "demo".into(),
        digest: digest(color),
        created: Timestamp::UNIX_EPOCH,
        late: 0,
        owners: owners.iter().cloned().collect(),
        verdict: None,
        bytes: 1024,
    }
}

impl Desk {
    pub(crate) fn new() -> Self {
        let mut desk = Self::unsynced();
        desk.state.set_synced();
        desk
    }

    /// A desk whose watches have not listed all objects.
    pub(crate) fn unsynced() -> Self {
        let config = Config { rolls_per_second: 100, ..Config::default() };
        let state = State::new(Arc::new(Kinds::default()), config);
        Self { state, now: Timestamp::from_second(1_000_000).unwrap() }
    }

    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub(crate) fn actions(&mut self) -> Vec<(Task, Action)> {
        // There are no Rollouts.
        self.state.set_referrers_listed("ns", self.now);
        std::iter::from_fn(|| self.state.next_action(self.now)).collect()
    }

    /// Lets every read find this content. Returns the other actions, all of which succeed.
    ///
    /// A snapshot that follows a read is created at once, and is not among the actions. Verified owners turn out to be unused.
    pub(crate) fn act(&mut self, data: &Value, annotations: &Value, version: &str) -> Vec<Action> {
        let mut others = Vec::new();
        loop {
            let mut read = false;
            for (task, action) in self.actions() {
                let outcome = match action {
                    Action::Read(_) => {
                        read = true;
                        Outcome::Read(Some(Box::new(observed(data.clone(), annotations.clone(), version))))
                    }
                    Action::Verify { owners, .. } => {
                        read = true;
                        Outcome::Verified(Verified { unused: owners, ..Verified::default() })
                    }
                    Action::Ensure { content: Some(_), .. } => Outcome::Done,
                    action => {
                        others.push(action);
                        Outcome::Done
                    }
                };
                self.state.finish(&task, Ok(outcome), self.now);
            }
            if !read {
                return others;
            }
        }
    }
}

impl Desk {
    /// Lets every read find nothing.
    pub(crate) fn find_nothing(&mut self) {
        for (task, action) in self.actions() {
            let outcome = if matches!(action, Action::Read(_)) { Outcome::Read(None) } else { Outcome::Done };
            self.state.finish(&task, Ok(outcome), self.now);
        }
    }

    /// Lets the content of every missing snapshot be unknown, and returns the names of these snapshots.
    pub(crate) fn lose(&mut self) -> BTreeSet<Name> {
        let mut lost = self.look_in_vain();
        self.pass(5);
        lost.extend(self.look_in_vain());
        lost
    }

    /// Lets every restore find no content, and returns the names of the snapshots.
    pub(crate) fn look_in_vain(&mut self) -> BTreeSet<Name> {
        let mut lost = BTreeSet::new();
        // Only a few are processed at a time.
        loop {
            let actions = self.actions();
            if actions.is_empty() {
                break;
            }
            for (task, action) in actions {
                let outcome = if let Action::Restore { snapshot, .. } = action {
                    lost.insert(snapshot);
                    Outcome::Lost
                } else {
                    Outcome::Done
                };
                self.state.finish(&task, Ok(outcome), self.now);
            }
        }
        lost
    }
}

pub(crate) fn stored(world: &mut World, name: &str) -> Value {
    let mut object = deployment(&["demo"]);
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(format!("uid-{name}"));
    world.create(&object)
}

/// A settled workload with the snapshot of `demo` when it was blue, and a desk that knows the workload.
pub(crate) fn web_on_blue() -> (World, Value, Desk) {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let web = stored(&mut world, "web");
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Health::Settled)), desk.now);
    (world, web, desk)
}

#[test]
fn settled_change_rolls_unless_an_apply_included_it() {
    let (mut world, first, mut desk) = web_on_blue();
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    assert!(desk.actions().is_empty(), "the change settles first");
    desk.pass(1);
    let due = desk.actions();
    assert!(due.iter().any(|(_, action)| matches!(action, Action::Poke { .. })), "{due:?}");
    for (task, _) in due {
        desk.state.finish(&task, Ok(Outcome::Done), desk.now);
    }
    // The same, with an apply before the roll.
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&first, Health::Settled)), desk.now);
    desk.act(&json!({"color": "green"}), &json!({}), "2");
    world.set("demo", json!({"color": "green"}));
    let applied = world.update(&deployment(&["demo"]), &first);
    desk.state.apply_workload(&key("web"), Some(record(&applied, Health::Settled)), desk.now);
    desk.pass(60);
    let later = desk.act(&json!({"color": "green"}), &json!({}), "2");
    assert!(!later.iter().any(|action| matches!(action, Action::Poke { .. })), "{later:?}");
}

/// No second read is needed.
#[test]
fn snapshot_has_content_of_the_read() {
    let (_, _, mut desk) = web_on_blue();
    let mut made = Vec::new();
    for _ in 0..5 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(_) => {
                    let read = observed(json!({"color": "green"}), json!({}), "2");
                    Outcome::Read(Some(Box::new(read)))
                }
                Action::Ensure { content, .. } => {
                    made.push(content.map(|content| content.digest()));
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
    }
    assert_eq!(made, [Some(digest("green"))]);
}

#[test]
fn older_roll_response_does_not_override_watch() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let first = stored(&mut world, "web");
    let version = |object: &Value, version: &str| {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = json!(version);
        record(&object, Health::Settled)
    };
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(version(&first, "1")), desk.now);
    // Returns the version that the roll to this content is conditional on. A watch may report the roll before its response.
    let mut roll = |color: &str, told: Option<&str>, answer: &str| {
        let content = json!({"color": color});
        let meta = SourceMeta { resource_version: color.to_owned(), always: false };
        desk.state.apply_source(&name("demo"), Some(&meta), desk.now);
        desk.act(&content, &json!({}), color);
        desk.pass(60);
        world.set("demo", content);
        let after = world.update(&deployment(&["demo"]), &first);
        let mut condition = None;
        for (task, action) in desk.actions() {
            let outcome = if let Action::Poke { condition: Precondition::Version(poked), .. } = action {
                condition = Some(poked);
                if let Some(told) = told {
                    desk.state.apply_workload(&key("web"), Some(version(&after, told)), desk.now);
                }
                Outcome::Poked(Box::new(version(&after, answer)))
            } else {
                Outcome::Done
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        condition
    };
    assert_eq!(roll("green", Some("4"), "2").as_deref(), Some("1"));
    assert_eq!(roll("red", None, "5").as_deref(), Some("4"), "the response has an outdated version");
    assert_eq!(roll("blue", None, "6").as_deref(), Some("5"));
}

/// Only the newest snapshot is bound to its source.
#[test]
fn snapshot_is_bound_to_users_and_source() {
    let (_, web, mut desk) = web_on_blue();
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &[])), desk.now);
    let replica_set = RevisionKey { kind: 0, namespace: Arc::from("ns"), name: Arc::from("web-1") };
    let uses = record(&web, Health::Settled).uses;
    let revision = Revision { uid: "rs".into(), uses };
    desk.state.apply_revision(&replica_set, Some(revision), desk.now);
    desk.act(&json!({"color": "blue"}), &json!({}), "1");
    desk.pass(1);
    let bound = desk.act(&json!({"color": "blue"}), &json!({}), "1");
    let [Action::SetOwners { owners, version, .. }] = &bound[..] else { panic!("{bound:?}") };
    let kinds: Vec<_> = owners.iter().map(|owner| format!("{} {}", owner.kind, owner.uid)).collect();
    assert_eq!(kinds, ["Deployment uid-web", "ReplicaSet rs", "ConfigMap u"]);
    assert_eq!(*version, Version { uid: "uid-blue".to_owned(), resource_version: "1".to_owned() });
    // Once the watch reports the owners, nothing is left to do.
    desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "2", owners)), desk.now);
    desk.pass(3600);
    assert!(desk.act(&json!({"color": "blue"}), &json!({}), "1").is_empty());
}

#[test]
fn unused_snapshot_is_swept_after_grace_period() {
    for (owners, grace) in [(vec![], 600), (vec![Owner::new("apps/v1", "ReplicaSet", "web-1", "rs")], 15)] {
        let mut desk = Desk::new();
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &owners)), desk.now);
        // The newest content of the source is another one.
        desk.state.apply_snapshot(&name("demo-736a916696"), Some(snapshot("green", "1", &[])), desk.now);
        let content = json!({"color": "green"});
        desk.act(&content, &json!({}), "1");
        desk.pass(1);
        desk.act(&content, &json!({}), "1");
        desk.pass(grace - 2);
        let early = desk.act(&content, &json!({}), "1");
        assert!(!early.iter().any(|action| matches!(action, Action::Sweep { .. })), "{early:?}");
        desk.pass(2);
        let swept = desk.act(&content, &json!({}), "1");
        let [Action::Sweep { snapshot, .. }] = &swept[..] else { panic!("{swept:?}") };
        assert_eq!(&*snapshot.object.name, BLUE);
    }
}

/// Until then, the workload's own controller may create a revision with that snapshot.
#[test]
fn keeps_snapshot_until_workload_controller_observes_template() {
    let mut world = World::default();
    world.set("demo", json!({"color": "green"}));
    let (web, green) = (stored(&mut world, "web"), json!({"color": "green"}));
    let owner = Owner::new("apps/v1", "Deployment", "web", "uid-web");
    let other = Owner::new("apps/v1", "ReplicaSet", "other-1", "rs");
    for owners in [vec![owner.clone()], vec![owner, other]] {
        let mut desk = Desk::new();
        desk.state.apply_workload(&key("web"), Some(record(&web, Health::Unobserved)), desk.now);
        if owners.len() > 1 {
            let key = RevisionKey { kind: 0, namespace: Arc::from("ns"), name: Arc::from("other-1") };
            let mut uses = record(&web, Health::Settled).uses;
            uses[0].snapshot = Some(BLUE.into());
            desk.state.apply_revision(&key, Some(Revision { uid: "rs".into(), uses }), desk.now);
        }
        desk.state.apply_snapshot(&name(BLUE), Some(snapshot("blue", "1", &owners)), desk.now);
        desk.state.apply_snapshot(&name("demo-736a916696"), Some(snapshot("green", "1", &[])), desk.now);
        let taken_from = |desk: &mut Desk| {
            let mut all = Vec::new();
            for _ in 0..60 {
                desk.pass(1);
                all.append(&mut desk.act(&green, &json!({}), "1"));
            }
            all.iter().any(|action| match action {
                Action::SetOwners { snapshot, .. } | Action::Sweep { snapshot, .. } => {
                    *snapshot == name(BLUE)
                }
                _ => false,
            })
        };
        assert!(!taken_from(&mut desk), "{owners:?}");
        desk.state.apply_workload(&key("web"), Some(record(&web, Health::Progressing)), desk.now);
        assert!(taken_from(&mut desk), "{owners:?}");
    }
}

/// The next roll waits until the rolled workload is healthy. A failure holds the other workloads.
#[test]
fn max_in_flight_waits_for_health() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let limit = json!({annotations::MAX_IN_FLIGHT: "1"});
    let green = json!({"color": "green"});
    let mut desk = Desk::new();
    let workloads = ["a", "b", "c"].map(|workload| (workload, stored(&mut world, workload)));
    for (workload, object) in &workloads {
        desk.state.apply_workload(&key(workload), Some(record(object, Health::Settled)), desk.now);
    }
    desk.act(&green, &limit, "2");
    world.set("demo", green.clone());
    desk.pass(2);
    let pokes = |desk: &mut Desk| -> Vec<WorkloadKey> {
        let actions = desk.actions();
        for (task, _) in &actions {
            desk.state.finish(task, Ok(Outcome::Done), desk.now);
        }
        let poked = actions.into_iter().filter_map(|(_, action)| match action {
            Action::Poke { workload, .. } => Some(workload),
            _ => None,
        });
        poked.collect()
    };
    let first = pokes(&mut desk);
    assert_eq!(first.len(), 1, "{first:?}");
    let object = &workloads.iter().find(|(workload, _)| *workload == &*first[0].name).unwrap().1;
    let rolled = world.update(&deployment(&["demo"]), object);
    let mut rolled = rolled.clone();
    rolled["metadata"]["name"] = json!(&*first[0].name);
    for (health, more) in [(Health::Progressing, 0), (Health::Failed, 0), (Health::Settled, 1)] {
        desk.state.apply_workload(&first[0], Some(record(&rolled, health)), desk.now);
        desk.pass(2);
        assert_eq!(pokes(&mut desk).len(), more, "{health:?}");
        assert!(more > 0 || desk.state.held() > 0, "{health:?}: the others are not held");
    }
}

/// Lists leave out the kind of their objects.
#[test]
fn listed_workload_without_kind_counts_as_failed() {
    let mut world = World::default();
    let (limit, green) = (json!({annotations::MAX_IN_FLIGHT: "1"}), json!({"color": "green"}));
    world.set("demo", json!({"color": "blue"}));
    let (a, b) = (stored(&mut world, "a"), stored(&mut world, "b"));
    world.set("demo", green.clone());
    // One workload rolled to the change and failed, before this replica started.
    let mut failed = world.update(&deployment(&["demo"]), &a);
    let (name, uid) = (&a["metadata"]["name"], &a["metadata"]["uid"]);
    let annotations = failed["metadata"]["annotations"].clone();
    failed["metadata"] = json!({
        "name": name, "uid": uid, "generation": 2, "annotations": annotations,
        "labels": {annotations::ENABLED: "true"},
    });
    let gave_up = json!({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"});
    failed["status"] = json!({"observedGeneration": 2, "conditions": [gave_up]});
    for fails in [true, false] {
        let (mut desk, mut listing, subject) = (Desk::new(), None, WorkloadsSubject(key("a").kind));
        for mut object in [failed.clone(), b.clone()] {
            object["metadata"]["namespace"] = json!("ns");
            object.as_object_mut().unwrap().remove("kind");
            if !fails {
                object["status"] = json!({
                    "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
                });
            }
            let partial: RawObject = serde_json::from_value(object).unwrap();
            take(&subject, &mut desk.state, watcher::Event::InitApply(partial), &mut listing, desk.now);
        }
        desk.act(&green, &limit, "2");
        let mut pokes = 0;
        for _ in 0..5 {
            desk.pass(2);
            let actions = desk.act(&green, &limit, "2");
            pokes += actions.iter().filter(|action| matches!(action, Action::Poke { .. })).count();
        }
        assert_eq!(pokes == 0, fails, "{pokes} pokes");
    }
}

#[test]
fn blocked_restore_backs_off() {
    let (_, _, mut desk) = web_on_blue();
    let mut tried = 0;
    for _ in 0..600 {
        desk.now += SignedDuration::from_millis(500);
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Restore { .. } => {
                    tried += 1;
                    Err(ApiError::Conflict { what: "restore".to_owned() })
                }
                Action::Read(_) => Ok(Outcome::Read(None)),
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
    }
    assert!((5..20).contains(&tried), "{tried} times in five minutes");
}
