//! The controller's state: small records derived from watches and reads, and an index of which objects refer to which.
//!
//! Nothing here does I/O. Watches call `apply_*` and `set_*`; every change queues the tasks that it may require.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    Config, Name,
    agenda::{Agenda, Task},
    bound::BoundRecord,
    events::Events,
    memory::{Fresh, Memory, OF_DELETED, OF_SNAPSHOT},
    namespaces::Served,
    ownership::Verified,
    records::{Revision, RevisionKey, SnapshotRecord, Source, User},
    referrers::Referrers,
    subjects::Reader,
    taken::Taken,
    texts::Texts,
    unreadable::Skipped,
};
use crate::{
    cluster::{DigestKeys, MAX_NAMES, Owner, Precondition, WorkloadKey, workload_owner},
    compact::CompactSet,
    kinds::Kinds,
    resolve::{Observed, Present, Record, Use, is_pending},
    snapshot::{Digest, ObjectName, Rotated},
};

/// How long owners to add are collected before they are written: one write for many workloads.
pub(super) const BIND_DELAY: SignedDuration = SignedDuration::from_millis(500);
/// Extra delay per existing owner: with many owners a write costs more and a single new owner matters less.
const BIND_DELAY_EACH: SignedDuration = SignedDuration::from_millis(5);
/// The most owners that add to the delay.
const MOST_DELAYING: usize = 1000;
/// How long a stale owner is kept: by then, a template's next owner is known.
pub(super) const UNBIND_DELAY: SignedDuration = SignedDuration::from_secs(3);
/// How long a referenced snapshot may be unknown, because the watches are not in step with each other.
pub(super) const RESTORE_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// The most bytes of contents that reviews of workloads lead to.
const MOST_ADMITTED: usize = 16 << 20;
/// The most bytes of contents of deleted objects.
const MOST_DELETED: usize = 16 << 20;

/// The controller's state.
pub struct State {
    pub(super) config: Config,
    pub(super) kinds: Arc<Kinds>,
    pub(super) agenda: Agenda,
    /// Snapshots to which reviews of workloads newly refer, until they are bound.
    admitted: Memory,
    /// Objects that may just be deleted while in use. Reviews of workloads cannot displace them.
    deleted: Memory,
    /// Contents of sources that were just read and have no snapshot yet: the snapshot is created without another read.
    pub(super) fresh: Fresh,
    pub(super) events: Events,
    pub(super) texts: Texts,
    /// Workloads that are opted in, and those that are about to be.
    pub(super) workloads: HashMap<WorkloadKey, Record>,
    /// Workloads that their namespace opts in and that have no label yet, with the precondition of the write that adds it.
    pub(super) joining: HashMap<WorkloadKey, Precondition>,
    pub(super) revisions: HashMap<RevisionKey, Revision>,
    pub(super) sources: HashMap<Name, Source>,
    pub(super) snapshots: HashMap<Name, SnapshotRecord>,
    /// The snapshots of each source.
    pub(super) taken: BTreeMap<Name, Taken>,
    /// Sources in bind mode.
    pub(super) bound: HashMap<Name, BoundRecord>,
    /// Namespaces labelled to opt in; `None` until they were listed.
    pub(super) namespaces: Option<HashSet<Arc<str>>>,
    /// Sources labelled to be snapshotted at every change.
    pub(super) labelled: HashSet<Name>,
    pub(super) users: HashMap<Name, CompactSet<User>>,
    /// Workloads and revisions that are being deleted.
    pub(super) leaving: HashSet<User>,
    /// How many workloads, sources with snapshots and labelled sources each namespace has.
    pub(super) namespace_holds: HashMap<Arc<str>, usize>,
    pub(super) namespace_generation: usize,
    /// Since when a workload is pending.
    pub(super) pending_since: HashMap<WorkloadKey, Timestamp>,
    /// What recently held workloads by `max-in-flight`: by source, and by whether the workload itself is unhealthy.
    pub(super) verdicts: HashMap<(Name, bool), super::hold::Verdict>,
    /// Rollouts that use the template of another workload.
    pub(super) referrers: Referrers,
    /// Workloads being poked: since when they were pending, and their previous record. A watch may report before the answer.
    pub(super) rolling: HashMap<WorkloadKey, (Timestamp, Record)>,
    /// Since when a snapshot is unused.
    pub(super) unwanted_since: HashMap<Name, Timestamp>,
    /// Workloads that are held until others prove a content sound.
    pub(super) held: HashSet<WorkloadKey>,
    /// The last reported hold of each source: its content, and the workload that failed.
    pub(super) told: HashMap<Name, (Digest, WorkloadKey)>,
    /// Snapshots that are referenced but missing, and whose content is no longer known.
    pub(super) lost: HashSet<Name>,
    /// Since when a referenced snapshot is missing and this replica knows no content to restore it from.
    pub(super) missing_since: HashMap<Name, Timestamp>,
    /// How often a roll waited for the global rate, since this was last reported.
    pub(super) rate_waits: u64,
    /// When the next roll at the global rate is due.
    pub(super) next_roll: Timestamp,
    /// Objects that cannot be read.
    pub(super) unreadable: HashMap<User, Skipped>,
    /// The most names that one object may refer to.
    pub(super) most_names: usize,
    /// What live reads found about snapshots' owners.
    pub(super) verified: HashMap<Name, Verified>,
    /// The namespaces for which the webhooks are called.
    pub(super) served: Served,
    /// The ConfigMaps that are never snapshotted.
    pub(super) rotated: Rotated,
    /// The keys of the digests of Secrets.
    pub(super) keys: DigestKeys,
    /// Whether the loss of a key was reported.
    pub(super) key_loss_is_told: bool,
    /// Whether every watch has listed its objects: nothing is removed before that.
    pub(super) synced: bool,
}

