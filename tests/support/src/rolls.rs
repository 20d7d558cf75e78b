//! The moves of workloads by confrev's controller, and their times.

use std::collections::BTreeSet;

use confrev_core::{annotations, resolve::auto_roll_time};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::{any_kind::Load, world::World};

/// When the controller last rolled a workload; `None` if it never has, or if a person wrote the annotation.
pub fn roll_time(workload: &Value) -> Option<Timestamp> {
    auto_roll_time(workload["metadata"]["annotations"][annotations::ROLL].as_str()?)
}

/// Checks by the times of the moves that each wave began only after the bake time of the previous one. `ends`: how many workloads
/// have moved at the end of each wave but the last. An error names the wave.
pub fn check_waves(mut times: Vec<Timestamp>, ends: &[usize], bake: SignedDuration) -> Result<(), String> {
    times.sort();
    for end in ends {
        let between = times[*end].duration_since(times[end - 1]);
        if between < bake {
            return Err(format!("a wave began {between:?} after {end} workloads had moved: {times:?}"));
        }
    }
    Ok(())
}

/// The names of the workloads whose templates have this content.
pub fn moved_to(world: &World, loads: &[Load], wanted: &str) -> BTreeSet<String> {
    let on = loads.iter().filter(|load| load.resolves_to(world, "demo", wanted).is_ok());
    on.map(|load| load.name.clone()).collect()
}
