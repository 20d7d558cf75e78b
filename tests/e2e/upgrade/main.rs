//! The upgrade from an older confrev to this one by `kubectl apply -f` of the newer manifest. Nothing is renamed,
//! written or rolled, and the newer confrev continues with the state that the older one left.
//!
//! `CONFREV_OLD_BIN` is the path of the older program, and `CONFREV_OLD_MANIFEST` that of its manifest. `make
//! test-upgrade` builds both from a revision.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod choices;
mod scenes;

use confrev_test_support::{manifests, threads::in_threads, world, writer};

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, thread};

use confrev_controlplane::{ControlPlane, Program, holds_for, wait_for};

use crate::manifests::Kind;
use crate::scenes::{Others, Scene};
use crate::world::{LIMIT, text};

/// Short, so that a wrong deletion by the sweep happens during the test.
const ORPHAN_GRACE: &str = "--orphan-grace=5s";

/// Every snapshot name and every `seen` stays, and nothing rolls.
#[test]
#[ignore = "needs an older confrev: make test-upgrade OLD=<revision>"]
fn upgrade_keeps_state_and_writes_nothing() {
    let (_alone, cluster) = (alone(), ControlPlane::shared());
    let mut older = install_older().options(&[ORPHAN_GRACE]);
    older.start();
    let scenes = in_threads(Kind::ALL.map(|kind| (kind.name().to_owned(), kind)), Scene::set);
    let others = Others::set();
    for scene in &scenes {
        scene.world.wait_at_rest();
    }
    others.world.wait_at_rest();
    let (kept, versions) = look(&scenes, &others);
    let taken_up =
        kept.iter().filter(|line| line.contains(" seen=\"{") && line.contains(" revision=\"")).count();
    assert_eq!(taken_up, 5 * Kind::ALL.len() + scenes::OTHERS.len(), "each workload is resolved: {kept:#?}");
    let leader = holder(cluster);
    older.stop();

    Program::install(cluster);
    let mut newer = newer().options(&[ORPHAN_GRACE]);
    newer.start();
    wait_for("the newer confrev to lead", LIMIT, || {
        let now = holder(cluster);
        if now.is_empty() || now == leader { Err(now) } else { Ok(()) }
    });
    holds_for("the state without any write", Duration::from_secs(15), || {
        let (kept_now, versions_now) = look(&scenes, &others);
        same(&kept_now, &kept).and_then(|()| same(&versions_now, &versions))
    });

    thread::scope(|scope| {
        for scene in &scenes {
            scope.spawn(|| scene.goes_on());
        }
    });
    others.go_on();
    newer.stop();
}

/// The cluster has one confrev, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies the older manifest. Returns the older program.
fn install_older() -> Program {
    let path = |variable: &str| {
        let path = env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        path.unwrap_or_else(|| panic!("{variable} is set: make test-upgrade OLD=<revision>"))
    };
    Program::install_from(ControlPlane::shared(), &path("CONFREV_OLD_MANIFEST"));
    Program::new(ControlPlane::shared(), &path("CONFREV_OLD_BIN"))
}

/// This program.
fn newer() -> Program {
    Program::new(ControlPlane::shared(), Path::new(env!("CARGO_BIN_EXE_confrev")))
}

/// The state that the upgrade must keep, and the version of every object.
fn look(scenes: &[Scene], others: &Others) -> (Vec<String>, Vec<String>) {
    let worlds: Vec<_> = scenes.iter().map(|scene| &scene.world).chain([&others.world]).collect();
    let kept = worlds.iter().flat_map(|world| scenes::kept(world)).collect();
    (kept, worlds.iter().flat_map(|world| scenes::versions(world)).collect())
}

/// Returns `Ok`, or the lines that differ.
fn same(now: &[String], before: &[String]) -> Result<(), String> {
    let only_in = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).cloned().collect()
    };
    let (new, gone) = (only_in(now, before), only_in(before, now));
    if new.is_empty() && gone.is_empty() { Ok(()) } else { Err(format!("now {new:#?}, before {gone:#?}")) }
}

fn holder(cluster: &ControlPlane) -> String {
    let lease = cluster.get("lease", "confrev", "confrev").expect("the Lease exists");
    text(&lease["spec"]["holderIdentity"])
}
