//! Which contents of sources the installation refuses.

use std::{collections::BTreeSet, sync::Arc};

use confrev_core::{resolve::RefusedContents, snapshot::Digest};

use crate::{
    change::WorldChange,
    name::Name,
    records::{SnapshotRecord, SourceRecord},
    world::World,
};

impl World {
    /// Why the installation refuses the content of a source; `None` if it does not.
    pub fn listed_as_refused(&self, source: &Name, content: &SourceRecord) -> Option<String> {
        if content.present.stays_as_written {
            return None;
        }
        self.config().refused.why(source.object.kind, content.present.digests.iter())
    }

    /// Whether a workload failed with this snapshot of a source, or the installation refuses its content.
    pub(crate) fn is_unfit(&self, source: &Name, record: &SnapshotRecord) -> bool {
        record.failed().is_some() || self.config().refused.why(source.object.kind, [&record.digest]).is_some()
    }

    /// Sets the contents that the installation refuses.
    pub fn set_refused_contents(&mut self, contents: RefusedContents, changes: &mut Vec<WorldChange>) {
        let before = self.config().refused.replace(contents);
        let after = self.config().refused.contents();
        let differs = |source: &Name, digests: &[&Digest]| {
            let why = |of: &RefusedContents| of.why(source.object.kind, digests.iter().copied());
            why(&before) != why(&after)
        };
        let with_content = self.sources().map(|(source, _)| source).filter(|source| {
            self.existing_source(source)
                .is_some_and(|known| differs(source, &known.present.digests.iter().collect::<Vec<_>>()))
        });
        // Workloads may go back to another snapshot, or to one again.
        let with_snapshot = self.snapshots().iter().filter(|(name, record)| differs(name, &[&record.digest]));
        let with_snapshot = with_snapshot.map(|(name, record)| name.sibling(Arc::clone(&record.source)));
        let with_snapshot = with_snapshot.filter(|source| self.existing_source(source).is_some());
        let changed: BTreeSet<_> = with_content.cloned().chain(with_snapshot).collect();
        changes.extend(changed.into_iter().map(WorldChange::Source));
    }
}

#[cfg(test)]
mod tests {
    use confrev_core::{
        gates::Why,
        resolve::{Health, Present},
    };

    use super::*;
    use crate::fixture::{digest, key, source, source_record, used, workload, world};

    /// The list of these contents.
    fn listing(contents: &[u8]) -> RefusedContents {
        let lines: Vec<_> =
            contents.iter().map(|content| format!("{} it is slow", digest(*content))).collect();
        RefusedContents::read([("list", &*lines.join("\n"))]).0
    }

    #[test]
    fn listed_content_holds_only_workloads_behind_it() {
        let on =
            |content| workload("web", 1, vec![used("a", Some(content))], digest(content), Health::Settled);
        let why = |content, known: &SourceRecord, list: &[u8]| {
            let record = on(content);
            let mut world = world(&[("web", &record)]);
            world.set_read(&source("a"), Some(known.clone()), &mut Vec::new());
            world.set_refused_contents(listing(list), &mut Vec::new());
            let now = jiff::Timestamp::UNIX_EPOCH;
            let answers = world.answers((&key("web"), &record), |_, _| None, (now, now));
            let shut = answers.shut.into_iter().map(|shut| (shut.why, shut.is_refused)).collect::<Vec<_>>();
            (shut, answers.open.len())
        };
        let listed = Why::Listed { reason: "ConfigMap confrev-refused lists it (it is slow)".to_owned() };
        let known = source_record("a", 2);
        assert_eq!(why(1, &known, &[2]), (vec![(listed, true)], 0));
        assert_eq!(why(1, &known, &[1, 3]), (vec![], 1), "other contents");
        assert_eq!(why(2, &known, &[2]), (vec![], 0), "it has the content");
        let live = Present { stays_as_written: true, live: Some(true), ..known.present.clone() };
        let live = SourceRecord { present: live, ..known.clone() };
        assert_eq!(why(1, &live, &[2]), (vec![], 1), "its pods read no snapshot then");
    }

    #[test]
    fn change_of_list_affects_sources_with_its_contents() {
        let mut world =
            world(&[("web", &crate::fixture::record("web", &[used("a", None), used("b", None)]))]);
        for (name, content) in [("a", 2), ("b", 3)] {
            world.set_read(&source(name), Some(source_record(name, content)), &mut Vec::new());
        }
        let mut affected = |list: &[u8]| {
            let mut changes = Vec::new();
            world.set_refused_contents(listing(list), &mut changes);
            let name = |change: WorldChange| match change {
                WorldChange::Source(name) => name.object.name.to_string(),
                other => panic!("{other:?}"),
            };
            changes.into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(affected(&[]), Vec::<String>::new());
        assert_eq!(affected(&[2]), ["a", "b"], "b has a snapshot of it");
        assert_eq!(affected(&[2, 9]), Vec::<String>::new());
        assert_eq!(affected(&[3]).len(), 2, "one joins, the other leaves");
    }
}
