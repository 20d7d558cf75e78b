//! Workloads that may refer to a missing source.

use jiff::{SignedDuration, Timestamp};

use crate::{
    controller::{
        queue::Task,
        reconcile::{
            event_texts::{self},
            state::State,
        },
    },
    world::WorkloadKey,
};

/// How long a reference may lead to nothing before it is reported: objects applied together do not arrive at once.
const MISSING_DELAY: SignedDuration = SignedDuration::from_secs(10);

impl State {
    /// Queues a check of a workload that may refer to a missing source.
    pub(in crate::controller) fn enqueue_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        let record = self.world.workload(key).filter(|_| self.world.is_synced());
        if record
            .is_some_and(|record| record.uses.iter().any(|used| used.snapshot.is_none() && !used.optional))
        {
            self.queue.schedule(Task::Report(key.clone()), now + MISSING_DELAY);
        }
    }

    /// Reports the sources that a workload refers to and that are still missing.
    pub(super) fn report_missing_sources(&mut self, key: &WorkloadKey, now: Timestamp) {
        self.report(event_texts::missing_sources(&self.world, key, now), now);
    }
}
