//! Faults at random, on a control plane of the test's own: `make chaos`; a few of them in every run of the tests.
//!
//! Users change some tens of workloads and their ConfigMaps and Secrets all the time, while confrev, the API server, etcd and what
//! connects them fail. After each fault, once all is at rest, every promise that can be seen is checked.
//! `CONFREV_CHAOS_MINUTES` says for how long, `CONFREV_CHAOS_SEED` with which numbers, `CONFREV_CHAOS_FAULT` with which
//! faults alone: those whose words contain it; `CONFREV_BIN`, with another confrev than the one that is built for it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod certificates;
mod check;
mod dice;
mod fault;
mod group;
mod kind;
mod link;
mod proxy;
mod replicas;
mod report;
mod site;
mod watches;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use confrev_controlplane::{ControlPlane, wait_for};
use http::Method;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::fault::Fault;
use crate::group::{ALL, Group, Held};
use crate::kind::{Kind, Source, Workload};
use crate::replicas::Replicas;
use crate::report::Report;
use crate::site::{APPLY, JSON_PATCH, Site};

/// How many groups, and how many workloads of each kind in each of them: 54 workloads in all.
const LOAD: (usize, usize) = (9, 2);
const LOAD_OF_A_SHORT_RUN: (usize, usize) = (2, 1);
/// For how long, where nothing else is said.
const MINUTES: u64 = 1;
/// How long the control plane may take to be well again.
const LIMIT: Duration = Duration::from_mins(2);

/// What the links and proxies run on.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// All faults again and again: first in their order, from another one for each seed, then in any.
fn faults(seed: u64, mut dice: Dice) -> impl Iterator<Item = Fault> {
    let only = std::env::var("CONFREV_CHAOS_FAULT").unwrap_or_default();
    let mut all: Vec<_> = Fault::ALL.into_iter().filter(|fault| fault.words().contains(&only)).collect();
    assert!(!all.is_empty(), "no fault is called {only}");
    let first = seed.wrapping_sub(1).wrapping_mul(10) % all.len() as u64;
    all.rotate_left(usize::try_from(first).unwrap());
    let mut next = 0;
    std::iter::from_fn(move || {
        if next == all.len() {
            next = 0;
            dice.shuffle(&mut all);
        }
        next += 1;
        Some(all[next - 1])
    })
}

#[test]
#[ignore = "takes minutes, and most of the machine: make chaos"]
fn no_promise_is_broken_whatever_fails() {
    let seed = setting("CONFREV_CHAOS_SEED").unwrap_or(1);
    let minutes = setting("CONFREV_CHAOS_MINUTES").unwrap_or(MINUTES);
    println!("CONFREV_CHAOS_SEED={seed} CONFREV_CHAOS_MINUTES={minutes}");
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let mut dice = Dice::new(seed);
    let all = faults(seed, dice.fork()).take_while(|_| Instant::now() < until);
    run(seed, dice, LOAD, all);
}

/// In every run of the tests: a small load, and a few faults that come back soon.
#[test]
fn no_promise_is_broken_while_a_leader_is_killed_watches_expire_and_calls_are_cut() {
    let few = [Fault::LeaderKilled, Fault::WatchesExpired, Fault::CallsCut];
    run(1, Dice::new(1), LOAD_OF_A_SHORT_RUN, few.into_iter());
}

fn run(
    seed: u64,
    mut dice: Dice,
    (groups, of_each_kind): (usize, usize),
    faults: impl Iterator<Item = Fault>,
) {
    // It lives as long as this process.
    let cluster: &'static ControlPlane =
        Box::leak(Box::new(ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}"))));
    let namespace = Box::leak(Box::new(cluster.namespace("chaos")));
    let site = Arc::new(Site::new(cluster, namespace.name()));
    let mut replicas = Replicas::start(cluster);
    let mut groups: Vec<_> =
        (0..groups).map(|number| Group::create(&site, number, of_each_kind, dice.fork())).collect();
    let mut plain: Vec<_> = Kind::ALL.map(|kind| create_plain(&site, kind, &groups[0].source)).into();
    check::rest(&site, &groups, &plain);

    let (mut report, mut alarms) = (Report::default(), 0);
    let start = Instant::now();
    for fault in faults {
        if site.losses() > 0 {
            break;
        }
        let (began, before) = (Instant::now(), site.losses());
        let times = round(&site, &mut replicas, &mut groups, &mut plain, fault, &mut dice);
        check::alarms(&site, &mut alarms);
        report.add(fault, times, began.elapsed(), site.losses() - before);
    }
    report.print(&site, &replicas, start.elapsed());
    if site.losses() > 0 {
        replicas.programs.iter().for_each(|program| eprintln!("confrev:\n{}", program.log_tail()));
        eprintln!("{}", namespace.describe());
    }
    assert_eq!(site.losses(), 0, "to see it again: make chaos CONFREV_CHAOS_SEED={seed}");
}

/// One fault under load; then rest, and every promise.
fn round(
    site: &Arc<Site>,
    replicas: &mut Replicas,
    groups: &mut [Group],
    plain: &mut [Held],
    fault: Fault,
    dice: &mut Dice,
) -> usize {
    let versions = (fault == Fault::BothKilledAtRest).then(|| check::versions(site));
    let over = AtomicBool::new(versions.is_some());
    let times = thread::scope(|scope| {
        if versions.is_none() {
            for group in groups.iter_mut() {
                scope.spawn(|| group.run(&|| !over.load(Ordering::Relaxed)));
            }
            scope.spawn(|| plain.iter_mut().for_each(|held| change_plain(site, held)));
        }
        scope.spawn(|| {
            let gaps = check::gaps(site, &|| !over.load(Ordering::Relaxed));
            site.gaps.fetch_add(gaps.len(), Ordering::Relaxed);
            for gap in gaps {
                println!("{gap} was not there for a while");
            }
        });
        // Not before the load has begun.
        replicas.tend_for(Duration::from_secs(1));
        let times = fault.happen(site, replicas, dice);
        over.store(true, Ordering::Relaxed);
        wait_for("the API server to be well again", LIMIT, || site.get("/readyz"));
        replicas.heal();
        times
    });
    replicas.tend();
    check::rest(site, groups, plain);
    if let Some(before) = versions
        && before != check::versions(site)
    {
        site.lost("quiet", "something was written though nothing had changed");
    }
    times
}

/// A workload that is not opted in.
fn create_plain(site: &Site, kind: Kind, source: &Source) -> Held {
    let workload = Workload::plain(kind, format!("plain-{}", kind.name()), source);
    let mut held = Held::new(workload, "app:1");
    let path = format!("{}?fieldManager=user", site.path(&held.workload));
    site.write(&Method::PATCH, &path, (APPLY, &held.workload.manifest(&held.image, ALL)), true);
    held.required.insert((held.image.clone(), String::new()));
    held
}

fn change_plain(site: &Site, held: &mut Held) {
    held.image = format!("app:{}", held.required.len() + 1);
    let patch =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": held.image}]);
    site.write(&Method::PATCH, &site.path(&held.workload), (JSON_PATCH, &patch), true);
    held.required.insert((held.image.clone(), String::new()));
}
