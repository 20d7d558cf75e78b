//! The controller's Events: what it reports, how often, and what it does not report.

use confrev::{
    annotations,
    cluster::{ApiError, Event},
    controller::{Action, ObjectStep, Outcome, Task},
    kinds::REVISION_KINDS,
    resolve::{Health, Record, Use},
    telemetry::metrics::Reason,
    world::{Name, Revision, RevisionKey, SourceMeta, SourceRecord},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    controller::{BLUE, Desk, key, name, observed, record, snapshot},
    story::{GREEN, poke, undo, world},
    world::{configmap, deployment, volume},
};

impl Desk {
    /// Lets time pass. Every read finds this content, and every Event is written. Returns the Events.
    fn tell(&mut self, seconds: i64, data: &Value) -> Vec<Event> {
        let mut told = Vec::new();
        for _ in 0..seconds * 10 {
            told.extend(self.act(data, &json!({}), "9").into_iter().filter_map(|action| match action {
                Action::WriteEvent(event) => Some(*event),
                _ => None,
            }));
            self.now += SignedDuration::from_millis(100);
        }
        told
    }

    /// Lets the restore of a snapshot find no content. Events stay queued.
    fn look_in_vain_once(&mut self, snapshot: &Name) {
        let task = Task::Object(snapshot.clone(), ObjectStep::Restore);
        let (due, _) = self.actions().into_iter().find(|(due, _)| *due == task).unwrap();
        self.state.finish(&due, Ok(Outcome::Lost), self.now);
    }

    /// Executes the tasks that are due. Every poke has this outcome, which the watch may report before the response.
    fn poked(&mut self, after: &Value, watch_first: bool) -> usize {
        let mut pokes = 0;
        for (task, action) in self.actions() {
            let outcome = match action {
                Action::Poke { .. } => {
                    pokes += 1;
                    let after = record(after, Health::Settled);
                    if watch_first {
                        self.state.apply_workload(&key("web"), Some(after.clone()), self.now);
                    }
                    Outcome::Poked(Box::new(after))
                }
                _ => Outcome::Done,
            };
            self.state.finish(&task, Ok(outcome), self.now);
        }
        pokes
    }
}

fn said(events: &[Event]) -> Vec<String> {
    events
        .iter()
        .map(|event| format!("{} {}: {}", event.reason.text(), event.regarding.kind, event.note))
        .collect()
}

fn green() -> Value {
    json!({"color": "green"})
}

/// A desk that knows the snapshots and a workload. The present content is green.
fn desk(web: &Value) -> Desk {
    let mut desk = Desk::new();
    for (snapshot_name, color) in [(BLUE, "blue"), (GREEN, "green")] {
        desk.state.apply_snapshot(&name(snapshot_name), Some(snapshot(color, "1", &[])), desk.now);
    }
    desk.state.apply_workload(&key("web"), Some(record(web, Health::Settled)), desk.now);
    desk.act(&green(), &json!({}), "2");
    desk
}

/// A Deployment before a change, after the roll, and after an undo.
pub(crate) fn three() -> [Value; 3] {
    let mut world = world("blue");
    let first = world.create(&deployment(&["demo"]));
    world.set("demo", green());
    let second = poke(&mut world, &first, 1);
    let undone = world.update(&undo(&second, &first), &second);
    [first, second, undone]
}

/// One Event on each.
#[test]
fn roll_is_reported_on_workload_and_source() {
    let [first, second, _] = three();
    for watch_first in [false, true] {
        let mut desk = desk(&first);
        desk.pass(1);
        assert_eq!(desk.poked(&second, watch_first), 1);
        let events = desk.tell(30, &green());
        assert_eq!(
            said(&events),
            [
                format!("Rolled Deployment: ConfigMap \"demo\" changed: from {BLUE} to {GREEN}"),
                format!("Rolled ConfigMap: {GREEN} is now used by Deployment/web"),
            ]
        );
        assert_eq!(events[0].related.as_ref(), Some(&events[1].regarding));
    }
}

