//! The scenario of most tests: `demo` is blue, then green.

use confrev_core::{annotations, resolve::Plan};
use serde_json::{Value, json};

use crate::world::{World, annotate, template};

/// A namespace with the ConfigMap `demo` of this color.
pub fn world(color: &str) -> World {
    let mut world = World::default();
    world.set("demo", json!({"color": color}));
    world
}

/// The controller's write: a new value of `roll`, and nothing else.
pub fn poke(world: &mut World, stored: &Value, second: i64) -> Value {
    world.update(&poked(stored, second), stored)
}

/// The request with which the controller rolls a workload.
pub fn poked(stored: &Value, second: i64) -> Value {
    let mut new = stored.clone();
    annotate(
        &mut new,
        annotations::ROLL,
        &Plan::every(jiff::Timestamp::from_second(second).unwrap(), true).to_value(),
    );
    new
}

/// `kubectl argo rollouts undo` restores the template only.
pub fn undo(stored: &Value, to: &Value) -> Value {
    let mut new = stored.clone();
    new["spec"]["template"] = template(to).clone();
    new
}

/// The snapshot of blue.
pub const BLUE: &str = "demo-3a18d34e26";
/// The snapshot of green.
pub const GREEN: &str = "demo-736a916696";
