//! What goes wrong.

use std::time::Duration;

use crate::dice::Dice;
use crate::link::Weather;
use crate::replicas::Replicas;
use crate::site::Site;

/// One kind of fault. Each is over when [`Fault::happen`] ends, but for what takes time to come back by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Nothing goes wrong: the load alone.
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
    WebhookCallsReset,
    WebhookCallsCut,
    WebhookCallsSlow,
}

impl Fault {
    /// In the order of a first, short run.
    pub(crate) const ALL: [Self; 16] = [
        Self::LeaderKilled,
        Self::ApiServerKilled,
        Self::WebhookCallsCut,
        Self::EtcdPaused,
        Self::LeaderPausedPastItsLease,
        Self::EtcdKilled,
        Self::BothKilled,
        Self::WebhookCallsReset,
        Self::ApiServerPaused,
        Self::ReplacedInTurn,
        Self::FollowerKilled,
        Self::LeaderPaused,
        Self::WebhookCallsSlow,
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
            Self::WebhookCallsReset => "API server to confrev: connections reset",
            Self::WebhookCallsCut => "API server to confrev: cut halfway",
            Self::WebhookCallsSlow => "API server to confrev: slow",
        }
    }

    /// Lets it happen, some times; answers how often.
    pub(crate) fn happen(self, site: &Site, replicas: &mut Replicas, dice: &mut Dice) -> usize {
        match self {
            Self::LeaderKilled | Self::FollowerKilled | Self::LeaderPaused | Self::FollowerPaused => {
                repeat(dice, |dice| self.once(site, replicas, dice))
            }
            Self::ApiServerKilled | Self::EtcdKilled | Self::EtcdPaused | Self::ApiServerPaused => {
                repeat(dice, |dice| self.once(site, replicas, dice))
            }
            Self::WebhookCallsReset | Self::WebhookCallsCut | Self::WebhookCallsSlow => {
                self.bad_weather(replicas, dice)
            }
            _ => {
                self.once(site, replicas, dice);
                1
            }
        }
    }

    fn once(self, site: &Site, replicas: &mut Replicas, dice: &mut Dice) {
        let leader = replicas.leader();
        let mut seconds = |from: u64, to: u64| Duration::from_millis(dice.between(from * 1000, to * 1000));
        match self {
            Self::None => replicas.tend_for(seconds(8, 12)),
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
            Self::ApiServerKilled | Self::EtcdKilled => {
                let component = self.component();
                site.cluster.kill(component);
                replicas.tend_for(seconds(0, 4));
                site.cluster.restart(component);
            }
            Self::ApiServerPaused | Self::EtcdPaused => {
                let component = self.component();
                site.cluster.pause(component);
                replicas.tend_for(seconds(2, 12));
                site.cluster.resume(component);
            }
            Self::WebhookCallsReset | Self::WebhookCallsCut | Self::WebhookCallsSlow => {}
        }
    }

    fn component(self) -> &'static str {
        match self {
            Self::EtcdKilled | Self::EtcdPaused => "etcd",
            _ => "kube-apiserver",
        }
    }

    fn bad_weather(self, replicas: &mut Replicas, dice: &mut Dice) -> usize {
        let weather = match self {
            Self::WebhookCallsReset => Weather::Resets(20),
            Self::WebhookCallsCut => Weather::Cuts(20),
            _ => Weather::Slow(dice.between(200, 1500)),
        };
        let before = replicas.service.events();
        replicas.service.set_weather(weather);
        replicas.tend_for(Duration::from_secs(dice.between(8, 15)));
        replicas.service.set_weather(Weather::Clear);
        replicas.service.events() - before
    }
}

/// Once to three times.
fn repeat(dice: &mut Dice, mut once: impl FnMut(&mut Dice)) -> usize {
    let times = dice.between(1, 4);
    (0..times).for_each(|_| once(dice));
    usize::try_from(times).unwrap()
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
