//! A workload read from JSON: its metadata, and the pod template at its kind's path.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use super::defaults::Defaults;
use crate::{
    annotations,
    json::{self, At, Str},
    kinds::WorkloadKind,
    snapshot::Digest,
    template::{SourceMap, Template},
    tie::Remembered,
};

/// A workload, borrowed from its JSON.
#[derive(Debug)]
pub struct Workload<'a> {
    /// The workload's kind.
    pub kind: &'a WorkloadKind,
    /// The template; `None` if the object has none (a Rollout with `workloadRef`).
    pub template: Option<Template<'a>>,
    /// The workload whose template this one uses, if it has none of its own.
    pub target: Option<TargetRef>,
    /// The labels that Jobs made from this object get in place of their template's; `None` if there are none.
    pub job_labels: Option<BTreeMap<Str<'a>, Str<'a>>>,
    metadata: WorkloadMetadata<'a>,
    /// The JSON text, if the workload was read from one.
    text: Option<&'a str>,
    /// The settings that it inherits.
    defaults: Defaults,
}

/// A `workloadRef` of a Rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// `group/version` of the workload.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name, in the same namespace.
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), rename_all = "camelCase")]
struct WorkloadMetadata<'a> {
    #[serde(default)]
    name: Str<'a>,
    #[serde(default)]
    generate_name: Str<'a>,
    #[serde(default)]
    namespace: Str<'a>,
    #[serde(default)]
    uid: Str<'a>,
    #[serde(default)]
    resource_version: Str<'a>,
    #[serde(default)]
    labels: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default)]
    annotations: Option<BTreeMap<Str<'a>, Str<'a>>>,
    #[serde(default, deserialize_with = "whole_number")]
    generation: Option<i64>,
    #[serde(default)]
    deletion_timestamp: Option<Str<'a>>,
    #[serde(default)]
    managed_fields: Managers,
}

/// An object's `managedFields`, reduced to what matters of them.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct Managers(Option<Vec<Option<ManagedFields>>>);

impl Managers {
    /// Whether some manager owns the `enabled` label.
    fn own_label(&self) -> bool {
        self.0.iter().flatten().flatten().any(|manager| manager.fields_v1.label)
    }

    /// When a manager last changed the spec. Subresources (`status`, `scale`) do not count, nor does the controller of Rollouts.
    fn last_write_of_spec(&self) -> Option<Timestamp> {
        let of_spec =
            |manager: &&ManagedFields| manager.fields_v1.spec && !manager.subresource && !manager.normalizes;
        self.0.iter().flatten().flatten().filter(of_spec).filter_map(|manager| manager.time).max()
    }
}

/// The path of the `enabled` label below `f:metadata` in a `fieldsV1`.
const LABEL: [&str; 2] = ["f:labels", "f:confrev.dev/enabled"];

/// One manager.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManagedFields {
    #[serde(default)]
    fields_v1: Owned,
    /// When it last changed one of its fields.
    #[serde(default, deserialize_with = "time")]
    time: Option<Timestamp>,
    /// Whether it writes a subresource.
    #[serde(default, deserialize_with = "is_text")]
    subresource: bool,
    /// Whether it is the controller of Rollouts, which writes the whole Rollout at each new revision: it adds defaults and
    /// normalizes quantities. That is no deployment.
    #[serde(default, rename = "manager", deserialize_with = "is_rollouts_controller")]
    normalizes: bool,
}

/// The field manager of the controller of Rollouts: the name of its program. Source: Argo Rollouts, `Dockerfile`.
const ROLLOUTS_CONTROLLER: &str = "rollouts-controller";

/// The fields of a manager that matter.
#[derive(Debug, Default)]
struct Owned {
    /// It owns the `enabled` label.
    label: bool,
    /// It owns fields of the spec.
    spec: bool,
}

/// A time; `None` if the value is anything else.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(json::shallow(&[], deserializer)?.as_str().and_then(|text| text.parse().ok()))
}

/// Whether the value is a text that is not empty.
fn is_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(json::shallow(&[], deserializer)?.as_str().is_some_and(|text| !text.is_empty()))
}

/// Whether the value is the field manager of the controller of Rollouts.
fn is_rollouts_controller<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(json::shallow(&[], deserializer)?.as_str() == Some(ROLLOUTS_CONTROLLER))
}

/// A whole number; `None` if the value is anything else.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Ok(json::shallow(&[], deserializer)?.as_i64())
}

