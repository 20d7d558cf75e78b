//! Sources, snapshots and namespaces as the watches and live reads report them, and the owners that a snapshot should have.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Name,
    agenda::Task,
    memory::Fresh,
    most::{MOST_OWNERS, at_most},
    records::{Found, SnapshotRecord, Source, User},
    state::{RESTORE_DELAY, State},
};
use crate::{
    cluster::{Owner, WorkloadKey},
    compact::CompactSet,
    kinds::WorkloadKind,
    names,
    resolve::{Health, Observed, Present, Record, parse_keep, parse_max_in_flight},
    snapshot::{DIGITS, Digest, SourceKind, snapshot_name},
};

/// What a metadata-only watch reports about a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceMeta {
    /// The object's resourceVersion.
    pub resource_version: String,
    /// Whether its label asks for a snapshot at every change.
    pub always: bool,
}

/// The owners that a snapshot should have.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// These owners.
    Owners(CompactSet<Owner>),
    /// Not known yet: its source has not been read.
    Unknown,
}

impl State {
    /// Applies a source as it is now; `None` if it is deleted. Sources on which nothing depends are not stored.
    pub fn apply_source(&mut self, name: &Name, meta: Option<&SourceMeta>, now: Timestamp) {
        if !self.is_watched(name) {
            return;
        }
        let name = &self.texts.share(name.clone());
        match (meta, self.sources.get(name)) {
            (Some(meta), Some(Source::Found(found))) if found.resource_version == meta.resource_version => {}
            (None, Some(Source::Missing)) => {}
            (None, _) => {
                self.set_source(name, Source::Missing, now);
                // A read in progress may have found the source before its deletion.
                if self.agenda.is_working(&Task::Read(name.clone())) {
                    self.agenda.schedule(Task::Read(name.clone()), now);
                }
            }
            (Some(_), _) => {
                self.spare_what_it_held(name);
                // Old content must not be acted on: this replica may have led long ago, and lead again.
                self.sources.insert(name.clone(), Source::Unknown);
                self.agenda.schedule(Task::Read(name.clone()), now);
            }
        }
    }

    /// Records whether a source is labelled to be snapshotted at every change.
    pub fn set_labelled(&mut self, name: &Name, labelled: bool, now: Timestamp) {
        let name = &self.texts.share(name.clone());
        if !labelled || !self.served.contains(&name.namespace) || self.rotated.contains(&name.object) {
            if self.labelled.remove(name) {
                self.release_namespace(&name.namespace);
                self.forget_source(name);
            }
        } else if self.labelled.insert(name.clone()) {
            self.hold_namespace(&name.namespace);
            self.want_source(name.clone(), now);
            self.agenda.schedule(Task::Ensure(name.clone()), now);
        }
    }

    /// Applies the result of a live read of a source.
    pub(super) fn source_was_read(&mut self, name: &Name, observed: Option<&Observed>, now: Timestamp) {
        if !self.is_watched(name) {
            self.sources.remove(name);
            return;
        }
        if observed.is_some_and(|observed| !observed.is_bound_itself() && observed.may_have_our_owners()) {
            self.agenda.schedule(Task::Free(name.clone()), now);
        }
        // Without the snapshots that appeared during the read, the content would count as new.
        if self.agenda.is_entered(&Task::Read(name.clone())) && !self.unverifiable_of(name).is_empty() {
            self.sources.insert(name.clone(), Source::Unknown);
            return;
        }
        let source = observed.map_or(Source::Missing, |observed| {
            let keep = observed.annotation(names::KEEP);
            let max_in_flight = observed.annotation(names::MAX_IN_FLIGHT);
            Source::Found(Found {
                uid: observed.uid.as_str().into(),
                resource_version: observed.resource_version.clone(),
                present: Present {
                    digests: observed.digests().clone(),
                    live: observed.is_live(),
                    stays_as_written: observed.stays_as_written(),
                    bound_itself: observed.is_bound_itself(),
                    is_snapshot: observed.identity().is_some(),
                },
                always: observed.enabled() == Some("true"),
                // Admission reports a malformed count to its writer; here it counts as none.
                max_in_flight: max_in_flight.as_deref().and_then(parse_max_in_flight),
                keep: parse_keep(keep.as_deref()).or_else(|| parse_keep(None)).unwrap_or_default(),
            })
        });
        self.set_source(name, source, now);
    }

