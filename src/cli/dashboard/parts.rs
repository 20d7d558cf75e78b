//! The collections that the page follows, and the part of each object that it keeps.

use serde_json::{Value, json};

use crate::{
    cli::{
        inventory::{SNAPSHOTS, opted_in},
        objects::{Scope, text},
        target::Target,
    },
    cluster::Listed,
    kinds::{REVISION_KINDS, RevisionKind, WorkloadKind},
    snapshot::SourceKind,
};

/// A collection.
#[derive(Clone, Debug)]
pub(super) enum Part {
    /// Opted-in workloads of a kind.
    Workloads(WorkloadKind),
    /// Rollouts, opted in or not.
    Rollouts,
    /// Revisions of a kind.
    Revisions(&'static RevisionKind),
    /// Pods.
    Pods,
    /// Snapshots of sources of a kind.
    Snapshots(SourceKind),
    /// Sources of a kind. Only their versions are followed; a source that a workload uses is read when its version changes.
    Sources(SourceKind),
}

impl Part {
    /// All collections, in the order in which they are listed: workloads first, since they decide what is kept of the others.
    pub(super) fn all(target: &Target) -> Vec<Self> {
        let workloads = target.kinds.iter().cloned().map(Self::Workloads);
        let revisions = REVISION_KINDS.iter().map(Self::Revisions);
        let sources = [SourceKind::ConfigMap, SourceKind::Secret];
        let sources = sources.into_iter().flat_map(|kind| [Self::Snapshots(kind), Self::Sources(kind)]);
        workloads.chain([Self::Rollouts]).chain(revisions).chain([Self::Pods]).chain(sources).collect()
    }

    /// `group/version`, resource and kind.
    fn resource(&self) -> (String, &str, &str) {
        match self {
            Self::Workloads(kind) => (kind.api_version(), &kind.plural, &kind.kind),
            Self::Rollouts => ("argoproj.io/v1alpha1".to_owned(), "rollouts", "Rollout"),
            Self::Revisions(kind) => (kind.api_version(), kind.plural, kind.kind),
            Self::Pods => ("v1".to_owned(), "pods", "Pod"),
            Self::Snapshots(kind) | Self::Sources(kind) => ("v1".to_owned(), kind.plural(), kind.as_str()),
        }
    }

    /// The collection in the API server.
    pub(super) fn listed(&self, scope: &Scope) -> Listed {
        let (version, plural, _) = self.resource();
        let selector = match self {
            Self::Workloads(_) => opted_in(""),
            Self::Snapshots(_) => SNAPSHOTS.to_owned(),
            _ => String::new(),
        };
        let metadata_only = matches!(self, Self::Snapshots(_) | Self::Sources(_));
        Listed { collection: scope.collection(&version, plural), selector, only: None, metadata_only }
    }

    /// `resource.group`, as in kubectl.
    pub(super) fn name(&self) -> String {
        let (version, plural, _) = self.resource();
        version.split_once('/').map_or_else(|| plural.to_owned(), |(group, _)| format!("{plural}.{group}"))
    }

    /// The kind of sources, of a collection that is followed only if a workload uses one.
    pub(super) const fn source_kind(&self) -> Option<SourceKind> {
        match self {
            Self::Snapshots(kind) | Self::Sources(kind) => Some(*kind),
            _ => None,
        }
    }

    /// The part of an object that is kept, with its kind, which the API server leaves out of lists.
    pub(super) fn keep(&self, mut object: Value) -> Value {
        object["kind"] = self.resource().2.into();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
        }
        match self {
            Self::Workloads(_) | Self::Snapshots(_) => {}
            Self::Sources(_) => {
                let version = object["metadata"]["resourceVersion"].take();
                object = json!({"metadata": {"resourceVersion": version}});
            }
            Self::Rollouts => {
                if let Some(spec) = object["spec"].as_object_mut() {
                    spec.remove("template");
                }
            }
            Self::Revisions(kind) => keep_template_metadata(kind, &mut object),
            Self::Pods => keep_pod(&mut object),
        }
        object
    }
}

/// Of the template of a revision, its metadata has the names of all snapshots.
fn keep_template_metadata(kind: &RevisionKind, object: &mut Value) {
    let template = kind.template.iter().fold(&*object, |value, field| &value[*field]);
    let mut kept = json!({"metadata": template["metadata"]});
    for field in kind.template.iter().skip(1).rev() {
        kept = json!({ *field: kept });
    }
    let first = kind.template.first().copied().unwrap_or_default();
    let owned = ["apiVersion", "kind", "metadata", "revision"];
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|field, _| owned.contains(&field.as_str()));
        fields.insert(first.to_owned(), kept);
    }
}

fn keep_pod(pod: &mut Value) {
    let status = pod["status"].take();
    let ready = status["conditions"].as_array().into_iter().flatten();
    let ready: Vec<_> = ready.filter(|condition| condition["type"] == "Ready").collect();
    let waiting = status["containerStatuses"].as_array().into_iter().flatten();
    let waiting = waiting.map(|container| text(container, "/state/waiting/reason"));
    let waiting = waiting.filter(|reason| !reason.is_empty() && *reason != "ContainerCreating");
    let kept = json!({
        "phase": status["phase"], "startTime": status["startTime"], "conditions": ready,
        "waiting": waiting.clone().next(),
    });
    pod["status"] = kept;
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("spec");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::objects::{revision_template, sources_of};

    #[test]
    fn kept_revisions_name_their_snapshots() {
        let sources = json!({"metadata": {"annotations": {"confrev.dev/sources": r#"{"configmaps":{"demo":"demo-1"}}"#}}});
        for kind in &REVISION_KINDS {
            let mut template = sources.clone();
            template["spec"] = json!({"containers": [{"name": "large"}]});
            let nested = kind.template.iter().rev().fold(template, |value, field| json!({ *field: value }));
            let mut object = nested;
            object["metadata"] = json!({"name": "web-1", "managedFields": [{}]});
            object["revision"] = 3.into();
            let kept = Part::Revisions(kind).keep(object);
            assert_eq!(sources_of(revision_template(&kept)).iter().count(), 1, "{kept}");
            assert_eq!(kept["revision"], 3);
            assert!(
                !kept.to_string().contains("large") && !kept.to_string().contains("managedFields"),
                "{kept}"
            );
        }
    }

    #[test]
    fn kept_pods_have_no_spec() {
        let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": []}, "status": {"phase": "Running",
            "startTime": "t", "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized"}],
            "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}});
        let kept = Part::Pods.keep(pod);
        assert_eq!(kept["spec"], Value::Null);
        assert_eq!(kept["status"]["waiting"], "CrashLoopBackOff");
        assert_eq!(kept["status"]["conditions"].as_array().map(Vec::len), Some(1));
    }
}
