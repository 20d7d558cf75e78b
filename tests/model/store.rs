//! The objects of a small cluster, as its API server stores them, and the log that feeds the watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use confrev::{
    annotations,
    resolve::{Defaults, NamespaceOptIn, Strategies},
    snapshot::{Digest, SourceKind, is_named_after},
    world::Inherited,
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Namespace,
    ConfigMap,
    Secret,
    Rollout,
    Deployment,
    StatefulSet,
    DaemonSet,
    CronJob,
    /// A kind of the configuration (`--kind`).
    CloneSet,
    Job,
    ReplicaSet,
    ControllerRevision,
    AnalysisTemplate,
    ClusterAnalysisTemplate,
    AnalysisRun,
}

/// Every kind of workload. A Job is also a revision.
pub(crate) const WORKLOAD_KINDS: [Kind; 7] = [
    Kind::Rollout,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::CronJob,
    Kind::CloneSet,
    Kind::Job,
];

/// Every kind of revision.
pub(crate) const REVISION_KINDS: [Kind; 3] = [Kind::ReplicaSet, Kind::ControllerRevision, Kind::Job];

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Rollout => "Rollout",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::CronJob => "CronJob",
            Self::CloneSet => "CloneSet",
            Self::Job => "Job",
            Self::ReplicaSet => "ReplicaSet",
            Self::ControllerRevision => "ControllerRevision",
            Self::AnalysisTemplate => "AnalysisTemplate",
            Self::ClusterAnalysisTemplate => "ClusterAnalysisTemplate",
            Self::AnalysisRun => "AnalysisRun",
        }
    }

    /// The kind of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let sources = [Self::ConfigMap, Self::Secret];
        let all = WORKLOAD_KINDS.into_iter().chain(REVISION_KINDS).chain(sources);
        all.into_iter().find(|kind| kind.as_str() == name)
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Namespace | Self::ConfigMap | Self::Secret => "v1",
            Self::Rollout | Self::AnalysisTemplate | Self::ClusterAnalysisTemplate | Self::AnalysisRun => {
                "argoproj.io/v1alpha1"
            }
            Self::CronJob | Self::Job => "batch/v1",
            Self::CloneSet => "apps.kruise.io/v1alpha1",
            _ => "apps/v1",
        }
    }

    pub(crate) fn is_workload(self) -> bool {
        WORKLOAD_KINDS.contains(&self)
    }

    pub(crate) fn is_revision(self) -> bool {
        REVISION_KINDS.contains(&self)
    }

    /// The pod template of an object of this kind; null if it has none.
    pub(crate) fn template(self, object: &Value) -> &Value {
        match self {
            Self::CronJob => &object["spec"]["jobTemplate"]["spec"]["template"],
            Self::ControllerRevision => &object["data"]["spec"]["template"],
            _ => &object["spec"]["template"],
        }
    }

    /// The pod template, mutable.
    pub(crate) fn template_mut(self, object: &mut Value) -> &mut Value {
        match self {
            Self::CronJob => &mut object["spec"]["jobTemplate"]["spec"]["template"],
            Self::ControllerRevision => &mut object["data"]["spec"]["template"],
            _ => &mut object["spec"]["template"],
        }
    }
}

impl From<SourceKind> for Kind {
    fn from(kind: SourceKind) -> Self {
        match kind {
            SourceKind::ConfigMap => Self::ConfigMap,
            SourceKind::Secret => Self::Secret,
        }
    }
}

/// An object's kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn configmap(namespace: &str, name: &str) -> Self {
        Self::new(Kind::ConfigMap, namespace, name)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// One change of one object.
#[derive(Clone)]
pub(crate) struct StoreChange {
    pub key: Key,
    pub old: Option<Arc<Value>>,
    pub new: Option<Arc<Value>>,
}

/// All objects.
#[derive(Default)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    uids: BTreeSet<String>,
    /// Whether objects have a generation, which counts the changes of their specs.
    pub counts_generations: bool,
    /// Every change, in order.
    pub log: Vec<StoreChange>,
}

