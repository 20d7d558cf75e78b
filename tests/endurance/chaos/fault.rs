//! The faults.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use confrev_controlplane::wait_for;
use http::Method;
use serde_json::json;

use crate::certificates;
use crate::dice::Dice;
use crate::link::Weather;
use crate::proxy::Trouble;
use crate::replicas::Replicas;
use crate::site::{APPLY, Site};

/// How long a fault of calls lasts at most, if it does not disturb any call before.
const LIMIT: Duration = Duration::from_mins(2);

const API_SERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";
const MANAGER: &str = "kube-controller-manager";

/// Declares the faults with their descriptions, in the order of a first, short run. So no fault is missing in `ALL`.
macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident: $words:literal,)+) => {
        /// One kind of fault. It is over when [`Fault::happen`] returns, except for the time that the components need to
        /// recover.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Fault {
            $($(#[$doc])* $fault,)+
        }

        impl Fault {
            pub(crate) const ALL: &[Self] = &[$(Self::$fault),+];

            pub(crate) fn words(self) -> &'static str {
                match self {
                    $(Self::$fault => $words,)+
                }
            }
        }
    };
}

faults! {
    LeaderKilled: "leading confrev killed",
    CallsReset: "confrev to API server: connections reset",
    ApiServerKilled: "API server killed",
    WebhookCallsCut: "API server to confrev: cut halfway",
    WatchesExpired: "watches expired",
    /// The garbage collector and the controllers of Deployments and StatefulSets act late, on outdated state.
    ManagerPaused: "controller manager paused",
    WatchesWithBookmarksOnly: "watches with bookmarks only",
    EtcdPaused: "etcd paused",
    Timeouts: "confrev to API server: 504",
    /// Calls fail in both directions while the leader and the API server are killed.
    AllAtOnce: "both directions failing, leading confrev and API server killed",
    /// Another API server than that of the replica is healthy, and calls the replica.
    LeaderCutOff: "leading confrev cut off from the API server",
    LeaderPausedPastItsLease: "leading confrev paused for longer than its Lease",
    EtcdKilled: "etcd killed",
    CallsCut: "confrev to API server: cut halfway",
    Conflicts: "confrev to API server: 409",
    BothKilled: "both confrev killed",
    CaLost: "confrev's CA lost",
    WatchesClosed: "watches closed",
    WebhookCallsReset: "API server to confrev: connections reset",
    ApiServerPaused: "API server paused",
    ReplacedInTurn: "both confrev ended and started in turn",
    ManagerKilled: "controller manager killed",
    CaNearItsExpiry: "confrev's CA near its expiry",
    FollowerKilled: "following confrev killed",
    LeaderPaused: "leading confrev paused for some seconds",
    WebhookCallsSlow: "API server to confrev: slow",
    CallsSlow: "confrev to API server: slow",
    TooManyRequests: "confrev to API server: 429",
    InternalErrors: "confrev to API server: 500",
    FollowerPaused: "following confrev paused",
    /// Without load: nothing may change.
    BothKilledAtRest: "both confrev killed, without load",
    /// No fault: only load.
    None: "none, the load alone",
}

