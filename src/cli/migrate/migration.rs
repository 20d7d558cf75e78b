//! How a workload comes from other tools: what was found, and the write.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::followed::{Followed, Matching};
use crate::{
    annotations::{self, pointer_token},
    resolve::Workload,
    snapshot::{ObjectName, SourceKind},
};

/// A tool from which a workload can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tool {
    /// Stakater Reloader: annotations, and what it adds to templates.
    Reloader,
    /// Wave: an annotation, and the hash that it adds to templates.
    Wave,
    /// The `checksum/` annotations of Helm charts.
    Checksum,
    /// The hashes at the end of names that kustomize generates.
    Kustomize,
}

/// One thing of another tool, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The tool.
    pub(super) tool: Tool,
    /// Where it is, and what.
    pub(super) what: String,
    /// What replaces it, or what to do about it.
    pub(super) becomes: String,
}

/// How a workload comes from other tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Migration {
    /// What was found.
    pub(super) found: Vec<Found>,
    /// Why it cannot be migrated now.
    pub(super) blocked: Option<String>,
    /// Whether a tool rolled it, so that confrev is to.
    pub(super) joins: bool,
    /// Whether a tool leaves it alone because of an annotation, so that confrev is to do the same.
    pub(super) stays_out: bool,
    /// The annotations of the workload that go.
    removed: BTreeSet<String>,
    /// The settings that it gets.
    pub(super) settings: BTreeMap<&'static str, String>,
    /// The JSON pointers, below the template, of what a tool left there. Items of a list come in the order of the list.
    pub(super) left: Vec<String>,
}

/// What becomes of something that does no harm.
pub(super) const LEFT: &str = "stays; --opt-in removes it";

impl Migration {
    /// The write, as operations of a JSON patch. With `opt_in`, it opts the workload in by its own label, and removes what a tool left
    /// in the template; otherwise it touches annotations alone. Empty if nothing changes.
    pub(super) fn patch(&self, value: &Value, template: &str, opt_in: bool) -> Vec<Value> {
        let metadata = |key: &str| format!("/metadata/annotations/{}", pointer_token(key));
        let mut operations: Vec<_> =
            self.removed.iter().map(|key| json!({"op": "remove", "path": metadata(key)})).collect();
        if !self.settings.is_empty() && !value["metadata"]["annotations"].is_object() {
            operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        for (key, setting) in &self.settings {
            operations.push(json!({"op": "add", "path": metadata(key), "value": setting}));
        }
        let label = match (self.stays_out, opt_in && self.joins) {
            (true, _) => Some("false"),
            (false, true) => Some("true"),
            (false, false) => None,
        };
        if let Some(label) = label.filter(|label| value["metadata"]["labels"][annotations::ENABLED] != *label)
        {
            if !value["metadata"]["labels"].is_object() {
                operations.push(json!({"op": "add", "path": "/metadata/labels", "value": {}}));
            }
            let path = format!("/metadata/labels/{}", pointer_token(annotations::ENABLED));
            operations.push(json!({"op": "add", "path": path, "value": label}));
        }
        if opt_in && !self.stays_out {
            // From the end, so that the positions in a list stay.
            let left = self.left.iter().rev();
            operations.extend(left.map(|at| json!({"op": "remove", "path": format!("{template}{at}")})));
        }
        operations
    }

    /// Records what was found.
    pub(super) fn find(&mut self, tool: Tool, what: String, becomes: impl Into<String>) {
        self.found.push(Found { tool, what, becomes: becomes.into() });
    }

    /// Records what a tool follows as settings, and returns them in words.
    pub(super) fn follow(
        &mut self,
        follows: &Followed,
        sources: &BTreeSet<ObjectName>,
        matching: &Matching,
    ) -> String {
        if let Some(pattern) = follows.patterns.first() {
            self.blocked = Some(format!("{pattern} is a regular expression: give the names that it matches"));
            return "nothing: list the names".to_owned();
        }
        let is_unknown = |source: &ObjectName| matching.is_none() && follows.depends_on_marks(source);
        if let Some(source) = sources.iter().find(|source| is_unknown(source)) {
            let why = format!(
                "you may not list {}: whether Reloader follows {source} is not known",
                source.kind.plural()
            );
            self.blocked = Some(why);
            return "not known".to_owned();
        }
        let is_followed = |source: &ObjectName| follows.contains(source, matching);
        let followed: BTreeSet<_> = sources.iter().filter(|source| is_followed(source)).collect();
        if followed.is_empty() {
            return "nothing: it follows no source of its template".to_owned();
        }
        self.joins = true;
        let secrets = followed.iter().any(|source| source.kind == SourceKind::Secret);
        let mut words = vec!["opted in".to_owned()];
        let mut set = |key: &'static str, value: String| {
            words.push(format!("{key}: {value}"));
            self.settings.insert(key, value);
        };
        if secrets {
            set(annotations::SECRETS, "true".to_owned());
        }
        // Without the annotation for Secrets, those are left as written anyway.
        let is_excluded = |source: &&ObjectName| {
            !followed.contains(source) && (secrets || source.kind == SourceKind::ConfigMap)
        };
        let excluded: Vec<_> = sources.iter().filter(is_excluded).map(exclusion).collect();
        if !excluded.is_empty() {
            set(annotations::EXCLUDE, excluded.join(", "));
        }
        words.join("; ")
    }

    /// The annotation goes with the write. In the template, it stays until pods restart anyway.
    pub(super) fn take(&mut self, key: &str, is_own: bool) {
        if is_own {
            self.removed.insert(key.to_owned());
        } else {
            self.left.push(annotation_below_template(key));
        }
    }

    /// What the workload's owner has set stays. Exclusions add up.
    pub(super) fn keep_own_settings(&mut self, workload: &Workload<'_>) {
        let own = |key: &str| workload.annotation(key).filter(|text| !text.trim().is_empty());
        if let (Some(more), Some(own)) =
            (self.settings.get_mut(annotations::EXCLUDE), own(annotations::EXCLUDE))
        {
            *more = format!("{own}, {more}");
        }
        self.settings.retain(|key, _| *key == annotations::EXCLUDE || own(key).is_none());
    }
}

/// The keys and values of a map of texts.
pub(super) fn texts(map: &Value) -> impl Iterator<Item = (&str, &str)> {
    map.as_object().into_iter().flatten().filter_map(|(key, text)| Some((&**key, text.as_str()?)))
}

pub(super) fn annotation_below_template(key: &str) -> String {
    format!("/metadata/annotations/{}", pointer_token(key))
}

pub(super) fn what_of_template(key: &str) -> String {
    format!("{key} in the pod template")
}

/// A source as `confrev.dev/exclude` names it.
pub(super) fn exclusion(source: &ObjectName) -> String {
    match source.kind {
        SourceKind::ConfigMap => source.name.to_string(),
        SourceKind::Secret => format!("secret/{}", source.name),
    }
}
