//! Groups of namespaces: one change, one sequence of waves over all workloads, and one end if it fails.
//!
//! A fleet of namespaces in memory runs through whole changes. After each move, the promise is checked: no more workloads have
//! moved than the wave allows. The controller is restarted at any action.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev::{
    annotations,
    controller::{Action, Outcome, VerdictSet},
    resolve::{
        Health::{self, Failed, Progressing, Settled},
        Verdict,
    },
    snapshot::{ObjectName, SourceKind},
    world::{Name, NamespaceSettings, SnapshotRecord, WorkloadKey},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, record, stored},
    story::poke,
    world::{World, configmap, volume},
};

/// The bake time in seconds.
const BAKE: i64 = 20;

/// A workload, and its number in the fleet.
struct Load {
    number: usize,
    object: Value,
    health: Health,
}

/// The namespaces of a group, with their workloads, and the leader that rolls them.
struct Fleet {
    desk: Desk,
    worlds: BTreeMap<Arc<str>, World>,
    loads: BTreeMap<WorkloadKey, Load>,
    version: usize,
    /// The color, and the workloads that fail with it.
    bad: (&'static str, fn(usize) -> bool),
    /// How many workloads may have moved before all that have moved must be proven.
    ends: Vec<usize>,
    /// The actions until the controller is killed, after the action's effect and before it knows the outcome.
    until_kill: Option<usize>,
    pokes: usize,
    /// How often the controller has called the API server, by action.
    calls: BTreeMap<String, usize>,
    /// The annotation `order` of a namespace.
    order: Option<(&'static str, i32)>,
    /// The namespaces with the label `group-revert`.
    revert_with_group: fn(&str) -> bool,
    /// The Events, by namespace.
    events: BTreeMap<Arc<str>, Vec<String>>,
}

impl Fleet {
    /// `settings` of the source in each namespace, by the namespace's number.
    fn new(namespaces: usize, each: usize, settings: impl Fn(usize) -> Value) -> Self {
        let mut fleet = Self {
            desk: Desk::new(),
            worlds: BTreeMap::new(),
            loads: BTreeMap::new(),
            version: 1,
            bad: ("", |_| false),
            ends: Vec::new(),
            until_kill: None,
            pokes: 0,
            calls: BTreeMap::new(),
            order: None,
            revert_with_group: |_| false,
            events: BTreeMap::new(),
        };
        for number in 0..namespaces {
            let namespace: Arc<str> = format!("ns-{number:03}").into();
            let mut world = World::default();
            set(&mut world, "blue", &settings(number), 1);
            for of in 0..each {
                let name = format!("web-{of}");
                let object = stored(&mut world, &name);
                let key = WorkloadKey { namespace: Arc::clone(&namespace), ..key(&name) };
                let number = number * each + of;
                fleet.loads.insert(key, Load { number, object, health: Settled });
            }
            fleet.worlds.insert(namespace, world);
        }
        fleet.restart();
        fleet
    }

    /// Another leader, which knows what the watches report.
    fn restart(&mut self) {
        let now = self.desk.now;
        self.desk = Desk::new();
        self.desk.now = now;
        for namespace in self.worlds.keys() {
            let order = self.order.filter(|(name, _)| *name == &**namespace).map(|(_, order)| Ok(order));
            let group_revert = (self.revert_with_group)(namespace);
            let group = Some("shop".into());
            let settings = NamespaceSettings { group, group_revert, order, ..NamespaceSettings::default() };
            self.desk.state.apply_namespace_settings(namespace, settings, now);
        }
        let namespaces: Vec<_> = self.worlds.keys().cloned().collect();
        for namespace in &namespaces {
            self.report_snapshots(namespace);
        }
        for (key, load) in &self.loads {
            self.desk.state.apply_workload(key, Some(record(&load.object, load.health)), now);
        }
    }

    fn report_snapshots(&mut self, namespace: &Arc<str>) {
        for (name, object) in &self.worlds[namespace].objects {
            let annotations = &object["metadata"]["annotations"];
            let Some(digest) = annotations[annotations::DIGEST].as_str() else { continue };
            let snapshot = SnapshotRecord {
                uid: format!("uid-{}", name.name).as_str().into(),
                resource_version: annotations.to_string().into(),
                source: "demo".into(),
                digest: digest.parse().unwrap(),
                created: Timestamp::UNIX_EPOCH,
                late: 0,
                owners: [].into_iter().collect(),
                verdict: Verdict::read(|key| annotations[key].as_str()).map(Box::new),
                bytes: 1024,
            };
            let name = Name::new(Arc::clone(namespace), name.clone());
            self.desk.state.apply_snapshot(&name, Some(snapshot), self.desk.now);
        }
    }

    /// Writes the source in one namespace.
    fn write(&mut self, namespace: &Arc<str>, color: &str) {
        self.version += 1;
        let world = self.worlds.get_mut(namespace).unwrap();
        let settings = world.objects[&configmap("demo")]["metadata"]["annotations"].clone();
        set(world, color, &settings, self.version);
        let meta = confrev::world::SourceMeta { resource_version: self.version.to_string(), always: false };
        let name = Name::new(Arc::clone(namespace), ObjectName::new(SourceKind::ConfigMap, "demo"));
        self.desk.state.apply_source(&name, Some(&meta), self.desk.now);
    }

    /// Writes the sources of all namespaces one after the other, while the controller runs.
    fn write_all(&mut self, color: &str) {
        let namespaces: Vec<_> = self.worlds.keys().cloned().collect();
        for namespace in namespaces {
            self.write(&namespace, color);
            self.pass(1);
        }
    }

    /// The workloads whose templates have this content.
    fn on(&self, color: &str) -> BTreeSet<usize> {
        let name = Self::snapshot(color);
        let on = self.loads.values().filter(|load| volume(&load.object, 0) == name);
        on.map(|load| load.number).collect()
    }

    fn snapshot(color: &str) -> String {
        let mut world = World::default();
        set(&mut world, color, &json!({}), 1);
        let digest = world.observe(&configmap("demo")).unwrap().digest();
        confrev::snapshot::snapshot_name("demo", &digest, 10)
    }

    /// The controller acts on what is due.
    fn act(&mut self) {
        loop {
            for namespace in self.worlds.keys() {
                self.desk.state.set_referrers_listed(namespace, self.desk.now);
            }
            let Some((task, action)) = self.desk.state.next_action(self.desk.now) else { return };
            let outcome = self.execute(action);
            if let Some(left) = &mut self.until_kill {
                if *left == 0 {
                    self.until_kill = None;
                    self.restart();
                    continue;
                }
                *left -= 1;
            }
            self.desk.state.finish(&task, Ok(outcome), self.desk.now);
        }
    }

    fn execute(&mut self, action: Action) -> Outcome {
        let name = format!("{action:?}");
        let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
        *self.calls.entry(name).or_default() += 1;
        match action {
            Action::Read(name) => {
                Outcome::Read(self.worlds[&name.namespace].observe(&name.object).map(Box::new))
            }
            Action::Poke { workload, .. } => {
                let before: Vec<_> = self.loads.values().map(|load| (load.number, load.health)).collect();
                let world = self.worlds.get_mut(&workload.namespace).unwrap();
                let load = self.loads.get_mut(&workload).unwrap();
                let was = volume(&load.object, 0).to_owned();
                load.object = poke(world, &load.object, self.desk.now.as_second());
                load.health = Progressing;
                let (number, now_on) = (load.number, volume(&load.object, 0).to_owned());
                let known = record(&load.object, Progressing);
                self.pokes += 1;
                if now_on != was && now_on != Self::snapshot("blue") {
                    self.check_promise(&now_on, number, &before);
                }
                let namespace = Arc::clone(&workload.namespace);
                self.report_snapshots(&namespace);
                self.desk.state.apply_workload(&workload, Some(known.clone()), self.desk.now);
                Outcome::Poked(Box::new(known))
            }
            Action::SetVerdict { snapshot, version: before, verdict, had_failed, decision, .. } => {
                let world = self.worlds.get_mut(&snapshot.namespace).unwrap();
                let annotations =
                    &mut world.objects.get_mut(&snapshot.object).unwrap()["metadata"]["annotations"];
                annotations[annotations::VERDICT] = json!(verdict.text());
                let namespace = Arc::clone(&snapshot.namespace);
                self.report_snapshots(&namespace);
                let after = format!("{} with the mark", before.resource_version);
                Outcome::VerdictSet(VerdictSet { snapshot, before, after, verdict, had_failed, decision })
            }
            Action::WriteEvent(event) => {
                let events = self.events.entry(event.namespace).or_default();
                events.push(format!("{:?}: {}", event.reason, event.note));
                Outcome::Done
            }
            _ => Outcome::Done,
        }
    }

    /// The reason for which a namespace refuses a content.
    fn refusal(&self, namespace: &str, color: &str) -> Option<String> {
        let name = ObjectName::new(SourceKind::ConfigMap, Self::snapshot(color));
        let snapshot = self.worlds[namespace].objects.get(&name)?;
        let verdict = Verdict::read(|key| snapshot["metadata"]["annotations"][key].as_str())?;
        verdict.failed.map(|failed| failed.reason.into())
    }

    /// No wave begins before all workloads that moved are healthy.
    fn check_promise(&self, snapshot: &str, number: usize, before: &[(usize, Health)]) {
        let on: BTreeSet<_> = self
            .loads
            .values()
            .filter(|load| volume(&load.object, 0) == snapshot)
            .map(|load| load.number)
            .collect();
        let had_moved = on.len() - 1;
        if self.ends.contains(&had_moved) {
            let unproven: Vec<_> = before
                .iter()
                .filter(|(other, health)| *other != number && on.contains(other) && *health != Settled)
                .collect();
            assert!(unproven.is_empty(), "{number} moved while {unproven:?} of {on:?} were not proven");
        }
    }

    /// Lets seconds pass. The workloads' own controllers finish the rollouts meanwhile.
    fn pass(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.desk.pass(1);
            let bad = Self::snapshot(self.bad.0);
            for (key, load) in &mut self.loads {
                let is_bad = (self.bad.1)(load.number) && volume(&load.object, 0) == bad;
                let health = if is_bad { Failed } else { Settled };
                if load.health != health {
                    load.health = health;
                    let known = record(&load.object, health);
                    self.desk.state.apply_workload(key, Some(known), self.desk.now);
                }
            }
            self.act();
        }
    }
}

fn set(world: &mut World, color: &str, settings: &Value, version: usize) {
    let metadata =
        json!({"name": "demo", "uid": "u", "resourceVersion": version.to_string(), "annotations": settings});
    world.set_object("demo", json!({"metadata": metadata, "data": {"color": color}}));
}

fn waves() -> Value {
    json!({annotations::WAVES: "1, 10%, 50%", annotations::BAKE: format!("{BAKE}s"), annotations::ON_FAILURE: "revert"})
}

/// A content with which every other workload fails, then its correction. Returns whether the controller was killed.
fn bad_change(namespaces: usize, each: usize, ends: &[usize], until_kill: Option<usize>) -> bool {
    let mut fleet = Fleet::new(namespaces, each, |_| waves());
    fleet.revert_with_group = |_| true;
    fleet.restart();
    fleet.ends = ends.to_vec();
    fleet.act();
    fleet.until_kill = until_kill;
    fleet.bad = ("red", |number| number % 2 == 1);
    fleet.write_all("red");
    let mut most = BTreeSet::new();
    for _ in 0..90 {
        fleet.pass(1);
        most.extend(fleet.on("red"));
    }
    assert!(ends.last().is_some_and(|last| most.len() <= *last), "{most:?}");
    assert!(most.iter().any(|number| number % 2 == 1), "a workload failed: {most:?}");
    let all: BTreeSet<_> = (0..namespaces * each).collect();
    assert_eq!(fleet.on("blue"), all, "all went back");
    let pokes = fleet.pokes;
    fleet.pass(300);
    assert_eq!(fleet.pokes, pokes, "nothing rolls forward");
    // No workload of any namespace resolves to it, as the mark is in all namespaces that have the snapshot.
    fleet.write_all("green");
    for _ in 0..200 {
        fleet.pass(1);
    }
    assert_eq!(fleet.on("green"), all, "the correction goes through all waves");
    fleet.until_kill.is_none()
}

#[test]
fn group_moves_in_one_sequence_and_reverts_together() {
    bad_change(4, 8, &[1, 3, 16], None);
}

/// Each action is once the last one of a leader: its effect is in the cluster, and no leader knows the outcome.
#[test]
fn leader_killed_at_each_action_keeps_the_wave() {
    let killed = (0..).step_by(5).take_while(|action| bad_change(3, 3, &[1, 4], Some(*action))).count();
    assert!(killed > 10, "{killed}");
}

/// Two namespaces with four workloads each, whose sources revert. Those of the second namespace fail with red and grey.
fn two_tenants(revert_with_group: fn(&str) -> bool) -> (Fleet, [Arc<str>; 2]) {
    let mut fleet = Fleet::new(2, 4, |_| json!({annotations::ON_FAILURE: "revert"}));
    fleet.revert_with_group = revert_with_group;
    fleet.restart();
    fleet.act();
    let namespaces = ["ns-000", "ns-001"].map(Arc::from);
    fleet.bad = ("red", |number| number >= 4);
    (fleet, namespaces)
}

const FIRST: [usize; 4] = [0, 1, 2, 3];

/// The workloads of the first namespace have finished a change. Those of the second one fail with the same content.
#[test]
fn failure_takes_back_its_own_namespace_alone() {
    let (mut fleet, [first, second]) = two_tenants(|_| false);
    fleet.write(&first, "red");
    fleet.pass(5);
    assert_eq!(fleet.on("red"), BTreeSet::from(FIRST));
    fleet.write(&second, "red");
    for _ in 0..60 {
        fleet.pass(1);
        assert!(fleet.on("red").is_superset(&FIRST.into()), "{:?}", fleet.on("red"));
    }
    assert_eq!(fleet.on("red"), BTreeSet::from(FIRST), "the second namespace went back");
    assert_eq!(fleet.refusal(&first, "red"), None);
    assert!(fleet.refusal(&second, "red").is_some_and(|reason| reason.starts_with("Deployment/web-")));
    let told = fleet.events.remove(&first).unwrap_or_default();
    assert!(!told.iter().any(|event| event.contains("efused") || event.contains("ns-001")), "{told:?}");
}

/// The second namespace fails with a content that the first one has not begun.
#[test]
fn failure_holds_the_other_namespaces_until_it_ends() {
    let (mut fleet, [first, second]) = two_tenants(|_| false);
    fleet.write(&second, "red");
    fleet.pass(30);
    assert!(fleet.refusal(&second, "red").is_some());
    fleet.write(&first, "red");
    fleet.pass(30);
    assert_eq!((fleet.on("red").len(), fleet.refusal(&first, "red")), (0, None), "it is held");
    let told = fleet.events.get(&first).cloned().unwrap_or_default();
    let why = "4 workloads are held: a workload of another namespace of the group failed with demo-";
    assert!(told.iter().any(|event| event.starts_with("RollHeld: ") && event.contains(why)), "{told:?}");
    assert!(!told.iter().any(|event| event.contains("ns-001")), "{told:?}");
    // With other content, the second namespace is another change.
    fleet.write(&second, "green");
    fleet.pass(10);
    assert_eq!(fleet.on("red"), BTreeSet::from(FIRST));
}

/// The label is consent: it counts in the namespace that is taken back, and no other one is.
#[test]
fn label_extends_failures_to_its_namespace() {
    let (mut fleet, [first, second]) = two_tenants(|namespace| namespace == "ns-000");
    fleet.write(&first, "red");
    fleet.pass(5);
    fleet.write(&second, "red");
    fleet.pass(30);
    assert_eq!(fleet.on("red").len(), 0);
    let reason = fleet.refusal(&first, "red");
    assert_eq!(reason.as_deref(), Some("the change failed in another namespace of the group"));
    // A failure there does not reach the other one, which has no label.
    fleet.bad = ("grey", |number| number < 4);
    fleet.write(&second, "grey");
    fleet.pass(10);
    fleet.write(&first, "grey");
    fleet.pass(30);
    assert_eq!(fleet.on("grey"), BTreeSet::from([4, 5, 6, 7]));
    assert_eq!(fleet.refusal(&second, "grey"), None);
}

/// The settings of the strictest source count, so that a tenant cannot move workloads of others.
#[test]
fn strictest_source_of_group_decides() {
    let lax = |number| if number == 0 { json!({annotations::WAVES: "100%"}) } else { waves() };
    let mut fleet = Fleet::new(4, 8, lax);
    fleet.ends = vec![1, 3, 16];
    fleet.act();
    fleet.write_all("green");
    fleet.pass(3);
    assert_eq!(fleet.on("green").len(), 1);
    fleet.pass(BAKE + 3);
    assert_eq!(fleet.on("green").len(), 3);
    // A source without settings is held by the others, too.
    let none = |number| if number == 0 { json!({}) } else { waves() };
    let mut fleet = Fleet::new(2, 8, none);
    fleet.act();
    fleet.write_all("green");
    fleet.pass(3);
    assert_eq!(fleet.on("green").len(), 1);
}

/// Its workloads without a value of their own have the value of the Namespace.
#[test]
fn order_of_namespace_counts_without_own() {
    for (own, first) in [(None, "ns-002"), (Some("-5"), "ns-001")] {
        let mut fleet = Fleet::new(3, 4, |_| waves());
        fleet.order = Some(("ns-002", -1));
        for (key, load) in &mut fleet.loads {
            if let Some(own) = own.filter(|_| &*key.namespace == "ns-001") {
                load.object["metadata"]["annotations"][annotations::ORDER] = json!(own);
            }
        }
        fleet.restart();
        fleet.act();
        let namespaces: Vec<_> = fleet.worlds.keys().cloned().collect();
        for namespace in &namespaces {
            fleet.write(namespace, "green");
        }
        fleet.pass(3);
        let moved: Vec<_> = fleet.on("green").into_iter().map(|number| number / 4).collect();
        assert_eq!(moved, [first[3..].parse::<usize>().unwrap()], "{own:?}");
    }
}

/// Without settings, a group is only a label: a failure holds no other workload.
#[test]
fn group_without_settings_holds_nothing() {
    let mut fleet = Fleet::new(3, 4, |_| json!({}));
    fleet.act();
    fleet.bad = ("red", |number| number == 0);
    let first: Arc<str> = "ns-000".into();
    fleet.write(&first, "red");
    fleet.pass(5);
    assert_eq!(fleet.on("red").len(), 4);
    fleet.write_all("red");
    fleet.pass(3);
    assert_eq!(fleet.on("red").len(), 12);
}

/// A person stops the change in one namespace: that holds the others.
#[test]
fn one_namespace_holds_its_group() {
    let mut fleet = Fleet::new(3, 4, |_| waves());
    fleet.act();
    let first: Arc<str> = "ns-000".into();
    let mut aborted = waves();
    aborted[annotations::DECISION] =
        json!(format!("abort {} 9999-01-01T00:00:00Z", Fleet::snapshot("green")));
    let world = fleet.worlds.get_mut(&first).unwrap();
    world.objects.get_mut(&configmap("demo")).unwrap()["metadata"]["annotations"] = aborted;
    fleet.write_all("green");
    let before = fleet.on("green").len();
    fleet.pass(100);
    assert_eq!((before, fleet.on("green").len()), (0, 0));
    // With other content, the first namespace is a change of its own.
    fleet.write(&first, "grey");
    fleet.pass(3);
    assert_eq!((fleet.on("green").len(), fleet.on("grey").len()), (1, 1));
}

/// Each second, the watch reports each workload of the group again, while a wave bakes and while it is held.
#[test]
fn state_of_a_wave_needs_no_call() {
    for (bad, what) in [("", "the wave bakes"), ("green", "the wave is held")] {
        let mut hold = waves();
        hold[annotations::ON_FAILURE] = json!("hold");
        let mut fleet = Fleet::new(5, 8, |_| hold.clone());
        fleet.act();
        fleet.bad = (bad, |_| true);
        fleet.write_all("green");
        fleet.pass(3);
        fleet.pass(3);
        assert_eq!(fleet.on("green").len(), 1, "{what}");
        let before = fleet.calls.clone();
        for _ in 0..BAKE - 12 {
            for (key, load) in &mut fleet.loads {
                let version = format!("{} again", load.object["metadata"]["resourceVersion"]);
                load.object["metadata"]["resourceVersion"] = json!(version);
                fleet.desk.state.apply_workload(key, Some(record(&load.object, load.health)), fleet.desk.now);
            }
            fleet.pass(1);
        }
        assert_eq!((fleet.on("green").len(), &fleet.calls), (1, &before), "{what}");
    }
}

/// Only the Events differ, and the writes of owners: workloads that move at the same time share one.
#[test]
fn workload_in_waves_costs_no_more_calls() {
    let change = |settings: Value| {
        let mut fleet = Fleet::new(5, 8, |_| settings.clone());
        fleet.act();
        fleet.pass(5);
        fleet.calls.clear();
        fleet.write_all("green");
        for _ in 0..200 {
            fleet.pass(1);
        }
        assert_eq!(fleet.on("green").len(), 40, "{settings}");
        fleet.calls.remove("WriteEvent");
        let bound = fleet.calls.remove("SetOwners").unwrap_or_default();
        assert!((5..=40).contains(&bound), "{settings}: {bound} writes of owners");
        fleet.calls
    };
    let plain = change(json!({}));
    assert_eq!((plain.get("Poke"), plain.get("Read")), (Some(&40), Some(&5)), "{plain:?}");
    for settings in [waves(), json!({annotations::WAVES: "1"}), json!({annotations::MAX_IN_FLIGHT: "3"})] {
        assert_eq!(change(settings.clone()), plain, "{settings}");
    }
}
