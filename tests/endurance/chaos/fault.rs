//! The faults.

use std::sync::Arc;
use std::time::Duration;

use crate::certificates;
use crate::dice::Dice;
use crate::link::Weather;
use crate::proxy::Trouble;
use crate::replicas::Replicas;
use crate::site::Site;

/// One kind of fault. It is over when [`Fault::happen`] returns, except for the time that the components need to
/// recover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// No fault: only load.
    None,
    LeaderKilled,
    FollowerKilled,
    BothKilled,
    /// Without load: nothing may change.
    BothKilledAtRest,
    ReplacedInTurn,
    LeaderPaused,
    LeaderPausedPastItsLease,
    FollowerPaused,
    ApiServerKilled,
    ApiServerPaused,
    EtcdKilled,
    EtcdPaused,
    /// The garbage collector and the controllers of Deployments and StatefulSets act late, on outdated state.
    ManagerKilled,
    ManagerPaused,
    WebhookCallsReset,
    WebhookCallsCut,
    WebhookCallsSlow,
    CallsReset,
    CallsCut,
    CallsSlow,
    Conflicts,
    TooManyRequests,
    InternalErrors,
    Timeouts,
    WatchesClosed,
    WatchesExpired,
    WatchesWithBookmarksOnly,
    AuthorityLost,
    AuthorityNearItsEnd,
    /// Calls fail in both directions while the leader and the API server are killed.
    AllAtOnce,
}

