//! The same sequences and promises on a real control plane: `make model`.
//!
//! confrev runs as a separate process, and kubectl and its plugin write real Deployments and Rollouts. All events that
//! the model simulates happen by themselves. Several sequences run in parallel, in namespaces of their own.

mod appliers;
mod mirror;
mod shared;
mod users;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use confrev_controlplane::{ControlPlane, holds_for, wait_for};
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::json;

use self::{
    mirror::{LIMIT, Real},
    shared::{exclusive, running},
    users::come_back,
};
use crate::{
    event::{Event, How},
    manifest::{Manifest, PRESENT, WORKLOADS, content, workload_key},
    search::seed_bytes,
    sequence::{MOST_EVENTS, seed, setting, tell},
};

/// The number of sequences of one run.
const SEQUENCES: u64 = 100;
/// The number of parallel sequences.
const SIDE_BY_SIDE: u64 = 20;

#[test]
#[ignore = "takes minutes: make model"]
fn every_promise_holds_on_a_real_control_plane() {
    let seed = seed();
    let count = setting("CONFREV_MODEL_SEQUENCES").unwrap_or(SEQUENCES);
    let first = setting("CONFREV_MODEL_FIRST").unwrap_or(0);
    println!("CONFREV_MODEL_SEED={seed} CONFREV_MODEL_SEQUENCES={count} CONFREV_MODEL_FIRST={first}");
    let (start, mut events, mut broken) = (Instant::now(), 0, Vec::new());
    let numbers: Vec<_> = (first..first + count).collect();
    for batch in numbers.chunks(usize::try_from(SIDE_BY_SIDE).unwrap()) {
        let sequences: Vec<_> = batch.iter().map(|&number| (number, sequence(seed, number))).collect();
        events += sequences.iter().map(|(_, events)| events.len()).sum::<usize>();
        for (number, reason) in run_side_by_side(&sequences) {
            let sequence = &sequences.iter().find(|(own, _)| *own == number).unwrap().1;
            println!("sequence {number}: {}", tell(&reason, sequence));
            broken.push(number);
        }
        println!(
            "up to sequence {}: {events} events, {} s",
            batch[batch.len() - 1],
            start.elapsed().as_secs()
        );
    }
    println!("{count} sequences, {events} events, {} s", start.elapsed().as_secs());
    assert!(
        broken.is_empty(),
        "promises were broken by the sequences {broken:?}. To see one again: \
         make model CONFREV_MODEL_SEED={seed} CONFREV_MODEL_SEQUENCES=1 CONFREV_MODEL_FIRST={}",
        broken[0]
    );
}

/// The events of a sequence, determined by its seed and number.
fn sequence(seed: u64, number: u64) -> Vec<Event> {
    let mut bytes = seed_bytes(seed, 0);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    proptest::collection::vec(crate::event::event(), 0..MOST_EVENTS).new_tree(&mut runner).unwrap().current()
}

/// Runs sequences in parallel, then restarts confrev when all are at rest. Returns the sequences that break a promise.
fn run_side_by_side(sequences: &[(u64, Vec<Event>)]) -> Vec<(u64, String)> {
    let worlds: Vec<_> = sequences.iter().map(|(number, _)| (*number, Real::new())).collect();
    let outcomes: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .iter()
            .zip(sequences)
            .map(|((_, world), (_, events))| scope.spawn(|| caught(|| run(world, events))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut broken = Vec::new();
    let mut whole = Vec::new();
    for ((number, world), outcome) in worlds.into_iter().zip(outcomes) {
        match outcome {
            Ok(()) => whole.push((number, world)),
            Err(reason) => broken.push((number, format!("{reason}\n{}", world.describe()))),
        }
    }
    broken.extend(whole_are_quiet(&whole));
    broken
}

/// A panic, such as an expired wait, is reported like a broken promise.
fn caught(act: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

fn run(world: &Real, events: &[Event]) -> Result<(), String> {
    {
        let _confrev = running();
        for source in 0..PRESENT {
            world.write_source(source, &json!({"data": content(0)}), true);
        }
        for workload in 0..WORKLOADS.len() {
            world.apply(workload, How::ClientSide, Manifest::first(workload), false);
        }
    }
    let mut away = None;
    let broken = || world.model.ghost().broken.take().map_or(Ok(()), Err);
    for event in events {
        crate::trace!("{} {event:?}", world.namespace("a"));
        world.perform(event, &mut away);
        broken().map_err(|reason| format!("{reason} (after {event:?})"))?;
    }
    come_back(&mut away);
    world.rest().map_err(|reason| format!("{reason} (at rest)"))?;
    apply_all(world);
    broken()?;
    world.rest().map_err(|reason| format!("{reason} (after everything was applied again)"))
}

fn apply_all(world: &Real) {
    let _confrev = running();
    for workload in 0..WORKLOADS.len() {
        world.look();
        if world.model.get(&workload_key(workload)).is_some() {
            let manifest = world.model.ghost().manifests[workload].clone();
            let how = if workload % 2 == 0 { How::ClientSide } else { How::ServerSide };
            world.apply(workload, how, manifest, false);
        }
    }
}

/// `quiet` and `dry`: repeated applies, a restart and a dry run change nothing.
fn whole_are_quiet(worlds: &[(u64, Real)]) -> Vec<(u64, String)> {
    let settled = |(number, world): &(u64, Real)| {
        let outcome = caught(|| {
            world.rest()?;
            // The API server sorts field managers by time, so a repeated apply moves its manager to the end once.
            // confrev's stay.
            apply_all(world);
            Ok(())
        });
        outcome.err().map(|reason| (*number, format!("{reason} (when all were at rest)")))
    };
    let mut broken: Vec<_> = worlds.iter().filter_map(settled).collect();
    let before: Vec<_> = worlds.iter().map(|(_, world)| world.objects()).collect();
    let cluster = ControlPlane::shared();
    let leader = leader(cluster);
    {
        let mut confrev = exclusive();
        confrev.stop();
        confrev.start();
    }
    wait_for("the new confrev to lead", LIMIT, || {
        let now = self::leader(cluster);
        (!now.is_empty() && now != leader).then_some(())
    });
    for ((number, world), before) in worlds.iter().zip(&before) {
        let outcome = caught(|| {
            apply_all(world);
            dry_run_all(world);
            holds_for("the state without changes", Duration::from_secs(1), || {
                world.look();
                world.changes_since(before).map_or(Ok(()), |changes| Err(format!("quiet: {changes}")))
            });
            Ok(())
        });
        broken.extend(outcome.err().map(|reason| (*number, format!("{reason}\n{}", world.describe()))));
    }
    broken
}

fn leader(cluster: &ControlPlane) -> String {
    let lease = cluster.get("lease", "confrev", "confrev");
    lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str().map(str::to_owned)).unwrap_or_default()
}

fn dry_run_all(world: &Real) {
    for workload in 0..WORKLOADS.len() {
        let key = workload_key(workload);
        let name = format!("{}/{}", key.kind.as_str().to_lowercase(), key.name);
        let change =
            json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "i:dry"}]);
        if world.model.get(&key).is_some() {
            let words = ["patch", &name, "--type=json", "--dry-run=server", "--patch", &change.to_string()];
            world.kubectl(&key, &words, None).ok();
        }
    }
}
