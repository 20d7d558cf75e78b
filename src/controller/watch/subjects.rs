//! The subjects of the watches: how watched objects become records of the state.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
    sync::Arc,
};

use jiff::Timestamp;
use kube::api::ObjectMeta;
use serde::de::DeserializeSeed as _;
use tokio::sync::watch;

use super::object::{FromText, PartialObject, RawObject};
use crate::{
    annotations,
    compact::CompactSet,
    controller::reconcile::state::State,
    json::At,
    kinds::REVISION_KINDS,
    resolve::{Health, NamespaceOptIn, Record, Referrer, RefusedContents, SpreadPolicy, Use, Workload},
    snapshot::{ObjectName, SourceKind},
    template::{SourceMap, Template},
    uid::Uid,
    world::{
        BoundRecord, KnownSource, Name, NamespaceSettings, Owner, Reader, Revision, RevisionKey,
        SnapshotRecord, SourceMeta, User, Version, WorkloadKey, shares::ListId, skipped::Unreadable,
    },
};

/// The part of the state that one watch maintains.
pub trait Subject: Send + 'static {
    /// The watched objects.
    type Object: FromText;
    /// The identity of an object.
    type Key: Clone + Eq + Hash + Send;
    /// What is read from an object: the fields that the state needs.
    type Reading: Send;

    /// The object's key.
    fn key(&self, object: &Self::Object) -> Self::Key;
    /// Reads an object. Large objects take long, so this happens before the state is locked.
    fn read(&self, object: &Self::Object, reader: &Reader) -> Self::Reading;
    /// Adds or updates an object in the state.
    fn apply(&self, state: &mut State, key: &Self::Key, record: Self::Reading, now: Timestamp);
    /// Removes an object from the state.
    fn remove(&self, state: &mut State, key: &Self::Key, now: Timestamp);
    /// The keys in the state that come from this watch.
    fn known(&self, state: &State) -> Vec<Self::Key>;
    /// Called when every object of this watch is in the state.
    fn listed(&self, _state: &mut State, _now: Timestamp) {}
    /// Whether what is read from an object depends on what it inherits.
    fn inherits(&self) -> bool {
        false
    }
    /// The identity of its lists, if objects may be left out of the world. Such a watch lists them again when they may fit.
    fn list_id(&self) -> Option<ListId> {
        None
    }
}

/// Opted-in workloads of one kind, by its index.
pub struct WorkloadsSubject(pub usize);
/// Revisions of one kind, by its index.
pub struct RevisionsSubject(pub usize);
/// Snapshots.
pub struct SnapshotsSubject(pub SourceKind);
/// Sources labelled `enabled: "true"` or `enabled: "bind"`.
pub struct LabelledSubject(pub SourceKind);
/// Sources in use, in one namespace.
pub struct UsedSourcesSubject(pub SourceKind, pub Arc<str>);
/// Rollouts that use the template of another workload, in one namespace.
pub struct ReferringSubject(pub Arc<str>);
/// Namespaces: which ones opt in, and their settings. It tells when they are listed.
#[derive(Debug, Default)]
pub struct NamespacesSubject(pub watch::Sender<bool>);
/// The list of the contents that the installation refuses.
pub(crate) struct RefusedSubject;
/// A subject, restricted to one namespace.
pub(crate) struct InNamespace<S>(pub(crate) S, pub(crate) Arc<str>);

/// Refuses an object that refers to too many names. `listed` counts the entries of its annotations.
fn check_names(reader: &Reader, uses: &[Use], listed: usize) -> Result<(), Unreadable> {
    let is_within = Use::names(uses).max(listed) <= reader.max_names;
    if is_within { Ok(()) } else { Err(Unreadable::Names { limit: reader.max_names }) }
}

/// A workload or revision that was read.
#[derive(Debug)]
pub struct Parsed<R> {
    uid: Uid,
    is_being_deleted: bool,
    /// Its record, or why it is skipped.
    record: Result<R, Unreadable>,
}

impl<R> Parsed<R> {
    fn new(object: &RawObject, record: Result<R, Unreadable>) -> Self {
        Self { uid: object.uid().into(), is_being_deleted: object.is_being_deleted(), record }
    }

