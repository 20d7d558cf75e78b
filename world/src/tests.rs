//! The world against a plain model of the same objects: whatever is applied in whatever order, every query has the answer that
//! the objects give, and whatever changes a decision is reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev_core::{
    compact::CompactSet,
    kinds::Kinds,
    resolve::{Health, NamespaceOptIn, Present, Record, SpreadPolicy, Use},
    snapshot::{DIGITS, Digest, ObjectName, SourceKind, snapshot_name},
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::{
    change::WorldChange,
    config::WorldConfig,
    fixture::workload,
    live_findings::Verified,
    name::Name,
    objects::{Owner, Version, WorkloadKey},
    owners::{self, WantedOwners},
    records::{
        BoundRecord, KnownSource, Revision, RevisionKey, SnapshotRecord, SourceMeta, SourceRecord, User,
    },
    served::Served,
    world::World,
};

/// The last one is not served.
const NAMESPACES: [&str; 3] = ["a", "b", "excluded"];
const SOURCES: [&str; 3] = ["s", "t", "s-1"];
/// More than a source may have before its snapshots are ranked.
const CONTENTS: u8 = 14;

/// One step, as numbers: the operation, the objects, and what becomes of them.
type Step = [u8; 6];

fn name(namespace: &str, object: &str) -> Name {
    Name::new(namespace, ObjectName::new(SourceKind::ConfigMap, object))
}

fn digest(content: u8) -> Digest {
    format!("sha256:{:02x}{:062x}", content.wrapping_mul(37), content).parse().unwrap()
}

fn at(hour: u8) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(i64::from(hour))
}

/// The namespace that a number selects; mostly the first.
fn namespace(number: u8) -> &'static str {
    NAMESPACES[usize::from(number % 8).saturating_sub(5)]
}

/// The source that a number selects; mostly the first.
fn source(number: u8) -> &'static str {
    SOURCES[usize::from(number % 6).saturating_sub(3)]
}

fn snapshot_of(source: &str, content: u8, long: bool) -> String {
    snapshot_name(source, &digest(content % CONTENTS), DIGITS[usize::from(long)])
}

/// The workload or revision with a uid, as an owner.
fn owner(kind: &str, name: &str, uid: u8) -> Owner {
    let group = if kind == "ConfigMap" { "v1" } else { "apps/v1" };
    Owner::new(group, kind, name, format!("{name}-{uid}"))
}

/// Owners that an object may have: workloads, revisions, its source, and others.
fn some_owners(source: &str, bits: u8) -> CompactSet<Owner> {
    let all = [
        owner("Deployment", "w0", 0),
        owner("Deployment", "w0", 1),
        owner("Deployment", "w1", 0),
        owner("ReplicaSet", "r0", 0),
        owner("ReplicaSet", "r1", 1),
        owner("ConfigMap", source, 0),
        owner("Thing", "other", 0),
    ];
    all.into_iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0).map(|(_, owner)| owner).collect()
}

/// What a template refers to: each source not at all, by its name, by a snapshot, or bound under its own name.
fn uses(bits: u8, content: u8, revision: bool) -> Vec<Use> {
    let mut uses = Vec::new();
    for (place, of) in SOURCES.into_iter().enumerate() {
        let snapshot = match (bits >> (2 * place)) & 3 {
            0 => continue,
            1 if revision => continue,
            1 => None,
            2 => Some(snapshot_of(of, content, content & 64 != 0)),
            _ => Some(of.to_owned()),
        };
        let used = Use::new(ObjectName::new(SourceKind::ConfigMap, of), snapshot.map(Arc::from));
        uses.push(Use { whole: content & 32 == 0, ..used });
    }
    uses.sort();
    uses
}

/// The objects that exist, and the world that knows them.
struct Both {
    world: World,
    deployments: usize,
    workloads: BTreeMap<WorkloadKey, Record>,
    revisions: BTreeMap<RevisionKey, Revision>,
    snapshots: BTreeMap<Name, SnapshotRecord>,
    bound: BTreeMap<Name, BoundRecord>,
    labelled: BTreeSet<Name>,
    opting_in: BTreeMap<Arc<str>, NamespaceOptIn>,
    being_deleted: BTreeSet<User>,
    /// The owners of each snapshot, and the users of each bound object, as the controller decided at the last report.
    decided: BTreeMap<Name, WantedOwners>,
    version: u32,
}

