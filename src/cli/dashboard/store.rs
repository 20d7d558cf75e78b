//! The objects that the page follows, by namespace, and an inventory made from them: the one that the commands read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use super::parts::Part;
use crate::{
    annotations,
    cli::{
        inventory::{Inventory, has_config, sort},
        objects::{LiveSource, OptedIn, Snapshot, SourceKey, label, text},
        target::Target,
    },
    kinds::WorkloadKind,
    snapshot::{ObjectName, SourceKind},
};

/// The version of a source that must be read again.
const STALE: &str = "stale";

/// The position of a collection in the list of all.
pub(super) type PartId = usize;

/// All objects.
#[derive(Debug, Default)]
pub(super) struct Store {
    namespaces: BTreeMap<String, BTreeMap<(PartId, String), Object>>,
    /// The sources that workloads use, as read, each with the version that it was read at.
    sources: HashMap<SourceKey, (String, LiveSource)>,
    /// The namespaces that changed since they were last taken.
    changed: BTreeSet<String>,
    /// `resource.group` of collections that the user may not list.
    unread: BTreeSet<String>,
}

/// An object in its small form. Inventories share it.
#[derive(Debug)]
struct Object {
    value: Arc<Value>,
    /// The object as a workload, read at the first use.
    workload: OnceLock<Option<OptedIn>>,
}

impl Object {
    fn workload(&self, kind: &WorkloadKind, target: &Target) -> Option<&OptedIn> {
        let read = || {
            let owners = self.value["metadata"]["ownerReferences"].as_array();
            let is_own = owners.is_none_or(|owners| owners.iter().all(|owner| owner["controller"] != true));
            is_own.then(|| OptedIn::of(target, kind, Arc::clone(&self.value))).flatten()
        };
        self.workload.get_or_init(read).as_ref()
    }
}

/// The namespace and name of an object.
type Place = (String, String);