    /// Notes in the state whether the user could be read, and is being deleted. Returns its record.
    fn note(self, user: &User, state: &mut State, now: Timestamp) -> Option<R> {
        match self.record {
            Ok(record) => {
                state.set_readable(user, now);
                state.world.set_being_deleted(user, self.is_being_deleted);
                Some(record)
            }
            // Its references are unknown: it stays an owner of its snapshots.
            Err(error) => {
                state.set_unreadable(user, (&self.uid, &error), now);
                None
            }
        }
    }
}

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

impl Subject for WorkloadsSubject {
    type Object = RawObject;
    type Key = WorkloadKey;
    type Reading = Option<Parsed<Record>>;

    fn key(&self, object: &RawObject) -> WorkloadKey {
        WorkloadKey {
            kind: self.0,
            namespace: namespace_of(&object.metadata),
            name: name_of(&object.metadata),
        }
    }

    fn read(&self, object: &RawObject, reader: &Reader) -> Self::Reading {
        let kind = reader.kinds.iter().nth(self.0)?;
        let record = Workload::parse(kind, object.text()).map_err(Unreadable::from).and_then(|workload| {
            let workload =
                reader.inherited.workload(object.metadata.namespace.as_deref().unwrap_or_default(), workload);
            let record = Record::of(&workload, Health::read(&kind.kind, object.text()), &reader.rotated);
            let listed = workload.sources().iter().count().max(workload.state().iter().count());
            check_names(reader, &record.uses, listed)?;
            Ok(record)
        });
        Some(Parsed::new(object, record))
    }

    fn apply(&self, state: &mut State, key: &WorkloadKey, parsed: Self::Reading, now: Timestamp) {
        let Some(parsed) = parsed else { return };
        let user = User::Workload(key.clone());
        let record = parsed.note(&user, state, now);
        state.apply_workload(key, record, now);
        state.world.forget_left_out(&user);
    }

