//! Sources, as the watches and live reads report them.

use confrev_core::snapshot::SourceKind;

use crate::{
    change::WorldChange,
    name::Name,
    objects::Version,
    records::{KnownSource, Report, SourceMeta, SourceRecord},
    world::World,
};

impl World {
    /// Applies a source as it is now; `None` if it is deleted. Sources on which nothing depends are not stored.
    pub fn apply_source(&mut self, name: &Name, meta: Option<&SourceMeta>, changes: &mut Vec<WorldChange>) {
        if !self.is_watched(name) {
            return;
        }
        let name = self.interner.intern(name.clone());
        match (meta, self.sources.get(&name)) {
            (Some(meta), Some(KnownSource::Exists(known)))
                if *known.resource_version == *meta.resource_version => {}
            (None, Some(KnownSource::Missing)) => {}
            (None, _) => {
                self.set_source(&name, KnownSource::Missing, changes);
            }
            (Some(_), _) => {
                // Old content must not be acted on: this replica may have led long ago, and lead again.
                self.sources.insert(name.clone(), KnownSource::Unknown);
                changes.push(WorldChange::Source(name));
            }
        }
    }

    /// Applies the result of a live read of a source; `None` if it does not exist.
    pub fn set_read(
        &mut self,
        name: &Name,
        mut record: Option<SourceRecord>,
        changes: &mut Vec<WorldChange>,
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

    fn set_source(&mut self, name: &Name, source: KnownSource, changes: &mut Vec<WorldChange>) {
        let depends = |record: &SourceRecord| record.spread.is_limited() || self.reports(record);
        let depends = source.existing().is_some_and(depends);
        self.set_limited(name, depends);
        let exists = source.existing().is_some();
        let name = &self.interner.intern(name.clone());
        let old = self.sources.insert(name.clone(), source);
        if old.as_ref() == self.sources.get(name) {
            return;
        }
        self.mark_users(name, changes);
        if matches!(old, Some(KnownSource::Exists(_))) && !exists {
            changes.extend(self.workloads_using(name).map(|(key, _)| WorldChange::Unresolved(key.clone())));
        }
        let known = self.sources.get(name).and_then(KnownSource::existing);
        self.snapshots.rank_again(name, known, changes);
        changes.push(WorldChange::Source(name.clone()));
        // The verdict may have come while the source was not known.
        let judged = known.and_then(|known| self.judged(name, &known.present.digests));
        if judged.is_some_and(|(_, record)| record.verdict.is_some()) {
            changes.push(WorldChange::Judged(name.clone()));
        }
    }

    /// Reports the workloads that use a source.
    pub(crate) fn mark_users(&self, source: &Name, changes: &mut Vec<WorldChange>) {
        changes.extend(self.workloads_using(source).map(|(key, _)| WorldChange::Workload(key.clone())));
    }

    /// Reports a source that something needs, if it must be read, or may need a snapshot: it may have been known before anything used it.
    pub(crate) fn need(&self, name: &Name, changes: &mut Vec<WorldChange>) {
        let lacks_snapshot = |known: &SourceRecord| {
            let present = &known.present;
            let has_none = present.is_snapshot || present.stays_as_written || present.live == Some(true);
            !has_none && !self.snapshots.has_content_of(name, known)
        };
        let is_needed = match self.sources.get(name) {
            Some(KnownSource::Exists(known)) => lacks_snapshot(known),
            Some(KnownSource::Missing) => false,
            Some(KnownSource::Unknown) | None => true,
        };
        if is_needed {
            changes.push(WorldChange::Source(name.clone()));
        }
    }

    /// Whether the state of the change of a source is reported on it.
    pub fn reports(&self, known: &SourceRecord) -> bool {
        !known.present.is_snapshot && known.asks_for_state().unwrap_or(self.config.report_changes)
    }

    /// Records that the annotation `change` of a source was written, unless a watch has reported a later version.
    pub fn set_reported(&mut self, name: &Name, before: &Version, after: String, change: Option<Box<str>>) {
        let Some(KnownSource::Exists(known)) = self.sources.get_mut(name) else { return };
        if known.version() == *before {
            known.report = Report::new(known.asks_for_state(), change);
            known.resource_version = after.into();
        }
    }

    /// Records that the known content of a source may be outdated.
    pub fn set_source_unknown(&mut self, name: &Name) {
        self.sources.insert(name.clone(), KnownSource::Unknown);
    }

    /// What is known of a source that something needs. If nothing is, it must be read.
    pub fn need_source(&mut self, name: &Name) -> &KnownSource {
        self.sources.entry(name.clone()).or_insert(KnownSource::Unknown)
    }

    /// Forgets a source if nothing depends on it any more.
    pub fn forget_source(&mut self, name: &Name, changes: &mut Vec<WorldChange>) {
        if !self.is_watched(name) {
            self.sources.remove(name);
            changes.push(WorldChange::Source(name.clone()));
        }
    }

    /// Records whether a source is labelled to be snapshotted at every change.
    pub fn set_labelled(&mut self, name: &Name, labelled: bool, changes: &mut Vec<WorldChange>) {
        let name = self.interner.intern(name.clone());
        let config = &self.config;
        if !labelled || !config.served.contains(&name.namespace) || config.rotated.contains(&name.object) {
            if self.labelled.remove(&name) {
                self.unwatch_namespace(&name.namespace);
                self.forget_source(&name, changes);
            }
        } else if self.labelled.insert(name.clone()) {
            self.watch_namespace(&name.namespace);
            changes.push(WorldChange::Source(name));
        }
    }

    /// What is known of a source; `None` if nothing depends on it.
    pub fn source(&self, name: &Name) -> Option<&KnownSource> {
        self.sources.get(name)
    }

    /// The record of a source; `None` if it does not exist or is not known.
    pub fn existing_source(&self, name: &Name) -> Option<&SourceRecord> {
        self.sources.get(name)?.existing()
    }

    /// All sources on which anything depends.
    pub fn sources(&self) -> impl ExactSizeIterator<Item = (&Name, &KnownSource)> {
        self.sources.iter()
    }

    /// The sources labelled to be snapshotted at every change.
    pub fn labelled(&self) -> impl Iterator<Item = &Name> {
        self.labelled.iter()
    }

    /// Whether a source is labelled to be snapshotted at every change.
    pub fn is_labelled(&self, source: &Name) -> bool {
        self.labelled.contains(source)
    }

    /// Whether a write of this source gets a snapshot: an opted-in workload uses the source, or its label requires it.
    pub fn is_snapshotted(&self, source: &Name) -> bool {
        self.labelled.contains(source) || self.workloads_using(source).next().is_some()
    }

    /// Whether anything depends on this source's state.
    pub fn is_watched(&self, source: &Name) -> bool {
        self.is_snapshotted(source) || self.snapshots.has_any_of(source)
    }
}
