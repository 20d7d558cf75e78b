//! Sources: when one is read, and when its content gets a snapshot.

use std::sync::Arc;

use jiff::Timestamp;

use crate::{
    controller::{
        action::Action,
        index::{
            Index,
            records::{KnownSource, SourceRecord},
        },
        name::Name,
        queue::{ObjectStep, Task},
        reconcile::state::State,
    },
    resolve::{Observed, Record},
    snapshot::{DIGITS, Digest, snapshot_name},
};

/// Reads a source, and the snapshots to compare it with if their keys are lost.
pub(crate) fn read(index: &Index, source: &Name) -> Option<Action> {
    if !index.is_watched(source) {
        return None;
    }
    let snapshots = index.unverifiable_of(source);
    Some(if snapshots.is_empty() {
        Action::Read(source.clone())
    } else {
        Action::Compare { source: source.clone(), snapshots }
    })
}

impl State {
    /// Creates the snapshot of a source's present content, or removes its mark.
    pub(super) fn reconcile_source(&mut self, source: &Name) -> Option<Action> {
        let content = self.memory.fresh.take(source);
        let known = self.index.existing_source(source)?;
        let content = content.filter(|content| content.resource_version == known.resource_version);
        if self.lacks_snapshot(source) {
            return Some(Action::Ensure { source: source.clone(), content });
        }
        self.forgive(source).or_else(|| self.refuse_with_group(source))
    }

    /// Whether the present content of a source should have a snapshot, and has none.
    fn lacks_snapshot(&self, source: &Name) -> bool {
        let index = &self.index;
        let Some(known) = index.existing_source(source) else { return false };
        // Workloads that read the source live need no snapshot of it.
        let is_used =
            |record: &Record| record.uses.iter().any(|used| used.source == source.object && !used.live);
        let is_used = index.workloads_using(source).any(|(_, record)| is_used(record));
        // With `keep: 0`, an unused snapshot would be deleted again; an admission that needs it creates it.
        let wanted =
            (is_used || index.is_labelled(source)) && !known.present.stays_as_written && known.keep > 0;
        wanted
            && !known.present.is_snapshot
            && !index.snapshots().has_content_of(source, known)
            && index.snapshots().count(source) < self.config.max_snapshots
    }

    /// Applies the result of a live read of a source, which a task did.
    pub(in crate::controller) fn finish_read(
        &mut self,
        name: &Name,
        observed: Option<Box<Observed>>,
        now: Timestamp,
    ) {
        self.apply_read(name, observed.as_deref(), now);
        let ensures = self.queue.is_queued(&Task::Ensure(name.clone()));
        if let Some(observed) = observed.filter(|_| ensures && self.lacks_snapshot(name)) {
            self.memory.fresh.put(name, Arc::new(*observed));
        }
    }

    fn apply_read(&mut self, name: &Name, observed: Option<&Observed>, now: Timestamp) {
        // Nothing depends on it any more, so it was forgotten.
        if !self.index.is_watched(name) {
            return;
        }
        if observed.is_some_and(|observed| !observed.is_bound_itself() && observed.may_have_our_owners()) {
            self.queue.schedule(Task::Object(name.clone(), ObjectStep::Free), now);
        }
        // Without the snapshots that appeared during the read, the content would count as new.
        if self.queue.is_queued(&Task::Read(name.clone())) && !self.index.unverifiable_of(name).is_empty() {
            self.index.set_source_unknown(name);
            return;
        }
        let record = observed.map(SourceRecord::of);
        self.update(now, |index, changes| index.set_read(name, record, changes));
    }

    /// Queues a read of a source that is not known.
    pub(super) fn enqueue_source(&mut self, name: Name, now: Timestamp) {
        if !self.config.source_kinds().contains(&name.object.kind) {
            return;
        }
        match self.index.need_source(&name) {
            KnownSource::Unknown => self.queue.schedule(Task::Read(name), now),
            // A source that was known before anything used it may have no snapshot yet.
            KnownSource::Exists(_) => self.queue.schedule(Task::Ensure(name), now),
            KnownSource::Missing => {}
        }
    }

    /// Reads a source again, to compare it with a new snapshot whose digest cannot be computed.
    pub(super) fn enqueue_comparison(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.index.snapshot(snapshot) else { return };
        if !self.index.config().is_unverifiable(record) {
            return;
        }
        let source = snapshot.sibling(Arc::clone(&record.source));
        let read = Task::Read(source.clone());
        let is_old = match self.index.source(&source) {
            Some(KnownSource::Exists(known)) => !known.present.digests.contains(&record.digest),
            // A read in progress began without this snapshot.
            Some(KnownSource::Unknown) => self.queue.is_working(&read),
            Some(KnownSource::Missing) | None => false,
        };
        if is_old {
            self.index.set_source_unknown(&source);
            self.queue.schedule(read, now);
        }
    }

    /// Queues lost snapshots of a source to be recreated, if the source holds their content again.
    pub(super) fn enqueue_lost_of(&mut self, source: &Name, now: Timestamp) {
        let Some(known) = self.index.existing_source(source) else { return };
        let (of, digests) = (&*source.object.name, &known.present.digests);
        let fits = |lost: &&Name| {
            let is_its = lost.namespace == source.namespace
                && lost.object.kind == source.object.kind
                && self.index.source_of_referenced(lost).is_some_and(|name| *name == *of);
            is_its && digests.iter().any(|digest| is_named_after(lost, of, digest))
        };
        for lost in self.missing.lost().filter(fits) {
            self.queue.schedule(Task::Object(lost.clone(), ObjectStep::Restore), now);
        }
    }

    /// Queues lost snapshots to be recreated from a new snapshot, if it may hold their content.
    pub(super) fn enqueue_lost_beside(&mut self, snapshot: &Name, now: Timestamp) {
        let Some(record) = self.index.snapshot(snapshot) else { return };
        let fits = |lost: &&Name| {
            let is_near = lost.namespace == snapshot.namespace && lost.object.kind == snapshot.object.kind;
            let source = self.index.source_of_referenced(lost);
            is_near && source.is_none_or(|of| is_named_after(lost, of, &record.digest))
        };
        for lost in self.missing.lost().filter(fits) {
            self.queue.schedule(Task::Object(lost.clone(), ObjectStep::Restore), now);
        }
    }
}

/// Whether a snapshot has the name of a source's content.
fn is_named_after(snapshot: &Name, source: &str, digest: &Digest) -> bool {
    DIGITS.iter().any(|digits| snapshot_name(source, digest, *digits) == *snapshot.object.name)
}