impl Both {
    fn new() -> Self {
        let kinds = Kinds::default();
        let deployments = kinds.iter().position(|kind| kind.kind == "Deployment").unwrap();
        let mut settings = WorldConfig::new(Arc::new(kinds));
        settings.served = Served::but(["excluded".to_owned()]);
        let mut world = World::new(settings);
        world.set_synced();
        Self {
            world,
            deployments,
            workloads: BTreeMap::new(),
            revisions: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            bound: BTreeMap::new(),
            labelled: BTreeSet::new(),
            opting_in: BTreeMap::new(),
            being_deleted: BTreeSet::new(),
            decided: BTreeMap::new(),
            version: 0,
        }
    }

    /// The key of a workload.
    fn workload_key(&self, namespace: &str, number: u8) -> WorkloadKey {
        let name = Arc::from(format!("w{}", number % 2));
        WorkloadKey { kind: self.deployments, namespace: namespace.into(), name }
    }

    /// Performs one step. Returns what the world reported.
    fn step(&mut self, [operation, place, what, more, bits, chance]: Step) -> Vec<WorldChange> {
        let mut changes = Vec::new();
        let (ns, is_served) = (namespace(place), namespace(place) != "excluded");
        let of = name(ns, source(what));
        self.version += 1;
        let version = self.version.to_string();
        match operation % 12 {
            0 | 1 => {
                let key = self.workload_key(ns, what);
                let health = if more & 4 == 0 { Health::Settled } else { Health::Unobserved };
                let seen = digest(more % CONTENTS);
                let record = workload(&key.name, more & 1, uses(bits, chance, false), seen, health);
                let record = (chance % 5 > 0).then_some(record);
                replace(&mut self.workloads, &key, record.clone().filter(|_| is_served));
                self.world.apply_workload(&key, record, &mut changes);
            }
            2 => {
                let kind = 0;
                let name: Arc<str> = format!("r{}", what % 2).into();
                let uid = format!("{name}-{}", more & 1);
                let key = RevisionKey { kind, namespace: ns.into(), name };
                let revision = Revision { uid: uid.as_str().into(), uses: uses(bits, chance, true) };
                let revision = (chance % 5 > 0).then_some(revision);
                replace(&mut self.revisions, &key, revision.clone().filter(|_| is_served));
                self.world.apply_revision(&key, revision, &mut changes);
            }
            3..=5 => {
                let content = more % CONTENTS;
                // Anyone may create an object that states another digest than its name.
                let stated = if chance & 15 == 15 { content + 1 } else { content };
                let record = SnapshotRecord {
                    uid: "u".into(),
                    resource_version: version.into(),
                    source: Arc::clone(&of.object.name),
                    digest: digest(stated % CONTENTS),
                    created: at(chance % 4),
                    late: 0,
                    owners: some_owners(&of.object.name, bits),
                    verdict: None,
                    bytes: 1024,
                };
                let key = of.sibling(snapshot_of(&of.object.name, content, chance & 16 != 0));
                let record = (chance % 7 > 0).then_some(record);
                replace(&mut self.snapshots, &key, record.clone().filter(|_| is_served));
                self.world.apply_snapshot(&key, record, &mut changes);
            }
            6 => {
                let meta = SourceMeta { resource_version: version, always: false };
                self.world.apply_source(&of, (chance & 1 == 0).then_some(&meta), &mut changes);
            }
            7 | 8 => self.read(&of, more, bits, chance, &mut changes),
            9 => {
                let labelled = chance & 1 == 0;
                set(&mut self.labelled, &of, labelled && is_served);
                self.world.set_labelled(&of, labelled, &mut changes);
            }
            10 => {
                let version = Version { uid: "u".to_owned(), resource_version: version };
                let record = BoundRecord { version, owners: some_owners(&of.object.name, bits) };
                let record = (chance % 4 > 0).then_some(record);
                replace(&mut self.bound, &of, record.clone().filter(|_| is_served));
                self.world.apply_bound(&of, record, &mut changes);
            }
            _ if chance & 1 == 0 => {
                let ns: Arc<str> = ns.into();
                let opt_in =
                    [NamespaceOptIn::Now, NamespaceOptIn::Out, NamespaceOptIn::Next, NamespaceOptIn::Out]
                        [usize::from(bits & 3)];
                self.opting_in.insert(Arc::clone(&ns), if is_served { opt_in } else { NamespaceOptIn::Out });
                self.world.apply_namespace(&ns, opt_in, &mut changes);
            }
            _ if chance & 2 == 0 => {
                let user = User::Workload(self.workload_key(ns, what));
                set(&mut self.being_deleted, &user, bits & 1 == 0);
                self.world.set_being_deleted(&user, bits & 1 == 0);
            }
            _ => {
                // The controller reads only owners of objects that exist, and decides again at once.
                let names: Vec<_> = self.snapshots.keys().chain(self.bound.keys()).cloned().collect();
                let Some(found) = names.get(usize::from(what) % names.len().max(1)) else { return changes };
                let mut verified = Verified::default();
                for (number, owner) in some_owners("s", bits).into_iter().enumerate() {
                    match (usize::from(more) >> number) & 3 {
                        0 => verified.used.push(owner),
                        1 => verified.unused.push(owner),
                        _ => verified.deleted.push(owner),
                    }
                }
                self.world.add_findings(found, verified);
                changes.push(WorldChange::Object(found.clone()));
            }
        }
        changes
    }

