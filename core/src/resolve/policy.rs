//! The annotations by which users configure confrev for a workload or a source.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Workload,
    exclusions::Exclusions,
    mount::{self, Mount},
    values::{DURATIONS, MissingPolicy, parse_duration, parse_missing, parse_on_undo, parse_source},
};
use crate::{
    annotations,
    gate_settings::Texts,
    snapshot::{ObjectName, SourceKind},
};

/// The default minimum time between two automatic rolls.
pub const DEFAULT_MIN_INTERVAL: Duration = Duration::from_secs(10);
/// How long a rollout may take by default, if the workload's controller has no deadline.
const DEFAULT_PROGRESS_DEADLINE: Duration = Duration::from_mins(10);
/// How many of a source's newest snapshots are kept by default.
const DEFAULT_KEEP: usize = 1;
/// The largest `keep`. Each snapshot costs an object in etcd.
const MAX_KEEP: usize = 1000;

/// The settings in a workload's annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Snapshot Secrets too; `None` leaves it to the namespace.
    pub secrets: Option<bool>,
    /// References that stay as written.
    pub exclude: Exclusions,
    /// Roll automatically when a source changes.
    pub track: bool,
    /// How admission reacts to a missing object or key.
    pub missing: MissingPolicy,
    /// The minimum time between two automatic rolls.
    pub min_interval: Duration,
    /// Lower values move first. Without it, that of the namespace counts.
    pub order: Option<i32>,
    /// How long a rollout may take, if the workload's controller has no deadline.
    pub progress_deadline: Duration,
    /// ConfigMaps to mount in every container.
    pub mount: Option<Mount>,
    /// The snapshots to which the references to their sources resolve.
    pub hold: BTreeSet<ObjectName>,
    /// Whether every undo becomes a hold.
    pub holds_undos: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            secrets: None,
            exclude: Exclusions::default(),
            track: true,
            missing: MissingPolicy::default(),
            min_interval: DEFAULT_MIN_INTERVAL,
            order: None,
            progress_deadline: DEFAULT_PROGRESS_DEADLINE,
            mount: None,
            hold: BTreeSet::new(),
            holds_undos: false,
        }
    }
}

impl Policy {
    /// Reads a workload's annotations, and what it inherits. Returns one error for each malformed annotation, with its value and the allowed values;
    /// the policy then holds the default for it.
    ///
    /// # Example
    ///
    /// ```
    /// # use confrev_core::{kinds::Kinds, resolve::{Policy, Workload}};
    /// let kinds = Kinds::default();
    /// let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
    /// let text = r#"{"metadata": {"name": "web", "annotations": {
    ///     "confrev.dev/min-interval": "5m", "confrev.dev/track": "maybe"
    /// }}}"#;
    /// let (policy, errors) = Policy::read(&Workload::parse(kind, text)?);
    /// assert_eq!(policy.min_interval.as_secs(), 300);
    /// assert!(policy.track, "the default");
    /// assert!(errors[0].contains("\"maybe\" is not allowed"), "{errors:?}");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn read(workload: &Workload<'_>) -> (Self, Vec<String>) {
        let mut errors = Vec::new();
        let mut policy = Self::default();
        let mut read = |key: &str, set: &mut dyn FnMut(&str) -> Result<(), &'static str>| {
            if let Some(value) = workload.setting(key)
                && let Err(allowed) = set(value)
            {
                errors.push(format!("annotation {key}: {value:?} is not allowed, use {allowed}"));
            }
        };
        read(annotations::SECRETS, &mut |value| set(&mut policy.secrets, parse_bool(value).map(Some)));
        read(annotations::EXCLUDE, &mut |_| {
            let lists = [workload.inherited(annotations::EXCLUDE), workload.annotation(annotations::EXCLUDE)];
            set(&mut policy.exclude, Exclusions::read(lists.into_iter().flatten()))
        });
        read(annotations::TRACK, &mut |value| set(&mut policy.track, parse_bool(value)));
        read(annotations::MISSING, &mut |value| set(&mut policy.missing, parse_missing(value)));
        read(annotations::MIN_INTERVAL, &mut |value| {
            let parsed = parse_duration(value).ok_or(DURATIONS);
            set(&mut policy.min_interval, parsed)
        });
        read(annotations::ORDER, &mut |value| set(&mut policy.order, parse_order(value).map(Some)));
        read(annotations::PROGRESS_DEADLINE, &mut |value| {
            let parsed = parse_duration(value).filter(|deadline| !deadline.is_zero());
            set(&mut policy.progress_deadline, parsed.ok_or("a duration such as \"5m\" or \"1h30m\""))
        });
        read(annotations::MOUNT, &mut |value| set(&mut policy.mount, Mount::parse(value).map(Some)));
        read(annotations::HOLD, &mut |value| set(&mut policy.hold, parse_hold(value)));
        read(annotations::ON_UNDO, &mut |value| set(&mut policy.holds_undos, parse_on_undo(value)));
        errors.extend(Texts::read(|key| workload.annotation(key)).invalid());
        errors.extend(policy.mount.as_ref().and_then(|_| mount::in_the_way(workload)));
        (policy, errors)
    }
}