/// Two sources changed, and the template refers to one of them in two ways.
#[test]
fn roll_to_two_changes_is_one_event() {
    let mut world = world("blue");
    world.set("other", json!({"n": "1"}));
    let mut object = deployment(&["demo", "other"]);
    object["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "C", "valueFrom": {"configMapKeyRef": {"name": "demo", "key": "color"}}}]);
    let first = world.create(&object);
    world.set("demo", green());
    world.set("other", json!({"n": "2"}));
    let second = poke(&mut world, &first, 1);
    let mut desk = desk(&first);
    desk.pass(1);
    assert_eq!(desk.poked(&second, false), 1);
    let told = said(&desk.tell(30, &green()));
    let [from, to] = [&first, &second].map(|object| volume(object, 1));
    assert_eq!(
        told[0],
        format!(
            "Rolled Deployment: ConfigMap \"demo\" changed: from {BLUE} to {GREEN}; \
             ConfigMap \"other\" changed: from {from} to {to}"
        )
    );
}

#[test]
fn held_change_is_reported_once_on_source() {
    let [first, second, _] = three();
    let limit = json!({annotations::MAX_IN_FLIGHT: "1"});
    let mut desk = Desk::new();
    let failed = Record { health: Health::Failed, ..named("a", &second) };
    desk.state.apply_workload(&key("a"), Some(failed), desk.now);
    for waiting in ["b", "c"] {
        desk.state.apply_workload(&key(waiting), Some(named(waiting, &first)), desk.now);
    }
    let mut told = Vec::new();
    for _ in 0..60 {
        told.extend(desk.act(&green(), &limit, "2").into_iter().filter_map(|action| match action {
            Action::WriteEvent(event) if event.reason == Reason::RollHeld => Some(*event),
            _ => None,
        }));
        desk.pass(1);
    }
    let [event] = &told[..] else { panic!("{told:?}") };
    assert_eq!(event.regarding.kind, "ConfigMap");
    assert!(
        event.note.starts_with(&format!("2 workloads are held: Deployment/a failed with {GREEN}. ")),
        "{}",
        event.note
    );
    assert!(
        event.same.parse::<Timestamp>().is_ok(),
        "the number of held workloads makes no new Event: {}",
        event.same
    );
    assert_eq!(desk.state.held(), 2);
    desk.state.reconcile_all(desk.now);
    assert_eq!(desk.state.held(), 0, "a new leader has held no workload yet");
}

/// The hold ends because the workload recovers, is put back, or because the source changes.
#[test]
fn end_of_hold_is_reported_once_on_source() {
    let [first, second, undone] = three();
    let limit = json!({annotations::MAX_IN_FLIGHT: "1"});
    let held = |desk: &mut Desk, data: &Value, version: &str| {
        let mut told = Vec::new();
        for _ in 0..20 {
            told.extend(desk.act(data, &limit, version).into_iter().filter_map(|action| match action {
                Action::WriteEvent(event) => Some(*event),
                _ => None,
            }));
            desk.pass(1);
        }
        told.retain(|event| matches!(event.reason, Reason::RollHeld | Reason::RollReleased));
        said(&told)
    };
    let failed = |object: &Value| Record { health: Health::Failed, ..named("a", object) };
    let start = || {
        let mut desk = Desk::new();
        for (snapshot_name, color) in [(BLUE, "blue"), (GREEN, "green")] {
            desk.state.apply_snapshot(&name(snapshot_name), Some(snapshot(color, "1", &[])), desk.now);
        }
        desk.state.apply_workload(&key("a"), Some(failed(&second)), desk.now);
        desk.state.apply_workload(&key("b"), Some(named("b", &first)), desk.now);
        let told = held(&mut desk, &green(), "2");
        assert!(
            told.len() == 1 && told[0].starts_with("RollHeld ConfigMap: 1 workload is held: "),
            "{told:?}"
        );
        desk
    };
    let mut recovered = start();
    let gate = |data: Value| {
        let (demo, content) = (name("demo"), SourceRecord::of(&observed(data, limit.clone(), "5")));
        let objections = recovered.state.objections(&demo, &content, recovered.now);
        objections.first().map(|objection| objection.why.gate().name())
    };
    assert_eq!(gate(green()), Some("failed"));
    assert_eq!(gate(json!({"color": "red"})), None);
    recovered.state.apply_workload(&key("a"), Some(named("a", &second)), recovered.now);
    let note = format!("RollReleased ConfigMap: Deployment/a no longer holds the roll to {GREEN}");
    assert_eq!(held(&mut recovered, &green(), "2"), [format!("{note}: the next workloads roll")]);
    // It fails again.
    let mut again = start();
    again.state.apply_workload(&key("a"), Some(failed(&undone)), again.now);
    let told = held(&mut again, &green(), "2");
    assert!(
        told.len() == 1 && told[0].contains(&format!("Deployment/a was rolled back from {GREEN}")),
        "{told:?}"
    );
    let mut replaced = start();
    let meta = SourceMeta { resource_version: "3".to_owned(), always: false };
    replaced.state.apply_source(&name("demo"), Some(&meta), replaced.now);
    assert_eq!(held(&mut replaced, &json!({"color": "blue"}), "3"), [format!("{note}: the source changed")]);
}

/// A pin ends by a roll, or because the source returns to its content.
#[test]
fn end_of_pin_is_reported_on_both() {
    let [_, second, undone] = three();
    let mut desk = desk(&undone);
    let version = |object: &Value, version: &str| Record {
        resource_version: version.into(),
        ..record(object, Health::Settled)
    };
    let pin = desk.state.pin(&key("web"), &name("demo")).expect("it is pinned");
    assert!(pin.ends_with(&observed(json!({"color": "red"}), json!({}), "5")));
    for (round, again) in [("10", "11"), ("12", "13")] {
        desk.state.apply_workload(&key("web"), Some(version(&second, round)), desk.now);
        let note = format!("no longer keeps {BLUE}: uses {GREEN}");
        let told = said(&desk.tell(30, &green()));
        assert_eq!(
            told,
            [format!("Unpinned Deployment: {note}"), format!("Unpinned ConfigMap: Deployment/web: {note}")]
        );
        desk.state.apply_workload(&key("web"), Some(version(&undone, again)), desk.now);
        assert_eq!(desk.tell(30, &green()).len(), 2, "the pin is reported again");
    }
}

/// An undo shows that the content failed.
#[test]
fn undone_workload_holds_the_others() {
    let [first, second, undone] = three();
    let limit = json!({annotations::MAX_IN_FLIGHT: "1"});
    for (stored, holds) in [(&second, false), (&undone, true)] {
        let mut desk = desk(stored);
        desk.state.apply_workload(&key("waiting"), Some(named("waiting", &first)), desk.now);
        // The limit is part of a new version of the source.
        let meta = SourceMeta { resource_version: "3".to_owned(), always: false };
        desk.state.apply_source(&name("demo"), Some(&meta), desk.now);
        let mut pokes = 0;
        for _ in 0..5 {
            let actions = desk.act(&green(), &limit, "3");
            pokes += actions.iter().filter(|action| matches!(action, Action::Poke { .. })).count();
            desk.pass(1);
        }
        assert_eq!(pokes == 0, holds, "{pokes} pokes");
    }
}

/// A workload of that name.
fn named(name: &str, object: &Value) -> Record {
    Record { uid: format!("uid-{name}").into(), ..record(object, Health::Settled) }
}

/// Rolls `count` workloads to a change, beside `missing` workloads whose source is missing. Every Event takes `millis` to write.
/// Returns the Events and their times.
fn many(count: usize, missing: usize, millis: i64) -> (Desk, Vec<(Timestamp, Event)>) {
    let [first, second, _] = three();
    let mut desk = desk(&second);
    for number in 0..count {
        let name = format!("w{number}");
        desk.state.apply_workload(&key(&name), Some(named(&name, &first)), desk.now);
    }
    let nowhere = deployment(&["nowhere"]);
    for number in 0..missing {
        let name = format!("m{number}");
        desk.state.apply_workload(&key(&name), Some(named(&name, &nowhere)), desk.now);
    }
    let mut events = Vec::new();
    for _ in 0..6000 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Poke { workload, .. } => Outcome::Poked(Box::new(named(&workload.name, &second))),
                Action::Read(_) => Outcome::Read(None),
                Action::WriteEvent(event) => {
                    events.push((desk.now, *event));
                    desk.now += SignedDuration::from_millis(millis);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.now += SignedDuration::from_millis(10);
    }
    (desk, events)
}

/// The source of many workloads gets one Event for each content.
#[test]
fn events_are_limited_to_ten_per_second() {
    let (mut desk, events) = many(60, 0, 1);
    let of_source = events.iter().filter(|(_, event)| event.regarding.kind == "ConfigMap").count();
    assert_eq!((events.len(), of_source), (61, 1));
    for (at, _) in &events {
        let second =
            events.iter().filter(|(other, _)| (0..1000).contains(&other.duration_since(*at).as_millis()));
        assert!(second.count() <= 10, "from {at}");
    }
    assert!(desk.state.take_dropped_events().is_empty());
}

#[test]
fn overload_drops_events_but_never_warnings() {
    let (mut desk, events) = many(300, 30, 1000);
    let warned = events.iter().filter(|(_, event)| event.reason == Reason::SourceMissing).count();
    assert_eq!(warned, 30);
    let dropped = desk.state.take_dropped_events();
    assert!(dropped.len() > 100 && dropped.iter().all(|reason| *reason == Reason::Rolled), "{dropped:?}");
    assert_eq!(events.len() + dropped.len(), 300 + 1 + 30, "each roll, the source, and each missing source");
}

/// It is not reported again while it holds, nor when the controller starts.
#[test]
fn undo_is_reported_once_on_workload_and_source() {
    let [_, second, undone] = three();
    let mut rolled = desk(&second);
    assert_eq!(said(&rolled.tell(30, &green())), [""; 0]);
    rolled.state.apply_workload(&key("web"), Some(record(&undone, Health::Settled)), rolled.now);
    let events = rolled.tell(30, &green());
    assert_eq!(events[0].related.as_ref(), Some(&events[1].regarding));
    let told = said(&events);
    assert!(
        told[0].starts_with(&format!("Pinned Deployment: keeps {BLUE}, which is not the present content"))
    );
    assert_eq!(
        told[1..],
        [format!("Pinned ConfigMap: Deployment/web keeps {BLUE}, which is not the present content")]
    );
    rolled.state.apply_workload(&key("web"), Some(record(&undone, Health::Failed)), rolled.now);
    assert_eq!(said(&rolled.tell(3600, &green())), [""; 0]);
    rolled.state.apply_workload(&key("web"), Some(record(&undone, Health::Settled)), rolled.now);
    assert_eq!(said(&rolled.tell(30, &green())), [""; 0]);
    let mut restarted = desk(&undone);
    assert_eq!(said(&restarted.tell(3600, &green())), [""; 0]);
}

/// It is not reported if it is created in time, or was missing when the controller started.
#[test]
fn missing_source_is_reported_after_a_delay() {
    let object = deployment(&["demo"]);
    let mut desk = Desk::new();
    let missing = |desk: &mut Desk, seconds: usize| {
        let mut events = Vec::new();
        for _ in 0..seconds {
            for (task, action) in desk.actions() {
                let outcome =
                    if matches!(action, Action::Read(_)) { Outcome::Read(None) } else { Outcome::Done };
                if let Action::WriteEvent(event) = action {
                    events.push(*event);
                }
                desk.state.finish(&task, Ok(outcome), desk.now);
            }
            desk.pass(1);
        }
        said(&events)
    };
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
    assert_eq!(missing(&mut desk, 9), [""; 0]);
    let note = "SourceMissing Deployment: ConfigMap \"demo\" does not exist: pods that refer to it do not start until \
                it does";
    assert_eq!(missing(&mut desk, 60), [note]);
    // The status of the workload changes.
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Failed)), desk.now);
    assert_eq!(missing(&mut desk, 3600), [""; 0]);
    // The source is created in time.
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
    assert_eq!(said(&desk.tell(60, &green())), [""; 0]);
    // The source was missing when the controller started.
    let mut desk = Desk::unsynced();
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
    desk.state.set_synced();
    assert_eq!(missing(&mut desk, 3600), [""; 0]);
}