    fn remove(&self, state: &mut State, key: &WorkloadKey, now: Timestamp) {
        let user = User::Workload(key.clone());
        state.world.shares_mut().note_room(&key.namespace);
        state.set_readable(&user, now);
        state.world.set_being_deleted(&user, false);
        state.apply_workload(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<WorkloadKey> {
        let unreadable = state.world.unreadable().filter_map(|(user, _)| match user {
            User::Workload(key) => Some(key),
            User::Revision(_) => None,
        });
        // The watch does not report workloads without the label.
        let labelled =
            state.world.workloads().map(|(key, _)| key).filter(|key| state.world.joining(key).is_none());
        labelled.chain(unreadable).filter(|key| key.kind == self.0).cloned().collect()
    }

    fn inherits(&self) -> bool {
        true
    }

    fn list_id(&self) -> Option<ListId> {
        Some(("workloads", self.0, None))
    }
}

impl Subject for RevisionsSubject {
    type Object = RawObject;
    type Key = RevisionKey;
    type Reading = Option<Parsed<Revision>>;

    fn key(&self, object: &RawObject) -> RevisionKey {
        RevisionKey {
            kind: self.0,
            namespace: namespace_of(&object.metadata),
            name: name_of(&object.metadata),
        }
    }

    fn read(&self, object: &RawObject, reader: &Reader) -> Self::Reading {
        let kind = REVISION_KINDS.get(self.0)?;
        let mut json = serde_json::Deserializer::from_str(object.text());
        let template = At::<_, Template<'_>>::new(kind.template).deserialize(&mut json);
        let revision = template.map_err(Unreadable::from).and_then(|template| {
            let (uses, listed) = snapshots_used(&template.unwrap_or_default());
            check_names(reader, &uses, listed)?;
            Ok(Revision { uid: object.uid().into(), uses })
        });
        Some(Parsed::new(object, revision))
    }

    fn apply(&self, state: &mut State, key: &RevisionKey, parsed: Self::Reading, now: Timestamp) {
        let Some(parsed) = parsed else { return };
        let user = User::Revision(key.clone());
        let revision = parsed.note(&user, state, now);
        state.apply_revision(key, revision, now);
        state.world.forget_left_out(&user);
    }

    fn remove(&self, state: &mut State, key: &RevisionKey, now: Timestamp) {
        let user = User::Revision(key.clone());
        state.world.shares_mut().note_room(&key.namespace);
        state.set_readable(&user, now);
        state.world.set_being_deleted(&user, false);
        state.apply_revision(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<RevisionKey> {
        let unreadable = state.world.unreadable().filter_map(|(user, _)| match user {
            User::Revision(key) => Some(key),
            User::Workload(_) => None,
        });
        state.world.revisions().chain(unreadable).filter(|key| key.kind == self.0).cloned().collect()
    }

    fn list_id(&self) -> Option<ListId> {
        Some(("revisions", self.0, None))
    }
}

/// The snapshots that a revision's template refers to, and how many sources it lists.
fn snapshots_used(template: &Template<'_>) -> (Vec<Use>, usize) {
    let sources: SourceMap<String> =
        template.annotation(annotations::SOURCES).and_then(SourceMap::parse).unwrap_or_default();
    let used: BTreeSet<_> = template
        .references()
        .iter()
        .filter_map(|reference| {
            let source = sources.source_of(reference.kind, reference.name)?.clone();
            let (whole, optional) = (reference.keys.is_none(), reference.optional);
            Some(Use { whole, optional, ..Use::new(source, Some(reference.name.into())) })
        })
        .collect();
    (used.into_iter().collect(), sources.iter().count())
}

impl Subject for SnapshotsSubject {
    type Object = PartialObject;
    type Key = Name;
    type Reading = Option<SnapshotRecord>;

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn read(&self, object: &Self::Object, _reader: &Reader) -> Self::Reading {
        snapshot_record(&object.metadata)
    }

    fn apply(&self, state: &mut State, key: &Name, record: Self::Reading, now: Timestamp) {
        state.apply_snapshot(key, record, now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.apply_snapshot(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        state
            .world
            .snapshots()
            .iter()
            .map(|(name, _)| name)
            .filter(|name| name.object.kind == self.0)
            .cloned()
            .collect()
    }
}

/// The record of a snapshot; `None` if the object lacks a field that a snapshot has, or its name.
fn snapshot_record(meta: &ObjectMeta) -> Option<SnapshotRecord> {
    let created = meta.creation_timestamp.as_ref()?.0;
    let record = SnapshotRecord::read(meta.name.as_deref()?, created, |key| annotation(meta, key))?;
    Some(SnapshotRecord {
        uid: meta.uid.as_deref()?.into(),
        resource_version: meta.resource_version.as_deref()?.into(),
        owners: owners(meta),
        ..record
    })
}

fn bound_record(meta: &ObjectMeta) -> BoundRecord {
    let version = Version {
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
    };
    BoundRecord { version, owners: owners(meta) }
}

fn owners(meta: &ObjectMeta) -> CompactSet<Owner> {
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

fn annotation<'m>(meta: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

impl Subject for LabelledSubject {
    type Object = PartialObject;
    type Key = Name;
    /// Whether every change is snapshotted, and the record of a source in bind mode.
    type Reading = (bool, Option<BoundRecord>);

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn read(&self, object: &Self::Object, _reader: &Reader) -> Self::Reading {
        let bound = label(&object.metadata, annotations::ENABLED) == Some("bind");
        (source_meta(&object.metadata).always, bound.then(|| bound_record(&object.metadata)))
    }

    fn apply(&self, state: &mut State, key: &Name, (always, bound): Self::Reading, now: Timestamp) {
        state.set_labelled(key, always, now);
        state.apply_bound(key, bound, now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.world.shares_mut().note_room(&key.namespace);
        state.set_labelled(key, false, now);
        state.apply_bound(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let known = state.world.labelled().chain(state.world.all_bound());
        known.filter(|name| name.object.kind == self.0).cloned().collect()
    }

    fn list_id(&self) -> Option<ListId> {
        Some(("labelled", self.0 as usize, None))
    }
}

impl<S: Subject<Key = Name>> Subject for InNamespace<S> {
    type Object = S::Object;
    type Key = Name;
    type Reading = S::Reading;

    fn key(&self, object: &Self::Object) -> Name {
        self.0.key(object)
    }

    fn read(&self, object: &Self::Object, reader: &Reader) -> Self::Reading {
        self.0.read(object, reader)
    }

    fn apply(&self, state: &mut State, key: &Name, record: Self::Reading, now: Timestamp) {
        self.0.apply(state, key, record, now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        self.0.remove(state, key, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let mut known = self.0.known(state);
        known.retain(|name| name.namespace == self.1);
        known
    }

    fn list_id(&self) -> Option<ListId> {
        self.0.list_id().map(|(what, kind, _)| (what, kind, Some(Arc::clone(&self.1))))
    }
}

impl Subject for UsedSourcesSubject {
    type Object = PartialObject;
    type Key = Name;
    /// Whether its own settings limit its changes, whether they do under what it inherits, and its metadata.
    type Reading = ([bool; 2], SourceMeta);

    fn key(&self, object: &Self::Object) -> Name {
        object_name(self.0, &object.metadata)
    }

    fn read(&self, object: &Self::Object, reader: &Reader) -> Self::Reading {
        let annotations = object.metadata.annotations.as_ref();
        let annotation = |key: &str| annotations?.get(key).map(String::as_str);
        let own = SpreadPolicy::read(annotation).is_limited();
        ([own, reader.inherited.policy(&self.1, annotation).is_limited()], source_meta(&object.metadata))
    }

    fn apply(&self, state: &mut State, key: &Name, (is_limited, meta): Self::Reading, now: Timestamp) {
        // What is inherited applies to all objects of a namespace, and nothing uses most of them.
        let [own, with_inherited] = is_limited;
        let is_used = state.world.source(key).is_some();
        state.world.set_limited(key, if is_used { with_inherited } else { own });
        state.apply_source(key, Some(&meta), now);
    }

    fn remove(&self, state: &mut State, key: &Name, now: Timestamp) {
        state.world.set_limited(key, false);
        state.apply_source(key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Name> {
        let found = state.world.sources().filter(|(_, source)| !matches!(source, KnownSource::Missing));
        let names = found.map(|(name, _)| name).filter(|name| name.namespace == self.1);
        let names: BTreeSet<_> = names.chain(state.world.referrers().limited_in(&self.1)).collect();
        names.into_iter().filter(|name| name.object.kind == self.0).cloned().collect()
    }
}

impl Subject for ReferringSubject {
    type Object = RawObject;
    type Key = Arc<str>;
    type Reading = Option<Referrer>;

    fn key(&self, object: &RawObject) -> Arc<str> {
        name_of(&object.metadata)
    }

    fn read(&self, object: &RawObject, _reader: &Reader) -> Self::Reading {
        Referrer::read(object.text())
    }

    fn apply(&self, state: &mut State, key: &Arc<str>, referrer: Self::Reading, now: Timestamp) {
        state.apply_referrer(&self.0, key, referrer, now);
    }

    fn remove(&self, state: &mut State, key: &Arc<str>, now: Timestamp) {
        state.apply_referrer(&self.0, key, None, now);
    }

    fn known(&self, state: &State) -> Vec<Arc<str>> {
        state.world.referrers().names_in(&self.0).cloned().collect()
    }

    fn listed(&self, state: &mut State, now: Timestamp) {
        state.set_referrers_listed(&self.0, now);
    }
}

fn source_meta(meta: &ObjectMeta) -> SourceMeta {
    SourceMeta {
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        always: label(meta, annotations::ENABLED) == Some("true"),
    }
}

impl Subject for NamespacesSubject {
    type Object = PartialObject;
    type Key = Arc<str>;
    /// Its uid, what its label says about its workloads, and its settings.
    type Reading = (Uid, NamespaceOptIn, NamespaceSettings);

    fn key(&self, object: &Self::Object) -> Arc<str> {
        name_of(&object.metadata)
    }

    fn read(&self, object: &Self::Object, _reader: &Reader) -> Self::Reading {
        let meta = &object.metadata;
        let name = name_of(meta);
        let settings = NamespaceSettings::read(&name, |key| label(meta, key), |key| annotation(meta, key));
        let uid = object.metadata.uid.as_deref().unwrap_or_default().into();
        (uid, NamespaceOptIn::read(label(&object.metadata, annotations::ENABLED)), settings)
    }

    fn apply(
        &self,
        state: &mut State,
        key: &Arc<str>,
        (uid, opt_in, settings): Self::Reading,
        now: Timestamp,
    ) {
        state.apply_namespace_uid(key, Some(uid), now);
        // A workload that its namespace opts in must not roll before the window is known.
        state.apply_namespace_settings(key, settings, now);
        state.apply_namespace(key, opt_in, now);
    }

    fn remove(&self, state: &mut State, key: &Arc<str>, now: Timestamp) {
        state.apply_namespace_uid(key, None, now);
        state.apply_namespace_settings(key, NamespaceSettings::default(), now);
        state.apply_namespace(key, NamespaceOptIn::Out, now);
    }

    fn known(&self, state: &State) -> Vec<Arc<str>> {
        state.world.namespaces().cloned().collect()
    }

    fn listed(&self, _state: &mut State, _now: Timestamp) {
        self.0.send_replace(true);
    }
}

impl Subject for RefusedSubject {
    type Object = RawObject;
    type Key = ();
    /// The contents, and the lines that name none.
    type Reading = (RefusedContents, Vec<String>);

    fn key(&self, _object: &Self::Object) {}

    fn read(&self, object: &Self::Object, _reader: &Reader) -> Self::Reading {
        #[derive(serde::Deserialize)]
        struct List {
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        let data = serde_json::from_str::<List>(object.text()).map(|list| list.data).unwrap_or_default();
        RefusedContents::read(data.iter().map(|(key, value)| (&**key, &**value)))
    }

    fn apply(&self, state: &mut State, (): &(), (contents, invalid): Self::Reading, now: Timestamp) {
        state.set_refused_contents(contents, &invalid, now);
    }

    fn remove(&self, state: &mut State, (): &(), now: Timestamp) {
        state.set_refused_contents(RefusedContents::default(), &[], now);
    }

    fn known(&self, state: &State) -> Vec<()> {
        let any = !state.world.config().refused.contents().is_empty();
        any.then_some(()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        controller::{
            reconcile::fixture::{at, limited, set_source, state},
            watch::follow::take,
        },
        kinds::Kinds,
        resolve::Record,
        world::fixture::{key, record, source, used},
    };
    use kube::runtime::watcher::Event;

    /// Objects that a watch reports, by name.
    fn named(name: &str, mut object: Value) -> String {
        for (field, value) in [("name", name), ("namespace", "ns"), ("uid", name), ("resourceVersion", "5")] {
            object["metadata"][field] = json!(value);
        }
        object["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        object.to_string()
    }

    fn list<S: Subject>(subject: &S, state: &mut State, texts: &[&String]) {
        let listing = &mut None;
        take(subject, state, Event::Init, listing, at(1));
        for text in texts {
            take(subject, state, Event::InitApply(S::Object::from_text(text)), listing, at(1));
        }
        take(subject, state, Event::InitDone, listing, at(1));
    }

    /// Each of two watches reports the objects a and b. Checks that one never affects what the other reported.
    fn check<S: Subject>(what: &str, subjects: &[&S], state: &mut State, object: &Value) {
        check_named(what, ["a", "b"], subjects, state, object);
    }

    /// The same with these names.
    fn check_named<S: Subject>(
        what: &str,
        names: [&str; 2],
        subjects: &[&S],
        state: &mut State,
        object: &Value,
    ) {
        let [a, b] = names.map(|name| named(name, object.clone()));
        let counts =
            |state: &State| subjects.iter().map(|subject| subject.known(state).len()).collect::<Vec<_>>();
        let with = |first: usize| {
            std::iter::once(first).chain(subjects.iter().skip(1).map(|_| 2)).collect::<Vec<_>>()
        };
        for subject in subjects {
            list(*subject, state, &[&a, &b]);
        }
        assert_eq!(counts(state), with(2), "{what}: both are listed");
        list(subjects[0], state, &[&b]);
        assert_eq!(counts(state), with(1), "{what}: a list lacks an object");
        let apply = |state: &mut State, event| take(subjects[0], state, event, &mut None, at(2));
        apply(state, Event::Apply(S::Object::from_text(&a)));
        assert_eq!(counts(state), with(2), "{what}: it is created");
        apply(state, Event::Delete(S::Object::from_text(&a)));
        assert_eq!(counts(state), with(1), "{what}: it is deleted");
        list(subjects[0], state, &[]);
        assert_eq!(counts(state), with(0), "{what}: nothing is left");
    }

    fn template() -> Value {
        let volume = json!({"name": "c", "configMap": {"name": "demo"}});
        json!({"metadata": {}, "spec": {"containers": [], "volumes": [volume]}})
    }

    #[test]
    fn lists_and_events_replace_what_a_watch_reported() {
        let kind = |name: &str| Kinds::default().iter().position(|kind| kind.kind == name).unwrap();
        let [deployments, sets] = ["Deployment", "StatefulSet"].map(|name| WorkloadsSubject(kind(name)));
        let workload = json!({"metadata": {"labels": {(annotations::ENABLED): "true"}}, "spec": {"template": template()}});
        check("workloads", &[&deployments, &sets], &mut state(&[]), &workload);
        // References of a form that confrev cannot read.
        let unreadable = json!({"metadata": {}, "spec": {"template": {"spec": {"volumes": "none"}}}});
        check("unreadable workloads", &[&deployments, &sets], &mut state(&[]), &unreadable);

        let kind = |name: &str| REVISION_KINDS.iter().position(|kind| kind.kind == name).unwrap();
        let [sets, jobs] = ["ReplicaSet", "Job"].map(|name| RevisionsSubject(kind(name)));
        let revision = json!({"metadata": {}, "spec": {"template": template()}});
        check("revisions", &[&sets, &jobs], &mut state(&[]), &revision);
        check("unreadable revisions", &[&sets, &jobs], &mut state(&[]), &unreadable);

        let [configmaps, secrets] = [SourceKind::ConfigMap, SourceKind::Secret];
        let digest = format!("sha256:{:064}", 7);
        let stated = json!({"metadata": {"annotations": {
            (annotations::SOURCE_NAME): "demo", (annotations::DIGEST): digest,
        }}});
        let empty = || State::new(std::sync::Arc::default(), state(&[]).config);
        let subjects = [&SnapshotsSubject(configmaps), &SnapshotsSubject(secrets)];
        let names = ["demo-0000000000", "demo-0000000000000000"];
        check_named("snapshots", names, &subjects, &mut empty(), &stated);
        // A copy under another name belongs to the user who made it.
        let mut state_of_copies = empty();
        list(subjects[0], &mut state_of_copies, &[&named("demo-copy", stated)]);
        assert_eq!(subjects[0].known(&state_of_copies).len(), 0);
        for mode in ["true", "bind"] {
            let labelled = json!({"metadata": {"labels": {(annotations::ENABLED): mode}}});
            let subjects = [&LabelledSubject(configmaps), &LabelledSubject(secrets)];
            check(mode, &subjects, &mut state(&[]), &labelled);
            let inside = |namespace: &str| InNamespace(LabelledSubject(configmaps), namespace.into());
            check(mode, &[&inside("ns")], &mut state(&[]), &labelled);
        }
        check(
            "namespaces",
            &[&NamespacesSubject::default()],
            &mut state(&[]),
            &json!({"metadata": {"labels": {(annotations::ENABLED): "true"}}}),
        );
        let windows = json!({"metadata": {"annotations": {(annotations::WINDOW): "Mon"}}});
        check("settings of namespaces", &[&NamespacesSubject::default()], &mut state(&[]), &windows);
    }

    /// Those of other namespaces and kinds have watches of their own.
    #[test]
    fn watch_of_a_namespace_knows_its_own_objects() {
        let secret = Use { source: ObjectName::new(SourceKind::Secret, "a"), ..used("a", None) };
        let web = record("web", &[used("a", None), used("b", None), secret]);
        let elsewhere = WorkloadKey { namespace: "other".into(), ..key("web") };
        let with_users = || {
            let mut state = state(&[("web", &web)]);
            state.world.apply_workload(
                &elsewhere,
                Some(Record { uid: "e".into(), ..web.clone() }),
                &mut Vec::new(),
            );
            for name in ["a", "b"] {
                state.world.set_read(&source(name), None, &mut Vec::new());
            }
            state
        };
        let of = |kind, namespace: &str| UsedSourcesSubject(kind, namespace.into());
        let (configmaps, secrets) = (of(SourceKind::ConfigMap, "ns"), of(SourceKind::Secret, "ns"));
        let plain = json!({"metadata": {}});
        check("sources in use", &[&configmaps], &mut with_users(), &plain);
        let mut state = with_users();
        list(&configmaps, &mut state, &[&named("a", plain.clone())]);
        let names = |subject: &UsedSourcesSubject, state: &State| subject.known(state).len();
        let elsewhere = of(SourceKind::ConfigMap, "other");
        assert_eq!([&configmaps, &secrets, &elsewhere].map(|subject| names(subject, &state)), [1, 0, 0]);
        // Rollouts matter where a source has max-in-flight, used or not.
        let limit = json!({"metadata": {"annotations": {(annotations::MAX_IN_FLIGHT): "1"}}});
        check("limited sources", &[&configmaps], &mut with_users(), &limit);
        let mut state = with_users();
        set_source(&mut state, "a", limited("a", 2, &[("max-in-flight", "1")]));
        let rollout = json!({"metadata": {}, "spec": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
        check("rollouts", &[&ReferringSubject("ns".into())], &mut state, &rollout);
        let bound = json!({"metadata": {"labels": {(annotations::ENABLED): "bind"}}});
        let labelled = LabelledSubject(SourceKind::ConfigMap);
        list(&labelled, &mut state, &[&named("a", bound)]);
        assert!(!state.world.is_labelled(&source("a")), "a bound source gets no snapshots");
        assert_eq!(InNamespace(labelled, "other".into()).known(&state).len(), 0);
    }

    #[test]
    fn record_of_a_snapshot_has_all_owners() {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": "d",
            "controller": true, "blockOwnerDeletion": true});
        let plain = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w"});
        let digest = format!("sha256:{:064}", 7);
        let text = named(
            "demo-0000000000",
            json!({"metadata": {
                "annotations": {(annotations::SOURCE_NAME): "demo", (annotations::DIGEST): digest},
                "ownerReferences": [owner, plain],
            }}),
        );
        let found = snapshot_record(&PartialObject::from_text(&text).metadata).unwrap();
        let theirs = Owner {
            controller: true,
            block_owner_deletion: true,
            ..Owner::new("v1", "ConfigMap", "demo", "d")
        };
        let ours = Owner::new("apps/v1", "ReplicaSet", "web", "w");
        assert_eq!(found.owners, [theirs, ours].into_iter().collect());
        assert_eq!(
            (found.uid, &*found.resource_version, &*found.source),
            ("demo-0000000000".into(), "5", "demo")
        );
    }

    #[test]
    fn namespace_reverts_with_its_group_by_its_label() {
        for (label, reverts) in [("true", true), ("false", false), ("", false)] {
            let mut state = state(&[]);
            let object = json!({"metadata": {"labels": {(annotations::GROUP): "g", (annotations::GROUP_REVERT): label}}});
            let object = PartialObject::from_text(&named("a", object));
            take(&NamespacesSubject::default(), &mut state, Event::Apply(object), &mut None, at(1));
            assert_eq!(state.world.groups().reverts_with_group("a"), reverts, "{label:?}");
        }
    }

    #[test]
    fn empty_group_is_no_group() {
        for (label, is_grouped) in [("g", true), ("", false)] {
            let mut state = state(&[]);
            for name in ["a", "b"] {
                let object = json!({"metadata": {"labels": {(annotations::GROUP): label}}});
                let text = named(name, object);
                let object = PartialObject::from_text(&text);
                take(&NamespacesSubject::default(), &mut state, Event::Apply(object), &mut None, at(1));
            }
            let source = Name::new("a", source("demo").object);
            assert_eq!(state.world.is_grouped(&source), is_grouped, "{label:?}");
        }
    }
}