impl State {
    /// An empty state.
    pub fn new(kinds: Arc<Kinds>, config: Config) -> Self {
        Self {
            config,
            kinds,
            agenda: Agenda::default(),
            admitted: Memory::new(MOST_ADMITTED),
            deleted: Memory::new(MOST_DELETED),
            fresh: Fresh::default(),
            events: Events::default(),
            texts: Texts::default(),
            workloads: HashMap::new(),
            joining: HashMap::new(),
            revisions: HashMap::new(),
            sources: HashMap::new(),
            snapshots: HashMap::new(),
            taken: BTreeMap::new(),
            bound: HashMap::new(),
            namespaces: None,
            labelled: HashSet::new(),
            users: HashMap::new(),
            leaving: HashSet::new(),
            namespace_holds: HashMap::new(),
            namespace_generation: 0,
            pending_since: HashMap::new(),
            verdicts: HashMap::new(),
            referrers: Referrers::default(),
            rolling: HashMap::new(),
            unwanted_since: HashMap::new(),
            held: HashSet::new(),
            told: HashMap::new(),
            lost: HashSet::new(),
            missing_since: HashMap::new(),
            rate_waits: 0,
            next_roll: Timestamp::MIN,
            unreadable: HashMap::new(),
            most_names: MAX_NAMES,
            verified: HashMap::new(),
            served: Served::default(),
            rotated: Rotated::default(),
            keys: DigestKeys::default(),
            key_loss_is_told: false,
            synced: false,
        }
    }

    /// Serves only these namespaces: workloads in others reach no webhook, so a poke would have no effect.
    #[must_use]
    pub fn serving(mut self, namespaces: Served) -> Self {
        self.served = namespaces;
        self
    }

    /// Leaves references to these ConfigMaps as written.
    #[must_use]
    pub fn leaving(mut self, rotated: Rotated) -> Self {
        self.rotated = rotated;
        self
    }

    /// Compares the digests of Secrets under these keys.
    #[must_use]
    pub fn keyed_by(mut self, keys: DigestKeys) -> Self {
        self.keys = keys;
        self
    }

    /// The settings that decide how an object is read.
    pub(super) fn reader(&self) -> Reader {
        let Self { kinds, rotated, most_names, .. } = self;
        Reader { kinds: Arc::clone(kinds), rotated: rotated.clone(), most_names: *most_names }
    }

    /// Whether the key of a snapshot's digest is unknown.
    pub(super) fn is_unverifiable(&self, record: &SnapshotRecord) -> bool {
        record.digest.key().is_some_and(|key| !self.keys.knows(key))
    }

    /// Records that every watch has listed its objects.
    pub fn set_synced(&mut self) {
        self.synced = true;
        // If no namespace opts in, the list returned none, and this is now known.
        self.namespaces.get_or_insert_default();
    }

    /// Remembers a snapshot to which a review newly refers, until the controller has bound it.
    pub(super) fn remember_admitted(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.admitted.remember(name, content, now + OF_SNAPSHOT);
    }