fn place(object: &Value) -> Place {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

/// The sources that workloads use.
fn used_sources(inventory: &Inventory) -> BTreeSet<SourceKey> {
    let workloads = inventory.workloads.iter();
    workloads.flat_map(|workload| workload.sources().into_iter().map(|source| workload.key(source))).collect()
}

impl Store {
    /// Stores an object, or its new state.
    pub(super) fn set(&mut self, (id, part): (PartId, &Part), object: Value) {
        match self.small(part, object) {
            Ok((place, object)) => self.insert(id, place, object),
            Err((namespace, name)) => self.drop_object(id, &namespace, &name),
        }
    }

    /// An object in its small form, with its place; its place alone if it is not stored.
    pub(super) fn small(&self, part: &Part, object: Value) -> Result<(Place, Value), Place> {
        let place = place(&object);
        if self.is_wanted(part, &place.0, &object) { Ok((place, part.keep(object))) } else { Err(place) }
    }

    fn insert(&mut self, id: PartId, (namespace, name): Place, value: Value) {
        let objects = self.namespaces.entry(namespace.clone()).or_default();
        let key = (id, name);
        if objects.get(&key).is_none_or(|known| *known.value != value) {
            objects.insert(key, Object { value: Arc::new(value), workload: OnceLock::new() });
            self.changed.insert(namespace);
        }
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, (id, part): (PartId, &Part), object: &Value) {
        let (namespace, name) = place(object);
        self.drop_object(id, &namespace, &name);
        if let Part::Sources(kind) = part {
            let key = (namespace, ObjectName::new(*kind, name));
            if let Some((version, _)) = self.sources.get_mut(&key) {
                STALE.clone_into(version);
                self.changed.insert(key.0);
            }
        }
    }

    fn drop_object(&mut self, id: PartId, namespace: &str, name: &str) {
        let objects = self.namespaces.get_mut(namespace);
        if objects.is_some_and(|objects| objects.remove(&(id, name.to_owned())).is_some()) {
            self.changed.insert(namespace.to_owned());
        }
    }

    /// Replaces all objects of a collection by those of a new list, in their small form.
    pub(super) fn replace(&mut self, (id, part): (PartId, &Part), listed: Vec<(Place, Value)>) {
        let known: BTreeSet<_> = listed.iter().map(|(place, _)| place.clone()).collect();
        let mut gone = Vec::new();
        for (namespace, objects) in &self.namespaces {
            let names =
                objects.keys().filter(|(of, _)| *of == id).map(|(_, name)| (namespace.clone(), name.clone()));
            gone.extend(names.filter(|place| !known.contains(place)));
        }
        for (namespace, name) in gone {
            self.drop_object(id, &namespace, &name);
        }
        for (place, object) in listed {
            self.insert(id, place, object);
        }
        if let Part::Sources(kind) = part {
            self.forget_sources(*kind);
        }
        self.unread.remove(&part.name());
    }

    /// Records that the user may not list a collection.
    pub(super) fn refuse(&mut self, part: &Part) {
        if self.unread.insert(part.name()) {
            self.changed.extend(self.namespaces.keys().cloned());
        }
    }

    /// Whether an object concerns opted-in workloads. Others take no memory.
    fn is_wanted(&self, part: &Part, namespace: &str, object: &Value) -> bool {
        let objects = self.namespaces.get(namespace);
        match part {
            Part::Workloads(_) | Part::Snapshots(_) | Part::Rollouts => true,
            // Those from before the opt-in have no label.
            Part::Revisions(_) | Part::Pods => {
                label(object, annotations::REVISION).is_some() || objects.is_some()
            }
            Part::Sources(kind) => {
                let name = ObjectName::new(*kind, text(object, "/metadata/name"));
                self.sources.contains_key(&(namespace.to_owned(), name))
            }
        }
    }

    /// The namespaces that changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Marks a namespace as changed.
    pub(super) fn touch(&mut self, namespace: &str) {
        self.changed.insert(namespace.to_owned());
    }

    /// Whether a workload uses a source of this kind.
    pub(super) fn uses(&self, kind: SourceKind) -> bool {
        kind == SourceKind::ConfigMap || self.sources.keys().any(|(_, source)| source.kind == kind)
    }

    /// Lets all sources of a kind be read again: their versions were not followed for some time.
    pub(super) fn forget_sources(&mut self, kind: SourceKind) {
        for ((namespace, source), (version, _)) in &mut self.sources {
            if source.kind == kind {
                STALE.clone_into(version);
                self.changed.insert(namespace.clone());
            }
        }
    }

    /// The version of a source that its watch reported; empty if none.
    fn version(&self, parts: &[Part], (namespace, source): &SourceKey) -> String {
        let is_its = |part: &Part| matches!(part, Part::Sources(kind) if *kind == source.kind);
        let Some(id) = parts.iter().position(is_its) else { return String::new() };
        let object =
            self.namespaces.get(namespace).and_then(|objects| objects.get(&(id, source.name.to_string())));
        object.map(|object| text(&object.value, "/metadata/resourceVersion").to_owned()).unwrap_or_default()
    }

    /// The sources of a namespace that must be read, each with the version that its watch reported. From now on, the store keeps
    /// the versions of these sources.
    pub(super) fn stale_sources(
        &mut self,
        parts: &[Part],
        inventory: &Inventory,
    ) -> BTreeMap<SourceKey, String> {
        let mut stale = BTreeMap::new();
        for key in used_sources(inventory) {
            let version = self.version(parts, &key);
            let known =
                self.sources.entry(key.clone()).or_insert_with(|| (STALE.to_owned(), LiveSource::Forbidden));
            if known.0 != version {
                stale.insert(key, version);
            }
        }
        stale
    }

    /// Stores a source that was read at a version.
    pub(super) fn set_source(&mut self, key: SourceKey, version: String, live: LiveSource) {
        self.sources.insert(key, (version, live));
    }

    /// The objects of a namespace as the commands would read them.
    pub(super) fn inventory(&self, target: &Target, parts: &[Part], namespace: &str) -> Inventory {
        let mut inventory = Inventory::default();
        let (mut revisions, mut pods) = (Vec::new(), Vec::new());
        for ((id, _), object) in self.namespaces.get(namespace).into_iter().flatten() {
            let value = &object.value;
            match &parts[*id] {
                Part::Workloads(kind) => {
                    inventory.workloads.extend(object.workload(kind, target).cloned());
                }
                Part::Rollouts => inventory.rollouts.push(Arc::clone(value)),
                Part::Revisions(_) => revisions.push(value),
                Part::Pods => pods.push(value),
                Part::Snapshots(kind) => inventory.snapshots.extend(Snapshot::read(*kind, Arc::clone(value))),
                Part::Sources(_) => {}
            }
        }
        sort(&mut inventory.workloads);
        inventory.let_rollouts_say_how_their_templates_fare();
        let owners = inventory.owners();
        inventory.revisions = revisions.into_iter().filter(|one| has_config(&owners, one)).cloned().collect();
        let owners = inventory.owners();
        inventory.pods = pods.into_iter().filter(|one| has_config(&owners, one)).cloned().collect();
        let sources = self.sources.iter().filter(|((of, _), _)| of == namespace);
        inventory.sources = sources.map(|(key, (_, live))| (key.clone(), live.clone())).collect();
        inventory.unread.resources.clone_from(&self.unread);
        inventory
    }

    /// Forgets the sources of a namespace that no workload uses any more.
    pub(super) fn keep_sources_of(&mut self, inventory: &Inventory, namespace: &str) {
        let used = used_sources(inventory);
        self.sources.retain(|key, _| key.0 != namespace || used.contains(key));
    }

    /// `resource.group` of collections that the user may not list.
    pub(super) const fn unread(&self) -> &BTreeSet<String> {
        &self.unread
    }
}
