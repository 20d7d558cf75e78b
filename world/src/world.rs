//! The world, and what it knows about the users of a name.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use confrev_core::{
    compact::CompactSet,
    kinds::{REVISION_KINDS, WorkloadKind},
    resolve::{NamespaceOptIn, Record, Use},
    snapshot::ObjectName,
    uid::Uid,
};

use crate::{
    analyses::Analyses,
    change::WorldChange,
    config::WorldConfig,
    groups::Groups,
    interner::Interner,
    live_findings::LiveFindings,
    name::Name,
    objects::{Owner, Precondition, WorkloadKey, workload_owner},
    records::{BoundRecord, KnownSource, Revision, RevisionKey, User},
    referrers::Referrers,
    shares::{self, Class, Shares},
    skipped::Skipped,
    snapshots::Snapshots,
    users::Users,
    watched::WatchedNamespaces,
};

/// All known objects.
pub struct World {
    pub(crate) config: WorldConfig,
    pub(crate) interner: Interner,
    /// Workloads that are opted in, and those that are about to be. Boxed, since a table has many free slots.
    pub(crate) workloads: HashMap<WorkloadKey, Box<Record>>,
    /// Workloads that their namespace opts in and that have no label yet, with the precondition of the write that adds it.
    pub(crate) joining: HashMap<WorkloadKey, Precondition>,
    pub(crate) revisions: HashMap<RevisionKey, Revision>,
    pub(crate) users: Users,
    pub(crate) sources: HashMap<Name, KnownSource>,
    /// Sources labelled to be snapshotted at every change.
    pub(crate) labelled: HashSet<Name>,
    pub(crate) snapshots: Snapshots,
    /// Sources in bind mode.
    pub(crate) bound: HashMap<Name, BoundRecord>,
    /// What live reads found about the owners of snapshots and bound objects.
    pub(crate) findings: LiveFindings,
    /// What live reads found about the AnalysisRuns of waves.
    pub(crate) analyses: Analyses,
    /// Namespaces whose label opts workloads in; `None` until they were listed.
    pub(crate) opting_in: Option<HashMap<Arc<str>, NamespaceOptIn>>,
    pub(crate) groups: Groups,
    pub(crate) watched: WatchedNamespaces,
    /// Rollouts that use the template of another workload.
    pub(crate) referrers: Referrers,
    /// Objects that cannot be read.
    pub(crate) unreadable: HashMap<User, Skipped>,
    /// How much each namespace holds of the world, and what is left out.
    pub(crate) shares: Shares,
    /// The uids of the namespaces.
    pub(crate) namespace_uids: HashMap<Arc<str>, Uid>,
    /// Whether every watch has listed its objects.
    pub(crate) is_synced: bool,
}

impl World {
    /// An empty world.
    pub fn new(config: WorldConfig) -> Self {
        Self {
            config,
            interner: Interner::default(),
            workloads: HashMap::new(),
            joining: HashMap::new(),
            revisions: HashMap::new(),
            users: Users::default(),
            sources: HashMap::new(),
            labelled: HashSet::new(),
            snapshots: Snapshots::default(),
            bound: HashMap::new(),
            findings: LiveFindings::default(),
            analyses: Analyses::default(),
            opting_in: None,
            groups: Groups::default(),
            watched: WatchedNamespaces::default(),
            referrers: Referrers::default(),
            unreadable: HashMap::new(),
            shares: Shares::default(),
            namespace_uids: HashMap::new(),
            is_synced: false,
        }
    }

    /// The settings.
    pub fn config(&self) -> &WorldConfig {
        &self.config
    }

    /// The settings, to change them before the first object is applied.
    pub fn config_mut(&mut self) -> &mut WorldConfig {
        &mut self.config
    }

    /// The kind of a workload.
    pub fn kind(&self, key: &WorkloadKey) -> Option<&WorkloadKind> {
        self.config.kinds.iter().nth(key.kind)
    }

    /// Whether every watch has listed its objects.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Records that every watch has listed its objects.
    pub fn set_synced(&mut self) {
        self.is_synced = true;
        // If no namespace opts in, the list returned none, and this is now known.
        self.opting_in.get_or_insert_default();
    }

    /// The users of each name.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// Whether a snapshot, or source in bind mode, of this name exists.
    pub fn exists(&self, name: &Name) -> bool {
        self.snapshots.get(name).is_some() || self.bound.contains_key(name)
    }

    /// Whether this snapshot, or source in bind mode, is missing while a user that is not being deleted refers to it.
    pub fn is_referenced_and_missing(&self, name: &Name) -> bool {
        !self.exists(name) && self.source_of_referenced(name).is_some()
    }

    /// What a user refers to.
    pub(crate) fn uses_of(&self, user: &User) -> Option<&[Use]> {
        match user {
            User::Workload(key) => Some(&self.workloads.get(key)?.uses),
            User::Revision(key) => Some(&self.revisions.get(key)?.uses),
        }
    }

    /// The name of the source whose content this object should hold, if a user that is not being deleted refers to the
    /// object itself. It is the object's own name if no template has another: for a source in bind mode, or a second snapshot.
    pub fn source_of_referenced(&self, name: &Name) -> Option<&str> {
        let refers = |user: &User| {
            self.uses_of(user)?.iter().find(|used| {
                used.source.kind == name.object.kind && used.snapshot.as_ref() == Some(&name.object.name)
            })
        };
        let sources = self.users.staying(name).filter_map(refers).map(|used| &*used.source.name);
        sources.min_by_key(|source| **source == *name.object.name)
    }

