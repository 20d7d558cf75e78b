//! The global rate of rolls.

use std::sync::Arc;

use confrev::{
    cluster::ApiError,
    controller::{Action, Config, Outcome, State},
    kinds::Kinds,
    resolve::{Health, Record},
    snapshot::{ObjectName, SourceKind},
    world::SourceMeta,
};
use jiff::SignedDuration;
use serde_json::json;

use super::{
    controller::{Desk, digest, key, name, observed, record, stored},
    world::{World, deployment},
};

/// If more workloads are due than the rate allows, the workload that has waited longest rolls first, whatever its name.
#[test]
fn workload_gets_its_turn_despite_busy_others() {
    let noisy = 60;
    let mut world = World::default();
    world.set("demo", json!({"color": "0"}));
    world.set("other", json!({"color": "0"}));
    let mut desk = Desk::new();
    let config = Config { rolls_per_second: 10, ..Config::default() };
    desk.state = State::new(Arc::new(Kinds::default()), config);
    desk.state.set_synced();
    let web = record(&stored(&mut world, "web"), Health::Settled);
    let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
    let of = |number: usize, color: usize| Record {
        uid: format!("uid-{number}").as_str().into(),
        resource_version: color.to_string().into(),
        ..web.clone().tied(&demo, |tie| tie.seen = Some(digest(&color.to_string())))
    };
    for number in 0..noisy {
        desk.state.apply_workload(&key(&format!("a-{number}")), Some(of(number, 0)), desk.now);
    }
    let mut late = deployment(&["other"]);
    late["metadata"]["uid"] = json!("late");
    let late = record(&world.create(&late), Health::Settled);
    desk.state.apply_workload(&key("z"), Some(late), desk.now);
    let (start, mut color, mut rolls) = (desk.now, 0, 0);
    // Every two seconds, twenty rolls are allowed and sixty are due. After ten seconds, the late workload is due, too.
    let rolled = (0..600).find_map(|turn| {
        desk.now = start + SignedDuration::from_millis(100) * turn;
        if turn % 20 == 0 {
            color += 1;
            for source in ["demo", "other"].iter().take(1 + usize::from(turn == 100)) {
                let meta = SourceMeta { resource_version: color.to_string(), always: false };
                desk.state.apply_source(&name(source), Some(&meta), desk.now);
            }
        }
        let mut rolled = None;
        while let Some((task, action)) = desk.state.next_action(desk.now) {
            let now = desk.now;
            let outcome = match &action {
                Action::Read(source) => {
                    let color = if *source == name("demo") { color } else { usize::from(turn >= 100) };
                    let found = observed(json!({"color": color.to_string()}), json!({}), &color.to_string());
                    Ok(Outcome::Read(Some(Box::new(found))))
                }
                Action::Poke { workload, .. } if *workload == key("z") => {
                    rolled = Some(turn);
                    Ok(Outcome::Done)
                }
                // The response is lost, and the watch reports the roll.
                Action::Poke { workload, .. } => {
                    rolls += 1;
                    let number = workload.name["a-".len()..].parse().unwrap();
                    desk.state.finish(&task, Err(ApiError::NotFound { what: String::new() }), now);
                    desk.state.apply_workload(&workload.clone(), Some(of(number, color)), now);
                    continue;
                }
                _ => Ok(Outcome::Done),
            };
            desk.state.finish(&task, outcome, now);
        }
        rolled
    });
    let rolled = rolled.unwrap_or_else(|| panic!("not within a minute, with {rolls} rolls of others"));
    // The change settles for a second, and at most sixty other workloads roll first.
    assert!((110..=175).contains(&rolled), "at {rolled}");
    assert!(rolls > 100, "too few rolls of others");
}
