//! The name of the gate that keeps each pending workload from the content of a source, as the controller acts on it. For tests, which
//! compare it with the answers of the commands.

use jiff::Timestamp;

use super::{
    gates,
    held::{spread, standing},
    state::State,
    workload::is_rolling,
};
use crate::{
    cluster::WorkloadKey,
    controller::{index::records::SourceRecord, name::Name, queue::Task},
    resolve::{Health, Record, Standing, Use, Wait, Waiting},
    snapshot::ObjectName,
};

/// The gate of a workload that may move, and does as soon as the queue lets it.
const OPEN: &str = "rolls";

impl State {
    /// For each workload and source whose content it is to move to: the gate that keeps it from the content, or `rolls`.
    pub fn gates(&self, now: Timestamp) -> Vec<(WorkloadKey, ObjectName, &'static str)> {
        let mut named = Vec::new();
        for (key, record) in self.index.workloads() {
            if !self.index.is_pending(key) {
                continue;
            }
            let shut = gates::shut(&self.index, key, record, now).map(|shut| shut.gate);
            for (name, used, known) in self.index.sources_of(key, record) {
                if record.is_pending_for(used, &known.present) {
                    let gate = shut
                        .or_else(|| self.held_by(key, record, (&name, used, known), now))
                        .or_else(|| record.interval_left(now).map(|_| "min-interval"))
                        .or_else(|| (self.queue.failures(&Task::Roll(key.clone())) > 0).then_some("refused"));
                    named.push((key.clone(), used.source.clone(), gate.unwrap_or(OPEN)));
                }
            }
        }
        named.sort();
        named
    }

    /// The gate of the others that holds a workload from the content of one source.
    fn held_by(
        &self,
        key: &WorkloadKey,
        record: &Record,
        (name, used, known): (&Name, &Use, &SourceRecord),
        now: Timestamp,
    ) -> Option<&'static str> {
        if !(known.spread.is_limited() || self.index.is_grouped(name)) || used.on_hold {
            return None;
        }
        let has_seen = record.has_seen(&used.source, &known.present.digests);
        if used.snapshot.is_some() && self.index.refused(name).is_some() && !has_seen {
            return Some("refused");
        }
        let Standing::Waits(Waiting { place }) = standing(&self.index, key, record, name, known) else {
            return None;
        };
        if self.index.awaits_sibling(name) {
            return Some("wave");
        }
        let rolling = is_rolling(&self.queue, &self.rolls, now);
        let rolling = |of: &WorkloadKey, record: &Record, content: Option<(&_, &_)>| {
            of != key && rolling(of, record, content)
        };
        let has_failed = self.index.health(key, record) == Health::Failed;
        let wait = spread(&self.index, name, known, rolling, now)?.wait(has_failed, place)?;
        Some(match wait {
            Wait::Bad(_) | Wait::Aborted | Wait::Refused if has_seen => return None,
            Wait::Bad(_) => "failed",
            Wait::Full => "max-in-flight",
            Wait::Invalid(_) => "invalid",
            Wait::Unproven | Wait::Bake(_) | Wait::Turn | Wait::Analysis(_) => "wave",
            Wait::Aborted => "aborted",
            Wait::Refused => "refused",
        })
    }
}
