//! Contents with which a workload failed, and the workloads that go back from them.

use std::sync::Arc;

use confrev_core::{
    resolve::{ChangeVerdict, Record, RecordedFailure, Use},
    snapshot::Digests,
};

use crate::{
    name::Name,
    objects::WorkloadKey,
    records::{SnapshotRecord, SourceRecord},
    world::World,
};

/// How many snapshots a source keeps because a workload failed with their contents.
const KEPT_FAILURES: usize = 10;

impl World {
    /// The refusal of the present content of a source, with the refused snapshot; `None` if workloads may roll to the content.
    pub fn refused(&self, source: &Name) -> Option<(Name, &RecordedFailure)> {
        self.refused_of(source, self.existing_source(source)?)
    }

    /// The refusal of a content of a source, with the refused snapshot.
    pub fn refused_of(&self, source: &Name, content: &SourceRecord) -> Option<(Name, &RecordedFailure)> {
        // Asked for each reference of each workload: most sources do not revert.
        if content.spread.reverts { self.failed_of(source, content) } else { None }
    }

    /// The failure with a content of a source, with the snapshot of the content.
    pub fn failed_of(&self, source: &Name, content: &SourceRecord) -> Option<(Name, &RecordedFailure)> {
        let (snapshot, record) = self.judged(source, &content.present.digests)?;
        Some((snapshot, record.failed()?))
    }

    /// The snapshot of a content that has the verdict, or gets it.
    pub fn judged(&self, source: &Name, content: &Digests) -> Option<(Name, &SnapshotRecord)> {
        let with_content = || self.snapshots.with(source, content);
        let has_verdict = |(_, record): &(Name, &SnapshotRecord)| record.verdict.is_some();
        with_content().find(has_verdict).or_else(|| with_content().next()).and_then(|(name, _)| {
            let record = self.snapshot(&name)?;
            Some((name, record))
        })
    }

    /// When a person last ended a failure with a content, or asked for another analysis.
    pub fn retried(&self, source: &Name, content: &SourceRecord) -> Option<&str> {
        let (_, record) = self.judged(source, &content.present.digests)?;
        record.verdict.as_ref()?.retried.as_deref()
    }

    /// The verdict about a content in the namespace of its source.
    pub fn own_verdict(&self, source: &Name, content: &SourceRecord) -> ChangeVerdict {
        let digests = &content.present.digests;
        let stored = self.judged(source, digests).map(|(_, record)| record.verdict.as_deref().cloned());
        content.spread.verdict(&source.object, digests, stored)
    }

    /// Whether the source keeps this snapshot because a workload failed with its content, which may come back.
    pub fn keeps_failed(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        let has_failed = |name: &Name| self.snapshot(name).is_some_and(|record| record.failed().is_some());
        (known.spread.is_limited() || self.is_grouped(source))
            && has_failed(name)
            && !self.exceeds_bytes(source, name)
            && self.failures(source, known).take(KEPT_FAILURES).any(|kept| kept == *name)
    }

