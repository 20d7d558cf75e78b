//! Namespaces take turns: what one does delays the rolls, Events and notifications of another by a bounded time.

use std::sync::Arc;

use confrev::{
    cluster::{ApiError, Event},
    controller::{Action, Config, Outcome, State},
    kinds::Kinds,
    resolve::{Health, Record},
    telemetry::metrics::Reason,
    world::{Name, WorkloadKey},
};
use confrev_test_support::webhook_receiver::{Receiver, Reply};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{BLUE, Desk, key, name, observed, record, snapshot, stored},
    events::three,
    notifications::{count, event, notifier, until},
    story::GREEN,
    world::{World, deployment},
};

/// Rolls per second.
const RATE: u32 = 10;

/// A workload of another namespace than the one that the other tests use.
fn elsewhere(name: &str) -> WorkloadKey {
    WorkloadKey { namespace: "other".into(), ..key(name) }
}

/// A record of that name.
fn named(name: &str, record: &Record) -> Record {
    Record { uid: format!("uid-{name}").as_str().into(), ..record.clone() }
}

/// What a tenth of a second brings.
#[derive(Default)]
struct Tick {
    rolled: Vec<WorkloadKey>,
    written: Vec<Event>,
}

/// A desk, and what happens there.
struct Site {
    desk: Desk,
    /// A workload that has seen blue, and one whose source is missing.
    blue: Record,
    lacks: Record,
}

impl Site {
    fn new() -> Self {
        let mut world = World::default();
        world.set("demo", json!({"color": "blue"}));
        let blue = record(&stored(&mut world, "web"), Health::Settled);
        let lacks = record(&deployment(&["nowhere"]), Health::Settled);
        let mut desk = Desk::new();
        let config = Config { rolls_per_second: RATE, ..Config::default() };
        desk.state = State::new(Arc::new(Kinds::default()), config);
        desk.state.set_synced();
        Self { desk, blue, lacks }
    }

    /// The snapshots of the namespace other.
    fn add_snapshots(&mut self) {
        for (snapshot_name, color) in [(BLUE, "blue"), (GREEN, "green")] {
            let name = Name::new("other", name(snapshot_name).object);
            self.desk.state.apply_snapshot(&name, Some(snapshot(color, "1", &[])), self.desk.now);
        }
    }

    fn add(&mut self, key: &WorkloadKey, record: &Record) {
        let record = named(&format!("{}-{}", key.namespace, key.name), record);
        self.desk.state.apply_workload(key, Some(record), self.desk.now);
    }