/// The Events name the revisions that refer to the snapshot.
#[test]
fn lost_and_restored_snapshots_are_reported() {
    let [first, second, _] = three();
    for (outcome, reason, part) in [
        (Outcome::Lost, "SnapshotLost", "its content is lost"),
        (Outcome::Taken, "SnapshotLost", "its name is taken by an object that is not a snapshot"),
        (Outcome::Restored, "SnapshotRestored", "was recreated"),
    ] {
        let mut desk = desk(&second);
        let set = RevisionKey {
            kind: REVISION_KINDS.iter().position(|kind| kind.kind == "ReplicaSet").unwrap(),
            namespace: "ns".into(),
            name: "web-1".into(),
        };
        let used = Use {
            source: configmap("demo"),
            snapshot: Some(BLUE.into()),
            live: false,
            whole: true,
            excluded: false,
            unless_labelled: confrev::resolve::ExcludedLabels::default(),
            optional: false,
            on_hold: false,
        };
        let revision = Revision { uid: "rs".into(), uses: vec![used] };
        desk.state.apply_revision(&set, Some(revision), desk.now);
        desk.state.apply_workload(&key("old"), Some(record(&first, Health::Settled)), desk.now);
        desk.state.apply_snapshot(&name(BLUE), None, desk.now);
        let task = Task::Object(name(BLUE), ObjectStep::Restore);
        let is_due = |desk: &mut Desk| desk.actions().iter().any(|(due, _)| *due == task);
        assert!(is_due(&mut desk), "the snapshot is restored");
        let is_taken = matches!(outcome, Outcome::Taken);
        if is_taken || matches!(outcome, Outcome::Lost) {
            let first = if is_taken { Outcome::Taken } else { Outcome::Lost };
            desk.state.finish(&task, Ok(first), desk.now);
            desk.pass(5);
            assert!(is_due(&mut desk), "a second attempt follows: another replica may remember it");
        }
        desk.state.finish(&task, Ok(outcome), desk.now);
        let mut told = desk.tell(5, &green());
        told.retain(|event| event.reason.text() == reason);
        let regarding: Vec<_> = told.iter().map(|event| event.regarding.kind.as_str()).collect();
        assert_eq!(regarding, ["ConfigMap", "Deployment", "ReplicaSet"], "{told:?}");
        for event in &told {
            assert!(event.note.contains(BLUE) && event.note.contains("ReplicaSet web-1"), "{}", event.note);
            assert!(event.note.contains(part), "{}", event.note);
            assert_eq!(event.same, BLUE, "other users of the snapshot make no new Event");
        }
    }
}