    /// The snapshots of a source with whose contents a workload failed: that of the present content first, then the newest.
    pub fn failures<'i>(
        &'i self,
        source: &'i Name,
        known: &SourceRecord,
    ) -> impl Iterator<Item = Name> + use<'i> {
        let ranked = self.snapshots.by_rank(source, Some(known));
        ranked.filter(|name| self.snapshot(name).is_some_and(|record| record.failed().is_some()))
    }

    /// Whether a workload uses refused content, and has a snapshot to go back to.
    pub fn is_returning(&self, key: &WorkloadKey, record: &Record) -> bool {
        record.track && record.uses.iter().any(|used| self.returns(key, record, used))
    }

    /// Whether it uses refused content of this source, and has a snapshot to go back to.
    pub fn returns(&self, key: &WorkloadKey, record: &Record, used: &Use) -> bool {
        let Some(held) = used.snapshot.as_ref().filter(|_| !used.on_hold) else { return false };
        let source = key.beside(used.source.clone());
        if self.is_excluded(used, &source) {
            return false;
        }
        let Some((refused, refusal)) = self.refused(&source) else { return false };
        if *held != refused.object.name {
            return false;
        }
        // Admission decides by the same rule.
        let own = record.previous(&used.source).map(|name| &**name);
        let is_fit = |name: &&str| {
            let snapshot = source.sibling(*name);
            let found = self.snapshot(&snapshot).zip(self.existing_source(&source));
            **name == **held
                || found.is_some_and(|(found, known)| {
                    !self.is_unfit(&source, found)
                        && found.source == source.object.name
                        && !known.revokes(&snapshot.object.name, found)
                })
        };
        let back = own.into_iter().chain(refusal.previous.as_deref()).find(is_fit);
        back.is_some_and(|back| *back != **held)
    }

    /// The newest snapshot of a source that is not refused, beside the one with this content.
    pub fn newest_beside(&self, source: &Name, content: &Digests) -> Option<Arc<str>> {
        let fits =
            |record: &SnapshotRecord| !self.is_unfit(source, record) && !content.contains(&record.digest);
        let found = self.snapshots.of(source).filter_map(|name| {
            let record = self.snapshot(&name).filter(|record| fits(record))?;
            Some((record.created, name.object.name))
        });
        found.max().map(|(_, name)| name)
    }

    /// Whether a workload may go back to this snapshot: its source keeps the snapshot until then.
    pub fn is_previous(&self, source: &Name, name: &Name, known: &SourceRecord) -> bool {
        known.spread.reverts
            && self.workloads_using(source).any(|(_, record)| {
                record.previous(&source.object).is_some_and(|previous| *previous == name.object.name)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::WorldChange,
        fixture::{
            digest, failed, held, key, object, record, reverting, snapshot, snapshot_record, source,
            source_record, used, world,
        },
        records::NamespaceSettings,
    };

    /// A source a whose content 2 is refused, and a workload.
    fn refused_index(workload: &Record, previous: Option<&str>, source_a: SourceRecord) -> World {
        let mut world = world(&[("web", workload)]);
        let changes = &mut Vec::new();
        let refused = SnapshotRecord { verdict: Some(failed(previous).into()), ..snapshot_record("a", 2) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 2)), Some(refused), changes);
        world.set_read(&source("a"), Some(source_a), changes);
        world
    }

    /// The verdict may have come while the source was being read.
    #[test]
    fn verdict_is_reported_with_its_source() {
        let mut world = refused_index(&record("web", &[used("a", Some(2))]), None, source_record("a", 2));
        let is_reported = |changes: &[WorldChange]| {
            changes.iter().any(|change| matches!(change, WorldChange::Judged(name) if *name == source("a")))
        };
        for (content, expected) in [(2, false), (3, false), (2, true)] {
            let mut changes = Vec::new();
            world.set_read(&source("a"), Some(source_record("a", content)), &mut changes);
            assert_eq!(is_reported(&changes), expected, "content {content}");
        }
        let mut changes = Vec::new();
        let name = source("a").sibling(snapshot("a", 2));
        world.apply_snapshot(&name, Some(snapshot_record("a", 2)), &mut changes);
        assert!(is_reported(&changes), "another verdict");
    }

    /// A workload on a content of a, which used another snapshot of a before.
    fn moved(content: Option<u8>, previous: Option<u8>) -> Record {
        let previous = previous.map(|content| snapshot("a", content));
        record("web", &[used("a", content)]).tied(&object("a"), |tie| tie.previous = previous)
    }

    #[test]
    fn workloads_return_only_from_refused_content() {
        let excluded = Use { excluded: true, ..used("a", Some(2)) };
        let untracked = Record { track: false, ..moved(Some(2), Some(1)) };
        let with = |uses: &[Use]| Record { uses: uses.to_vec(), ..moved(Some(2), Some(1)) };
        let cases = [
            ("its own previous snapshot", moved(Some(2), Some(1)), None, true),
            ("that of the mark", moved(Some(2), None), Some("a-1000000000"), true),
            ("its own, whatever the mark says", moved(Some(2), Some(1)), Some("a-9"), true),
            ("none", moved(Some(2), None), None, false),
            ("one that does not exist", moved(Some(2), None), Some("a-9"), false),
            ("one of another source", moved(Some(2), None), Some("b-1000000000"), false),
            ("itself", moved(Some(2), Some(2)), None, false),
            ("it uses another snapshot", moved(Some(1), Some(3)), None, false),
            ("it uses the source itself", moved(None, Some(1)), None, false),
            ("its reference is excluded", with(&[excluded]), None, false),
            ("its reference is held", with(&[held("a", 2)]), None, false),
            ("it does not track", untracked, None, false),
        ];
        for (what, record, previous, returns) in cases {
            let world = refused_index(&record, previous, reverting("a", 2));
            assert_eq!(world.is_returning(&key("web"), &record), returns, "{what}");
        }
        let record = moved(Some(2), Some(1));
        let lasting = SourceRecord {
            spread: confrev_core::resolve::SpreadPolicy::default().into(),
            ..reverting("a", 2)
        };
        assert!(
            !refused_index(&record, None, lasting).is_returning(&key("web"), &record),
            "it does not revert"
        );
        let revoked = SourceRecord { revoked: Some("a-1000000000".into()), ..reverting("a", 2) };
        assert!(
            !refused_index(&record, None, revoked).is_returning(&key("web"), &record),
            "a-1000000000 is revoked"
        );
    }

    #[test]
    fn refused_snapshots_are_no_previous_ones() {
        let record = moved(Some(2), Some(1));
        let mut world = refused_index(&record, Some("a-3000000000"), reverting("a", 2));
        let refused = SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", 1) };
        world.apply_snapshot(&source("a").sibling(snapshot("a", 1)), Some(refused), &mut Vec::new());
        assert!(world.is_returning(&key("web"), &record), "the mark names another one");
        let newest = |content: u8| world.newest_beside(&source("a"), &digest(content).into());
        assert_eq!(newest(2).as_deref(), Some("a-3000000000"));
        assert_eq!(newest(3), None);
    }

    /// The content may come back. Only the newest of them are kept.
    #[test]
    fn limited_source_keeps_newest_failed_snapshots() {
        let mut world = world(&[]);
        let last = u8::try_from(KEPT_FAILURES).unwrap() + 3;
        for content in 3..=last {
            let failed =
                SnapshotRecord { verdict: Some(failed(None).into()), ..snapshot_record("a", content) };
            world.apply_snapshot(&source("a").sibling(snapshot("a", content)), Some(failed), &mut Vec::new());
        }
        let keeps = |content: u8, known: &SourceRecord| {
            world.keeps_failed(&source("a"), &source("a").sibling(snapshot("a", content)), known)
        };
        for (content, is_kept) in [(2, false), (3, false), (4, true), (last, true)] {
            assert_eq!(keeps(content, &reverting("a", 2)), is_kept, "content {content}");
        }
        let lasting = crate::fixture::source_record("a", 2);
        assert!(!keeps(last, &lasting), "it has no limit");
        for namespace in ["ns", "other"] {
            let settings = NamespaceSettings { group: Some("x".into()), ..NamespaceSettings::default() };
            world.apply_namespace_settings(&namespace.into(), settings, &mut Vec::new());
        }
        let name = source("a").sibling(snapshot("a", last));
        assert!(world.keeps_failed(&source("a"), &name, &lasting), "its group may have one");
    }

    #[test]
    fn previous_snapshots_are_kept_while_the_source_reverts() {
        let world = world(&[("web", &moved(Some(2), Some(1)))]);
        let is_previous = |content, known: &SourceRecord| {
            world.is_previous(&source("a"), &source("a").sibling(snapshot("a", content)), known)
        };
        assert!(is_previous(1, &reverting("a", 2)));
        assert!(!is_previous(3, &reverting("a", 2)));
        let lasting = SourceRecord {
            spread: confrev_core::resolve::SpreadPolicy::default().into(),
            ..reverting("a", 2)
        };
        assert!(!is_previous(1, &lasting));
        let other = reverting("b", 2);
        assert!(!world.is_previous(&source("b"), &source("b").sibling(snapshot("a", 1)), &other));
    }
}