impl<'de> Deserialize<'de> for Owned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OwnedVisitor;

        impl<'de> Visitor<'de> for OwnedVisitor {
            type Value = Owned;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a set of fields")
            }

            fn visit_unit<E>(self) -> Result<Owned, E> {
                Ok(Owned::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Owned, A::Error> {
                let mut fields = Owned::default();
                while let Some(key) = map.next_key::<Str<'de>>()? {
                    if &*key == "f:metadata" {
                        fields.label = map.next_value_seed(At::<_, IgnoredAny>::new(&LABEL))?.is_some();
                    } else {
                        fields.spec |= &*key == "f:spec";
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_any(OwnedVisitor)
    }
}

impl<'a> Workload<'a> {
    /// Reads a workload of that kind from its JSON.
    ///
    /// # Example
    ///
    /// ```
    /// # use confrev_core::{kinds::Kinds, resolve::Workload};
    /// let kinds = Kinds::default();
    /// let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
    /// let text = r#"{
    ///     "metadata": {"name": "web", "labels": {"confrev.dev/enabled": "true"}},
    ///     "spec": {"template": {"spec": {"containers": [
    ///         {"name": "app", "envFrom": [{"configMapRef": {"name": "demo"}}]}
    ///     ]}}}
    /// }"#;
    /// let workload = Workload::parse(kind, text)?;
    /// assert_eq!(workload.label("confrev.dev/enabled"), Some("true"));
    /// let references = workload.template.as_ref().unwrap().references();
    /// assert_eq!(references[0].name, "demo");
    /// assert_eq!(references[0].pointer, "/spec/containers/0/envFrom/0/configMapRef/name");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn parse(kind: &'a WorkloadKind, json: &'a str) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(json);
        let workload = Self::read(kind, &mut reader)?;
        reader.end()?;
        Ok(Self { text: Some(json), ..workload })
    }

    /// Reads a workload of that kind from any deserializer, such as a parsed value.
    pub fn read<'de: 'a, D: Deserializer<'de>>(kind: &'a WorkloadKind, from: D) -> Result<Self, D::Error> {
        let parts = from.deserialize_map(PartsVisitor { kind })?;
        Ok(Self {
            kind,
            template: parts.template,
            target: parts.target,
            job_labels: parts.job_labels,
            metadata: parts.metadata,
            text: None,
            defaults: Defaults::default(),
        })
    }

    /// The same workload under what it inherits from its namespace and the installation.
    #[must_use]
    pub fn under(self, defaults: Defaults) -> Self {
        Self { defaults, ..self }
    }

    /// The JSON text; `None` if the workload was read from a parsed value.
    pub(super) fn text(&self) -> Option<&'a str> {
        self.text
    }

    /// The name, or `generateName` if the API server is to choose the name.
    pub fn name(&self) -> &str {
        if self.metadata.name.is_empty() { &self.metadata.generate_name } else { &self.metadata.name }
    }

    /// The namespace; empty if only the request states it.
    pub fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    /// The uid; empty before the object is stored.
    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// The resourceVersion; empty before the object is stored.
    pub fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// The generation; `None` before the object is stored.
    pub fn generation(&self) -> Option<i64> {
        self.metadata.generation
    }

    /// Whether its deletion has begun.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The labels; `None` if there is no such field.
    pub fn labels(&self) -> Option<&BTreeMap<Str<'a>, Str<'a>>> {
        self.metadata.labels.as_ref()
    }

    /// When a manager last changed the spec, according to `managedFields`.
    pub fn spec_written(&self) -> Option<Timestamp> {
        self.metadata.managed_fields.last_write_of_spec()
    }

    /// The annotations; `None` if there is no such field.
    pub fn annotations(&self) -> Option<&BTreeMap<Str<'a>, Str<'a>>> {
        self.metadata.annotations.as_ref()
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key).map(|value| &**value)
    }

    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations()?.get(key).map(|value| &**value)
    }

    /// A setting: its annotation, or what it inherits.
    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        self.annotation(key).or_else(|| self.inherited(key))
    }

    /// What it inherits, whether it has the annotation itself or not.
    pub(super) fn inherited(&self, key: &str) -> Option<&str> {
        self.defaults.get(key)
    }

    /// Whether an applier sets the `enabled` label: a field manager owns it, or `kubectl apply` last applied it. A label that
    /// a webhook writes belongs to no manager, even after a client-side apply of the same value.
    pub fn enabled_is_owned(&self) -> bool {
        self.enabled_is_owned_after(None)
    }

    /// Like [`Self::enabled_is_owned`], but a mark on the stored object `old` counts as well: an undo of a Deployment may
    /// restore older annotations without the mark.
    pub(super) fn enabled_is_owned_after(&self, old: Option<&Workload<'_>>) -> bool {
        let is_applied = || {
            self.applied_with_label().map(mark_despite).is_some_and(|mark| {
                let marks = [Some(self), old].map(|workload| workload?.annotation(annotations::ENABLED_BY));
                !marks.contains(&Some(mark.as_str()))
            })
        };
        self.metadata.managed_fields.own_label() || is_applied()
    }

    /// The configuration that `kubectl apply` last applied, if it has the `enabled` label.
    fn applied_with_label(&self) -> Option<&str> {
        const PATH: [&str; 3] = ["metadata", "labels", annotations::ENABLED];
        let text = self.annotation(annotations::LAST_APPLIED)?;
        let label: Option<IgnoredAny> =
            At::new(&PATH).deserialize(&mut serde_json::Deserializer::from_str(text)).ok()?;
        label.map(|_| text)
    }

    /// The mark for a label that the namespace gives. A person may have removed a label that `kubectl apply` had set; the last
    /// applied configuration still has it. The mark names that configuration, so that it does not count until the next apply.
    pub(super) fn mark_of_namespace(&self) -> String {
        self.applied_with_label().map_or_else(|| BY_NAMESPACE.to_owned(), mark_despite)
    }

    /// The kind and name, for messages.
    pub fn display(&self) -> String {
        format!("{} {:?}", self.kind, self.name())
    }

    /// The annotation `sources` of the template; empty if it is absent or malformed.
    pub fn sources(&self) -> SourceMap<String> {
        let text = self.template.as_ref().and_then(|template| template.annotation(annotations::SOURCES));
        text.and_then(SourceMap::parse).unwrap_or_default()
    }

    /// The annotation `live` of the template; empty if it is absent or malformed.
    pub fn live(&self) -> SourceMap<Digest> {
        let text = self.template.as_ref().and_then(|template| template.annotation(annotations::LIVE));
        text.and_then(SourceMap::parse).unwrap_or_default()
    }

    /// The annotation `state`: what confrev remembers of each source. Empty if it is absent or malformed.
    pub fn state(&self) -> SourceMap<Remembered> {
        self.annotation(annotations::STATE).and_then(SourceMap::parse).unwrap_or_default()
    }

    /// Whether this request has a state that remembers other contents than that of the stored workload: an undo of a Deployment
    /// restores all annotations of the old `ReplicaSet`.
    pub(super) fn restores_state(&self, stored: &Workload<'_>) -> bool {
        let seen = |workload: &Workload<'_>| {
            let state = workload.state();
            let seen = state.iter().filter_map(|(source, entry)| Some((source.clone(), entry.seen?)));
            seen.collect::<BTreeMap<_, _>>()
        };
        let [new, old] = [self, stored].map(|workload| workload.annotation(annotations::STATE));
        new != old && seen(self) != seen(stored)
    }
}