    /// The source of a snapshot, according to one of its users.
    pub fn source_used_by(&self, user: &User, snapshot: &Name) -> Option<Name> {
        let uses = self.uses_of(user)?;
        let used = uses.iter().find(|used| used.snapshot.as_ref() == Some(&snapshot.object.name))?;
        Some(Name::new(Arc::clone(&snapshot.namespace), used.source.clone()))
    }

    /// The users of the object, as owners.
    pub fn owners_by_use(&self, name: &Name) -> CompactSet<Owner> {
        self.users.of(name).filter_map(|user| self.owner(user)).collect()
    }

    /// A user, as an owner.
    pub fn owner(&self, user: &User) -> Option<Owner> {
        match user {
            User::Workload(key) => {
                let record = self.workloads.get(key)?;
                Some(workload_owner(self.kind(key)?, &key.name, record.uid.clone()))
            }
            User::Revision(key) => {
                let revision = self.revisions.get(key)?;
                let kind = REVISION_KINDS.get(key.kind)?;
                Some(Owner::new(kind.api_version(), kind.kind, Arc::clone(&key.name), revision.uid.clone()))
            }
        }
    }

    /// Records whether a workload or revision is being deleted.
    pub fn set_being_deleted(&mut self, user: &User, is_being_deleted: bool) {
        self.users.set_being_deleted(user, is_being_deleted, &mut self.interner);
    }

    /// Applies a revision as it is now; `None` if it is deleted.
    pub fn apply_revision(
        &mut self,
        key: &RevisionKey,
        revision: Option<Revision>,
        changes: &mut Vec<WorldChange>,
    ) {
        let revision = revision.filter(|_| self.config.served.contains(&key.namespace));
        let bytes = |revision: Option<&Revision>| revision.map_or(0, |known| shares::of_revision(key, known));
        let (old_bytes, new_bytes) = (bytes(self.revisions.get(key)), bytes(revision.as_ref()));
        let uid = revision.as_ref().map(|revision| revision.uid.clone());
        let revision = revision
            .filter(|_| self.make_room(&key.namespace, Class::Revision, (old_bytes, new_bytes), changes));
        let is_left_out = revision.is_none() && uid.is_some();
        let kept_bytes = if revision.is_some() { new_bytes } else { 0 };
        self.shares.charge(&key.namespace, Class::Revision, (old_bytes, kept_bytes));
        if is_left_out {
            self.findings.forget_owners(&key.namespace, uid.iter(), changes);
        }
        let (key, revision) = (&self.interner.intern(key.clone()), self.interner.intern(revision));
        let user = User::Revision(key.clone());
        let old = match &revision {
            Some(revision) => self.revisions.insert(key.clone(), revision.clone()),
            None => self.revisions.remove(key),
        };
        if old == revision {
            return;
        }
        let uids = old.iter().chain(&revision).map(|revision| &revision.uid);
        self.findings.forget_owners(&key.namespace, uids, changes);
        let old_uses = old.map(|old| old.uses).unwrap_or_default();
        let new_uses = revision.map(|revision| revision.uses).unwrap_or_default();
        self.set_uses(&user, &old_uses, &new_uses, changes);
    }

    /// The keys of the known revisions.
    pub fn revisions(&self) -> impl Iterator<Item = &RevisionKey> {
        self.revisions.keys()
    }

    /// The names to which a user with these references refers. A revision refers to snapshots only.
    fn names_of(user: &User, uses: &[Use]) -> BTreeSet<ObjectName> {
        let is_workload = matches!(user, User::Workload(_));
        uses.iter()
            .flat_map(|used| {
                let snapshot =
                    used.snapshot.as_ref().map(|name| ObjectName::new(used.source.kind, name.clone()));
                snapshot.into_iter().chain(is_workload.then(|| used.source.clone()))
            })
            .collect()
    }

    /// Replaces the references of a user.
    pub(crate) fn set_uses(&mut self, user: &User, old: &[Use], new: &[Use], changes: &mut Vec<WorldChange>) {
        let namespace = user.namespace();
        let (old_names, new_names) = (Self::names_of(user, old), Self::names_of(user, new));
        // Each source is weighed once, and only if a snapshot of it became used or unused: it may have thousands.
        let mut weighed = BTreeSet::new();
        for object in old_names.difference(&new_names) {
            let name = Name::new(Arc::clone(namespace), object.clone());
            self.users.remove(&name, user);
            if !self.users.has_any(&name) {
                weighed.extend(self.source_of_snapshot(&name));
            }
            self.forget_source(&name, changes);
            changes.push(WorldChange::Object(name));
        }
        for object in &new_names {
            let name = Name::new(Arc::clone(namespace), object.clone());
            if !self.users.has_any(&name) {
                weighed.extend(self.source_of_snapshot(&name));
            }
            self.users.add(name.clone(), user.clone());
            changes.push(WorldChange::Object(name));
        }
        for source in weighed {
            self.weigh_snapshots(&source, changes);
        }
        for used in new {
            if let Some(snapshot) = &used.snapshot {
                let object = ObjectName::new(used.source.kind, snapshot.clone());
                let name = Name::new(Arc::clone(namespace), object);
                // Before all is listed, a snapshot may come after its users. Missing snapshots are looked for afterwards.
                if self.is_synced && !self.exists(&name) {
                    changes.push(WorldChange::Absent(name));
                }
            }
            if matches!(user, User::Workload(_)) {
                self.need(&Name::new(Arc::clone(namespace), used.source.clone()), changes);
            }
        }
    }
}
