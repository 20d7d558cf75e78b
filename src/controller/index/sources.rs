//! Sources, as the watches and live reads report them.

use super::{
    Index,
    change::IndexChange,
    records::{KnownSource, SourceMeta, SourceRecord},
};
use crate::{controller::name::Name, snapshot::SourceKind};

impl Index {
    /// Applies a source as it is now; `None` if it is deleted. Sources on which nothing depends are not stored.
    pub(crate) fn apply_source(
        &mut self,
        name: &Name,
        meta: Option<&SourceMeta>,
        changes: &mut Vec<IndexChange>,
    ) {
        if !self.is_watched(name) {
            return;
        }
        let name = self.interner.intern(name.clone());
        match (meta, self.sources.get(&name)) {
            (Some(meta), Some(KnownSource::Exists(known)))
                if known.resource_version == meta.resource_version => {}
            (None, Some(KnownSource::Missing)) => {}
            (None, _) => {
                self.set_source(&name, KnownSource::Missing, changes);
                changes.push(IndexChange::SourceDeleted(name));
            }
            (Some(_), known) => {
                if let Some(KnownSource::Exists(known)) = known {
                    let held = self.snapshots.with(&name, &known.present.digests);
                    changes.extend(held.map(|(snapshot, _)| IndexChange::ContentReplaced(snapshot)));
                }
                // Old content must not be acted on: this replica may have led long ago, and lead again.
                self.sources.insert(name.clone(), KnownSource::Unknown);
                changes.push(IndexChange::SourceOutdated(name));
            }
        }
    }

    /// Applies the result of a live read of a source; `None` if it does not exist.
    pub(crate) fn set_read(
        &mut self,
        name: &Name,
        mut record: Option<SourceRecord>,
        changes: &mut Vec<IndexChange>,
    ) {
        // Without a mode of its own, and of its namespace, a Secret that was live gets a snapshot again.
        if let Some(record) = &mut record
            && name.object.kind == SourceKind::Secret
            && record.present.live.is_none()
            && !self.groups().settings(&name.namespace).is_some_and(|settings| settings.live_secrets)
        {
            record.present.live = Some(false);
        }
        self.set_source(
            name,
            record.map_or(KnownSource::Missing, |record| KnownSource::Exists(Box::new(record))),
            changes,
        );
    }

    fn set_source(&mut self, name: &Name, source: KnownSource, changes: &mut Vec<IndexChange>) {
        let limited = matches!(&source, KnownSource::Exists(record) if record.spread.is_limited());
        self.set_limited(name, limited);
        let exists = matches!(source, KnownSource::Exists(_));
        let name = &self.interner.intern(name.clone());
        let old = self.sources.insert(name.clone(), source);
        if old.as_ref() == self.sources.get(name) {
            return;
        }
        let is_lost = matches!(old, Some(KnownSource::Exists(_))) && !exists;
        for (key, _) in self.workloads_using(name) {
            changes.push(IndexChange::Workload(key.clone()));
            if is_lost {
                changes.push(IndexChange::Unresolved(key.clone()));
            }
        }
        let known = self.sources.get(name).and_then(KnownSource::existing);
        self.snapshots.rank_again(name, known, changes);
        if exists {
            changes.push(IndexChange::SourceRead(name.clone()));
        }
    }

    /// Records that the known content of a source may be outdated.
    pub(crate) fn set_source_unknown(&mut self, name: &Name) {
        self.sources.insert(name.clone(), KnownSource::Unknown);
    }

    /// What is known of a source that something needs. If nothing is, it must be read.
    pub(crate) fn need_source(&mut self, name: &Name) -> &KnownSource {
        self.sources.entry(name.clone()).or_insert(KnownSource::Unknown)
    }

    /// Forgets a source if nothing depends on it any more.
    pub(crate) fn forget_source(&mut self, name: &Name, changes: &mut Vec<IndexChange>) {
        if !self.is_watched(name) {
            self.sources.remove(name);
            changes.push(IndexChange::SourceUnused(name.clone()));
        }
    }

    /// Records whether a source is labelled to be snapshotted at every change.
    pub(crate) fn set_labelled(&mut self, name: &Name, labelled: bool, changes: &mut Vec<IndexChange>) {
        let name = self.interner.intern(name.clone());
        let config = &self.config;
        if !labelled || !config.served.contains(&name.namespace) || config.rotated.contains(&name.object) {
            if self.labelled.remove(&name) {
                self.unwatch_namespace(&name.namespace);
                self.forget_source(&name, changes);
            }
        } else if self.labelled.insert(name.clone()) {
            self.watched.add(&name.namespace);
            changes.push(IndexChange::SourceNeeded(name.clone()));
            changes.push(IndexChange::SourceLabelled(name));
        }
    }

    /// What is known of a source; `None` if nothing depends on it.
    pub(crate) fn source(&self, name: &Name) -> Option<&KnownSource> {
        self.sources.get(name)
    }

    /// The record of a source; `None` if it does not exist or is not known.
    pub(crate) fn existing_source(&self, name: &Name) -> Option<&SourceRecord> {
        self.sources.get(name)?.existing()
    }

    /// All sources on which anything depends.
    pub(crate) fn sources(&self) -> impl ExactSizeIterator<Item = (&Name, &KnownSource)> {
        self.sources.iter()
    }

    /// The sources labelled to be snapshotted at every change.
    pub(crate) fn labelled(&self) -> impl Iterator<Item = &Name> {
        self.labelled.iter()
    }

    /// Whether a source is labelled to be snapshotted at every change.
    pub(crate) fn is_labelled(&self, source: &Name) -> bool {
        self.labelled.contains(source)
    }

    /// Whether a write of this source gets a snapshot: an opted-in workload uses the source, or its label requires it.
    pub(crate) fn is_snapshotted(&self, source: &Name) -> bool {
        self.labelled.contains(source) || self.workloads_using(source).next().is_some()
    }

    /// Whether anything depends on this source's state.
    pub(crate) fn is_watched(&self, source: &Name) -> bool {
        self.is_snapshotted(source) || self.snapshots.has_any_of(source)
    }
}