/// Reads the annotation `order` of a workload or Namespace. An error has the values that are allowed.
fn parse_order(text: &str) -> Result<i32, &'static str> {
    text.parse().map_err(|_| "a whole number such as \"-1\", \"0\" or \"10\"")
}

/// Reads the annotation `order` of a Namespace. An error says why it cannot be followed.
///
/// ```
/// # use confrev_core::resolve::order_of_namespace;
/// assert_eq!(order_of_namespace("shop", "-1"), Ok(-1));
/// assert!(order_of_namespace("shop", "first").is_err_and(|why| why.starts_with("Namespace \"shop\": annotation")));
/// ```
pub fn order_of_namespace(namespace: &str, text: &str) -> Result<i32, String> {
    parse_order(text).map_err(|allowed| {
        let key = annotations::ORDER;
        format!("Namespace {namespace:?}: annotation {key}: {text:?} is not allowed, use {allowed}")
    })
}

fn set<T>(field: &mut T, parsed: Result<T, &'static str>) -> Result<(), &'static str> {
    *field = parsed?;
    Ok(())
}

fn parse_bool(value: &str) -> Result<bool, &'static str> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("\"true\" or \"false\""),
    }
}

/// Reads the names of a hold; none is an error, since a hold that holds nothing would mislead.
fn parse_hold(value: &str) -> Result<BTreeSet<ObjectName>, &'static str> {
    parse_names(value)
        .filter(|names| !names.is_empty())
        .ok_or("names of snapshots, and of snapshots of Secrets as secret/NAME, separated by commas")
}

/// The text of a hold of these snapshots.
pub fn hold_text<'n>(snapshots: impl IntoIterator<Item = &'n ObjectName>) -> String {
    let name = |snapshot: &ObjectName| match snapshot.kind {
        SourceKind::ConfigMap => snapshot.name.to_string(),
        SourceKind::Secret => format!("secret/{}", snapshot.name),
    };
    snapshots.into_iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Reads names of ConfigMaps, and of Secrets as `secret/NAME`, separated by commas; `None` if one is malformed.
fn parse_names(value: &str) -> Option<BTreeSet<ObjectName>> {
    let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(parse_source).collect()
}

/// Reads a source's `keep`; `None` if it is not a count in range.
pub fn parse_keep(annotation: Option<&str>) -> Option<usize> {
    match annotation {
        None => Some(DEFAULT_KEEP),
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().ok().filter(|keep| *keep <= MAX_KEEP)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_names_at_least_one_snapshot() {
        let parsed = parse_hold("demo-3a18d34e26,secret/db-1 ").unwrap();
        assert_eq!(hold_text(&parsed), "demo-3a18d34e26, secret/db-1");
        assert_eq!(parse_hold(&hold_text(&parsed)), Ok(parsed));
        for text in ["", " , ", "A", "pod/a", "secret/", "demo-*"] {
            assert!(parse_hold(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keep_is_a_count_in_range() {
        assert_eq!(parse_keep(None), Some(1));
        assert_eq!(parse_keep(Some("3")), Some(3));
        for text in ["", "-1", "+1", "1001", "x", "1.0"] {
            assert_eq!(parse_keep(Some(text)), None, "{text}");
        }
    }
}
