//! The scenario of most tests: `demo` is blue, then green.

use confrev::{names, resolve::auto_roll_value};
use serde_json::{Value, json};

use super::world::{World, annotate, template};

pub(crate) fn world(color: &str) -> World {
    let mut world = World::default();
    world.set("demo", json!({"color": color}));
    world
}

/// The controller's write: a new value of `roll`, and nothing else.
pub(crate) fn poke(world: &mut World, stored: &Value, second: i64) -> Value {
    let mut new = stored.clone();
    annotate(&mut new, names::ROLL, &auto_roll_value(jiff::Timestamp::from_second(second).unwrap()));
    world.update(&new, stored)
}

/// `kubectl argo rollouts undo` restores the template only.
pub(crate) fn undo(stored: &Value, to: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"] = template(to).clone();
    new
}

pub(crate) const BLUE: &str = "demo-3a18d34e26";
pub(crate) const GREEN: &str = "demo-736a916696";