    fn set_source(&mut self, name: &Name, source: Source, now: Timestamp) {
        self.set_limited(name, matches!(&source, Source::Found(found) if found.max_in_flight.is_some()));
        let found = matches!(source, Source::Found(_));
        let name = &self.texts.share(name.clone());
        let old = self.sources.insert(name.clone(), source);
        if old.as_ref() == self.sources.get(name) {
            return;
        }
        let users: Vec<_> = self.workloads_using(name).map(|(key, _)| key.clone()).collect();
        for key in users {
            self.evaluate(&key, now);
            if matches!(old, Some(Source::Found(_))) && !found {
                self.look_for_missing(&key, now);
            }
        }
        self.look_at_changed(name, now);
        if found {
            self.agenda.schedule(Task::Ensure(name.clone()), now);
            self.look_for_what_it_holds(name, now);
        }
    }

    /// Queues lost snapshots of a source to be recreated, if the source holds their content again.
    fn look_for_what_it_holds(&mut self, source: &Name, now: Timestamp) {
        let Some(Source::Found(found)) = self.sources.get(source) else { return };
        let (of, digests) = (&*source.object.name, &found.present.digests);
        let fits = |lost: &&Name| {
            let is_its = lost.namespace == source.namespace
                && lost.object.kind == source.object.kind
                && self.source_of_referenced(lost).is_some_and(|entered| *entered == *of);
            let is_named_after =
                |digest| DIGITS.iter().any(|n| snapshot_name(of, digest, *n) == *lost.object.name);
            is_its && digests.iter().any(is_named_after)
        };
        for lost in self.lost.iter().filter(fits).cloned().collect::<Vec<_>>() {
            self.agenda.schedule(Task::Restore(lost), now);
        }
    }

    /// Queues lost snapshots to be recreated from the new snapshot `beside`, if it may hold their content.
    fn look_for_lost(&mut self, beside: &Name, digest: &Digest, now: Timestamp) {
        let fits = |lost: &&Name| {
            let is_near = lost.namespace == beside.namespace && lost.object.kind == beside.object.kind;
            is_near
                && self.source_of_referenced(lost).is_none_or(|of| {
                    DIGITS.iter().any(|n| snapshot_name(of, digest, *n) == *lost.object.name)
                })
        };
        for lost in self.lost.iter().filter(fits).cloned().collect::<Vec<_>>() {
            self.agenda.schedule(Task::Restore(lost), now);
        }
    }

    /// Applies a snapshot as it is now; `None` if it is deleted.
    pub fn apply_snapshot(&mut self, name: &Name, record: Option<SnapshotRecord>, now: Timestamp) {
        // confrev may not write in other namespaces.
        let record = record.filter(|_| self.served.contains(&name.namespace));
        let (name, record) = (&self.texts.share(name.clone()), self.texts.share(record));
        let old = match &record {
            Some(record) => self.snapshots.insert(name.clone(), record.clone()),
            None => self.snapshots.remove(name),
        };
        if old == record {
            return;
        }
        self.missing_since.remove(name);
        let (had, has) = (old.as_ref().map(|old| &old.owners), record.as_ref().map(|record| &record.owners));
        self.forget_verified(name, had, has);
        let place = |record: &SnapshotRecord| (Arc::clone(&record.source), record.created, record.digest);
        if let Some(old) = old.filter(|old| record.as_ref().map(place) != Some(place(old))) {
            self.untake(name, &old, now);
        }
        let Some(record) = record else {
            self.unwanted_since.remove(name);
            for task in [Task::Bind(name.clone()), Task::Unbind(name.clone()), Task::Sweep(name.clone())] {
                self.agenda.cancel(&task);
            }
            if self.users.contains_key(name) {
                self.agenda.schedule(Task::Restore(name.clone()), now);
            }
            return;
        };
        let source = name.sibling(Arc::clone(&record.source));
        if self.take(&source, name, &record) {
            // A new snapshot may push an older one out of the newest `keep`.
            self.look_at_neighbours(&source, now);
            self.look_for_lost(name, &record.digest, now);
            self.compare_with(&source, &record, now);
        }
        self.want_source(source, now);
        self.look_at_snapshot(name, now);
    }

