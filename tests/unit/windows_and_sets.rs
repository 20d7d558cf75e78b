//! Windows and sets: when the controller rolls a pending workload, on a simulated clock.

use std::collections::BTreeMap;

use confrev::{
    annotations,
    controller::{Action, Outcome},
    gate_settings::Texts,
    resolve::Health::Settled,
    telemetry::metrics::Reason,
    world::NamespaceSettings,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    controller::{Desk, key, observed, record, web_on_blue},
    world::{World, annotate, deployment},
};

/// A Tuesday evening.
const EVENING: &str = "2026-11-24T18:00:00Z";
/// A window that is open in the daytime.
const DAY: &str = "Mon-Fri 09:00-17:00 Europe/Berlin";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn pokes(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Poke { .. }))
}

/// The reasons of Events among the actions.
fn reasons(actions: &[Action]) -> Vec<Reason> {
    let reason = |action: &Action| match action {
        Action::WriteEvent(event) => Some(event.reason),
        _ => None,
    };
    actions.iter().filter_map(reason).collect()
}

/// The settings of a namespace with this window.
pub(crate) fn with_window(window: Option<&str>) -> NamespaceSettings {
    let gates = Texts::read(|key| window.filter(|_| key == annotations::WINDOW));
    NamespaceSettings { gates, ..NamespaceSettings::default() }
}

/// A leader that starts at this time and knows a workload on blue. Its source is green, and these windows are set.
struct Leader {
    desk: Desk,
    annotations: Value,
    web: Value,
}

impl Leader {
    fn new(now: &str, workload: Option<&str>, namespace: Option<&str>, source: Option<&str>) -> Self {
        let (_, mut web, _) = web_on_blue();
        let mut desk = Desk::new();
        desk.now = at(now);
        if let Some(window) = workload {
            annotate(&mut web, annotations::WINDOW, window);
        }
        desk.state.apply_namespace_settings(&"ns".into(), with_window(namespace), desk.now);
        desk.state.apply_workload(&key("web"), Some(record(&web, Settled)), desk.now);
        let annotations = source.map_or(json!({}), |window| json!({annotations::WINDOW: window}));
        let mut leader = Self { desk, annotations, web };
        leader.act();
        leader
    }

    /// What the controller does now.
    fn act(&mut self) -> Vec<Action> {
        self.desk.act(&json!({"color": "green"}), &self.annotations, "2")
    }

    /// Whether the workload rolls within a few seconds.
    fn rolls(&mut self) -> bool {
        (0..4).any(|_| {
            self.desk.pass(1);
            pokes(&self.act())
        })
    }
}

#[test]
fn roll_waits_for_all_windows() {
    let night = Some("18:00-06:00");
    for (workload, namespace, source, now, rolls) in [
        (None, None, None, EVENING, true),
        (Some(DAY), None, None, EVENING, false),
        (None, Some(DAY), None, EVENING, false),
        (None, None, Some(DAY), EVENING, false),
        (night, night, night, EVENING, true),
        (night, Some(DAY), night, EVENING, false),
        (Some(DAY), Some(DAY), Some(DAY), "2026-11-24T12:00:00Z", true),
    ] {
        let mut leader = Leader::new(now, workload, namespace, source);
        assert_eq!(leader.rolls(), rolls, "{workload:?} {namespace:?} {source:?} at {now}");
        assert_eq!(leader.desk.state.held(), usize::from(!rolls), "{workload:?} {namespace:?} {source:?}");
    }
}

/// Nothing is stored: a leader that starts later rolls at the same time.
#[test]
fn roll_follows_when_window_opens() {
    for start in [EVENING, "2026-11-25T07:00:00Z", "2026-11-25T07:59:58Z"] {
        let mut leader = Leader::new(start, Some(DAY), None, None);
        assert!(!pokes(&leader.act()));
        while leader.desk.now < at("2026-11-25T08:00:00Z") {
            assert!(!pokes(&leader.act()), "{}", leader.desk.now);
            let due = leader.desk.state.next_due().unwrap();
            assert!(due > leader.desk.now, "no busy waiting");
            leader.desk.now = due;
        }
        assert!(leader.rolls(), "from {start}");
        assert!(leader.desk.now < at("2026-11-25T08:00:05Z"), "{}", leader.desk.now);
    }
}

