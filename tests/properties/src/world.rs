//! An unlimited namespace in memory: whether an object exists depends on its name.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use confrev::{
    annotations,
    cluster::{Api, ApiError, Candidate, Created, Event, LiveWorkload, Usage},
    resolve::{Analysis, NamespaceFacts, NamespaceOptIn, Observed, Past, Record, RevisionsOf, TargetRef},
    snapshot::{DIGITS, Identity, Made, ObjectName, is_object_name, is_spare, snapshot_json},
    world::{Owner, Precondition, Version, WorkloadKey},
};
use serde_json::{Value, json};

/// The keys of every source.
pub const KEYS: [&str; 2] = ["key", "k"];

/// The namespace's name.
pub const NAMESPACE: &str = "ns";

/// The written objects, in addition to those that exist from the start.
#[derive(Clone, Default)]
pub struct World(Arc<Mutex<BTreeMap<ObjectName, Vec<u8>>>>);

/// Whether an object of that name exists from the start. All valid names do, except those of some forms and those of
/// snapshots.
pub fn exists(name: &ObjectName) -> bool {
    let is_hex = |end: &str| end.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_of_snapshot =
        name.name.rsplit_once('-').is_some_and(|(_, end)| DIGITS.contains(&end.len()) && is_hex(end));
    let is_of_snapshot = is_of_snapshot || is_spare(&name.name);
    is_object_name(&name.name) && !name.name.contains("missing") && !is_of_snapshot
}

/// Fields that contain objects.
const OBJECTS: [&str; 17] = [
    "configMap",
    "configMapKeyRef",
    "configMapRef",
    "jobTemplate",
    "metadata",
    "object",
    "oldObject",
    "projected",
    "request",
    "resource",
    "secret",
    "secretKeyRef",
    "secretRef",
    "spec",
    "template",
    "valueFrom",
    "workloadRef",
];

/// Whether the value is an object as an API server sends it: it has metadata, with any content.
pub fn is_object(value: &Value) -> bool {
    value["metadata"].is_object() && has_form(value)
}

/// Whether lists are only where lists may be. A parser of JSON into structs accepts a list instead of an object, as its
/// fields in order. No API server sends such an object, and no patch of it can be correct.
pub fn has_form(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(|item| !item.is_array() && has_form(item)),
        Value::Object(fields) => fields
            .iter()
            .all(|(key, child)| !(child.is_array() && OBJECTS.contains(&key.as_str())) && has_form(child)),
        _ => true,
    }
}

/// The value of its `enabled` label.
pub fn enabled(name: &ObjectName) -> Option<&'static str> {
    match &name.name {
        name if name.starts_with("off") => Some("false"),
        name if name.starts_with("bound") => Some("bind"),
        _ => None,
    }
}

impl World {
    /// The objects written since the last call.
    pub fn take_written(&self) -> BTreeMap<ObjectName, Vec<u8>> {
        std::mem::take(&mut *self.written())
    }

    /// The object of that name.
    pub fn observe(&self, name: &ObjectName) -> Option<Observed> {
        if let Some(json) = self.written().get(name) {
            return Some(Observed::read(name.kind, json.clone()).expect("a written object is valid"));
        }
        let labels = enabled(name).map(|value| json!({annotations::ENABLED: value}));
        let object = json!({
            "metadata": {"name": name.name, "uid": format!("uid of {}", name.name), "labels": labels},
            "data": {KEYS[0]: "dmFsdWU=", KEYS[1]: "a2V5"},
        });
        exists(name)
            .then(|| Observed::read(name.kind, object.to_string().into_bytes()).expect("a valid object"))
    }

    /// Creates a snapshot of `of`.
    pub fn snapshot(&self, name: &ObjectName, identity: &Identity, of: &[u8]) -> Created {
        if exists(name) || self.written().contains_key(name) {
            return Created::Exists;
        }
        let json = snapshot_json(
            name.kind,
            NAMESPACE,
            &name.name,
            identity,
            of,
            &[],
            Made::at(jiff::Timestamp::MAX),
        )
        .expect("an object");
        let made = Observed::read(name.kind, json.clone()).expect("a snapshot can be read");
        assert!(made.is_snapshot_of(&identity.source, &identity.digest), "{name} is not what it was made of");
        self.written().insert(name.clone(), json);
        Created::Now
    }

