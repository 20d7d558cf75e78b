//! Refused contents, and the workloads that go back from them.

use std::sync::Arc;

use super::{
    Index,
    records::{SnapshotRecord, SourceRecord},
};
use crate::{
    cluster::WorkloadKey,
    controller::name::Name,
    resolve::{Record, Refusal, Use},
    snapshot::Digests,
};

impl Index {
    /// The refusal of the present content of a source, with the refused snapshot; `None` if workloads may roll to the content.
    pub(crate) fn refused(&self, source: &Name) -> Option<(Name, &Refusal)> {
        self.refused_of(source, self.existing_source(source)?)
    }

    /// The refusal of a content of a source, with the refused snapshot.
    pub(crate) fn refused_of(&self, source: &Name, content: &SourceRecord) -> Option<(Name, &Refusal)> {
        if !content.spread.reverts {
            return None;
        }
        let (snapshot, record) = self.marked_with(source, &content.present.digests)?;
        let refusal = record.refused.as_deref()?;
        content.spread.heeds(&snapshot.object.name, refusal).then_some((snapshot, refusal))
    }

    /// The snapshot of a content that has a mark, in force or not.
    pub(crate) fn marked_with(&self, source: &Name, content: &Digests) -> Option<(Name, &SnapshotRecord)> {
        let marked = |(_, record): &(Name, &SnapshotRecord)| record.refused.is_some();
        let (name, _) = self.snapshots.with(source, content).find(marked)?;
        let record = self.snapshot(&name)?;
        Some((name, record))
    }

    /// Whether a workload uses refused content, and has a snapshot to go back to.
    pub(crate) fn is_returning(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.track && record.uses.iter().any(|used| self.returns(key, record, used))
    }

    fn returns(&self, key: &WorkloadKey, record: &Record, used: &Use) -> bool {
        let Some(held) = used.snapshot.as_ref().filter(|_| !used.on_hold && !used.excluded) else {
            return false;
        };
        let source = Name::new(Arc::clone(&key.namespace), used.source.clone());
        let Some((refused, refusal)) = self.refused(&source) else { return false };
        if *held != refused.object.name {
            return false;
        }
        // Admission decides by the same rule.
        let own = record.previous.get(&used.source).map(|name| &**name);
        let is_fit = |name: &&str| {
            let snapshot = source.sibling(*name);
            let found = self.snapshot(&snapshot).zip(self.existing_source(&source));
            **name == **held
                || found.is_some_and(|(found, known)| {
                    found.refused.is_none()
                        && found.source == source.object.name
                        && !known.revokes(&snapshot.object.name, found)
                })
        };
        let back = own.into_iter().chain(refusal.previous.as_deref()).find(is_fit);
        back.is_some_and(|back| *back != **held)
    }

    /// The newest snapshot of a source that is not refused, beside the one with this content.
    pub(crate) fn newest_beside(&self, source: &Name, content: &Digests) -> Option<Arc<str>> {
        let fits = |record: &SnapshotRecord| record.refused.is_none() && !content.contains(&record.digest);
        let found = self.snapshots.of(source).filter_map(|name| {
            let record = self.snapshot(&name).filter(|record| fits(record))?;
            Some((record.created, name.object.name))
        });
        found.max().map(|(_, name)| name)
    }

    /// Whether a workload may go back to this snapshot: its source keeps the snapshot until then.
    pub(crate) fn is_previous(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        known.spread.reverts
            && self.workloads_using(source).any(|(_, record)| {
                record.previous.get(&source.object).is_some_and(|previous| *previous == name.object.name)
            })
    }
}