#[test]
fn lost_snapshot_names_three_of_its_users() {
    let [first, ..] = three();
    for (users, more) in [(2, None), (3, None), (4, Some("1 more")), (6, Some("3 more"))] {
        let mut desk = desk(&first);
        for number in 1..users {
            let other = format!("other-{number}");
            desk.state.apply_workload(&key(&other), Some(named(&other, &first)), desk.now);
        }
        desk.state.apply_snapshot(&name(BLUE), None, desk.now);
        desk.pass(2);
        assert!(desk.look_in_vain().contains(&name(BLUE)));
        desk.pass(5);
        desk.look_in_vain_once(&name(BLUE));
        let told = desk.tell(5, &green());
        let event = told.iter().find(|event| event.reason == Reason::SnapshotLost).unwrap();
        let named = event.note.matches("Deployment ").count();
        assert_eq!(named, users.min(3), "{}", event.note);
        assert_eq!(event.note.contains(" more"), more.is_some(), "{}", event.note);
        assert!(event.note.contains(more.unwrap_or_default()), "{}", event.note);
    }
}

/// After a temporary error there are three attempts, after any other error one.
#[test]
fn retries_events_only_after_temporary_errors() {
    let [first, second, _] = three();
    let what = String::new;
    let refused = |code| ApiError::Refused { what: what(), code, message: String::new() };
    let cases: [(&dyn Fn() -> ApiError, usize); 6] = [
        (&|| ApiError::Late { what: what(), seconds: 10 }, 3),
        (&|| ApiError::NotFound { what: what() }, 1),
        (&|| ApiError::Terminating { what: what() }, 1),
        (&|| refused(500), 3),
        (&|| refused(429), 3),
        (&|| refused(403), 1),
    ];
    for (error, tries) in cases {
        let mut desk = desk(&first);
        desk.pass(1);
        desk.poked(&second, false);
        let mut tried = Vec::new();
        for _ in 0..600 {
            for (task, action) in desk.actions() {
                let outcome = match action {
                    Action::WriteEvent(event) => {
                        tried.push(event.regarding.kind.clone());
                        Err(error())
                    }
                    _ => Ok(Outcome::Done),
                };
                desk.state.finish(&task, outcome, desk.now);
            }
            desk.pass(1);
        }
        let of = |kind: &str| tried.iter().filter(|tried| *tried == kind).count();
        assert_eq!((of("Deployment"), of("ConfigMap")), (tries, tries), "{:?}", error());
    }
}