impl Fault {
    /// Causes the fault one or more times, and returns how often it was seen to happen.
    pub(crate) fn happen(self, site: &Site, replicas: &mut Replicas, dice: &mut Dice) -> usize {
        let (clear, calm) = (Weather::Clear, Trouble::None);
        match self {
            Self::None => {
                let before = site.writes();
                replicas.tend_for(seconds(dice, 8, 15));
                site.writes() - before
            }
            Self::LeaderKilled => repeat(dice, |dice| {
                let leader = replicas.leader();
                killed(replicas, &[leader], seconds(dice, 0, 8))
            }),
            Self::FollowerKilled => repeat(dice, |dice| {
                let follower = 1 - replicas.leader();
                killed(replicas, &[follower], seconds(dice, 0, 8))
            }),
            Self::BothKilled | Self::BothKilledAtRest => killed(replicas, &[0, 1], seconds(dice, 0, 6)),
            Self::ReplacedInTurn => {
                let leader = replicas.leader();
                [leader, 1 - leader].map(|index| replaced(replicas, index, seconds(dice, 0, 2))).iter().sum()
            }
            Self::LeaderPaused => repeat(dice, |dice| {
                let leader = replicas.leader();
                paused(replicas, leader, seconds(dice, 1, 7))
            }),
            Self::LeaderPausedPastItsLease => {
                let leader = replicas.leader();
                paused(replicas, leader, seconds(dice, 9, 16))
            }
            Self::LeaderCutOff => {
                let leader = replicas.leader();
                cut_off(site, replicas, leader)
            }
            Self::FollowerPaused => repeat(dice, |dice| {
                let follower = 1 - replicas.leader();
                paused(replicas, follower, seconds(dice, 1, 10))
            }),
            Self::ApiServerKilled => repeat(dice, |dice| component_killed(site, replicas, API_SERVER, dice)),
            Self::ApiServerPaused => repeat(dice, |dice| component_paused(site, replicas, API_SERVER, dice)),
            Self::EtcdKilled => repeat(dice, |dice| component_killed(site, replicas, ETCD, dice)),
            Self::EtcdPaused => repeat(dice, |dice| component_paused(site, replicas, ETCD, dice)),
            Self::ManagerKilled => repeat(dice, |dice| component_killed(site, replicas, MANAGER, dice)),
            Self::ManagerPaused => repeat(dice, |dice| component_paused(site, replicas, MANAGER, dice)),
            Self::WebhookCallsReset => disturbed(replicas, dice, Weather::Resets(20), calm),
            Self::WebhookCallsCut => disturbed(replicas, dice, Weather::Cuts(20), calm),
            Self::WebhookCallsSlow => {
                let delay = dice.between(200, 1500);
                disturbed(replicas, dice, Weather::Slow(delay), calm)
            }
            Self::CallsReset => disturbed(replicas, dice, clear, Trouble::Resets(30)),
            Self::CallsCut => disturbed(replicas, dice, clear, Trouble::Cuts(30)),
            Self::CallsSlow => disturbed(replicas, dice, clear, Trouble::Slow(3000)),
            Self::Conflicts => disturbed(replicas, dice, clear, Trouble::Answers(409, 50)),
            Self::TooManyRequests => disturbed(replicas, dice, clear, Trouble::Answers(429, 50)),
            Self::InternalErrors => disturbed(replicas, dice, clear, Trouble::Answers(500, 40)),
            Self::Timeouts => disturbed(replicas, dice, clear, Trouble::Answers(504, 40)),
            Self::WatchesClosed => disturbed(replicas, dice, clear, Trouble::WatchesClosed),
            Self::WatchesExpired => disturbed(replicas, dice, clear, Trouble::WatchesExpired),
            Self::WatchesWithBookmarksOnly => {
                disturbed(replicas, dice, clear, Trouble::WatchesWithBookmarksOnly)
            }
            Self::CaLost => certificates::lost(site, replicas),
            Self::CaNearItsExpiry => certificates::near_their_end(site, replicas),
            Self::AllAtOnce => {
                disturbed_meanwhile(replicas, Weather::Cuts(10), Trouble::Resets(20), |replicas| {
                    let leader = replicas.leader();
                    let confrev = killed(replicas, &[leader], seconds(dice, 0, 4));
                    let api_server = component_killed(site, replicas, API_SERVER, dice);
                    replicas.tend_for(Duration::from_secs(3));
                    confrev.min(api_server)
                })
            }
        }
    }
}

/// A random time.
fn seconds(dice: &mut Dice, from: u64, to: u64) -> Duration {
    Duration::from_millis(dice.between(from * 1000, to * 1000))
}

/// Causes a fault up to three times. It must happen each time.
fn repeat(dice: &mut Dice, mut once: impl FnMut(&mut Dice) -> usize) -> usize {
    let times: Vec<_> = (0..dice.between(1, 4)).map(|_| once(dice)).collect();
    if times.contains(&0) { 0 } else { times.iter().sum() }
}

/// Kills replicas, and starts them again after this time. Returns how many were running.
fn killed(replicas: &mut Replicas, which: &[usize], time: Duration) -> usize {
    let mut running = 0;
    for &index in which {
        running += usize::from(replicas.programs[index].is_running());
        replicas.programs[index].kill();
    }
    start_after(replicas, which, time);
    running
}

/// Ends a replica as the kubelet does, and starts it again after this time.
fn replaced(replicas: &mut Replicas, index: usize, time: Duration) -> usize {
    let running = replicas.programs[index].is_running();
    replicas.programs[index].stop();
    start_after(replicas, &[index], time);
    usize::from(running)
}

fn start_after(replicas: &mut Replicas, which: &[usize], time: Duration) {
    replicas.tend_for(time);
    for &index in which {
        replicas.programs[index].launch(&[]);
    }
    replicas.tend_for(Duration::from_secs(2));
}

/// Pauses a replica for this time. Returns 0 if it was still running at the end of it.
fn paused(replicas: &mut Replicas, index: usize, time: Duration) -> usize {
    replicas.programs[index].pause();
    replicas.tend_for(time);
    let stopped = is_stopped(replicas.programs[index].pid());
    replicas.programs[index].resume();
    replicas.tend_for(Duration::from_secs(1));
    usize::from(stopped)
}

