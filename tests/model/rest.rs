//! Letting things go their way, until nothing is left to do.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::Model;

/// More rounds than this are a sign that it never comes to rest.
const MOST_ROUNDS: usize = 3000;
/// Longer than this nothing takes: the grace, and some intervals and pauses.
const LONGEST: SignedDuration = SignedDuration::from_mins(30);

impl Model {
    /// Everything goes its way for so long.
    pub(crate) fn settle(self: &Arc<Self>, time: SignedDuration) {
        let until = self.settings().elapsed + time;
        while let Some(pause) = self.round(until) {
            self.settings().elapsed += pause;
        }
    }

    /// Everything goes its way until nothing is left to do; with nothing in the way any more.
    pub(crate) fn rest(self: &Arc<Self>) {
        let patience = {
            let mut settings = self.settings();
            settings.webhook = true;
            settings.fault = None;
            settings.meanwhile = None;
            settings.disturbed = false;
            settings.elapsed + LONGEST
        };
        for _ in 0..MOST_ROUNDS {
            let Some(pause) = self.round(SignedDuration::MAX) else { return };
            let mut settings = self.settings();
            settings.elapsed += pause;
            if settings.elapsed > patience {
                break;
            }
        }
        let leader = self.settings().leader.unwrap_or_default();
        let next = format!("{:?}", self.replicas()[leader].shared.lock().next_due());
        self.broken("quiet", format!("it does not come to rest: now {}, next {next}", self.cluster_time()));
    }

    /// Does all that can be done now. Answers how long it is until the next thing is due, if that is by `until`.
    pub(crate) fn round(self: &Arc<Self>, until: SignedDuration) -> Option<SignedDuration> {
        loop {
            let mut any = self.take_turns();
            let now = self.cluster_time();
            for replica in self.replicas().iter_mut() {
                let now = now + replica.skew;
                any |= replica.deliver_all(&self.store(), now);
            }
            any |= self.controllers() | self.collect();
            if !any && !self.work(16) {
                break;
            }
        }
        let leader = self.settings().leader;
        let due = leader.and_then(|leader| {
            let due = self.replicas()[leader].shared.lock().next_due()?;
            Some(due.duration_since(self.now(leader)))
        });
        let pause = due.into_iter().chain(self.next_turn()).min()?.max(SignedDuration::from_millis(1));
        let left = until.saturating_sub(self.settings().elapsed);
        (pause <= left).then_some(pause)
    }
}