impl Store {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// The objects of a kind, in the order of their names.
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key::new(kind, "", "");
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// Whether an object with that uid exists.
    pub(crate) fn has_uid(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Stores an object; a write without a change leaves no trace. An existing object keeps its uid, a new one gets a
    /// new uid.
    pub(crate) fn put(&mut self, key: &Key, mut object: Value, now: Timestamp) -> Arc<Value> {
        let old = self.get(key);
        let fallback =
            |field: &str, new: Value| old.as_ref().map_or(new, |old| old["metadata"][field].clone());
        let uid = fallback("uid", json!(format!("uid-{}", self.version + 1)));
        let created = fallback("creationTimestamp", json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
        object["apiVersion"] = json!(key.kind.api_version());
        object["kind"] = json!(key.kind.as_str());
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            metadata["namespace"] = json!(key.namespace);
        }
        metadata["uid"] = uid;
        metadata["creationTimestamp"] = created;
        metadata["resourceVersion"] =
            old.as_ref().map_or(Value::Null, |old| old["metadata"]["resourceVersion"].clone());
        drop_empty_maps(&mut object);
        if self.counts_generations && (key.kind.is_workload() || key.kind.is_revision()) {
            let before = old.as_ref().map_or(0, |old| old["metadata"]["generation"].as_u64().unwrap());
            let changed = old.as_ref().is_none_or(|old| old["spec"] != object["spec"]);
            object["metadata"]["generation"] = json!(before + u64::from(changed));
        }
        if let Some(old) = &old
            && **old == object
        {
            return Arc::clone(old);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.uids.insert(object["metadata"]["uid"].as_str().unwrap().to_owned());
        let new = Arc::new(object);
        self.objects.insert(key.clone(), Arc::clone(&new));
        self.log.push(StoreChange { key: key.clone(), old, new: Some(Arc::clone(&new)) });
        new
    }

    /// Stores an object as observed on a real API server.
    pub(crate) fn put_as_is(&mut self, key: &Key, object: Value) -> Arc<Value> {
        if let Some(old) = self.get(key) {
            self.uids.remove(old["metadata"]["uid"].as_str().unwrap());
        }
        self.uids.insert(object["metadata"]["uid"].as_str().unwrap().to_owned());
        let object = Arc::new(object);
        self.objects.insert(key.clone(), Arc::clone(&object));
        object
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        if let Some(old) = self.objects.remove(key) {
            self.uids.remove(old["metadata"]["uid"].as_str().unwrap());
            self.version += 1;
            self.log.push(StoreChange { key: key.clone(), old: Some(old), new: None });
        }
    }

    /// What the namespace's label says about its workloads.
    pub(crate) fn opt_in_of(&self, namespace: &str) -> NamespaceOptIn {
        let namespace = self.get(&Key::new(Kind::Namespace, "", namespace));
        NamespaceOptIn::read(namespace.as_ref().and_then(|namespace| label(namespace, annotations::ENABLED)))
    }
}

/// Removes empty maps, as the API server does.
pub(crate) fn drop_empty_maps(object: &mut Value) {
    for pointer in ["/metadata", "/spec/template/metadata", "/spec/jobTemplate/spec/template/metadata"] {
        let metadata = object.pointer_mut(pointer).and_then(Value::as_object_mut);
        if let Some(map) = metadata {
            for field in ["labels", "annotations", "ownerReferences"] {
                let empty = match &map.get(field) {
                    Some(Value::Object(map)) => map.is_empty(),
                    Some(Value::Array(list)) => list.is_empty(),
                    other => other.is_none_or(Value::is_null),
                };
                if empty {
                    map.remove(field);
                }
            }
        }
    }
}

pub(crate) fn label<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["labels"][key].as_str()
}

pub(crate) fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["annotations"][key].as_str()
}

/// The strategy of sources that choose it, as the installation defines it: waves as in the scenarios, without an annotation.
pub(crate) const STEPS: [(&str, &str); 4] = [
    (annotations::WAVES, "1, 50%"),
    (annotations::BAKE, "20s"),
    (annotations::ON_FAILURE, "revert"),
    (annotations::UNHEALTHY_AFTER, "30s"),
];

/// A setting of a source: its annotation, or that of the strategy `steps` if it chooses it.
pub(crate) fn setting<'v>(source: &'v Value, key: &str) -> Option<&'v str> {
    let of_strategy = || STEPS.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let chooses = annotation(source, annotations::STRATEGY) == Some("steps");
    annotation(source, key).or_else(|| of_strategy().filter(|_| chooses))
}

/// The strategies of the installation, as the chart writes them.
pub(crate) fn strategies() -> String {
    let name = |key: &str| key.strip_prefix(annotations::PREFIX).unwrap().to_owned();
    let steps: BTreeMap<_, _> = STEPS.iter().map(|(key, value)| (name(key), *value)).collect();
    json!({"steps": steps}).to_string()
}

/// What the installation gives to sources and workloads.
pub(crate) fn installed() -> Inherited {
    static STRATEGIES: LazyLock<Strategies> =
        LazyLock::new(|| Strategies::parse(&strategies(), None).unwrap());
    Inherited::new(STRATEGIES.clone(), Defaults::default())
}

/// Whether the object is a snapshot: it has the labels of one, and a name that follows from the digest that it states.
pub(crate) fn is_snapshot(object: &Value) -> bool {
    let digest = annotation(object, annotations::DIGEST).and_then(|digest| digest.parse().ok());
    let source = annotation(object, annotations::SOURCE_NAME);
    let name = object["metadata"]["name"].as_str();
    let is_named = |((digest, source), name): ((Digest, &str), &str)| is_named_after(name, source, &digest);
    has_labels_of_snapshot(object) && digest.zip(source).zip(name).is_some_and(is_named)
}

/// Whether the object has the labels of a snapshot, by which the API server selects objects.
pub(crate) fn has_labels_of_snapshot(object: &Value) -> bool {
    label(object, annotations::MANAGED_BY) == Some(annotations::MANAGER)
        && label(object, annotations::SOURCE).is_some()
}

/// The uids of an object's owners.
pub(crate) fn owners(object: &Value) -> Vec<String> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(|owner| owner["uid"].as_str().unwrap().to_owned()).collect()
}

/// Whether a field manager owns the `enabled` label: then confrev did not set it.
pub(crate) fn owns_enabled(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let path = ["fieldsV1", "f:metadata", "f:labels", "f:confrev.dev/enabled"];
    managers.into_iter().any(|manager| path.iter().try_fold(manager, |at, field| at.get(field)).is_some())
}

/// What the API server records about the writers of an object.
pub(crate) fn managed_fields(object: &Value) -> Vec<Value> {
    object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default()
}

/// Whether a record of a writer is about the spec.
pub(crate) fn is_of_spec(entry: &Value) -> bool {
    !entry["fieldsV1"]["f:spec"].is_null()
}

/// Sets a label or annotation (`field`), or removes it.
pub(crate) fn set_meta(object: &mut Value, field: &str, key: &str, value: Option<&str>) {
    let map = &mut object["metadata"][field];
    if map.is_null() {
        *map = json!({});
    }
    match value {
        Some(value) => map[key] = json!(value),
        None => drop(map.as_object_mut().unwrap().remove(key)),
    }
}
