//! The objects that commands read: opted-in workloads, snapshots and sources, and parts of any object.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;

use super::{failure::Failure, target::Target};
use crate::{
    annotations,
    kinds::{REVISION_KINDS, WorkloadKind},
    resolve::{Health, NamespaceOptIn, Observed, Record, Verdict, Workload},
    snapshot::{Digest, ObjectName, Rotated, SourceKind, is_named_after},
    template::SourceMap,
    world::{Inherited, SnapshotRecord},
};

/// An object by namespace, kind and name.
pub(super) type SourceKey = (String, ObjectName);

/// An opted-in workload.
#[derive(Clone, Debug)]
pub(super) struct OptedIn {
    /// Its kind.
    pub(super) kind: WorkloadKind,
    /// The object. The dashboard shares it between its states.
    pub(super) value: Arc<Value>,
    /// The facts that decisions use.
    pub(super) record: Record,
}

/// A snapshot's metadata.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    /// Its source.
    pub(super) source: ObjectName,
    /// The digest in its annotation.
    pub(super) digest: Option<Digest>,
    /// When it was created.
    pub(super) created: Timestamp,
    /// The object: from a list with contents, or metadata alone.
    pub(super) value: Arc<Value>,
}

impl Snapshot {
    /// What is known about its content.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        Verdict::read(|key| annotation(&self.value, key))
    }

    /// Its content, as far as the object was read.
    pub(super) fn content(&self) -> Option<Observed> {
        Observed::read(self.source.kind, self.value.to_string().into_bytes()).ok()
    }

    /// The same, as the controller keeps it; `None` if its digest cannot be read.
    pub(super) fn record(&self, name: &str) -> Option<SnapshotRecord> {
        SnapshotRecord::read(name, self.created, |key| annotation(&self.value, key))
    }
}

/// An object that may not exist; the API server's message if the user may not read it.
pub(super) type ReadObject = Result<Option<Value>, String>;

/// The result of reading an object.
#[derive(Clone, Debug)]
pub(super) enum LiveSource {
    /// It exists.
    Present(Arc<Observed>),
    /// It does not exist.
    Missing,
    /// The user may not read it.
    Forbidden,
}

/// The namespaces to read.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// One namespace.
    Namespace(String),
    /// All namespaces.
    All,
}

impl Scope {
    /// The path of a collection.
    pub(super) fn collection(&self, group_version: &str, plural: &str) -> String {
        let root = if group_version.contains('/') { "/apis" } else { "/api" };
        match self {
            Self::All => format!("{root}/{group_version}/{plural}"),
            Self::Namespace(namespace) => format!("{root}/{group_version}/namespaces/{namespace}/{plural}"),
        }
    }
}

impl OptedIn {
    /// Reads a workload; `None` if it does not have the form of its kind.
    pub(super) fn read(
        kind: &WorkloadKind,
        value: impl Into<Arc<Value>>,
        (rotated, inherited): (&Rotated, &Inherited),
    ) -> Option<Self> {
        let value = value.into();
        let workload = Workload::read(kind, &*value).ok()?;
        let namespace = workload.namespace().to_owned();
        let workload = inherited.workload(&namespace, workload);
        let record = Record::of(&workload, Health::of(&kind.kind, &value), rotated);
        Some(Self { kind: kind.clone(), value, record })
    }

    /// Reads a workload, and what it inherits from the namespaces that were read; `None` if it does not have the form of its kind.
    pub(super) fn of(target: &Target, kind: &WorkloadKind, value: impl Into<Arc<Value>>) -> Option<Self> {
        Self::read(kind, value, (&target.rotated, &target.strategies.inherited()))
    }

    /// A Job is its only revision; other workloads have revision objects.
    pub(super) fn own_revision(&self) -> Option<&Value> {
        (!self.kind.rolls).then_some(&self.value)
    }

    /// Its namespace.
    pub(super) fn namespace(&self) -> &str {
        text(&self.value, "/metadata/namespace")
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        text(&self.value, "/metadata/name")
    }

    /// `Kind/name`.
    pub(super) fn reference(&self) -> String {
        format!("{}/{}", self.kind.kind, self.name())
    }

    /// The path of the object.
    pub(super) fn path(&self) -> String {
        let collection = Scope::Namespace(self.namespace().to_owned());
        format!("{}/{}", collection.collection(&self.kind.api_version(), &self.kind.plural), self.name())
    }

    /// The `revision` label of its template.
    pub(super) fn revision(&self) -> &str {
        let template = self.value.pointer(&self.kind.template_pointer());
        template.and_then(|template| label(template, annotations::REVISION)).unwrap_or_default()
    }

    /// The key of one of its sources or snapshots.
    pub(super) fn key(&self, object: &ObjectName) -> SourceKey {
        (self.namespace().to_owned(), object.clone())
    }

    /// Its sources, each once.
    pub(super) fn sources(&self) -> BTreeSet<&ObjectName> {
        self.record.uses.iter().map(|used| &used.source).collect()
    }
}

/// Reads a source or snapshot, live.
pub(super) async fn source(target: &Target, key: &SourceKey) -> Result<Option<Observed>, Failure> {
    use crate::cluster::Api as _;
    let read = target.api.read(&key.0, &key.1).await.map_err(|error| target.failure(error))?;
    let Some(source) = read else { return Ok(None) };
    target.under_strategies(&key.0, source).await.map(Some)
}