impl Fault {
    /// In the order of a first, short run.
    pub(crate) const ALL: [Self; 31] = [
        Self::LeaderKilled,
        Self::CallsReset,
        Self::ApiServerKilled,
        Self::WebhookCallsCut,
        Self::WatchesExpired,
        Self::ManagerPaused,
        Self::WatchesWithBookmarksOnly,
        Self::EtcdPaused,
        Self::Timeouts,
        Self::AllAtOnce,
        Self::LeaderPausedPastItsLease,
        Self::EtcdKilled,
        Self::CallsCut,
        Self::Conflicts,
        Self::BothKilled,
        Self::AuthorityLost,
        Self::WatchesClosed,
        Self::WebhookCallsReset,
        Self::ApiServerPaused,
        Self::ReplacedInTurn,
        Self::ManagerKilled,
        Self::AuthorityNearItsEnd,
        Self::FollowerKilled,
        Self::LeaderPaused,
        Self::WebhookCallsSlow,
        Self::CallsSlow,
        Self::TooManyRequests,
        Self::InternalErrors,
        Self::FollowerPaused,
        Self::BothKilledAtRest,
        Self::None,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::None => "none, the load alone",
            Self::LeaderKilled => "leading confrev killed",
            Self::FollowerKilled => "following confrev killed",
            Self::BothKilled => "both confrev killed",
            Self::BothKilledAtRest => "both confrev killed, without load",
            Self::ReplacedInTurn => "both confrev ended and started in turn",
            Self::LeaderPaused => "leading confrev paused for some seconds",
            Self::LeaderPausedPastItsLease => "leading confrev paused for longer than its Lease",
            Self::FollowerPaused => "following confrev paused",
            Self::ApiServerKilled => "API server killed",
            Self::ApiServerPaused => "API server paused",
            Self::EtcdKilled => "etcd killed",
            Self::EtcdPaused => "etcd paused",
            Self::ManagerKilled => "controller manager killed",
            Self::ManagerPaused => "controller manager paused",
            Self::WebhookCallsReset => "API server to confrev: connections reset",
            Self::WebhookCallsCut => "API server to confrev: cut halfway",
            Self::WebhookCallsSlow => "API server to confrev: slow",
            Self::CallsReset => "confrev to API server: connections reset",
            Self::CallsCut => "confrev to API server: cut halfway",
            Self::CallsSlow => "confrev to API server: slow",
            Self::Conflicts => "confrev to API server: 409",
            Self::TooManyRequests => "confrev to API server: 429",
            Self::InternalErrors => "confrev to API server: 500",
            Self::Timeouts => "confrev to API server: 504",
            Self::WatchesClosed => "watches closed",
            Self::WatchesExpired => "watches expired",
            Self::WatchesWithBookmarksOnly => "watches with bookmarks only",
            Self::AuthorityLost => "confrev's CA lost",
            Self::AuthorityNearItsEnd => "confrev's CA near its expiry",
            Self::AllAtOnce => "both directions failing, leading confrev and API server killed",
        }
    }

    /// Causes the fault one or more times, and returns how often.
    pub(crate) fn happen(self, site: &Site, replicas: &mut Replicas, dice: &mut Dice) -> usize {
        match self {
            Self::LeaderKilled
            | Self::FollowerKilled
            | Self::LeaderPaused
            | Self::FollowerPaused
            | Self::ApiServerKilled
            | Self::EtcdKilled
            | Self::EtcdPaused
            | Self::ManagerKilled
            | Self::ManagerPaused
            | Self::ApiServerPaused => {
                let times = dice.between(1, 4);
                (0..times).for_each(|_| self.once(site, replicas, dice));
                usize::try_from(times).unwrap()
            }
            _ => {
                let (service, proxy) = (Arc::clone(&replicas.service), Arc::clone(&replicas.proxy));
                let before = service.events() + proxy.events();
                let (weather, trouble) = self.weather(dice);
                service.set_weather(weather);
                proxy.set(trouble);
                self.once(site, replicas, dice);
                service.set_weather(Weather::Clear);
                proxy.set(Trouble::None);
                (service.events() + proxy.events() - before).max(1)
            }
        }
    }

    /// What happens meanwhile to calls to confrev and from confrev.
    fn weather(self, dice: &mut Dice) -> (Weather, Trouble) {
        let (clear, calm) = (Weather::Clear, Trouble::None);
        match self {
            Self::WebhookCallsReset => (Weather::Resets(20), calm),
            Self::WebhookCallsCut => (Weather::Cuts(20), calm),
            Self::WebhookCallsSlow => (Weather::Slow(dice.between(200, 1500)), calm),
            Self::CallsReset => (clear, Trouble::Resets(30)),
            Self::CallsCut => (clear, Trouble::Cuts(30)),
            Self::CallsSlow => (clear, Trouble::Slow(3000)),
            Self::Conflicts => (clear, Trouble::Answers(409, 50)),
            Self::TooManyRequests => (clear, Trouble::Answers(429, 50)),
            Self::InternalErrors => (clear, Trouble::Answers(500, 40)),
            Self::Timeouts => (clear, Trouble::Answers(504, 40)),
            Self::WatchesClosed => (clear, Trouble::WatchesClosed),
            Self::WatchesExpired => (clear, Trouble::WatchesExpired),
            Self::WatchesWithBookmarksOnly => (clear, Trouble::WatchesWithBookmarksOnly),
            Self::AllAtOnce => (Weather::Cuts(10), Trouble::Resets(20)),
            _ => (clear, calm),
        }
    }

    fn once(self, site: &Site, replicas: &mut Replicas, dice: &mut Dice) {
        let leader = replicas.leader();
        let mut seconds = |from: u64, to: u64| Duration::from_millis(dice.between(from * 1000, to * 1000));
        match self {
            Self::LeaderKilled => killed(replicas, &[leader], seconds(0, 8)),
            Self::FollowerKilled => killed(replicas, &[1 - leader], seconds(0, 8)),
            Self::BothKilled | Self::BothKilledAtRest => killed(replicas, &[0, 1], seconds(0, 6)),
            Self::ReplacedInTurn => {
                for index in [leader, 1 - leader] {
                    replicas.programs[index].stop();
                    killed(replicas, &[index], seconds(0, 2));
                }
            }
            Self::LeaderPaused => paused(replicas, leader, seconds(1, 7)),
            Self::LeaderPausedPastItsLease => paused(replicas, leader, seconds(17, 24)),
            Self::FollowerPaused => paused(replicas, 1 - leader, seconds(1, 10)),
            Self::ApiServerKilled | Self::EtcdKilled | Self::ManagerKilled => {
                let component = self.component();
                site.cluster.kill(component);
                replicas.tend_for(seconds(0, 4));
                site.cluster.restart(component);
            }
            Self::ApiServerPaused | Self::EtcdPaused | Self::ManagerPaused => {
                let component = self.component();
                site.cluster.pause(component);
                replicas.tend_for(seconds(2, 12));
                site.cluster.resume(component);
            }
            Self::AuthorityLost => certificates::lost(site, replicas),
            Self::AuthorityNearItsEnd => certificates::near_their_end(site, replicas),
            Self::AllAtOnce => {
                killed(replicas, &[leader], seconds(0, 4));
                Self::ApiServerKilled.once(site, replicas, dice);
                replicas.tend_for(Duration::from_secs(3));
            }
            _ => replicas.tend_for(seconds(8, 15)),
        }
    }

    fn component(self) -> &'static str {
        match self {
            Self::EtcdKilled | Self::EtcdPaused => "etcd",
            Self::ManagerKilled | Self::ManagerPaused => "kube-controller-manager",
            _ => "kube-apiserver",
        }
    }
}

fn killed(replicas: &mut Replicas, which: &[usize], time: Duration) {
    for &index in which {
        replicas.programs[index].kill();
    }
    replicas.tend_for(time);
    for &index in which {
        replicas.programs[index].launch(&[]);
    }
    replicas.tend_for(Duration::from_secs(2));
}

fn paused(replicas: &mut Replicas, index: usize, time: Duration) {
    replicas.programs[index].pause();
    replicas.tend_for(time);
    replicas.programs[index].resume();
    replicas.tend_for(Duration::from_secs(1));
}
