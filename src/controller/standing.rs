//! The numbers for metrics that summarize the state, and the workloads that are pinned or unresolved.

use std::sync::Arc;

use super::{
    Name,
    records::{Found, Source, User},
    state::State,
};
use crate::{
    compact::CompactSet,
    resolve::{Record, Use},
    snapshot::ObjectName,
    telemetry::metrics::StateCounts,
};

impl State {
    /// The numbers for metrics. A replica that does not lead reads no sources and rolls nothing, so it only reports numbers
    /// of objects.
    pub fn standing(&mut self, leads: bool) -> StateCounts {
        let known = StateCounts {
            workloads: self.workloads.len(),
            sources: self.sources.len(),
            snapshots: self.snapshots.len(),
            unreadable: self.unreadable.len(),
            ..StateCounts::default()
        };
        if !leads {
            return known;
        }
        let unverifiable = self.snapshots.values().filter(|record| self.is_unverifiable(record)).count();
        if unverifiable > 0 && !self.key_loss_is_told {
            tracing::error!(
                snapshots = unverifiable,
                "the key of the digests of Secrets is lost: nothing rolls, and contents are compared with the \
                 snapshots; restore the Secret confrev-digest-key from a backup"
            );
        }
        self.key_loss_is_told = unverifiable > 0;
        let Self { lost, missing_since, users, leaving, snapshots, bound, .. } = self;
        let is_used = |name: &Name| {
            let users: Option<&CompactSet<User>> = users.get(name);
            users.is_some_and(|users| users.iter().any(|user| !leaving.contains(user)))
        };
        // A snapshot that nothing refers to is not missed, and one that exists again is not lost.
        let is_missed =
            |name: &Name| is_used(name) && !snapshots.contains_key(name) && !bound.contains_key(name);
        lost.retain(is_missed);
        missing_since.retain(|name, _| is_missed(name));
        let count = |holds: &dyn Fn(&str, &Record) -> bool| {
            self.workloads.iter().filter(|(key, record)| holds(&key.namespace, record)).count()
        };
        StateCounts {
            pending: self.agenda.pending_rolls(),
            held: self.held.len(),
            pinned: count(&|namespace, record| self.pinned(namespace, record).next().is_some()),
            unresolved: count(&|namespace, record| self.unresolved(namespace, record).next().is_some()),
            lost: self.lost.len(),
            unverifiable,
            ..known
        }
    }

    /// The sources of which a workload keeps other content, although it has seen the present content: by an undo or a pin.
    pub(super) fn pinned<'r>(
        &'r self,
        namespace: &'r str,
        record: &'r Record,
    ) -> impl Iterator<Item = &'r Use> {
        record.uses.iter().filter(move |used| {
            // A workload that does not track keeps its snapshots anyway. One that reads some keys may read the same in both
            // contents.
            if !record.track || !used.whole || used.excluded {
                return false;
            }
            let source = Name::new(namespace, used.source.clone());
            let Some(Source::Found(found)) = self.sources.get(&source) else { return false };
            record.has_seen(&used.source, &found.present.digests) && self.holds_another(used, &source, found)
        })
    }

    /// Whether the snapshot that replaces a source is known, and holds other content than the source.
    pub(super) fn holds_another(&self, used: &Use, source: &Name, found: &Found) -> bool {
        let held =
            used.snapshot.as_ref().and_then(|name| self.snapshots.get(&source.sibling(Arc::clone(name))));
        held.is_some_and(|held| !found.present.digests.contains(&held.digest))
    }

    /// The missing sources that a workload refers to: its pods do not start.
    pub(super) fn unresolved<'r>(
        &'r self,
        namespace: &'r str,
        record: &'r Record,
    ) -> impl Iterator<Item = &'r ObjectName> {
        let missing = move |used: &&Use| {
            used.snapshot.is_none()
                && !used.optional
                && self.sources.get(&Name::new(namespace, used.source.clone())) == Some(&Source::Missing)
        };
        record.uses.iter().filter(missing).map(|used| &used.source)
    }
}