impl Snapshot {
    /// Reads a snapshot; `None` if the object lacks the metadata of a snapshot, or its name.
    pub(super) fn read(kind: SourceKind, value: impl Into<Arc<Value>>) -> Option<(SourceKey, Self)> {
        let value = value.into();
        let name = ObjectName::new(kind, text(&value, "/metadata/name"));
        let source = ObjectName::new(kind, annotation(&value, annotations::SOURCE_NAME)?);
        let digest: Option<Digest> =
            annotation(&value, annotations::DIGEST).and_then(|digest| digest.parse().ok());
        if digest.is_some_and(|digest| !is_named_after(&name.name, &source.name, &digest)) {
            return None;
        }
        let created = text(&value, "/metadata/creationTimestamp").parse().ok()?;
        let namespace = text(&value, "/metadata/namespace").to_owned();
        Some(((namespace, name), Self { source, digest, created, value }))
    }
}

/// The text at a JSON pointer; empty if it does not exist.
pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A label.
pub(super) fn label<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value["metadata"]["labels"][key].as_str()
}

/// What a Namespace says about workloads without a label of their own.
pub(super) fn opt_in_of(namespace: &Value) -> NamespaceOptIn {
    NamespaceOptIn::read(label(namespace, annotations::ENABLED))
}

/// An annotation.
pub(super) fn annotation<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value["metadata"]["annotations"][key].as_str()
}

/// The pod template of a revision object.
pub(super) fn revision_template(revision: &Value) -> Option<&Value> {
    let kind = REVISION_KINDS.iter().find(|kind| revision["kind"] == kind.kind)?;
    kind.template.iter().try_fold(revision, |value, field| value.get(field))
}

/// The number of a revision, as kubectl and Argo Rollouts count the revisions of a workload.
pub(super) fn revision_number(revision: &Value) -> Option<i64> {
    // A Deployment that a Rollout takes its template from counts revisions of its own.
    let keys = ["rollout.argoproj.io/revision", "deployment.kubernetes.io/revision"];
    let stated = keys.iter().find_map(|key| annotation(revision, key)?.parse().ok());
    stated.or_else(|| revision["revision"].as_i64())
}

/// The content of the `sources` annotation of a template.
pub(super) fn sources_of(template: Option<&Value>) -> SourceMap<String> {
    let entered = template.and_then(|template| annotation(template, annotations::SOURCES));
    entered.and_then(SourceMap::parse).unwrap_or_default()
}

/// Whether the object has a controller whose uid fulfils `is`.
pub(super) fn is_owned(value: &Value, mut is: impl FnMut(&str) -> bool) -> bool {
    let owners = value["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["controller"] == true && is(text(owner, "/uid")))
}

/// Whether it belongs to another workload: a Job of a CronJob, or a ReplicaSet of a Deployment or Rollout. Admission leaves these alone.
pub(super) fn belongs_to_workload(value: &Value) -> bool {
    let owners = value["metadata"]["ownerReferences"].as_array();
    let mut controllers = owners.into_iter().flatten().filter(|owner| owner["controller"] == true);
    match text(value, "/kind") {
        "Job" => controllers.any(|owner| owner["kind"] == "CronJob"),
        "ReplicaSet" => controllers.next().is_some(),
        _ => false,
    }
}

/// Whether `text` names this kind: the kind, its resource or a common short name, with or without the group.
pub(super) fn is_called(kind: &WorkloadKind, text: &str) -> bool {
    const SHORT: [(&str, &str); 5] = [
        ("deploy", "deployments"),
        ("sts", "statefulsets"),
        ("ds", "daemonsets"),
        ("cj", "cronjobs"),
        ("ro", "rollouts"),
    ];
    let (name, group) = text.split_once('.').map_or((text, None), |(name, group)| (name, Some(group)));
    let name = name.to_ascii_lowercase();
    let is_short = SHORT.contains(&(name.as_str(), kind.plural.as_str()));
    group.is_none_or(|group| group == kind.group)
        && (name == kind.kind.to_ascii_lowercase() || name == kind.plural || is_short)
}

/// The kind of sources with this name.
pub(super) fn source_kind(text: &str) -> Option<SourceKind> {
    match text.to_ascii_lowercase().as_str() {
        "cm" | "configmap" | "configmaps" => Some(SourceKind::ConfigMap),
        "secret" | "secrets" => Some(SourceKind::Secret),
        _ => None,
    }
}

/// Parses the name of a source: `name`, `configmap/name` or `secret/name`.
pub(super) fn source_name(text: &str) -> Result<ObjectName, Failure> {
    let (kind, name) = text.split_once('/').unwrap_or(("configmap", text));
    let kind = source_kind(kind).ok_or_else(|| {
        Failure::Usage(format!("invalid source {text:?}: use configmap/NAME or secret/NAME"))
    })?;
    if crate::snapshot::is_object_name(name) {
        Ok(ObjectName::new(kind, name))
    } else {
        Err(Failure::Usage(format!("invalid object name {name:?}: use lower case letters, digits, - and .")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_objects_of_other_workloads() {
        for (kind, by, controller, expected) in [
            ("Job", "CronJob", true, true),
            ("Job", "CronJob", false, false),
            ("Job", "Workflow", true, false),
            ("ReplicaSet", "Deployment", true, true),
            ("ReplicaSet", "Deployment", false, false),
            ("StatefulSet", "Prometheus", true, false),
        ] {
            let owner = json!({"kind": by, "controller": controller});
            let value = json!({"kind": kind, "metadata": {"ownerReferences": [owner]}});
            assert_eq!(belongs_to_workload(&value), expected, "{kind} of {by}");
        }
        assert!(!belongs_to_workload(&json!({"kind": "Job", "metadata": {}})));
    }
}
