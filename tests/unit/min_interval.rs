//! `min-interval`: the shortest time between two automatic rolls of a workload.

use confrev::{annotations, controller::Action, resolve::Health};
use jiff::SignedDuration;
use serde_json::json;

use super::controller::{Desk, key, record, stored};
use super::world::{World, annotate};

#[test]
fn min_interval_holds_despite_wrong_clock() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    for (last_roll, waits) in [(-5, 5), (0, 10), (5, 10), (10, 10), (3600, 10), (-3600, 1)] {
        let mut object = stored(&mut world, "web");
        let mut desk = Desk::new();
        let last = desk.now + SignedDuration::from_secs(last_roll);
        annotate(&mut object, annotations::ROLL, &confrev::resolve::Plan::every(last, true).to_value());
        desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
        desk.act(&json!({"color": "green"}), &json!({}), "2");
        desk.pass(waits - 1);
        let early = desk.act(&json!({"color": "green"}), &json!({}), "2");
        assert!(!early.iter().any(|action| matches!(action, Action::Poke { .. })), "{last_roll}: {early:?}");
        desk.pass(1);
        let due = desk.actions();
        assert!(due.iter().any(|(_, action)| matches!(action, Action::Poke { .. })), "{last_roll}: {due:?}");
    }
}

/// The change has been pending since before that roll.
#[test]
fn roll_with_lost_response_counts_for_min_interval() {
    let mut world = World::default();
    world.set("demo", json!({"color": "blue"}));
    let mut object = stored(&mut world, "web");
    let mut desk = Desk::new();
    let green = json!({"color": "green"});
    let pokes = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::Poke { .. }));
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
    desk.act(&green, &json!({}), "2");
    desk.pass(5);
    // The watch reports the roll, whose content is no longer the newest.
    annotate(&mut object, annotations::ROLL, &confrev::resolve::Plan::every(desk.now, true).to_value());
    desk.state.apply_workload(&key("web"), Some(record(&object, Health::Settled)), desk.now);
    desk.pass(9);
    let early = desk.act(&green, &json!({}), "2");
    assert!(!pokes(&early), "{early:?}");
    desk.pass(1);
    assert!(pokes(&desk.act(&green, &json!({}), "2")), "the workload rolls when the interval has passed");
}