    /// A live read of a source.
    fn read(&mut self, of: &Name, content: u8, keep: u8, chance: u8, changes: &mut Vec<WorldChange>) {
        let mut digests: confrev_core::snapshot::Digests = digest(content % CONTENTS).into();
        if chance & 4 != 0 {
            digests.insert(digest(content.wrapping_add(1) % CONTENTS));
        }
        let bound_itself = chance & 0x30 == 0x30;
        let present = Present { live: Some(false), bound_itself, ..Present::new(digests) };
        let record = SourceRecord {
            uid: format!("{}-{}", of.object.name, u8::from(chance & 8 != 0)).as_str().into(),
            resource_version: self.version.to_string().into(),
            present,
            keep: usize::from(keep % 5),
            revoked: (chance & 0xc0 == 0xc0).then(|| "demo-1,demo-2".into()),
            spread: SpreadPolicy::default().into(),
            gates: None,
            report: None,
        };
        // The controller does not record what nothing depends on.
        if self.is_watched(of) {
            self.world.set_read(of, (chance & 3 != 0).then_some(record), changes);
        }
    }

    /// Does what the controller does at once for what the world reported.
    fn follow(&mut self, changes: &[WorldChange]) {
        for change in changes {
            match change {
                WorldChange::Source(source) if self.world.is_watched(source) => {
                    self.world.need_source(source);
                }
                WorldChange::Object(name) | WorldChange::Unproven(name) | WorldChange::Added(name) => {
                    match self.wanted(name) {
                        Some(WantedOwners::Unknown) => self.world.snapshots_mut().rank_when_read(name),
                        Some(wanted) => {
                            self.decided.insert(name.clone(), wanted);
                        }
                        None => {}
                    }
                }
                _ => {}
            }
        }
    }

    /// The owners that an object should have.
    fn wanted(&self, name: &Name) -> Option<WantedOwners> {
        if let Some(record) = self.world.snapshot(name) {
            return Some(owners::wanted(&self.world, name, record));
        }
        self.world.bound(name).map(|_| WantedOwners::Owners(owners::users(&self.world, name)))
    }

    fn is_watched(&self, source: &Name) -> bool {
        let uses = |(key, record): (&WorkloadKey, &Record)| {
            key.namespace == source.namespace
                && record.uses.iter().any(|used| {
                    used.source == source.object || used.snapshot.as_ref() == Some(&source.object.name)
                })
        };
        let has_snapshot =
            self.snapshots.iter().any(|(name, record)| name.sibling(Arc::clone(&record.source)) == *source);
        self.labelled.contains(source) || has_snapshot || self.workloads.iter().any(uses)
    }

    /// Whether its content decides anything.
    fn is_needed(&self, source: &Name) -> bool {
        let mut workloads = self.workloads.iter();
        let is_used = workloads.any(|(key, record)| {
            key.namespace == source.namespace && record.uses.iter().any(|used| used.source == source.object)
        });
        let mut snapshots = self.snapshots.iter();
        let is_labelled = self.labelled.contains(source);
        is_used
            || is_labelled
            || snapshots.any(|(name, record)| name.sibling(Arc::clone(&record.source)) == *source)
    }

    fn refers(used: &Use, name: &Name) -> bool {
        used.source.kind == name.object.kind && used.snapshot.as_ref() == Some(&name.object.name)
    }

