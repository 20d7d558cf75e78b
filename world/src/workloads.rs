//! Workloads: their records, and their state towards each source.

use std::sync::Arc;

use confrev_core::{
    kinds::WorkloadKind,
    resolve::{Health, Present, Record, Relation, Use, Values, is_pending},
    snapshot::{Digest, ObjectName},
};

use crate::{
    change::WorldChange,
    name::Name,
    objects::{Owner, Precondition, WorkloadKey},
    records::{KnownSource, SourceRecord, User},
    shares::{self, Class},
    world::World,
};

impl World {
    /// Applies a workload as it is now; `None` if it is deleted, or no longer opted in. Returns its previous record.
    pub fn apply_workload(
        &mut self,
        key: &WorkloadKey,
        record: Option<Record>,
        changes: &mut Vec<WorldChange>,
    ) -> Option<Record> {
        self.joining.remove(key);
        self.set_workload(key, record, changes)
    }

    /// Applies a workload that its namespace opts in and that has no label yet. Returns its previous record.
    pub fn apply_joining(
        &mut self,
        key: &WorkloadKey,
        record: Record,
        condition: Precondition,
        changes: &mut Vec<WorldChange>,
    ) -> Option<Record> {
        self.joining.insert(key.clone(), condition);
        self.set_workload(key, Some(record), changes)
    }

    fn set_workload(
        &mut self,
        key: &WorkloadKey,
        record: Option<Record>,
        changes: &mut Vec<WorldChange>,
    ) -> Option<Record> {
        // Webhooks see no objects of excluded namespaces, and no cluster-scoped objects.
        let record =
            record.filter(|_| !key.namespace.is_empty() && self.config.served.contains(&key.namespace));
        let bytes = |record: Option<&Record>| record.map_or(0, |known| shares::of_workload(key, known));
        let (old_bytes, new_bytes) = (bytes(self.workload(key)), bytes(record.as_ref()));
        let uid = record.as_ref().map(|record| record.uid.clone());
        let record =
            record.filter(|_| self.make_room(&key.namespace, Class::Other, (old_bytes, new_bytes), changes));
        let kept_bytes = if record.is_some() { new_bytes } else { 0 };
        self.shares.charge(&key.namespace, Class::Other, (old_bytes, kept_bytes));
        if record.is_none() {
            // It may have been left out just now.
            self.joining.remove(key);
            self.findings.forget_owners(&key.namespace, uid.iter(), changes);
        }
        let (key, record) = (self.interner.intern(key.clone()), self.interner.intern(record));
        let old = match &record {
            Some(record) => self.workloads.insert(key.clone(), Box::new(record.clone())),
            None => self.workloads.remove(&key),
        }
        .map(|old| *old);
        let uids = old.iter().chain(&record).map(|record| &record.uid);
        self.findings.forget_owners(&key.namespace, uids, changes);
        match (old.is_some(), record.is_some()) {
            (false, true) => self.watch_namespace(&key.namespace),
            (true, false) => self.unwatch_namespace(&key.namespace),
            _ => {}
        }
        let same_uid = old.as_ref().map(|old| &old.uid) == record.as_ref().map(|record| &record.uid);
        let old_uses = old.as_ref().map_or(&[][..], |old| &old.uses);
        let new_uses = record.as_ref().map_or(&[][..], |record| &record.uses);
        if !same_uid || old_uses != new_uses {
            self.set_uses(&User::Workload(key.clone()), old_uses, new_uses, changes);
            changes.push(WorldChange::Unresolved(key.clone()));
        }
        // Its source keeps the snapshot to which the workload may go back.
        for (source, tie) in old.iter().flat_map(|old| old.ties.iter()) {
            if let Some(name) = &tie.previous
                && record.as_ref().and_then(|record| record.previous(source)) != Some(name)
            {
                let previous = ObjectName::new(source.kind, Arc::clone(name));
                changes.push(WorldChange::Object(key.beside(previous)));
            }
        }
        changes.push(WorldChange::Workload(key));
        old
    }

    /// A workload that is opted in, or about to be.
    pub fn workload(&self, key: &WorkloadKey) -> Option<&Record> {
        self.workloads.get(key).map(Box::as_ref)
    }

    /// All workloads that are opted in, or about to be.
    pub fn workloads(&self) -> impl ExactSizeIterator<Item = (&WorkloadKey, &Record)> {
        self.workloads.iter().map(|(key, record)| (key, record.as_ref()))
    }

