//! The labels that are copied from a source to its snapshots.

use std::str::FromStr;

use crate::annotations;

/// The longest name of a label, in bytes, without its prefix.
const MAX_LABEL_NAME: usize = 63;

/// Labels by which tools find the objects that they manage, or prune those that are no longer in Git. A snapshot with such a
/// label would be pruned. An entry that ends in `/` means every label with that prefix.
const TRACKING: [&str; 11] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "helm.sh/",
    "chart",
    "heritage",
    "release",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "applyset.kubernetes.io/",
    annotations::PREFIX,
];

/// The key of a label that is copied from a source to its snapshots, so that backup and policy tools treat both in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopiedLabel(String);

/// A label that cannot be copied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopiedLabelError {
    /// The API server would refuse the key.
    #[error("invalid label key {0:?}")]
    Malformed(String),
    /// A tool would treat the snapshot as its own.
    #[error("{0:?} is a tracking label of another tool, which would delete snapshots that have the label")]
    Tracking(String),
}

impl CopiedLabel {
    /// The labels to copy, with their values.
    pub(super) fn choose<'l>(
        copied: &'l [Self],
        labels: impl Fn(&str) -> Option<String> + 'l,
    ) -> impl Iterator<Item = (String, String)> + 'l {
        copied.iter().filter_map(move |Self(key)| Some((key.clone(), labels(key)?)))
    }
}

impl FromStr for CopiedLabel {
    type Err = CopiedLabelError;

    fn from_str(key: &str) -> Result<Self, Self::Err> {
        let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = name.as_bytes();
        let is_name = name.len() <= MAX_LABEL_NAME
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
        if !is_name || !prefix.is_none_or(super::is_object_name) {
            return Err(CopiedLabelError::Malformed(key.to_owned()));
        }
        let tracks = |label: &str| key == label || (label.ends_with('/') && key.starts_with(label));
        if TRACKING.into_iter().any(tracks) {
            return Err(CopiedLabelError::Tracking(key.to_owned()));
        }
        Ok(Self(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_labels_by_which_tools_track_objects() {
        for key in [
            "app.kubernetes.io/instance",
            "app.kubernetes.io/managed-by",
            "argocd.argoproj.io/instance",
            "helm.sh/chart",
            "heritage",
            "kustomize.toolkit.fluxcd.io/name",
            "applyset.kubernetes.io/part-of",
            "confrev.dev/enabled",
        ] {
            assert_eq!(key.parse::<CopiedLabel>(), Err(CopiedLabelError::Tracking(key.to_owned())));
        }
        for key in ["velero.io/exclude-from-backup", "team", "example.com/Tier_1"] {
            assert_eq!(key.parse(), Ok(CopiedLabel(key.to_owned())));
        }
        for key in ["", "/a", "a/", "a b", "-a", "A.example/b/c", "UPPER.example/a"] {
            assert_eq!(key.parse::<CopiedLabel>(), Err(CopiedLabelError::Malformed(key.to_owned())));
        }
    }
}