#[test]
fn changed_window_counts_at_once() {
    let mut of_namespace = Leader::new(EVENING, None, Some(DAY), None);
    assert!(!of_namespace.rolls());
    of_namespace.desk.state.apply_namespace_settings(&"ns".into(), with_window(None), of_namespace.desk.now);
    assert!(of_namespace.rolls(), "the namespace has no window any more");

    let mut of_workload = Leader::new(EVENING, Some(DAY), None, None);
    assert!(!of_workload.rolls());
    let mut web = of_workload.web.clone();
    annotate(&mut web, annotations::WINDOW, "18:00-20:00");
    of_workload.desk.state.apply_workload(&key("web"), Some(record(&web, Settled)), of_workload.desk.now);
    assert!(of_workload.rolls(), "the workload has another window");
}

/// Nothing moves, wherever the malformed window is, and an Event names the value.
#[test]
fn malformed_window_moves_nothing_and_is_reported() {
    for (workload, namespace, source) in
        [(Some("x"), None, None), (None, Some("09:00-09:00"), None), (None, None, Some("09:00-17:00 Mars"))]
    {
        let mut leader = Leader::new("2026-11-24T12:00:00Z", workload, namespace, source);
        let mut done = Vec::new();
        for _ in 0..5 {
            leader.desk.pass(1);
            done.extend(leader.act());
        }
        let what = (pokes(&done), reasons(&done));
        assert_eq!(what, (false, vec![Reason::SettingInvalid]), "{workload:?} {namespace:?} {source:?}");
    }
}

/// A workload on version 1 of `db` and `demo`, and what a leader does with these versions of now.
fn rolls_with(db: &str, demo: &str) -> (bool, Vec<Reason>) {
    let mut world = World::default();
    for name in ["db", "demo"] {
        world.set(name, json!({"content": "shop/1"}));
    }
    let mut web = deployment(&["db", "demo"]);
    web["metadata"]["name"] = json!("web");
    web["metadata"]["uid"] = json!("uid-web");
    let web = world.create(&web);
    let sources = BTreeMap::from([("db", db), ("demo", demo)]);
    let mut desk = Desk::new();
    desk.state.apply_workload(&key("web"), Some(record(&web, Settled)), desk.now);
    let (mut rolled, mut events) = (false, Vec::new());
    for _ in 0..5 {
        for (task, action) in desk.actions() {
            let outcome = match action {
                Action::Read(name) => {
                    let set = sources[&*name.object.name];
                    let annotations = json!({annotations::SET: set});
                    let mut read = observed(json!({"content": set}), annotations, "2");
                    read.uid = format!("uid-{}", name.object.name);
                    Outcome::Read(Some(Box::new(read)))
                }
                Action::Poke { .. } => {
                    rolled = true;
                    Outcome::Done
                }
                Action::WriteEvent(event) => {
                    events.push(event.reason);
                    Outcome::Done
                }
                _ => Outcome::Done,
            };
            desk.state.finish(&task, Ok(outcome), desk.now);
        }
        desk.pass(1);
    }
    (rolled, events)
}

#[test]
fn roll_waits_for_same_version() {
    for (db, demo, rolls) in [
        ("shop/1", "shop/2", false),
        ("shop/2", "shop/3", false),
        ("shop/2", "shop/2", true),
        ("shop/1", "other/2", true),
    ] {
        assert_eq!(rolls_with(db, demo), (rolls, Vec::new()), "{db} and {demo}");
    }
    assert_eq!(rolls_with("shop/1", "shop"), (false, vec![Reason::SettingInvalid]), "malformed");
}
