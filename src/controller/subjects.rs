//! The subjects of the watches: how watched objects become records of the state.

use std::{collections::BTreeSet, hash::Hash, sync::Arc};

use jiff::Timestamp;
use kube::api::ObjectMeta;
use serde::de::DeserializeSeed as _;

use super::{
    BoundRecord, Name, Revision, RevisionKey, SnapshotRecord, SourceMeta, State,
    lean::{FromText, Lean, LeanMeta},
    records::{Source, User},
};
use crate::{
    cluster::{Owner, Version, WorkloadKey},
    few::FewSet,
    json::At,
    kinds::REVISION_KINDS,
    names,
    resolve::{Health, Record, Referrer, Use, Workload, parse_max_in_flight},
    snapshot::{ObjectName, SourceKind},
    template::{SourceMap, Template},
};

/// The part of the state that one watch maintains.
pub trait Subject: Send + 'static {
    /// The watched objects.
    type Object: FromText;
    /// The identity of an object.
    type Key: Clone + Eq + Hash + Send;

    /// The object's key.
    fn key(&self, object: &Self::Object) -> Self::Key;
    /// Adds or updates an object in the state.
    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp);
    /// Removes an object from the state.
    fn remove(&self, state: &mut State, key: &Self::Key, now: Timestamp);
    /// The keys in the state that come from this watch.
    fn known(&self, state: &State) -> Vec<Self::Key>;
    /// Called when every object of this watch is in the state.
    fn listed(&self, _state: &mut State) {}
}

/// Opted-in workloads of one kind, by its index.
pub struct Workloads(pub usize);
/// Revisions of one kind, by its index.
pub struct Revisions(pub usize);
/// Snapshots.
pub struct Snapshots(pub SourceKind);
/// Sources labelled `enabled: "true"` or `enabled: "bind"`.
pub struct Labelled(pub SourceKind);
/// Sources in use, in one namespace.
pub struct UsedSources(pub SourceKind, pub Arc<str>);
/// Rollouts that use the template of another workload, in one namespace.
pub struct Referring(pub Arc<str>);
/// Namespaces that opt in.
pub struct Namespaces;
/// A subject, restricted to one namespace.
pub(super) struct InNamespace<S>(pub(super) S, pub(super) Arc<str>);

fn namespace_of(meta: &ObjectMeta) -> Arc<str> {
    Arc::from(meta.namespace.as_deref().unwrap_or_default())
}

fn name_of(meta: &ObjectMeta) -> Arc<str> {
    Arc::from(meta.name.as_deref().unwrap_or_default())
}

fn object_name(kind: SourceKind, meta: &ObjectMeta) -> Name {
    let object = ObjectName::new(kind, meta.name.clone().unwrap_or_default());
    Name { namespace: namespace_of(meta), object }
}

impl Subject for Workloads {
    type Object = Lean;
    type Key = WorkloadKey;

    fn key(&self, object: &Lean) -> WorkloadKey {
        WorkloadKey {
            kind: self.0,
            namespace: namespace_of(&object.metadata),
            name: name_of(&object.metadata),
        }
    }

    fn apply(&self, state: &mut State, object: &Lean, now: Timestamp) {
        let key = self.key(object);
        let kinds = Arc::clone(&state.kinds);
        let Some(kind) = kinds.iter().nth(self.0) else { return };
        let workload = match Workload::parse(kind, object.text()) {
            Ok(workload) => workload,
            Err(error) => {
                state.set_unreadable(&User::Workload(key.clone()), object.uid(), &error, now);
                return state.apply_workload(&key, None, now);
            }
        };
        let record = Record::of(&workload, Health::read(&kind.kind, object.text()), &state.rotated);
        let user = User::Workload(key.clone());
        state.set_readable(&user, now);
        state.set_leaving(&user, object.is_being_deleted());
        state.apply_workload(&key, Some(record), now);
    }

