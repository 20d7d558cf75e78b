//! The name of the gate that keeps each pending workload from the content of a source, as the controller acts on it. For tests, which
//! compare it with the answers of the commands.

use jiff::Timestamp;

use super::{
    held::{HeldWorkloads, Shut},
    state::State,
    workload::is_rolling,
};
use crate::{cluster::WorkloadKey, controller::queue::Task, snapshot::ObjectName};

/// The gate of a workload that may move, and does as soon as the queue lets it.
const OPEN: &str = "rolls";
/// The state of a workload whose roll the API server refused.
const REFUSED: &str = "refused";

impl State {
    /// For each workload and source whose content it is to move to: the gate that keeps it from the content, or `rolls`.
    pub fn gates(&self, now: Timestamp) -> Vec<(WorkloadKey, ObjectName, &'static str)> {
        let mut named = Vec::new();
        for (key, record) in self.index.workloads().filter(|(key, _)| self.index.is_pending(key)) {
            let rolling = is_rolling(&self.queue, &self.rolls, now);
            let since = self.rolls.pending_since(key).unwrap_or(now);
            let answers = HeldWorkloads::default().answers(&self.index, key, record, rolling, (since, now));
            let has_failed = self.queue.failures(&Task::Roll(key.clone())) > 0;
            let open = if has_failed { REFUSED } else { OPEN };
            named.extend(answers.open.into_iter().map(|(source, _)| (key.clone(), source.object, open)));
            let name = |Shut { source, why, .. }: Shut<'_>| (key.clone(), source.object, why.gate().name());
            named.extend(answers.shut.into_iter().map(name));
        }
        named.sort();
        named
    }
}