    fn written(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls of admission; the others are the controller's.
impl Api for World {
    async fn read(&self, _: &str, object: &ObjectName) -> Result<Option<Observed>, ApiError> {
        Ok(self.observe(object))
    }

    async fn namespace(&self, _: &str) -> Result<NamespaceFacts, ApiError> {
        Ok(NamespaceFacts { opt_in: NamespaceOptIn::Now, secrets: true, ..NamespaceFacts::default() })
    }

    async fn is_enabled(&self, _: &str, target: &TargetRef) -> Result<Option<bool>, ApiError> {
        Ok(Some(target.kind == "Deployment"))
    }

    async fn revisions(&self, _: &str, _: &RevisionsOf) -> Result<Vec<Past>, ApiError> {
        Ok(Vec::new())
    }

    async fn create_snapshot(
        &self,
        _: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        _: &[Owner],
    ) -> Result<Created, ApiError> {
        Ok(self.snapshot(name, identity, of))
    }

    async fn add_owner(&self, _: &str, snapshot: &ObjectName, _: &Owner) -> Result<(), ApiError> {
        match self.observe(snapshot) {
            Some(_) => Ok(()),
            None => Err(ApiError::NotFound { what: snapshot.to_string() }),
        }
    }

    async fn set_owners(
        &self,
        _: &str,
        _: &ObjectName,
        _: &Version,
        _: &[Owner],
    ) -> Result<Observed, ApiError> {
        panic!("admission sets no owners")
    }

    async fn set_annotation(
        &self,
        _: &str,
        _: &ObjectName,
        _: &Version,
        _: (&'static str, Option<String>),
    ) -> Result<String, ApiError> {
        unreachable!("admission writes no annotation")
    }

    async fn set_changed_by(&self, _: &str, _: &ObjectName, _: &Version, _: &str) -> Result<(), ApiError> {
        panic!("these tests record no users")
    }

    async fn delete_snapshot(&self, _: &str, _: &ObjectName, _: &Version) -> Result<(), ApiError> {
        panic!("admission deletes nothing")
    }

    async fn poke(&self, _: &WorkloadKey, _: &Precondition, _: &str) -> Result<Record, ApiError> {
        panic!("admission rolls nothing")
    }

    async fn usages(&self, _: &str, owners: &[Owner], _: &ObjectName) -> Result<Vec<Usage>, ApiError> {
        Ok(vec![Usage::Unused; owners.len()])
    }

    async fn users_of(&self, _: &str, _: &ObjectName) -> Result<Vec<Owner>, ApiError> {
        panic!("admission lists nothing")
    }

    async fn create_event(&self, _: &Event) -> Result<(), ApiError> {
        panic!("admission writes no Events")
    }

    async fn read_workload(&self, _: &WorkloadKey) -> Result<LiveWorkload, ApiError> {
        panic!("admission reads no stored workload")
    }

    async fn analysis_template(&self, _: &str, _: &Analysis) -> Result<Option<Value>, ApiError> {
        Ok(None)
    }

    async fn analysis_run(&self, _: &str, _: &str) -> Result<Option<Value>, ApiError> {
        Ok(None)
    }

    async fn analysis_runs(&self, _: &str, _: &str) -> Result<Vec<Value>, ApiError> {
        Ok(Vec::new())
    }

    async fn create_analysis_run(&self, _: &str, _: &Value) -> Result<Created, ApiError> {
        panic!("no template exists")
    }

    async fn terminate_analysis_run(&self, _: &str, _: &str, _: &str) -> Result<(), ApiError> {
        panic!("no AnalysisRun exists")
    }

    async fn delete_analysis_run(&self, _: &str, _: &str, _: &str) -> Result<(), ApiError> {
        panic!("no AnalysisRun exists")
    }

    async fn unlabelled(
        &self,
        _: &str,
        _: NamespaceOptIn,
    ) -> Result<Vec<(WorkloadKey, Candidate)>, ApiError> {
        panic!("admission lists nothing")
    }
}
