//! The supported kinds of workloads and revisions, and the paths of their pod templates.

use std::{fmt, str::FromStr};

/// A kind of workload, by group, version, resource and the path of its pod template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkloadKind {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind, as in `kind:`.
    pub kind: String,
    /// Resource, as in API paths.
    pub plural: String,
    /// Field names from the object's root to its pod template.
    pub template: Vec<String>,
    /// Whether a changed template rolls out. A Job's template cannot change once it is stored.
    pub rolls: bool,
}

/// A kind whose objects are revisions of a workload, and own the snapshots that their templates name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RevisionKind {
    /// API group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind, as in `kind:`.
    pub kind: &'static str,
    /// Resource, as in API paths.
    pub plural: &'static str,
    /// Field names from the object's root to the pod template.
    pub template: &'static [&'static str],
}

/// Every kind of revision object: ReplicaSets of any parent, StatefulSets' and DaemonSets' ControllerRevisions, Jobs.
pub const REVISION_KINDS: [RevisionKind; 3] = [
    RevisionKind {
        group: "apps",
        version: "v1",
        kind: "ReplicaSet",
        plural: "replicasets",
        template: &["spec", "template"],
    },
    RevisionKind {
        group: "apps",
        version: "v1",
        kind: "ControllerRevision",
        plural: "controllerrevisions",
        template: &["data", "spec", "template"],
    },
    RevisionKind {
        group: "batch",
        version: "v1",
        kind: "Job",
        plural: "jobs",
        template: &["spec", "template"],
    },
];

impl RevisionKind {
    /// `group/version`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

impl WorkloadKind {
    fn builtin(group: &str, version: &str, kind: &str, plural: &str, template: &[&str], rolls: bool) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            template: template.iter().map(|&field| field.to_owned()).collect(),
            rolls,
        }
    }

    /// `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The JSON pointer of the pod template.
    pub fn template_pointer(&self) -> String {
        self.template
            .iter()
            .fold(String::new(), |path, field| path + "/" + &crate::annotations::pointer_token(field))
    }
}

/// A text that is not of the form `GROUP/VERSION/RESOURCE/KIND=PATH`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "use the form GROUP/VERSION/RESOURCE/KIND=PATH, such as apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template"
)]
pub struct KindFormatError;

impl FromStr for WorkloadKind {
    type Err = KindFormatError;

    /// Reads `GROUP/VERSION/RESOURCE/KIND=PATH`; the path is field names separated by dots. The core group is empty.
    fn from_str(text: &str) -> Result<Self, KindFormatError> {
        let (names, path) = text.split_once('=').ok_or(KindFormatError)?;
        let [group, version, plural, kind] = names.split('/').collect::<Vec<_>>()[..] else {
            return Err(KindFormatError);
        };
        let path: Vec<_> = path.split('.').collect();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_group = group.is_empty() || group.split('.').all(|label| label.split('-').all(is_word));
        if !is_group || ![version, plural, kind].into_iter().chain(path.iter().copied()).all(is_word) {
            return Err(KindFormatError);
        }
        Ok(Self::builtin(group, version, kind, plural, &path, true))
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

/// The enabled kinds of workloads: the built-in ones and the configured ones.
///
/// # Example
///
/// ```
/// # use confrev_core::kinds::Kinds;
/// let kinds = Kinds::with(&["apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template".parse()?]);
/// let kind = kinds.by_resource("apps.kruise.io", "clonesets").unwrap();
/// assert_eq!(kind.template_pointer(), "/spec/template");
/// assert_eq!(kinds.by_kind("apps/v1", "Deployment").unwrap().plural, "deployments");
/// # Ok::<(), confrev_core::kinds::KindFormatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Kinds(Vec<WorkloadKind>);

impl Default for Kinds {
    fn default() -> Self {
        const TEMPLATE: &[&str] = &["spec", "template"];
        let kind = WorkloadKind::builtin;
        Self(vec![
            kind("argoproj.io", "v1alpha1", "Rollout", "rollouts", TEMPLATE, true),
            kind("apps", "v1", "Deployment", "deployments", TEMPLATE, true),
            kind("apps", "v1", "StatefulSet", "statefulsets", TEMPLATE, true),
            kind("apps", "v1", "DaemonSet", "daemonsets", TEMPLATE, true),
            kind("batch", "v1", "CronJob", "cronjobs", &["spec", "jobTemplate", "spec", "template"], true),
            kind("batch", "v1", "Job", "jobs", TEMPLATE, false),
        ])
    }
}

impl Kinds {
    /// All kinds, the built-in ones first.
    pub fn iter(&self) -> impl Iterator<Item = &WorkloadKind> {
        self.0.iter()
    }

    /// The built-in kinds and the configured ones. A configured kind replaces the built-in one of its group and resource.
    pub fn with(more: &[WorkloadKind]) -> Self {
        let mut kinds = Self::default();
        for kind in more {
            kinds.0.retain(|known| (&known.group, &known.plural) != (&kind.group, &kind.plural));
            kinds.0.push(kind.clone());
        }
        kinds
    }

    /// The kind of a group and resource, whatever its version.
    pub fn by_resource(&self, group: &str, plural: &str) -> Option<&WorkloadKind> {
        self.0.iter().find(|kind| kind.group == group && kind.plural == plural)
    }

    /// The kind of an object's `apiVersion` and `kind`, whatever its version.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&WorkloadKind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.0.iter().find(|known| known.group == group && known.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kind_of_the_configuration() {
        let kind: WorkloadKind = "apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template".parse().unwrap();
        assert_eq!(kind.api_version(), "apps.kruise.io/v1alpha1");
        assert_eq!(kind.template_pointer(), "/spec/template");
        assert_eq!(Kinds::with(&[kind]).by_resource("apps.kruise.io", "clonesets").unwrap().kind, "CloneSet");
        for known in Kinds::default().iter() {
            assert_eq!(Kinds::default().by_resource(&known.group, &known.plural), Some(known));
        }
        assert_eq!(Kinds::default().by_resource("", "deployments"), None);
        let core: WorkloadKind = "/v1/podtemplates/PodTemplate=template".parse().unwrap();
        assert_eq!((core.api_version().as_str(), core.template_pointer().as_str()), ("v1", "/template"));
        for text in [
            "",
            "./v1/bs/B=x",
            "a/v1/bs/B",
            "a/v1/bs=spec",
            "a/v1/bs/B=",
            "a/v1/bs/B=x..y",
            "a b/v1/bs/B=x",
            "a/v1/bs/B/C=x",
        ] {
            assert_eq!(text.parse::<WorkloadKind>(), Err(KindFormatError), "{text}");
        }
    }
}