    /// Reads a source again, to compare it with a snapshot whose digest cannot be computed.
    fn compare_with(&mut self, source: &Name, record: &SnapshotRecord, now: Timestamp) {
        if !self.is_unverifiable(record) {
            return;
        }
        let read = Task::Read(source.clone());
        let is_old = match self.sources.get(source) {
            Some(Source::Found(found)) => !found.present.digests.contains(&record.digest),
            // A read in progress began without this snapshot.
            Some(Source::Unknown) => self.agenda.is_working(&read),
            Some(Source::Missing) | None => false,
        };
        if is_old {
            self.sources.insert(source.clone(), Source::Unknown);
            self.agenda.schedule(read, now);
        }
    }

    /// The snapshots of a source whose digests cannot be computed, since their key is lost.
    pub(super) fn unverifiable_of(&self, source: &Name) -> Vec<Name> {
        // The digests of ConfigMaps have no key.
        if source.object.kind == SourceKind::ConfigMap {
            return Vec::new();
        }
        let mut names = self.snapshots_of(source);
        names.retain(|name| self.snapshots.get(name).is_some_and(|record| self.is_unverifiable(record)));
        names
    }

    /// Applies whether a namespace is labelled to opt its workloads in.
    pub fn apply_namespace(&mut self, namespace: &Arc<str>, enabled: bool, now: Timestamp) {
        let enabled = enabled && self.served.contains(namespace);
        let known = self.namespaces.get_or_insert_default();
        if enabled {
            if known.insert(Arc::clone(namespace)) {
                self.agenda.schedule(Task::OptIn(Arc::clone(namespace)), now);
            }
            return;
        }
        if known.remove(namespace) {
            self.agenda.cancel(&Task::OptIn(Arc::clone(namespace)));
            self.drop_joining(now, |key| key.namespace == *namespace);
            let keys: Vec<_> =
                self.workloads.keys().filter(|key| key.namespace == *namespace).cloned().collect();
            for key in keys {
                self.evaluate(&key, now);
            }
        }
    }

    /// Whether a snapshot of the source's present content is known.
    pub(super) fn has_snapshot_of(&self, source: &Name, found: &Found) -> bool {
        self.snapshots_with(source, &found.present.digests).next().is_some()
    }

    /// The owners that a snapshot should have: every user of its name, and its source while it is among the newest `keep`.
    pub(super) fn wanted_owners(&self, name: &Name, record: &SnapshotRecord) -> Wanted {
        // There is always room for the source, which keeps the newest snapshots.
        let by_use = self.owners_by_use(name).into_iter().chain(self.proven_owners(name).cloned());
        let by_use: CompactSet<_> = by_use.collect();
        let is_capped = by_use.len() >= MOST_OWNERS;
        let mut owners = at_most(MOST_OWNERS - 1, by_use, &record.owners);
        let source = name.sibling(Arc::clone(&record.source));
        match self.sources.get(&source) {
            None | Some(Source::Unknown) => return Wanted::Unknown,
            Some(Source::Missing) => {}
            Some(Source::Found(found)) => {
                // A source in bind mode keeps no snapshots: it is bound itself.
                // A snapshot with more users than owners needs its source as an owner, or it could be deleted while in use.
                let is_kept = is_capped || self.is_among_newest(&source, name, found);
                if !found.present.bound_itself && is_kept {
                    owners.insert(Owner::new(
                        "v1",
                        name.object.kind.as_str(),
                        Arc::clone(&record.source),
                        found.uid.clone(),
                    ));
                }
            }
        }
        Wanted::Owners(owners)
    }

    /// Whether an owner of this snapshot, or source in bind mode, is a workload whose own controller has not observed its
    /// present template. That controller may still create a revision of an earlier template, which refers to the object.
    pub(super) fn is_owned_by_one_behind(&self, name: &Name) -> bool {
        let of_snapshot = self.snapshots.get(name).map(|record| &record.owners);
        let owners = of_snapshot.or_else(|| Some(&self.bound.get(name)?.owners)).into_iter().flatten();
        let mut workloads = owners.filter_map(|owner| self.workload_of(name, owner));
        workloads.any(|record| record.health == Health::Unobserved)
    }

    /// The workload that is this owner of the object, if it exists and is watched.
    pub(super) fn workload_of(&self, name: &Name, owner: &Owner) -> Option<&Record> {
        let of_kind = |(kind, _): (usize, &WorkloadKind)| {
            let (namespace, name) = (Arc::clone(&name.namespace), Arc::clone(&owner.name));
            self.workloads.get(&WorkloadKey { kind, namespace, name })
        };
        let kinds = self.kinds.iter().enumerate().filter(|(_, kind)| *kind.kind == *owner.kind);
        kinds.filter_map(of_kind).find(|record| record.uid == owner.uid)
    }

