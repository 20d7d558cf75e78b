//! Random faults on a control plane of the test's own: `make chaos`. Every test run has a few of them.
//!
//! Users continuously change some tens of workloads and their ConfigMaps and Secrets while confrev, the API server,
//! etcd and their connections fail. After each fault, when everything is at rest, every observable promise is checked.
//! `CONFREV_CHAOS_MINUTES` sets the duration, `CONFREV_CHAOS_SEED` the random numbers. `CONFREV_CHAOS_FAULT` selects
//! the faults whose description contains its text. `CONFREV_BIN` tests another confrev than the one built for the test.
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
mod waves;

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
use crate::waves::Waves;

/// The number of groups, and of workloads of each kind in each group: 54 workloads in all.
const LOAD: (usize, usize) = (9, 2);
const LOAD_OF_A_SHORT_RUN: (usize, usize) = (2, 1);
/// The default duration.
const MINUTES: u64 = 1;
/// Time limit for the recovery of the control plane.
const LIMIT: Duration = Duration::from_mins(2);

/// The runtime of the links and proxies.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// All faults, repeatedly: first in their order, from a start that depends on the seed, then in random order.
fn faults(seed: u64, mut dice: Dice) -> impl Iterator<Item = Fault> {
    let only = std::env::var("CONFREV_CHAOS_FAULT").unwrap_or_default();
    let mut all: Vec<_> = Fault::ALL.iter().copied().filter(|fault| fault.words().contains(&only)).collect();
    assert!(!all.is_empty(), "no fault's description contains {only}");
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
fn promises_hold_under_random_faults() {
    let seed = setting("CONFREV_CHAOS_SEED").unwrap_or(1);
    let minutes = setting("CONFREV_CHAOS_MINUTES").unwrap_or(MINUTES);
    println!("CONFREV_CHAOS_SEED={seed} CONFREV_CHAOS_MINUTES={minutes}");
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let mut dice = Dice::new(seed);
    let all = faults(seed, dice.fork()).take_while(|_| Instant::now() < until);
    run(seed, dice, LOAD, all);
}

/// Part of every test run: a small load, and a few faults with short recovery.
#[test]
fn promises_hold_under_a_few_short_faults() {
    let faults = [Fault::LeaderKilled, Fault::LeaderCutOff, Fault::WatchesExpired, Fault::CallsCut];
    run(1, Dice::new(1), LOAD_OF_A_SHORT_RUN, faults.into_iter());
}

fn run(
    seed: u64,
    mut dice: Dice,
    (groups, of_each_kind): (usize, usize),
    faults: impl Iterator<Item = Fault>,
) {
    // The control plane lives as long as this process.
    let cluster: &'static ControlPlane =
        Box::leak(Box::new(ControlPlane::start().unwrap_or_else(|problem| panic!("{problem}"))));
    let namespace = Box::leak(Box::new(cluster.namespace("chaos")));
    let site = Arc::new(Site::new(cluster, namespace.name()));
    let mut replicas = Replicas::start(cluster);
    let mut groups: Vec<_> =
        (0..groups).map(|number| Group::create(&site, number, of_each_kind, dice.fork())).collect();
    let mut plain: Vec<_> = Kind::ALL.map(|kind| create_plain(&site, kind, &groups[0].source)).into();
    let mut waves = Waves::create(&site, dice.fork());
    check::rest(&site, &groups, &plain, &waves);

    let (mut report, mut alarms) = (Report::default(), 0);
    let start = Instant::now();
    for fault in faults {
        if site.losses() > 0 {
            break;
        }
        let (began, before) = (Instant::now(), site.losses());
        let times = round(&site, &mut replicas, (&mut groups, &mut plain, &mut waves), fault, &mut dice);
        check::alarms(&site, &mut alarms);
        report.add(fault, times, began.elapsed(), site.losses() - before);
    }
    report.print(&site, &replicas, start.elapsed());
    if site.losses() > 0 {
        replicas.programs.iter().for_each(|program| eprintln!("confrev:\n{}", program.log_tail()));
        eprintln!("{}", namespace.describe());
    }
    assert_eq!(site.losses(), 0, "to reproduce: make chaos CONFREV_CHAOS_SEED={seed}");
}

/// One fault under load; then everything comes to rest, and every promise is checked.
fn round(
    site: &Arc<Site>,
    replicas: &mut Replicas,
    (groups, plain, waves): (&mut [Group], &mut [Held], &mut Waves),
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
            scope.spawn(|| waves.step());
        }
        scope.spawn(|| {
            let gaps = check::gaps(site, &|| !over.load(Ordering::Relaxed));
            site.gaps.fetch_add(gaps.len(), Ordering::Relaxed);
            for gap in gaps {
                println!("{gap} was missing for a while");
            }
        });
        // The load begins first.
        replicas.tend_for(Duration::from_secs(1));
        let times = fault.happen(site, replicas, dice);
        over.store(true, Ordering::Relaxed);
        if times == 0 {
            site.lost("fault", format!("{} did not happen", fault.words()));
        }
        wait_for("the API server to recover", LIMIT, || site.get("/readyz"));
        replicas.heal();
        times
    });
    replicas.tend();
    check::rest(site, groups, plain, waves);
    if let Some(before) = versions
        && before != check::versions(site)
    {
        site.lost("quiet", "an object was written though nothing had changed");
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
