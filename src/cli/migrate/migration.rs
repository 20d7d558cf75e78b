//! How a workload comes from other tools: what was found, and the write.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::followed::{Followed, Marks};
use crate::{
    annotations::{self, pointer_token},
    resolve::{Exclusions, NamespaceOptIn, hold_text},
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

/// A part of a template that a tool left: its JSON pointer below the template, and what is there.
#[derive(Clone, Debug)]
pub(super) struct Left {
    at: String,
    /// A JSON pointer below the part, and the value there by which it is recognised.
    known_by: (&'static str, Value),
}

/// How a workload comes from other tools.
#[derive(Clone, Debug, Default)]
pub(super) struct Migration {
    /// What was found.
    pub(super) found: Vec<Found>,
    /// Whether the workload gets `confrev.dev/secrets`.
    pub(super) asks_for_secrets: bool,
    /// Why it cannot be migrated now.
    blocked: Option<String>,
    /// Why it cannot be migrated without a restart.
    needs_restart: Option<String>,
    /// What the tools follow.
    follows: Vec<Followed>,
    /// The positions in `found` of the annotations that name these sources.
    following: Vec<usize>,
    /// The position of an annotation that keeps a tool away.
    off: Option<usize>,
    /// Whether a tool rolls it, so that confrev is to.
    joins: bool,
    /// Whether no tool rolls it, so that confrev is not to either.
    stays_out: bool,
    /// The annotations of the workload that go, with their values.
    removed: BTreeMap<String, String>,
    /// The settings that it gets.
    settings: BTreeMap<&'static str, String>,
    /// What tools left in the template. Items of a list come in the order of the list.
    left: Vec<Left>,
}

/// What becomes of something that does no harm.
const STAYS: &str = "stays; --opt-in removes it";

impl Migration {
    /// Why it is not migrated, in a namespace that says this about its workloads; `None` if it is.
    pub(super) fn blocked(
        &self,
        value: &Value,
        opt_in: bool,
        namespace: Option<NamespaceOptIn>,
    ) -> Option<String> {
        let label = value["metadata"]["labels"][annotations::ENABLED].as_str();
        let key = annotations::ENABLED;
        if self.blocked.is_some() {
            return self.blocked.clone();
        }
        if self.joins && label == Some("false") {
            return Some(format!("its label {key}: \"false\" keeps it out"));
        }
        let stays_in_template = self.joins && self.needs_restart.is_some();
        if opt_in || self.removed.is_empty() && self.settings.is_empty() && !stays_in_template {
            return None;
        }
        let needs_restart = self.needs_restart.clone();
        needs_restart.or_else(|| match (self.joins, label, namespace) {
            (false, ..) | (true, None, Some(NamespaceOptIn::Next)) => None,
            (true, Some(_), _) => (!self.settings.is_empty()).then(|| {
                "it is opted in, so its settings would restart pods: give --opt-in to accept that".to_owned()
            }),
            (true, None, Some(NamespaceOptIn::Now)) => Some(
                "its namespace opts it in, so the write would restart pods: give --opt-in to accept that"
                    .to_owned(),
            ),
            (true, None, None) => Some(
                "its namespace may not opt it in: give the manifest of the namespace too, or --opt-in"
                    .to_owned(),
            ),
            (true, None, Some(NamespaceOptIn::Out)) => Some(format!(
                "no tool would roll it: label its namespace {key}=next before, or give --opt-in"
            )),
        })
    }

    /// The write, as operations of a JSON patch. With `opt_in`, it opts the workload in by its own label, and removes what a tool left
    /// in the template; otherwise it touches metadata alone. Empty if nothing changes.
    pub(super) fn patch(&self, value: &Value, template: &str, opt_in: bool) -> Vec<Value> {
        let annotation = |key: &str| format!("/metadata/annotations/{}", pointer_token(key));
        let mut operations = Vec::new();
        for (key, text) in &self.removed {
            operations.push(json!({"op": "test", "path": annotation(key), "value": text}));
            operations.push(json!({"op": "remove", "path": annotation(key)}));
        }
        let mut add = |map: &str, key: &str, text: &str| {
            if value["metadata"][map][key] == *text {
                return;
            }
            let path = format!("/metadata/{map}");
            let is_there = |operation: &Value| operation["path"] == *path;
            if !value["metadata"][map].is_object() && !operations.iter().any(is_there) {
                operations.push(json!({"op": "add", "path": path, "value": {}}));
            }
            operations
                .push(json!({"op": "add", "path": format!("{path}/{}", pointer_token(key)), "value": text}));
        };
        for (key, setting) in &self.settings {
            add("annotations", key, setting);
        }
        if self.stays_out {
            add("labels", annotations::ENABLED, "false");
        } else if opt_in && self.joins {
            add("labels", annotations::ENABLED, "true");
        }
        if opt_in && !self.stays_out {
            // From the end, so that the positions in a list stay.
            for Left { at, known_by: (below, known) } in self.left.iter().rev() {
                let path = format!("{template}{at}");
                operations.push(json!({"op": "test", "path": format!("{path}{below}"), "value": known}));
                operations.push(json!({"op": "remove", "path": path}));
            }
        }
        operations
    }

    /// Records what was found. Returns its position.
    pub(super) fn find(&mut self, tool: Tool, what: String, becomes: impl Into<String>) -> usize {
        self.found.push(Found { tool, what, becomes: becomes.into() });
        self.found.len() - 1
    }

    /// Records the sources that a tool follows, with the positions of the annotations that name them.
    pub(super) fn follow(&mut self, followed: Followed, said_by: impl IntoIterator<Item = usize>) {
        self.follows.push(followed);
        self.following.extend(said_by);
    }

    /// Records an annotation that keeps a tool away.
    pub(super) fn keep_away(&mut self, said_by: usize) {
        self.off = Some(said_by);
    }

    /// Keeps the workload as it is. The first reason stays.
    pub(super) fn block(&mut self, why: impl Into<String>) {
        self.blocked.get_or_insert_with(|| why.into());
    }

    /// Keeps the workload as it is unless it may restart.
    pub(super) fn need_restart(&mut self, why: &str) {
        self.needs_restart.get_or_insert_with(|| why.to_owned());
    }

    /// Sets a setting, unless its owner has.
    pub(super) fn set(&mut self, value: &Value, key: &'static str, text: &str) {
        let is_own = !value["metadata"]["annotations"][key].is_null();
        if !is_own {
            self.settings.insert(key, text.to_owned());
        }
    }

    /// Records an annotation of the workload that the write removes.
    pub(super) fn take(&mut self, key: &str, text: &str) {
        self.removed.insert(key.to_owned(), text.to_owned());
    }

    /// Records an annotation that a tool left in the template.
    pub(super) fn leave_annotation(&mut self, tool: Tool, key: &str, text: &str) {
        let at = format!("/metadata/annotations/{}", pointer_token(key));
        self.left.push(Left { at, known_by: ("", text.into()) });
        self.find(tool, format!("{key} in the pod template"), STAYS);
    }

    /// Records a variable that a tool left in a container, at this JSON pointer below the template.
    pub(super) fn leave_variable(&mut self, tool: Tool, at: String, name: &str, container: &str) {
        self.left.push(Left { at, known_by: ("/name", name.into()) });
        self.find(tool, format!("variable {name} of container {container}"), STAYS);
    }

    /// Derives the settings that follow the same sources as all tools together. `excluded`: what confrev leaves alone already.
    pub(super) fn settle(
        &mut self,
        value: &Value,
        sources: &BTreeSet<ObjectName>,
        excluded: &Exclusions,
        marks: &Marks,
    ) {
        let label = value["metadata"]["labels"][annotations::ENABLED].as_str();
        let becomes = self.follow_all(value, sources, excluded, marks);
        for position in std::mem::take(&mut self.following) {
            self.found[position].becomes.clone_from(&becomes);
        }
        if let Some(position) = self.off {
            self.stays_out |= !self.joins && label != Some("true");
            self.found[position].becomes = if self.stays_out {
                out()
            } else {
                "stays: with --auto-reload-all, Reloader rolls every workload without it".to_owned()
            };
        }
    }

    fn follow_all(
        &mut self,
        value: &Value,
        sources: &BTreeSet<ObjectName>,
        excluded: &Exclusions,
        marks: &Marks,
    ) -> String {
        if self.follows.is_empty() {
            return String::new();
        }
        if let Some(pattern) = self.follows.iter().find_map(|followed| followed.patterns.first()) {
            let why = format!("{pattern} is a regular expression: give the names that it matches");
            self.block(why);
            return "nothing before the names are listed".to_owned();
        }
        let mut followed = BTreeSet::new();
        for source in sources {
            let answers: Vec<_> = self.follows.iter().map(|of| of.follows(source, marks)).collect();
            if answers.contains(&Some(true)) {
                followed.insert(source);
            } else if answers.contains(&None) {
                self.block(format!(
                    "the annotations of {source} are not known, and say whether Reloader follows it"
                ));
                return "not known".to_owned();
            }
        }
        if self.follows.iter().any(Followed::only_excludes) {
            self.block(format!(
                "it has an effect only with --auto-reload-all: set {} in its place",
                annotations::EXCLUDE
            ));
            return "nothing before it is replaced".to_owned();
        }
        if followed.is_empty() && !self.follows.iter().any(Followed::is_open) {
            if value["metadata"]["labels"][annotations::ENABLED] == "true" {
                self.block("it is opted in, and the tool follows no source of its template");
            }
            self.stays_out = true;
            return out();
        }
        let kept =
            followed.iter().find(|source| excluded.names(source) || marks.left_alone.contains(**source));
        if let Some(source) = kept {
            self.block(format!("the tool follows {source}, which a setting of confrev leaves alone"));
        } else if !excluded.labels().is_empty() {
            self.block(format!(
                "its {} has labels: whether a source has them is not known",
                annotations::EXCLUDE
            ));
        }
        self.joins = true;
        let secrets = followed.iter().any(|source| source.kind == SourceKind::Secret);
        if secrets {
            self.set(value, annotations::SECRETS, "true");
            self.asks_for_secrets = self.settings.contains_key(annotations::SECRETS);
        }
        let own = value["metadata"]["annotations"][annotations::EXCLUDE].as_str().unwrap_or_default();
        let more = sources.iter().filter(|source| !followed.contains(source) && !excluded.names(source));
        let more: Vec<_> = more.map(|source| hold_text([source])).collect();
        if !more.is_empty() {
            let own = Some(own.trim()).filter(|own| !own.is_empty()).map(str::to_owned);
            let all: Vec<_> = own.into_iter().chain(more).collect();
            self.settings.insert(annotations::EXCLUDE, all.join(", "));
        }
        let of_sources = [annotations::SECRETS, annotations::EXCLUDE];
        let settings =
            of_sources.iter().filter_map(|key| Some(format!("; {key}: {}", self.settings.get(key)?)));
        format!("opted in{}", settings.collect::<String>())
    }
}

/// What becomes of a workload that no tool rolls.
fn out() -> String {
    format!("label {}: \"false\"", annotations::ENABLED)
}

/// The keys and values of a map of texts.
pub(super) fn texts(map: &Value) -> impl Iterator<Item = (&str, &str)> {
    map.as_object().into_iter().flatten().filter_map(|(key, text)| Some((&**key, text.as_str()?)))
}