    /// The keys of the workloads of a namespace that are opted in, or about to be.
    pub fn workloads_in(&self, namespace: &str) -> impl Iterator<Item = &WorkloadKey> {
        self.workloads.keys().filter(move |key| *key.namespace == *namespace)
    }

    /// The precondition of the write that opts a workload in; `None` if it does not need one.
    pub fn joining(&self, key: &WorkloadKey) -> Option<&Precondition> {
        self.joining.get(key)
    }

    /// The workloads that their namespace opts in and that have no label yet.
    pub fn all_joining(&self) -> impl ExactSizeIterator<Item = &WorkloadKey> {
        self.joining.keys()
    }

    /// The opted-in workloads whose templates use this source.
    pub fn workloads_using(&self, source: &Name) -> impl Iterator<Item = (&WorkloadKey, &Record)> {
        self.users.of(source).filter_map(|user| match user {
            User::Workload(key) => {
                self.workloads.get_key_value(key).map(|(key, record)| (key, record.as_ref()))
            }
            User::Revision(_) => None,
        })
    }

    /// Whether a hold of a workload names this snapshot.
    pub fn is_held(&self, snapshot: &Name) -> bool {
        let mut users = self.users.of(snapshot).filter_map(|user| match user {
            User::Workload(key) => self.workload(key),
            User::Revision(_) => None,
        });
        let name = &snapshot.object.name;
        users
            .any(|record| record.uses.iter().any(|used| used.on_hold && used.snapshot.as_ref() == Some(name)))
    }

    /// What decisions need to know of a source; `None` if it does not exist or is not known.
    fn present(&self, source: &Name) -> Option<Present> {
        self.existing_source(source).map(|source| source.present.clone())
    }

    /// Whether a workload is pending.
    pub fn is_pending(&self, key: &WorkloadKey) -> bool {
        let Some(record) = self.workloads.get(key) else { return false };
        let left_alone = record.by_namespace
            && self.opting_in.as_ref().is_some_and(|opting_in| !opting_in.contains_key(&key.namespace));
        left_alone
            || record.is_marked
            || self.joining.contains_key(key)
            || self.is_returning(key, record)
            || is_pending(record, |source| self.present(&key.beside(source.clone())))
    }

