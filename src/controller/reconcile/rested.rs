//! The workloads of changes whose rollout has ended, and since when some of their pods are not available.
//!
//! A restart forgets them: a workload that is unavailable then must be healthy once before it counts again.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::{resolve::Health, world::WorkloadKey};

/// A workload that the controller moved, and whose rollout has ended.
#[derive(Clone, Copy, Debug)]
struct Rested {
    /// The spec that was rolled out. A scaled workload waits for new pods, which breaks nothing.
    generation: Option<i64>,
    /// Since when some of its pods are not available.
    broken_since: Option<Timestamp>,
}

/// The workloads that the controller moved, and whose rollout has ended.
#[derive(Debug, Default)]
pub(super) struct RestedWorkloads(HashMap<WorkloadKey, Rested>);

impl RestedWorkloads {
    /// Takes over the present health of a workload that the controller moved.
    pub(super) fn observe(
        &mut self,
        key: &WorkloadKey,
        (generation, health): (Option<i64>, Health),
        now: Timestamp,
    ) {
        match self.0.get_mut(key).filter(|rested| rested.generation == generation) {
            Some(rested) if health == Health::Unavailable => {
                rested.broken_since.get_or_insert(now);
            }
            _ if health.is_at_rest() => {
                self.0.insert(key.clone(), Rested { generation, broken_since: None });
            }
            _ => self.forget(key),
        }
    }

    /// Forgets a workload that is deleted, or that no change has moved.
    pub(super) fn forget(&mut self, key: &WorkloadKey) {
        self.0.remove(key);
    }

    /// Since when some pods of a workload are not available, although its rollout had ended.
    pub(super) fn broken_since(&self, key: &WorkloadKey) -> Option<Timestamp> {
        self.0.get(key)?.broken_since
    }
}