    /// Remembers a snapshot that the garbage collector may be deleting.
    pub(super) fn remember_endangered(&mut self, name: Name, content: Arc<Observed>, now: Timestamp) {
        self.deleted.remember(name, content, now + OF_SNAPSHOT);
    }

    /// Remembers a bound object that is being deleted. Returns the objects that are forgotten for it.
    pub(super) fn remember_deleted(
        &mut self,
        name: Name,
        content: Arc<Observed>,
        now: Timestamp,
    ) -> Vec<Name> {
        self.deleted.remember(name, content, now + OF_DELETED)
    }

    /// The remembered content of an object.
    pub(super) fn remembered(&self, name: &Name) -> Option<&Arc<Observed>> {
        self.deleted.recall(name).or_else(|| self.admitted.recall(name))
    }

    /// Forgets the content of a deleted object, if an object with another uid has its name now.
    pub(super) fn forget_replaced(&mut self, name: &Name, uid: &str) {
        if self.deleted.recall(name).is_some_and(|content| content.uid != uid) {
            self.deleted.forget(name);
        }
    }

    /// Forgets contents that were remembered for long enough.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        let Self { admitted, deleted, agenda, .. } = self;
        let is_awaited = |name: &Name| agenda.has(&Task::Restore(name.clone()));
        admitted.forget_old(now, |_| false);
        deleted.forget_old(now, is_awaited);
    }

    /// When the next task is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.agenda.next(self.rolls_from())
    }

    /// The opted-in workloads whose templates use this source.
    pub fn workloads_using(&self, source: &Name) -> impl Iterator<Item = (&WorkloadKey, &Record)> {
        self.users.get(source).into_iter().flatten().filter_map(|user| match user {
            User::Workload(key) => self.workloads.get_key_value(key),
            User::Revision(_) => None,
        })
    }

    /// Whether a write of this source gets a snapshot: an opted-in workload uses the source, or its label requires it.
    pub fn is_snapshotted(&self, source: &Name) -> bool {
        self.labelled.contains(source) || self.workloads_using(source).next().is_some()
    }

    /// Whether anything depends on this source's state.
    pub(super) fn is_watched(&self, source: &Name) -> bool {
        self.is_snapshotted(source) || self.taken.contains_key(source)
    }

    /// Applies a workload as it is now; `None` if it is deleted, or no longer opted in.
    pub fn apply_workload(&mut self, key: &WorkloadKey, record: Option<Record>, now: Timestamp) {
        self.joining.remove(key);
        self.set_workload(key, record, now);
    }

    /// Records whether a workload or revision is being deleted.
    pub(super) fn set_leaving(&mut self, user: &User, is_leaving: bool) {
        if !is_leaving {
            self.leaving.remove(user);
        } else if !self.leaving.contains(user) {
            let shared = match user {
                User::Workload(key) => User::Workload(self.texts.share(key.clone())),
                User::Revision(key) => User::Revision(self.texts.share(key.clone())),
            };
            self.leaving.insert(shared);
        }
    }

    pub(super) fn set_workload(&mut self, key: &WorkloadKey, record: Option<Record>, now: Timestamp) {
        // Webhooks see no objects of excluded namespaces, and no cluster-scoped objects.
        let record = record.filter(|_| !key.namespace.is_empty() && self.served.contains(&key.namespace));
        let (key, record) = (&self.texts.share(key.clone()), self.texts.share(record));
        let user = User::Workload(key.clone());
        let old = match &record {
            Some(record) => self.workloads.insert(key.clone(), record.clone()),
            None => self.workloads.remove(key),
        };
        self.verify_again(&key.namespace, old.iter().chain(&record).map(|record| &record.uid), now);
        match (old.is_some(), record.is_some()) {
            (false, true) => self.hold_namespace(&key.namespace),
            (true, false) => self.release_namespace(&key.namespace),
            _ => {}
        }
        let same_uid = old.as_ref().map(|old| &old.uid) == record.as_ref().map(|record| &record.uid);
        if let (Some(old), Some(record), true) = (&old, &record, same_uid) {
            self.tell_pins(key, old, record, now);
            // A roll whose answer was lost shows only in its time. Any pending change is newer than that roll.
            if record.last_roll > old.last_roll {
                self.pending_since.remove(key);
            }
        }
        let old_uses = old.map(|old| old.uses).unwrap_or_default();
        let new_uses = record.map(|record| record.uses).unwrap_or_default();
        if !same_uid || old_uses != new_uses {
            self.change_uses(&user, &key.namespace, &old_uses, &new_uses, now);
            self.look_for_missing(key, now);
        }
        self.evaluate(key, now);
    }

    /// Applies a revision as it is now; `None` if it is deleted.
    pub fn apply_revision(&mut self, key: &RevisionKey, revision: Option<Revision>, now: Timestamp) {
        let revision = revision.filter(|_| self.served.contains(&key.namespace));
        let (key, revision) = (&self.texts.share(key.clone()), self.texts.share(revision));
        let user = User::Revision(key.clone());
        let old = match &revision {
            Some(revision) => self.revisions.insert(key.clone(), revision.clone()),
            None => self.revisions.remove(key),
        };
        if old == revision {
            return;
        }
        self.verify_again(&key.namespace, old.iter().chain(&revision).map(|revision| &revision.uid), now);
        let old_uses = old.map(|old| old.uses).unwrap_or_default();
        let new_uses = revision.map(|revision| revision.uses).unwrap_or_default();
        self.change_uses(&user, &key.namespace, &old_uses, &new_uses, now);
    }

    /// Replaces the references of a user, and queues the tasks that this may require.
    fn change_uses(&mut self, user: &User, namespace: &Arc<str>, old: &[Use], new: &[Use], now: Timestamp) {
        let is_workload = matches!(user, User::Workload(_));
        let names = |uses: &[Use]| -> BTreeSet<ObjectName> {
            uses.iter()
                .flat_map(|used| {
                    let snapshot =
                        used.snapshot.as_ref().map(|name| ObjectName::new(used.source.kind, name.clone()));
                    snapshot.into_iter().chain(is_workload.then(|| used.source.clone()))
                })
                .collect()
        };
        let (old_names, new_names) = (names(old), names(new));
        for object in old_names.difference(&new_names) {
            let name = Name { namespace: Arc::clone(namespace), object: object.clone() };
            if let Some(users) = self.users.get_mut(&name) {
                users.remove(user);
                if users.is_empty() {
                    self.users.remove(&name);
                }
            }
            self.forget_source(&name);
            self.look_at_snapshot(&name, now);
        }
        for object in &new_names {
            let name = Name { namespace: Arc::clone(namespace), object: object.clone() };
            self.users.entry(name.clone()).or_default().insert(user.clone());
            // From now on it counts as used, whenever its owners are checked.
            self.unwanted_since.remove(&name);
            self.look_at_snapshot(&name, now);
        }
        for used in new {
            if let Some(snapshot) = &used.snapshot {
                let name =
                    Name::new(Arc::clone(namespace), ObjectName::new(used.source.kind, snapshot.clone()));
                // Before all is listed, a snapshot may come after its users. Missing snapshots are looked for afterwards.
                if self.synced && !self.is_there(&name) {
                    self.agenda.schedule(Task::Restore(name), now + RESTORE_DELAY);
                }
            }
            if is_workload {
                self.want_source(Name::new(Arc::clone(namespace), used.source.clone()), now);
            }
        }
    }

    /// Queues a check of a snapshot's owners.
    pub(super) fn look_at_snapshot(&mut self, name: &Name, now: Timestamp) {
        if self.awaits_its_source(name) {
            self.look_again(name);
        } else if self.is_there(name) {
            let owners = self.snapshots.get(name).map_or(0, |record| record.owners.len().min(MOST_DELAYING));
            let more = BIND_DELAY_EACH * i32::try_from(owners).unwrap_or_default();
            self.agenda.schedule(Task::Bind(name.clone()), now + BIND_DELAY + more);
        }
    }

    /// Cancels the unbinding of the snapshots of a source's known content, so that their full delay starts from now.
    pub(super) fn spare_what_it_held(&mut self, source: &Name) {
        let Some(Source::Found(found)) = self.sources.get(source) else { return };
        let held = found.present.digests.clone();
        let snapshots: Vec<_> = self.snapshots_with(source, &held).map(|(name, _)| name).collect();
        for snapshot in snapshots {
            self.agenda.cancel(&Task::Unbind(snapshot));
        }
    }

    /// Whether a snapshot will be checked anyway, once its source has been read.
    fn awaits_its_source(&self, name: &Name) -> bool {
        self.snapshots.get(name).is_some_and(|record| {
            let source = name.sibling(Arc::clone(&record.source));
            self.sources.get(&source) == Some(&Source::Unknown) && self.agenda.has(&Task::Read(source))
        })
    }

    /// Queues a read of a source that is not known.
    pub(super) fn want_source(&mut self, name: Name, now: Timestamp) {
        if !self.config.source_kinds().contains(&name.object.kind) {
            return;
        }
        match self.sources.entry(name.clone()).or_insert(Source::Unknown) {
            Source::Unknown => self.agenda.schedule(Task::Read(name), now),
            // A source that was known before anything used it may have no snapshot yet.
            Source::Found(_) => self.agenda.schedule(Task::Ensure(name), now),
            Source::Missing => {}
        }
    }

    /// Forgets a source on which nothing depends any more.
    pub(super) fn forget_source(&mut self, name: &Name) {
        if !self.is_watched(name) {
            self.sources.remove(name);
            self.fresh.take(name);
            self.told.remove(name);
            self.verdicts.retain(|(of, _), _| of != name);
        }
    }

    /// What decisions need to know of a source; `None` if it does not exist or is not known.
    fn present(&self, source: &Name) -> Option<Present> {
        match self.sources.get(source)? {
            Source::Found(found) => Some(found.present.clone()),
            Source::Unknown | Source::Missing => None,
        }
    }

    /// Whether a workload is pending.
    pub(super) fn is_pending(&self, key: &WorkloadKey) -> bool {
        let Some(record) = self.workloads.get(key) else { return false };
        let left_alone = record.by_namespace
            && self.namespaces.as_ref().is_some_and(|enabled| !enabled.contains(&key.namespace));
        left_alone
            || self.joining.contains_key(key)
            || is_pending(record, |source| {
                self.present(&Name::new(Arc::clone(&key.namespace), source.clone()))
            })
    }

    /// Queues a roll of a workload that is pending, or cancels the roll if it is not.
    pub(super) fn evaluate(&mut self, key: &WorkloadKey, now: Timestamp) {
        if self.is_pending(key) {
            self.pending_since.entry(key.clone()).or_insert(now);
            let due = self.roll_due(key, now);
            self.agenda.schedule(Task::Roll(key.clone()), due);
        } else if !self.awaits_a_source(key) {
            self.pending_since.remove(key);
            self.held.remove(key);
            self.agenda.cancel(&Task::Roll(key.clone()));
        }
    }

    /// Whether a source of the workload is being read again, which decides whether the workload is pending.
    fn awaits_a_source(&self, key: &WorkloadKey) -> bool {
        self.workloads.get(key).is_some_and(|record| {
            record.uses.iter().any(|used| {
                let name = Name::new(Arc::clone(&key.namespace), used.source.clone());
                self.sources.get(&name) == Some(&Source::Unknown)
            })
        })
    }

    /// When a pending workload may be rolled: after it has settled, and not sooner than its interval allows.
    pub(super) fn roll_due(&self, key: &WorkloadKey, now: Timestamp) -> Timestamp {
        let since = self.pending_since.get(key).copied().unwrap_or(now);
        let settled = since + self.config.settle;
        let Some(record) = self.workloads.get(key) else { return settled };
        let interval = SignedDuration::try_from(record.min_interval).unwrap_or(SignedDuration::ZERO);
        let rested = record.last_roll.and_then(|last| last.checked_add(interval).ok());
        // A time too far ahead comes from a wrong clock; no workload waits longer than its interval.
        let latest = since.checked_add(interval).unwrap_or(now);
        rested.map_or(settled, |rested| settled.max(rested.min(latest)))
    }

    /// The users of the object, as owners.
    pub(super) fn owners_by_use(&self, name: &Name) -> CompactSet<Owner> {
        self.users.get(name).into_iter().flatten().filter_map(|user| self.owner(user)).collect()
    }

    /// A user, as an owner.
    pub(super) fn owner(&self, user: &User) -> Option<Owner> {
        match user {
            User::Workload(key) => {
                let record = self.workloads.get(key)?;
                let kind = self.kinds.iter().nth(key.kind)?;
                Some(workload_owner(kind, &key.name, record.uid.clone()))
            }
            User::Revision(key) => {
                let revision = self.revisions.get(key)?;
                let kind = crate::kinds::REVISION_KINDS.get(key.kind)?;
                Some(Owner::new(kind.api_version(), kind.kind, Arc::clone(&key.name), revision.uid.clone()))
            }
        }
    }
}