    /// The users of a name, each with the object to which it refers.
    fn users(&self, name: &Name) -> BTreeMap<User, &[Use]> {
        let workloads = self.workloads.iter().filter(|(key, record)| {
            key.namespace == name.namespace
                && record.uses.iter().any(|used| used.source == name.object || Self::refers(used, name))
        });
        let revisions = self.revisions.iter().filter(|(key, revision)| {
            key.namespace == name.namespace && revision.uses.iter().any(|used| Self::refers(used, name))
        });
        let workloads = workloads.map(|(key, record)| (User::Workload(key.clone()), &*record.uses));
        let revisions = revisions.map(|(key, revision)| (User::Revision(key.clone()), &*revision.uses));
        workloads.chain(revisions).collect()
    }

    /// The snapshots of a source: those of its present content first, then by age; the newest first.
    fn ranked(&self, source: &Name, known: Option<&SourceRecord>) -> Vec<&Name> {
        let of_source = self.snapshots.iter().filter(|(name, record)| {
            name.namespace == source.namespace && record.source == source.object.name
        });
        let mut ranked: Vec<_> = of_source
            .map(|(name, record)| {
                let is_named = |digest: &Digest| {
                    DIGITS.iter().any(|digits| {
                        snapshot_name(&source.object.name, digest, *digits) == *name.object.name
                    })
                };
                let is_present = known.is_some_and(|known| {
                    known.present.digests.contains(&record.digest) && is_named(&record.digest)
                });
                (is_present, record.created, name)
            })
            .collect();
        ranked.sort();
        ranked.into_iter().rev().map(|(_, _, name)| name).collect()
    }

