//! The name of the gate that keeps each pending workload from the content of a source, as the controller acts on it. For tests, which
//! compare it with the answers of the commands.

use jiff::Timestamp;

use super::{held::HeldWorkloads, rolls::is_rolling, state::State};
use crate::{
    controller::queue::Task,
    snapshot::ObjectName,
    world::{Shut, WorkloadKey},
};

/// The gate of a workload that may move, and does as soon as the queue lets it.
const OPEN: &str = "rolls";
/// The state of a workload whose roll the API server refused.
const REFUSED: &str = "refused";

impl State {
    /// For each workload and source whose content it is to move to: the gate that keeps it from the content, or `rolls`.
    pub fn gates(&self, now: Timestamp) -> Vec<(WorkloadKey, ObjectName, &'static str)> {
        let mut named = Vec::new();
        let moves = |key: &WorkloadKey| self.world.kind(key).is_some_and(|kind| kind.rolls);
        let asked = self.world.workloads().filter(|(key, _)| moves(key) || self.world.is_pending(key));
        for (key, record) in asked {
            let rolling = is_rolling(&self.queue, &self.rolls, now);
            let since = self.rolls.pending_since(key).unwrap_or(now);
            let mut held = HeldWorkloads::default();
            let (answers, _) = held.answers(&self.world, (key, record), rolling, (since, now));
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