    /// Lets a tenth of a second pass. All sources but nowhere are green. `written`: how an Event is written.
    fn tick(&mut self, written: impl Fn(&Event) -> Result<(), ApiError>) -> Tick {
        let (desk, mut tick) = (&mut self.desk, Tick::default());
        while let Some((task, action)) = desk.state.next_action(desk.now) {
            let outcome = match action {
                Action::Read(source) if source.object.to_string().contains("nowhere") => {
                    Ok(Outcome::Read(None))
                }
                Action::Read(_) => {
                    let found = observed(json!({"color": "green"}), json!({}), "2");
                    Ok(Outcome::Read(Some(Box::new(found))))
                }
                // The workload is deleted: it does not roll again.
                Action::Poke { workload, .. } => {
                    tick.rolled.push(workload.clone());
                    desk.state.finish(&task, Ok(Outcome::Done), desk.now);
                    desk.state.apply_workload(&workload, None, desk.now);
                    continue;
                }
                Action::WriteEvent(event) => {
                    let result = written(&event);
                    tick.written.push(*event);
                    result.map(|()| Outcome::Done)
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, desk.now);
        }
        desk.now += SignedDuration::from_millis(100);
        tick
    }
}

/// 400 workloads of one namespace wait for the rate. Before, the roll of another namespace waited for all of them.
#[test]
fn large_change_delays_other_namespace_by_one_roll() {
    let mut site = Site::new();
    let blue = site.blue.clone();
    for number in 0..400 {
        site.add(&key(&format!("w{number:03}")), &blue);
    }
    let mut order = Vec::new();
    for tick in 0..500 {
        if tick == 30 {
            site.add(&elsewhere("web"), &blue);
        }
        order.extend(site.tick(|_| Ok(())).rolled);
    }
    assert_eq!(order.len(), 401, "each once");
    let at = order.iter().position(|key| *key == elsewhere("web")).unwrap();
    // After two seconds of rolls and one to settle: the rolls of one second may run at once.
    assert!((20..45).contains(&at), "{at}");
    let of_flood: Vec<_> = order.iter().filter(|key| key.namespace != elsewhere("web").namespace).collect();
    assert!(of_flood.is_sorted_by_key(|key| &key.name), "the order within a namespace stays");
}

/// The rate is the same for one namespace as for several.
#[test]
fn one_namespace_rolls_at_the_whole_rate() {
    let mut site = Site::new();
    let blue = site.blue.clone();
    for number in 0..100 {
        site.add(&key(&format!("w{number:03}")), &blue);
    }
    let rolled: Vec<_> = (0..150).map(|_| site.tick(|_| Ok(())).rolled.len()).collect();
    let first = rolled.iter().position(|count| *count > 0).unwrap();
    let by = |seconds: usize| rolled[first..].iter().take(10 * seconds).sum::<usize>();
    assert_eq!([1, 2, 5, 9].map(by), [20, 30, 60, 100], "{rolled:?}");
}

/// The workloads of a namespace whose sources are missing, until their warnings fill its queue; and one Event of another
/// namespace.
fn flooded() -> Site {
    let mut site = Site::new();
    let ([_, second, _], lacks) = (three(), site.lacks.clone());
    site.add_snapshots();
    site.add(&elsewhere("web"), &record(&second, Health::Settled));
    for number in 0..250 {
        site.add(&key(&format!("w{number:03}")), &lacks);
    }
    while site.tick(|_| Ok(())).written.is_empty() {}
    site
}

/// All Events of the flood are warnings, and those of the other namespace inform. `late`: no Event of the flood can be written.
#[test]
fn flood_of_events_silences_no_other_namespace() {
    for late in [false, true] {
        let mut site = flooded();
        let lost = site.desk.state.take_dropped_events();
        assert!(lost.len() > 100 && lost.iter().all(|reason| *reason == Reason::SourceMissing), "{lost:?}");
        let [_, _, undone] = three();
        site.add(&elsewhere("web"), &record(&undone, Health::Settled));
        let write = |event: &Event| {
            let is_late = late && &*event.namespace == "ns";
            if is_late { Err(ApiError::Late { what: String::new(), seconds: 10 }) } else { Ok(()) }
        };
        let written: Vec<_> = (0..20).flat_map(|_| site.tick(write).written).take(4).collect();
        let of_other = written.iter().filter(|event| &*event.namespace == "other");
        let reasons: Vec<_> = of_other.map(|event| event.reason).collect();
        assert_eq!(reasons, [Reason::Pinned; 2], "late: {late}: {written:?}");
        assert!(site.desk.state.take_dropped_events().is_empty());
    }
}

#[test]
fn dropped_events_are_counted_by_namespace() {
    let mut site = flooded();
    let lost = site.desk.state.take_dropped_events().len();
    site.desk.state.report_dropped(site.desk.now);
    // Nothing further is dropped but the Event that made room.
    assert_eq!(site.desk.state.take_dropped_events(), [Reason::SourceMissing]);
    let written: Vec<_> = (0..200).flat_map(|_| site.tick(|_| Ok(())).written).collect();
    let counts: Vec<_> = written.iter().filter(|event| event.reason == Reason::EventsDropped).collect();
    let [event] = counts[..] else { panic!("{counts:?}") };
    let about = (&*event.namespace, &*event.regarding.kind, &*event.regarding.name);
    assert_eq!(about, ("ns", "Namespace", "ns"));
    assert!(event.note.starts_with(&format!("{lost} Events of this namespace were dropped")), "{event:?}");
    site.desk.state.report_dropped(site.desk.now);
    assert!(site.tick(|_| Ok(())).written.is_empty(), "once in ten minutes");
}

/// No Event is written, and some are dropped.
#[tokio::test(flavor = "multi_thread")]
async fn notification_does_not_depend_on_its_event() {
    let receiver = Receiver::start(&[]);
    let (notices, notifier, metrics) = notifier(&receiver.url());
    let mut site = Site::new();
    site.desk.state = site.desk.state.notifying(notices);
    let [_, second, undone] = three();
    site.add_snapshots();
    site.add(&elsewhere("web"), &record(&second, Health::Settled));
    site.tick(|_| Ok(()));
    for workload in [&second, &undone] {
        for number in 0..110 {
            site.add(&elsewhere(&format!("w{number}")), &record(workload, Health::Settled));
        }
    }
    let dropped = site.desk.state.take_dropped_events().len();
    assert!(dropped > 0, "more Events than may wait");
    tokio::spawn(notifier.run());
    until("all notifications", || count(&metrics, "sent") == 100 + dropped).await;
}

/// A receiver that fails for one Event gets those of other namespaces before the retry.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_take_turns_with_notifications() {
    let receiver = Receiver::start(&[Reply::Status(503)]);
    let (notices, notifier, metrics) = notifier(&receiver.url());
    let of = |namespace: &str, number: usize| Event {
        namespace: namespace.into(),
        ..event(number, Reason::Rolled, SignedDuration::ZERO)
    };
    for number in 0..300 {
        notices.add(&of("flood", number));
    }
    assert_eq!(count(&metrics, "dropped"), 300 - 256);
    for number in 0..2 {
        notices.add(&of("other", number));
    }
    assert_eq!(count(&metrics, "dropped"), 300 - 256, "another namespace has room");
    tokio::spawn(notifier.run());
    until("all notifications", || count(&metrics, "sent") == 258).await;
    let subjects: Vec<_> = receiver.posts().iter().map(|post| post.json()["subject"].clone()).collect();
    let of = |namespace: &str, number: usize| json!(format!("{namespace}/Deployment/web-{number}"));
    let first = [of("flood", 0), of("other", 0)];
    assert_eq!(subjects[..2], first, "the first failed");
    let flood: Vec<_> = subjects[2..].iter().filter(|subject| **subject != of("other", 1)).collect();
    let wanted: Vec<_> = (0..256).map(|number| of("flood", number)).collect();
    assert_eq!(flood, wanted.iter().collect::<Vec<_>>(), "the order within a namespace stays");
    let other = subjects.iter().position(|subject| *subject == of("other", 1)).unwrap();
    assert!(other < 5, "after {other} posts");
}