/// When it becomes the leader, it does not report earlier changes.
#[test]
fn follower_reports_no_events() {
    let [_, second, undone] = three();
    let mut desk = desk(&second);
    let other = |object| Some(named("other", object));
    desk.state.apply_workload(&key("other"), other(&second), desk.now);
    desk.state.apply_workload(&key("web"), Some(record(&undone, Health::Settled)), desk.now);
    desk.state.leave_to_the_leader();
    assert_eq!(said(&desk.tell(60, &green())), [""; 0]);
    // It becomes the leader, and reports later changes.
    desk.state.apply_workload(&key("other"), other(&undone), desk.now);
    let told = desk.tell(60, &green());
    let about: Vec<_> = told.iter().map(|event| event.regarding.uid.as_str()).collect();
    assert_eq!(about, ["uid-other", "u"], "{:?}", said(&told));
}

/// Events name snapshots, and contain nothing of their content.
#[test]
fn events_never_contain_content() {
    let [first, second, undone] = three();
    let mut events = Vec::new();
    let mut desk = desk(&first);
    desk.pass(1);
    desk.poked(&second, false);
    events.extend(desk.tell(5, &green()));
    desk.state.apply_workload(&key("web"), Some(record(&undone, Health::Settled)), desk.now);
    events.extend(desk.tell(5, &green()));
    assert!(events.len() >= 4);
    for event in events {
        let text = event.to_json().to_string();
        assert!(!text.contains("green") && !text.contains("blue"), "{text}");
    }
}