    /// The sources that a workload uses, as far as they exist and are known, each with the use.
    pub fn sources_of<'i>(
        &'i self,
        key: &WorkloadKey,
        record: &'i Record,
    ) -> impl Iterator<Item = (Name, &'i Use, &'i SourceRecord)> {
        let namespace = Arc::clone(&key.namespace);
        record.uses.iter().filter_map(move |used| {
            let name = Name::new(Arc::clone(&namespace), used.source.clone());
            let known = self.existing_source(&name)?;
            Some((name, used, known))
        })
    }

    /// Whether a workload's references to a source stay as written by a setting, as far as its labels are known.
    pub fn is_excluded(&self, used: &Use, source: &Name) -> bool {
        let by_label = |known: &SourceRecord| used.excludes(&known.present.labels);
        used.excluded || self.existing_source(source).is_some_and(by_label)
    }

    /// A workload's references to sources that do not exist.
    pub fn missing_of<'i>(&'i self, key: &WorkloadKey, record: &'i Record) -> impl Iterator<Item = &'i Use> {
        let namespace = Arc::clone(&key.namespace);
        record.uses.iter().filter(move |used| {
            let name = Name::new(Arc::clone(&namespace), used.source.clone());
            !used.excluded && self.sources.get(&name) == Some(&KnownSource::Missing)
        })
    }

    /// Whether a source of the workload is being read again, which decides whether the workload is pending.
    pub fn awaits_source(&self, key: &WorkloadKey) -> bool {
        self.workloads.get(key).is_some_and(|record| {
            record.uses.iter().any(|used| {
                let name = key.beside(used.source.clone());
                self.sources.get(&name) == Some(&KnownSource::Unknown)
            })
        })
    }

    /// The worst health of the Rollouts that use a workload's template, for this generation of the workload; `None` if they
    /// are not known.
    pub fn referrers_health(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        name: &str,
        generation: Option<i64>,
    ) -> Option<Health> {
        self.referrers.health(kind, namespace, name, generation)
    }

    /// A workload's health: the worst of its own and of the Rollouts that use its template. While the Rollouts are not
    /// known, the workload counts as unobserved.
    pub fn health(&self, key: &WorkloadKey, record: &Record) -> Health {
        let Some(kind) = self.kind(key).filter(|_| !self.config.health_is_whole) else {
            return record.health;
        };
        let referrers = self.referrers_health(kind, &key.namespace, &key.name, record.generation);
        record.health.max(referrers.unwrap_or(Health::Unobserved))
    }

    /// The workload that is this owner of the object, if it exists and is watched.
    pub fn workload_of(&self, name: &Name, owner: &Owner) -> Option<&Record> {
        let of_kind = |(kind, _): (usize, &WorkloadKind)| {
            let (namespace, name) = (Arc::clone(&name.namespace), Arc::clone(&owner.name));
            self.workload(&WorkloadKey { kind, namespace, name })
        };
        let kinds = self.config.kinds.iter().enumerate().filter(|(_, kind)| *kind.kind == *owner.kind);
        kinds.filter_map(of_kind).find(|record| record.uid == owner.uid)
    }

    /// The sources of which a workload keeps other content, although it has seen the present content: by an undo or a pin.
    pub fn pinned<'r>(&'r self, namespace: &'r str, record: &'r Record) -> impl Iterator<Item = &'r Use> {
        record.uses.iter().filter(move |used| {
            // A workload that does not track keeps its snapshots anyway, and so does a hold.
            if !record.track || used.on_hold {
                return false;
            }
            let source = Name::new(namespace, used.source.clone());
            let Some(found) = self.existing_source(&source) else { return false };
            let held = self.held_digest(used, &source);
            record.relation(used, &found.present, held) == Relation::Seen(Values::Rejected)
        })
    }

    /// The sources of which a workload keeps other content than the one that it has seen, whatever the present content.
    pub fn kept<'r>(&'r self, namespace: &'r str, record: &'r Record) -> impl Iterator<Item = &'r Use> {
        record.uses.iter().filter(move |used| {
            let held = self.held_digest(used, &Name::new(namespace, used.source.clone()));
            record.keeps_other(used, held)
        })
    }

    /// The digest of the snapshot that replaces a source in a template, if it is known.
    pub fn held_digest(&self, used: &Use, source: &Name) -> Option<&Digest> {
        let snapshot = source.sibling(Arc::clone(used.snapshot.as_ref()?));
        Some(&self.snapshots.get(&snapshot)?.digest)
    }

    /// The missing sources that a workload refers to: its pods do not start.
    pub fn unresolved<'r>(
        &'r self,
        namespace: &'r str,
        record: &'r Record,
    ) -> impl Iterator<Item = &'r ObjectName> {
        let missing = move |used: &&Use| {
            used.snapshot.is_none()
                && !used.optional
                && self.sources.get(&Name::new(namespace, used.source.clone())) == Some(&KnownSource::Missing)
        };
        record.uses.iter().filter(missing).map(|used| &used.source)
    }

    /// The workload's name in messages to users of its namespace.
    pub fn display_short(&self, key: &WorkloadKey) -> String {
        let kind = self.kind(key).map_or("", |kind| kind.kind.as_str());
        format!("{kind}/{}", key.name)
    }

    /// The workload's name in messages, with its namespace.
    pub fn display(&self, key: &WorkloadKey) -> String {
        let kind = self.kind(key).map_or("", |kind| kind.kind.as_str());
        format!("{kind} {}/{}", key.namespace, key.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{key, object, record, snapshot, source, used, world};

    /// The source keeps a snapshot until no workload goes back to it.
    #[test]
    fn former_previous_snapshot_is_checked() {
        let with = |previous: Option<u8>| {
            let previous = previous.map(|content| snapshot("a", content));
            record("web", &[used("a", Some(2))]).tied(&object("a"), |tie| tie.previous = previous)
        };
        for (before, after, expected) in [
            (Some(1), Some(1), None),
            (Some(1), Some(3), Some(1)),
            (Some(1), None, Some(1)),
            (None, Some(1), None),
        ] {
            let mut world = world(&[("web", &with(before))]);
            let mut changes = Vec::new();
            world.apply_workload(&key("web"), Some(with(after)), &mut changes);
            let checked: Vec<_> = changes
                .into_iter()
                .filter_map(|change| match change {
                    WorldChange::Object(name) => Some(name),
                    _ => None,
                })
                .collect();
            let expected = expected.map(|content| source("a").sibling(snapshot("a", content)));
            assert_eq!(checked, Vec::from_iter(expected), "{before:?} {after:?}");
        }
    }
}