    /// The names that are checked: all of one source, and some of each other.
    fn names() -> &'static [Name] {
        static NAMES: std::sync::LazyLock<Vec<Name>> = std::sync::LazyLock::new(|| {
            let mut names = Vec::new();
            for (namespace, source) in NAMESPACES.iter().flat_map(|of| SOURCES.map(|source| (of, source))) {
                let contents = if (*namespace, source) == ("a", "s") { CONTENTS } else { 3 };
                names.push(name(namespace, source));
                names.extend((0..contents).flat_map(|content| {
                    [false, true].map(|long| name(namespace, &snapshot_of(source, content, long)))
                }));
            }
            names
        });
        &NAMES
    }

    /// Compares every query with the objects.
    fn check(&self) {
        let world = &self.world;
        for name in Self::names() {
            let users = self.users(name);
            let found: BTreeSet<_> = world.users().of(name).cloned().collect();
            assert_eq!(found, users.keys().cloned().collect(), "users of {name}");
            assert_eq!(world.users().has_any(name), !users.is_empty());
            let stays = |user: &&User| !self.being_deleted.contains(*user);
            let staying: BTreeSet<_> = world.users().staying(name).collect();
            assert_eq!(staying, users.keys().filter(stays).collect(), "users of {name} that stay");
            let owners: BTreeSet<_> = world.owners_by_use(name).into_iter().map(|owner| owner.uid).collect();
            let uids = users.keys().map(|user| match user {
                User::Workload(key) => self.workloads[key].uid.clone(),
                User::Revision(key) => self.revisions[key].uid.clone(),
            });
            assert_eq!(owners, uids.collect(), "owners of {name}");
            let sources: BTreeSet<_> = users
                .iter()
                .filter(|(user, _)| stays(user))
                .filter_map(|(_, uses)| uses.iter().find(|used| Self::refers(used, name)))
                .map(|used| &*used.source.name)
                .collect();
            let source = world.source_of_referenced(name);
            assert_eq!(source.is_some(), !sources.is_empty(), "what {name} is a snapshot of");
            assert!(source.is_none_or(|source| sources.contains(source)));
            let is_its_own = source == Some(&*name.object.name);
            assert!(!is_its_own || sources.len() == 1, "a snapshot's source comes before its own name");
            let exists = self.snapshots.contains_key(name) || self.bound.contains_key(name);
            assert_eq!(world.exists(name), exists, "{name}");
            assert_eq!(world.is_referenced_and_missing(name), !exists && !sources.is_empty(), "{name}");
            assert_eq!(world.is_labelled(name), self.labelled.contains(name), "{name}");
            self.check_source(name);
            self.check_owners(name);
        }
        let known: BTreeSet<_> = world.sources().map(|(name, _)| name.clone()).collect();
        for name in Self::names() {
            assert!(!known.contains(name) || self.is_watched(name), "nothing depends on {name}");
            assert!(known.contains(name) || !self.is_needed(name), "{name} is needed");
        }
        assert_eq!(world.watched_namespaces(), self.watched_namespaces());
        let known = self.opting_in.iter().filter(|(_, opt_in)| opt_in.is_in());
        let known: BTreeSet<_> = known.map(|(namespace, _)| Arc::clone(namespace)).collect();
        assert_eq!(world.opting_in().cloned().collect::<BTreeSet<_>>(), known);
        for namespace in NAMESPACES {
            let wanted = self.opting_in.get(namespace).copied().unwrap_or_default();
            assert_eq!(world.opt_in_of(namespace), wanted, "{namespace}");
        }
        assert_eq!(world.workloads().len(), self.workloads.len());
        assert_eq!(world.revisions().count(), self.revisions.len());
        assert_eq!(world.shares().total(), world.counted_bytes(), "the bytes of all records");
        assert_eq!(world.snapshots().iter().len(), self.snapshots.len());
        assert_eq!(world.all_bound().collect::<BTreeSet<_>>(), self.bound.keys().collect());
        for (key, record) in &self.workloads {
            assert_eq!(world.workload(key), Some(record));
        }
    }

    fn watched_namespaces(&self) -> BTreeSet<Arc<str>> {
        let names = self.snapshots.keys().chain(self.bound.keys()).chain(&self.labelled);
        let workloads = self.workloads.keys().map(|key| Arc::clone(&key.namespace));
        names.map(|name| Arc::clone(&name.namespace)).chain(workloads).collect()
    }

    /// The queries about a source.
    fn check_source(&self, source: &Name) {
        let world = &self.world;
        assert_eq!(world.is_watched(source), self.is_watched(source), "{source}");
        let uses = |(key, _): &(&WorkloadKey, &Record)| User::Workload((*key).clone());
        let using: BTreeSet<_> = world.workloads_using(source).map(|found| uses(&found)).collect();
        let mut users = self.users(source);
        users.retain(|user, _| matches!(user, User::Workload(_)));
        assert_eq!(using, users.into_keys().collect(), "workloads that use {source}");
        assert_eq!(world.is_snapshotted(source), !using.is_empty() || self.labelled.contains(source));
        let known = world.existing_source(source);
        let ranked = self.ranked(source, known);
        assert_eq!(world.snapshots().count(source), ranked.len(), "snapshots of {source}");
        let newest = ranked.first().map(|name| name.object.name.to_string());
        if let Some(known) = known {
            for (rank, name) in ranked.iter().enumerate() {
                assert_eq!(
                    world.snapshots().is_among_newest(source, name, known),
                    rank < known.keep,
                    "{name}: {rank}"
                );
            }
            let digest = known.present.digests.current();
            let has = |digest: &Digest| {
                DIGITS.iter().any(|digits| {
                    let name = source.sibling(snapshot_name(&source.object.name, digest, *digits));
                    let record = self.snapshots.get(&name);
                    record
                        .is_some_and(|record| record.digest == *digest && record.source == source.object.name)
                })
            };
            let has = known.present.digests.iter().any(has);
            assert_eq!(world.snapshots().has_content_of(source, known), has, "{source}");
            let wanted = snapshot_name(&source.object.name, &digest, DIGITS[0]);
            assert_eq!(world.newest_snapshot(source), if has { newest } else { Some(wanted) }, "{source}");
        } else {
            assert_eq!(world.newest_snapshot(source), newest.filter(|_| world.source(source).is_some()));
        }
    }

    /// The queries about the owners of a snapshot or bound object, and the last decision about them.
    fn check_owners(&self, name: &Name) {
        let world = &self.world;
        let snapshot = self.snapshots.get(name).map(|record| &record.owners);
        let bound = self.bound.get(name).map(|record| &record.owners);
        let is_of_workload = |owner: &Owner| {
            let mut all = self.workloads.iter();
            all.any(|(key, record)| {
                (&key.namespace, &key.name, &record.uid) == (&name.namespace, &owner.name, &owner.uid)
                    && *owner.kind == *"Deployment"
            })
        };
        let is_of_revision = |owner: &Owner| {
            let mut all = self.revisions.iter();
            all.any(|(key, revision)| {
                (&key.namespace, &key.name, &revision.uid) == (&name.namespace, &owner.name, &owner.uid)
                    && *owner.kind == *"ReplicaSet"
            })
        };
        let is_known = |owner: &Owner| is_of_workload(owner) || is_of_revision(owner);
        for owner in snapshot.into_iter().chain(bound).flatten() {
            assert_eq!(world.is_known(name, owner), is_known(owner), "{owner:?} of {name}");
        }
        let is_unobserved = |owner: &Owner| {
            self.workloads.iter().any(|(key, record)| {
                is_of_workload(owner)
                    && key.namespace == name.namespace
                    && record.uid == owner.uid
                    && record.health == Health::Unobserved
            })
        };
        let mut owners = snapshot.or(bound).into_iter().flatten();
        assert_eq!(world.has_unobserved_owner(name), owners.any(is_unobserved), "{name}");
        let is_released = bound.is_some_and(|owners| {
            self.users(name).is_empty()
                && world.findings().used(name).next().is_none()
                && !owners.is_empty()
                && owners.iter().all(is_known)
        });
        assert_eq!(world.is_released(name), is_released, "{name}");
        if let Some(wanted) = self.wanted(name).filter(|wanted| *wanted != WantedOwners::Unknown) {
            assert_eq!(self.decided.get(name), Some(&wanted), "{name}: the last decision about its owners");
        }
    }

    /// The workloads that are pending.
    fn pending(&self) -> BTreeSet<WorkloadKey> {
        self.workloads.keys().filter(|key| self.world.is_pending(key)).cloned().collect()
    }

    /// The names that must be restored.
    fn missing(&self) -> BTreeSet<Name> {
        let names = Self::names().iter();
        names.filter(|name| self.world.is_referenced_and_missing(name)).cloned().collect()
    }
}

