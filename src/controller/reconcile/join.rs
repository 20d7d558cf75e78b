//! Workloads that their namespace opts in and that have no label yet. They get the label in the queue of all rolls, within
//! the rate and `max-in-flight`. A refusal of one does not affect the others.

use jiff::Timestamp;

use crate::cluster::{Candidate, WorkloadKey};
use crate::controller::{queue::Task, state::State};

impl State {
    /// Queues the workloads of a namespace that opts in.
    pub(crate) fn join(&mut self, found: impl IntoIterator<Item = (WorkloadKey, Candidate)>, now: Timestamp) {
        for (key, Candidate { mut record, condition }) in found {
            let is_enabled = self.namespaces.as_ref().is_some_and(|known| known.contains(&key.namespace));
            // A watch may have reported since the read that the workload is opted in.
            if !is_enabled || (self.workloads.contains_key(&key) && !self.joining.contains_key(&key)) {
                continue;
            }
            // Anyone may have written what the template states about snapshots.
            for used in &mut record.uses {
                used.snapshot = None;
            }
            self.joining.insert(key.clone(), condition);
            self.set_workload(&key, Some(record), now);
        }
    }

    /// Forgets workloads that are not opted in yet.
    pub(crate) fn drop_joining(&mut self, now: Timestamp, of: impl Fn(&WorkloadKey) -> bool) {
        if self.joining.is_empty() {
            return;
        }
        let keys: Vec<_> = self.joining.keys().filter(|key| of(key)).cloned().collect();
        for key in keys {
            self.agenda.cancel(&Task::Roll(key.clone()));
            self.apply_workload(&key, None, now);
        }
    }
}