/// Cuts a replica off from the API server, which still calls it, until the other one does its work. Returns how many deployments were
/// admitted meanwhile.
fn cut_off(site: &Site, replicas: &mut Replicas, index: usize) -> usize {
    const DEPLOYMENTS: usize = 12;
    // The API server has its connection to this replica, and no other.
    replicas.service.set_backends(vec![replicas.programs[index].port()]);
    replicas.service.set_weather(Weather::Resets(100));
    let _ = is_admitted(site);
    replicas.service.set_weather(Weather::Clear);
    wait_for("a deployment through this replica", LIMIT, || is_admitted(site).then_some(()));
    replicas.uplinks[index].set_weather(Weather::Hangs);
    let has_moved = |replicas: &mut Replicas| {
        replicas.tend();
        !replicas.programs[index].is_ready() && replicas.programs[1 - index].leads()
    };
    wait_for("the other replica to lead, and this one to be unready", LIMIT, || {
        has_moved(replicas).then_some(())
    });
    // The frames that send clients away are on their way.
    replicas.tend_for(Duration::from_secs(2));
    let admitted = (0..DEPLOYMENTS).filter(|_| is_admitted(site)).count();
    if admitted < DEPLOYMENTS {
        site.lost("away", format!("{} of {DEPLOYMENTS} deployments were refused", DEPLOYMENTS - admitted));
    }
    replicas.uplinks[index].set_weather(Weather::Clear);
    replicas.tend_for(Duration::from_secs(1));
    admitted
}

/// Whether an opted-in deployment is admitted. It is a dry run, and its source does not exist.
fn is_admitted(site: &Site) -> bool {
    let labels = json!({"app": "cut-off"});
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "cut-off", "labels": {"confrev.dev/enabled": "true"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{
                    "name": "app", "image": "app:1", "envFrom": [{"configMapRef": {"name": "cut-off"}}],
                }]},
            },
        },
    });
    let path = format!(
        "/apis/apps/v1/namespaces/{}/deployments/cut-off?dryRun=All&fieldManager=user",
        site.namespace
    );
    site.try_write(&Method::PATCH, &path, (APPLY, &manifest), false).is_ok()
}

/// Whether the kernel has stopped a process.
fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    status.is_ok_and(|text| text.lines().any(|line| line.starts_with("State:\tT")))
}

/// Kills a component for a while. The test fails if the component does not run.
fn component_killed(site: &Site, replicas: &mut Replicas, component: &str, dice: &mut Dice) -> usize {
    site.cluster.kill(component);
    replicas.tend_for(seconds(dice, 0, 4));
    site.cluster.restart(component);
    1
}

/// Pauses a component for a while. The test fails if the component does not run.
fn component_paused(site: &Site, replicas: &mut Replicas, component: &str, dice: &mut Dice) -> usize {
    site.cluster.pause(component);
    replicas.tend_for(seconds(dice, 2, 12));
    site.cluster.resume(component);
    1
}

/// Disturbs calls to confrev or from confrev for a while. Returns how many were disturbed.
fn disturbed(replicas: &mut Replicas, dice: &mut Dice, weather: Weather, trouble: Trouble) -> usize {
    let time = seconds(dice, 8, 15);
    disturbed_meanwhile(replicas, weather, trouble, |replicas| {
        replicas.tend_for(time);
        1
    })
}

/// Disturbs calls until another fault has happened, and each given disturbance too. Returns how many calls were disturbed, and 0
/// if anything did not happen.
fn disturbed_meanwhile(
    replicas: &mut Replicas,
    weather: Weather,
    trouble: Trouble,
    meanwhile: impl FnOnce(&mut Replicas) -> usize,
) -> usize {
    let (service, proxy) = (Arc::clone(&replicas.service), Arc::clone(&replicas.proxy));
    let before = (service.events(), proxy.events());
    let disturbances = || (service.events() - before.0, proxy.events() - before.1);
    let have_happened = || {
        let (calls_to, calls_from) = disturbances();
        (calls_to > 0 || weather == Weather::Clear) && (calls_from > 0 || trouble == Trouble::None)
    };
    service.set_weather(weather);
    proxy.set(trouble);
    let other = meanwhile(replicas);
    let start = Instant::now();
    while !have_happened() && start.elapsed() < LIMIT {
        replicas.tend_for(Duration::from_millis(500));
    }
    let all = other > 0 && have_happened();
    service.set_weather(Weather::Clear);
    proxy.set(Trouble::None);
    let (calls_to, calls_from) = disturbances();
    if all { calls_to + calls_from } else { 0 }
}
