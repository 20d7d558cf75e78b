//! The numbers for metrics that summarize the state.

use crate::{controller::reconcile::state::State, resolve::Record, telemetry::metrics::StateCounts};

impl State {
    /// The numbers for metrics. A replica that does not lead reads no sources and rolls nothing, so it only reports numbers
    /// of objects.
    pub fn standing(&mut self, leads: bool) -> StateCounts {
        let index = &self.index;
        let known = StateCounts {
            workloads: index.workloads().len(),
            sources: index.sources().len(),
            snapshots: index.snapshots().iter().len(),
            unreadable: index.unreadable().len(),
            ..StateCounts::default()
        };
        if !leads {
            return known;
        }
        let settings = index.config();
        let unverifiable =
            index.snapshots().iter().filter(|(_, record)| settings.is_unverifiable(record)).count();
        if unverifiable > 0 && !self.key_loss_is_reported {
            tracing::error!(
                snapshots = unverifiable,
                "the key of the digests of Secrets is lost: nothing rolls, and contents are compared with the \
                 snapshots; restore the Secret confrev-digest-key from a backup"
            );
        }
        self.key_loss_is_reported = unverifiable > 0;
        // A snapshot that nothing refers to is not missed, and one that exists again is not lost.
        self.missing.retain(|name| index.users().staying(name).next().is_some() && !index.exists(name));
        let count = |holds: &dyn Fn(&str, &Record) -> bool| {
            index.workloads().filter(|(key, record)| holds(&key.namespace, record)).count()
        };
        StateCounts {
            pending: self.queue.pending_rolls(),
            held: self.held_workloads.len(),
            baking: self.held_workloads.baking(),
            pinned: count(&|namespace, record| index.pinned(namespace, record).next().is_some()),
            on_hold: count(&|_, record| record.uses.iter().any(|used| used.on_hold)),
            unresolved: count(&|namespace, record| index.unresolved(namespace, record).next().is_some()),
            lost: self.missing.lost().count(),
            unverifiable,
            ..known
        }
    }
}