fn replace<K: Clone + Ord, V>(map: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key.clone(), value)),
        None => drop(map.remove(key)),
    }
}

fn set<K: Clone + Ord>(all: &mut BTreeSet<K>, key: &K, is_in: bool) {
    if is_in {
        all.insert(key.clone());
    } else {
        all.remove(key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn index_agrees_with_its_objects(steps in prop::collection::vec(any::<Step>(), 1..80)) {
        let mut both = Both::new();
        let mut pending = BTreeSet::new();
        for step in steps {
            let (missing, watched) = (both.missing(), both.world.watched_namespaces());
            let generation = both.world.watched_generation();
            let changes = both.step(step);
            both.follow(&changes);
            both.check();
            let now = both.pending();
            let is_told = |key: &WorkloadKey| changes.iter().any(|change| match change {
                WorldChange::Workload(told) => told == key,
                WorldChange::Namespace(namespace) => *namespace == key.namespace,
                _ => false,
            });
            // Whether a workload is still pending is checked again before it rolls.
            for key in now.difference(&pending) {
                prop_assert!(is_told(key), "{step:?}: {key:?} is pending now: {changes:?}");
            }
            pending = now;
            let is_told = |name: &Name| changes.iter().any(|change| matches!(change,
                WorldChange::Absent(told) | WorldChange::Deleted(told) | WorldChange::Unbound { name: told, is_used: true }
                    if told == name));
            let is_stay = step[0] % 12 == 11;
            for name in both.missing().difference(&missing).filter(|_| !is_stay) {
                prop_assert!(is_told(name), "{step:?}: {name} is missing: {changes:?}");
            }
            if both.world.watched_namespaces() != watched {
                prop_assert_ne!(both.world.watched_generation(), generation);
            }
        }
    }
}

/// The steps of the property reach the ranking of many snapshots only by chance.
#[test]
fn every_rank_change_of_many_snapshots_is_reported() {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from(state >> 24).unwrap()
    };
    let mut both = Both::new();
    for number in 0..CONTENTS {
        let changes = both.step([3, 0, 0, number, 0, 1 + (number % 3) * 16]);
        both.follow(&changes);
    }
    for _ in 0..150 {
        let operation = [3, 3, 6, 7, 7, 7][usize::from(next() % 6)];
        let changes = both.step([operation, 0, 0, next(), next(), next()]);
        both.follow(&changes);
        both.check();
    }
    let ranked = both.world.snapshots().ranked();
    let state = both.world.source(&name("a", "s"));
    assert!(ranked > 0 || state == Some(&KnownSource::Missing), "{state:?}");
}
