//! Restarts of confrev: objects at rest do not change, and interrupted work is done once.

use std::collections::BTreeMap;
use std::time::Duration;

use confrev_controlplane::{ControlPlane, Program, holds_for, wait_for};
use serde_json::Value;

use crate::manifests::{Kind, Workload};
use crate::shared::{exclusive, running};
use crate::undo::undone;
use crate::world::{LIMIT, World, each_kind, expect, snapshot_of, text};

/// confrev is stopped, then killed; no object changes for 15 s after each restart.
#[test]
fn restart_of_confrev_changes_nothing_at_rest() {
    let before = running();
    let world = World::new("at-rest");
    world.set_config("demo", "A");
    for kind in Kind::ALL {
        let web = Workload::new(kind, kind.name(), &["demo", "missing"]).annotation("missing", "allow");
        world.apply(&web.manifest()).ok();
    }
    let worlds = Kind::ALL.map(|kind| {
        let world = World::new("at-rest-undone");
        undone(&world, kind, 1);
        world
    });
    let worlds: Vec<_> = worlds.into_iter().chain([world]).collect();
    worlds.iter().for_each(World::wait_at_rest);
    drop(before);

    for end in [Program::stop, Program::kill] {
        let mut confrev = exclusive();
        let versions: Vec<_> = worlds.iter().map(World::versions).collect();
        let leader = leader(worlds[0].cluster);
        end(&mut confrev);
        confrev.start();
        let _confrev = confrev.downgrade();
        let same =
            || worlds.iter().zip(&versions).try_for_each(|(world, before)| expect(&world.versions(), before));
        // The successor of a killed leader acts only after the Lease has expired.
        wait_for("the new process to lead", LIMIT, || {
            same().expect("nothing changes before a replica leads");
            let now = self::leader(worlds[0].cluster);
            if now.is_empty() || now == leader { Err(now) } else { Ok(()) }
        });
        holds_for("that no object has changed", Duration::from_secs(15), same);
    }
}

fn leader(cluster: &ControlPlane) -> String {
    let lease = cluster.get("lease", "confrev", "confrev").expect("the Lease exists");
    text(&lease["spec"]["holderIdentity"])
}

#[test]
fn undo_holds_across_restart_of_confrev() {
    let before = running();
    let worlds = Kind::ALL.map(|kind| {
        let world = World::new("undo-restart");
        let web = undone(&world, kind, 0);
        (world, web)
    });
    drop(before);

    let mut confrev = exclusive();
    confrev.stop();
    confrev.start();
    let _confrev = confrev.downgrade();

    holds_for("the undo", Duration::from_secs(5), || {
        worlds.iter().try_for_each(|(world, web)| world.resolves_to(web, "demo", "A"))
    });
    for (world, web) in &worlds {
        world.set_config("demo", "C");
        world.wait_resolved(web, "demo", "C");
        world.wait_replica_sets(web, 3);
    }
}

/// The number of workloads of each kind.
const WORKLOADS: usize = 40;

/// confrev is killed while it rolls all workloads.
#[test]
fn workloads_roll_once_if_killed_during_rolls() {
    let mut confrev = exclusive();
    confrev.stop();
    // Slow enough that the kill comes between two rolls.
    confrev.start_with(&["--roll-rate=10"]);
    let world = World::new("mid-roll");
    world.set_config("demo", "A");
    each_kind(|kind| {
        for number in 0..WORKLOADS {
            let name = format!("{}-{number}", kind.name());
            let workload = Workload::new(kind, &name, &["demo"]).replicas(0);
            world.cluster.create(kind.name(), world.name(), &workload.manifest());
        }
    });
    wait_for("the first ReplicaSets", LIMIT, || expect(&replica_sets(&world).len(), &(2 * WORKLOADS)));

    let old = world.snapshot_name("demo", "A");
    world.set_config("demo", "B");
    wait_for("some workloads to be rolled", LIMIT, || {
        let rolled = rolled(&world, &old);
        if rolled > 10 { Ok(()) } else { Err(format!("{rolled}")) }
    });
    confrev.kill();
    assert!(rolled(&world, &old) < 2 * WORKLOADS, "killed after the last roll");

    confrev.start();
    let _confrev = confrev.downgrade();
    wait_for("all workloads to be rolled", LIMIT, || expect(&rolled(&world, &old), &(2 * WORKLOADS)));
    wait_for("their ReplicaSets", LIMIT, || {
        let revisions = replica_sets(&world);
        expect(&revisions.iter().filter(|revision| is_new(revision, &old)).count(), &(2 * WORKLOADS))
    });
    holds_for("that each workload has exactly one new ReplicaSet", Duration::from_secs(3), || {
        let mut counts = BTreeMap::<String, usize>::new();
        for revision in replica_sets(&world) {
            *counts.entry(text(&revision["metadata"]["labels"]["app"])).or_default() += 1;
        }
        counts.retain(|_, count| *count != 2);
        expect(&counts, &BTreeMap::new())
    });
}

fn replica_sets(world: &World) -> Vec<Value> {
    world.cluster.list("replicaset", world.name(), "")
}

/// The number of workloads that have rolled from the old snapshot to another.
fn rolled(world: &World, old: &str) -> usize {
    let lists = Kind::ALL.map(|kind| world.cluster.list(kind.name(), world.name(), ""));
    lists.iter().flatten().filter(|workload| is_new(workload, old)).count()
}

fn is_new(object: &Value, old: &str) -> bool {
    snapshot_of(&object["spec"]["template"], "demo").is_some_and(|snapshot| snapshot != old)
}