/// The mark beside a label that came from the namespace.
const BY_NAMESPACE: &str = "namespace";
/// The same mark if the last applied configuration still has the label; a hash of that configuration follows.
const DESPITE: &str = "namespace-despite-";

fn mark_despite(applied: &str) -> String {
    format!("{DESPITE}{}", Digest::of_bytes(applied).hex(10))
}

/// The parts of an object that are read.
#[derive(Default)]
struct Parts<'a> {
    metadata: WorkloadMetadata<'a>,
    template: Option<Template<'a>>,
    target: Option<TargetRef>,
    job_labels: Option<BTreeMap<Str<'a>, Str<'a>>>,
}

/// Reads an object's parts in one pass, skipping all other fields.
struct PartsVisitor<'k> {
    kind: &'k WorkloadKind,
}

impl<'de> Visitor<'de> for PartsVisitor<'_> {
    type Value = Parts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut parts = Parts::default();
        let (mut way, mut own) = (Way::default(), Way::default());
        while let Some(key) = map.next_key::<Str<'de>>()? {
            way.passes(&key, self.kind.template.first().map(String::as_str))?;
            own.passes(&key, Some("metadata"))?;
            match self.kind.template.split_first() {
                Some((first, rest)) if *key == **first && rest.is_empty() => {
                    parts.template = map.next_value()?;
                }
                Some((first, rest)) if *key == **first => {
                    map.next_value_seed(Fields { path: rest, parts: &mut parts })?;
                }
                _ if &*key == "metadata" => {
                    parts.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(parts)
    }
}

/// Whether an object's field that leads to the template was read already.
#[derive(Default)]
struct Way(bool);

impl Way {
    /// Refuses a duplicate field, as everywhere else: it would be unclear which of the two a patch changes.
    fn passes<E: serde::de::Error>(&mut self, key: &str, way: Option<&str>) -> Result<(), E> {
        if way.is_some_and(|field| field == key) && std::mem::replace(&mut self.0, true) {
            return Err(E::custom(format!("duplicate field `{key}`")));
        }
        Ok(())
    }
}

/// The remaining path at the point at which an object of a Job's form begins.
const JOB: [&str; 2] = ["spec", "template"];

/// Reads the objects on the path to the template: the template itself, and fields beside it.
struct Fields<'p, 'k, 'de> {
    path: &'k [String],
    parts: &'p mut Parts<'de>,
}

impl<'de> DeserializeSeed<'de> for Fields<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the field {:?}", self.path.first().map_or("", String::as_str))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((first, rest)) = self.path.split_first() else { return Ok(()) };
        let mut way = Way::default();
        while let Some(key) = map.next_key::<Str<'de>>()? {
            way.passes(&key, Some(first.as_str()))?;
            if *key == **first && rest.is_empty() {
                self.parts.template = map.next_value()?;
            } else if *key == **first {
                map.next_value_seed(Fields { path: rest, parts: self.parts })?;
            } else if &*key == "workloadRef" {
                self.parts.target = map.next_value()?;
            } else if &*key == "metadata" && self.path == JOB {
                self.parts.job_labels =
                    map.next_value::<Option<JobMetadata<'de>>>()?.and_then(|meta| meta.labels);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The `metadata` of an object on the path to a template: a CronJob's `jobTemplate` has one.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct JobMetadata<'a> {
    #[serde(default)]
    labels: Option<BTreeMap<Str<'a>, Str<'a>>>,
}