    fn remove(&self, state: &mut State, key: &WorkloadKey, now: Timestamp) {
        let user = User::Workload(key.clone());
        state.set_readable(&user, now);
        state.set_leaving(&user, false);
        state.apply_workload(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<WorkloadKey> {
        let unreadable = state.unreadable.keys().filter_map(|user| match user {
            User::Workload(key) => Some(key),
            User::Revision(_) => None,
        });
        // The watch does not report workloads without the label.
        let labelled = state.workloads.keys().filter(|key| !state.joining.contains_key(key));
        labelled.chain(unreadable).filter(|key| key.kind == self.0).cloned().collect()
    }
}

impl Subject for Revisions {
    type Object = Lean;
    type Key = RevisionKey;

    fn key(&self, object: &Lean) -> RevisionKey {
        RevisionKey {
            kind: self.0,
            namespace: namespace_of(&object.metadata),
            name: name_of(&object.metadata),
        }
    }

    fn apply(&self, state: &mut State, object: &Lean, now: Timestamp) {
        let Some(kind) = REVISION_KINDS.get(self.0) else { return };
        let key = self.key(object);
        let mut reader = serde_json::Deserializer::from_str(object.text());
        match At::<_, Template<'_>>::new(kind.template).deserialize(&mut reader) {
            Ok(template) => {
                let (uid, template) = (object.uid().into(), template.unwrap_or_default());
                let user = User::Revision(key.clone());
                state.set_readable(&user, now);
                state.set_leaving(&user, object.is_being_deleted());
                state.apply_revision(&key, Some(Revision { uid, uses: snapshots_used(&template) }), now);
            }
            // Its references are unknown: it stays an owner of what it owns.
            Err(error) => {
                state.set_unreadable(&User::Revision(key.clone()), object.uid(), &error, now);
                state.apply_revision(&key, None, now);
            }
        }
    }

    fn remove(&self, state: &mut State, key: &RevisionKey, now: Timestamp) {
        let user = User::Revision(key.clone());
        state.set_readable(&user, now);
        state.set_leaving(&user, false);
        state.apply_revision(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<RevisionKey> {
        let unreadable = state.unreadable.keys().filter_map(|user| match user {
            User::Revision(key) => Some(key),
            User::Workload(_) => None,
        });
        state.revisions.keys().chain(unreadable).filter(|key| key.kind == self.0).cloned().collect()
    }
}

/// The snapshots that a revision's template refers to.
fn snapshots_used(template: &Template<'_>) -> Vec<Use> {
    let sources: SourceMap<String> =
        template.annotation(names::SOURCES).and_then(SourceMap::parse).unwrap_or_default();
    let used: BTreeSet<_> = template
        .references()
        .iter()
        .filter_map(|reference| {
            let source = sources.source_of(reference.kind, reference.name)?.clone();
            Some(Use {
                source,
                snapshot: Some(reference.name.into()),
                live: false,
                whole: reference.keys.is_none(),
                excluded: false,
                optional: reference.optional,
            })
        })
        .collect();
    used.into_iter().collect()
}

impl Subject for Snapshots {
    type Object = LeanMeta;
    type Key = Name;

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp) {
        let key = self.key(object);
        match snapshot_record(&object.metadata) {
            Some(record) => state.apply_snapshot(&key, Some(record), now),
            None => state.apply_snapshot(&key, None, now),
        }
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.apply_snapshot(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        state.snapshots.keys().filter(|name| name.object.kind == self.0).cloned().collect()
    }
}

/// The record of a snapshot; `None` if the object lacks a field that a snapshot has.
fn snapshot_record(meta: &ObjectMeta) -> Option<SnapshotRecord> {
    let annotations = meta.annotations.as_ref()?;
    Some(SnapshotRecord {
        uid: meta.uid.as_deref()?.into(),
        resource_version: meta.resource_version.clone()?,
        source: annotations.get(names::SOURCE_NAME)?.as_str().into(),
        digest: annotations.get(names::DIGEST)?.parse().ok()?,
        created: meta.creation_timestamp.as_ref()?.0,
        owners: owners(meta),
    })
}

fn bound_record(meta: &ObjectMeta) -> BoundRecord {
    let version = Version {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
    };
    BoundRecord { version, owners: owners(meta) }
}

fn owners(meta: &ObjectMeta) -> FewSet<Owner> {
    let owners = meta.owner_references.iter().flatten().map(|owner| Owner {
        controller: owner.controller.unwrap_or(false),
        block_owner_deletion: owner.block_owner_deletion.unwrap_or(false),
        ..Owner::new(&*owner.api_version, &*owner.kind, &*owner.name, &*owner.uid)
    });
    owners.collect()
}

fn label<'m>(meta: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

impl Subject for Labelled {
    type Object = LeanMeta;
    type Key = Name;

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp) {
        let key = self.key(object);
        state.set_labelled(&key, source_meta(&object.metadata).always, now);
        let bound = label(&object.metadata, names::ENABLED) == Some("bind");
        state.apply_bound(&key, bound.then(|| bound_record(&object.metadata)), now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.set_labelled(key, false, now);
        state.apply_bound(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let known = state.labelled.iter().chain(state.bound.keys());
        known.filter(|name| name.object.kind == self.0).cloned().collect()
    }
}

impl<S: Subject<Key = Name>> Subject for InNamespace<S> {
    type Object = S::Object;
    type Key = Name;

    fn key(&self, object: &Self::Object) -> Name {
        self.0.key(object)
    }

    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp) {
        self.0.apply(state, object, now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        self.0.remove(state, key, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let mut known = self.0.known(state);
        known.retain(|name| name.namespace == self.1);
        known
    }
}

impl Subject for UsedSources {
    type Object = LeanMeta;
    type Key = Name;

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp) {
        let key = self.key(object);
        let limit = object.metadata.annotations.as_ref().and_then(|all| all.get(names::MAX_IN_FLIGHT));
        state.set_limited(&key, limit.is_some_and(|text| parse_max_in_flight(text).is_some()));
        state.apply_source(&key, Some(&source_meta(&object.metadata)), now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.set_limited(key, false);
        state.apply_source(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let found = state.sources.iter().filter(|(_, source)| !matches!(source, Source::Missing));
        let names = found.map(|(name, _)| name).filter(|name| name.namespace == self.1);
        let names: BTreeSet<_> = names.chain(state.limited_in(&self.1)).collect();
        names.into_iter().filter(|name| name.object.kind == self.0).cloned().collect()
    }
}

impl Subject for Referring {
    type Object = Lean;
    type Key = Arc<str>;

    fn key(&self, object: &Lean) -> Arc<str> {
        name_of(&object.metadata)
    }

    fn apply(&self, state: &mut State, object: &Lean, _now: Timestamp) {
        state.apply_referrer(&self.0, &self.key(object), Referrer::read(object.text()));
    }

    fn remove(&self, state: &mut State, key: &Arc<str>, _now: Timestamp) {
        state.apply_referrer(&self.0, key, None);
    }

    fn known(&self, state: &State) -> Vec<Arc<str>> {
        state.referrers_in(&self.0).cloned().collect()
    }

    fn listed(&self, state: &mut State) {
        state.set_referrers_listed(&self.0);
    }
}

fn source_meta(meta: &ObjectMeta) -> SourceMeta {
    SourceMeta {
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        always: label(meta, names::ENABLED) == Some("true"),
    }
}

impl Subject for Namespaces {
    type Object = LeanMeta;
    type Key = Arc<str>;

    fn key(&self, object: &Self::Object) -> Arc<str> {
        name_of(&object.metadata)
    }

    fn apply(&self, state: &mut State, object: &Self::Object, now: Timestamp) {
        state.apply_namespace(&self.key(object), true, now);
    }

    fn remove(&self, state: &mut State, key: &Arc<str>, now: Timestamp) {
        state.apply_namespace(key, false, now);
    }

    fn known(&self, state: &State) -> Vec<Arc<str>> {
        state.namespaces.iter().flatten().cloned().collect()
    }
}
