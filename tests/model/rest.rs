//! Runs all components until nothing is left to do.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::Model;

/// A run with more rounds than this never comes to rest.
const MOST_ROUNDS: usize = 3000;
/// How long the world may take to come to rest: a crash starts the ten minutes of grace of an unused snapshot again, and a run has at
/// most two.
const LONGEST: SignedDuration = SignedDuration::from_mins(45);

impl Model {
    /// Runs all components for this time.
    pub(crate) fn settle(self: &Arc<Self>, time: SignedDuration) {
        let until = self.conditions().elapsed + time;
        while let Some(pause) = self.round(until) {
            self.conditions().elapsed += pause;
        }
    }

    /// Runs all components until nothing is left to do, without further faults.
    pub(crate) fn rest(self: &Arc<Self>) {
        let patience = {
            let mut conditions = self.conditions();
            conditions.webhook = true;
            conditions.fault = None;
            conditions.meanwhile = None;
            conditions.disturbed = false;
            conditions.elapsed + LONGEST
        };
        for _ in 0..MOST_ROUNDS {
            let Some(pause) = self.round(SignedDuration::MAX) else { return };
            let mut conditions = self.conditions();
            conditions.elapsed += pause;
            if conditions.elapsed > patience {
                break;
            }
        }
        let leader = self.conditions().leader.unwrap_or_default();
        let next = format!("{:?}", self.replicas()[leader].shared.lock().next_due());
        self.broken(
            "quiet",
            format!("the world does not come to rest: now {}, next {next}", self.cluster_time()),
        );
    }

    /// Does everything that is possible now. Returns the time until the next step, if that is before `until`.
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
        let leader = self.conditions().leader;
        let due = leader.and_then(|leader| {
            let due = self.replicas()[leader].shared.lock().next_due()?;
            Some(due.duration_since(self.now(leader)))
        });
        let pause = due.into_iter().chain(self.next_turn()).min()?.max(SignedDuration::from_millis(1));
        let left = until.saturating_sub(self.conditions().elapsed);
        (pause <= left).then_some(pause)
    }
}