    /// The name of the snapshot that most likely holds the source's present content. This is a guess: watches lag, and the
    /// snapshot may not exist yet.
    pub fn newest_snapshot(&self, source: &Name) -> Option<String> {
        let found = match self.sources.get(source)? {
            Source::Found(found) if !self.has_snapshot_of(source, found) => {
                return Some(snapshot_name(&source.object.name, &found.present.digests.current(), DIGITS[0]));
            }
            Source::Found(found) => Some(found),
            Source::Unknown | Source::Missing => None,
        };
        self.newest_of(source, found).map(|name| name.to_string())
    }

    /// Queues everything for a check: at the start, and when this replica begins to lead. A replica that does not lead
    /// drops its tasks, so what it knows of sources may be old, and they are read again.
    pub fn look_at_all(&mut self, now: Timestamp) {
        // Workloads that are pending count as pending from now on.
        self.pending_since.clear();
        self.held.clear();
        self.forget_rankings();
        let sources: Vec<_> = self.sources.keys().cloned().collect();
        for name in sources {
            self.sources.insert(name.clone(), Source::Unknown);
            self.agenda.schedule(Task::Read(name), now);
        }
        let workloads: Vec<_> = self.workloads.keys().cloned().collect();
        for key in workloads {
            self.evaluate(&key, now);
        }
        let owned: Vec<_> = self.snapshots.keys().chain(self.bound.keys()).cloned().collect();
        for name in owned {
            self.look_at_snapshot(&name, now);
        }
        for namespace in self.namespaces.iter().flatten() {
            self.agenda.schedule(Task::OptIn(Arc::clone(namespace)), now);
        }
        self.report_all_unreadable(now);
        let gone: Vec<_> =
            self.users.keys().filter(|name| self.is_referenced_and_gone(name)).cloned().collect();
        for name in gone {
            self.agenda.schedule(Task::Restore(name), now + RESTORE_DELAY);
        }
    }

    /// The name of the source whose content this object should hold, if a user that is not being deleted refers to the
    /// object itself. It is the object's own name if no template has another: for a source in bind mode, or a second snapshot.
    pub(super) fn source_of_referenced(&self, name: &Name) -> Option<&str> {
        let refers = |user: &User| {
            let uses = match user {
                User::Workload(key) => &self.workloads.get(key)?.uses,
                User::Revision(key) => &self.revisions.get(key)?.uses,
            };
            uses.iter().find(|used| {
                used.source.kind == name.object.kind && used.snapshot.as_ref() == Some(&name.object.name)
            })
        };
        let sources = self.staying_users(name).filter_map(refers).map(|used| &*used.source.name);
        sources.min_by_key(|source| **source == *name.object.name)
    }

    /// The users of an object that are not being deleted. A user that is being deleted starts no pods, so nothing is
    /// recreated for it. Until it is deleted, it still owns what it uses.
    pub(super) fn staying_users(&self, name: &Name) -> impl Iterator<Item = &User> {
        self.users.get(name).into_iter().flatten().filter(|user| !self.leaving.contains(*user))
    }

    /// Whether this snapshot, or source in bind mode, is missing while a user that is not being deleted refers to it.
    fn is_referenced_and_gone(&self, name: &Name) -> bool {
        !self.is_there(name) && self.source_of_referenced(name).is_some()
    }

    /// Whether a snapshot, or source in bind mode, of this name exists.
    pub(super) fn is_there(&self, name: &Name) -> bool {
        self.snapshots.contains_key(name) || self.bound.contains_key(name)
    }

    /// Drops the tasks that only the leader does. Any replica recreates a snapshot whose content it alone may remember,
    /// from an admission request that it answered.
    pub fn leave_to_the_leader(&mut self) {
        // The tasks that follow from this are dropped below.
        self.drop_joining(Timestamp::MIN, |_| true);
        self.events.leave();
        self.fresh = Fresh::default();
        let mut agenda = std::mem::take(&mut self.agenda);
        agenda.retain(|task| matches!(task, Task::Restore(name) if self.remembered(name).is_some()));
        self.agenda = agenda;
    }
}
