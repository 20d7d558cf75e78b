//! What Reloader's annotations say, and what it leaves in templates: as its documentation and its source state, version 1.4.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    followed::Followed,
    migration::{Migration, Tool, texts},
};
use crate::{
    annotations,
    resolve::{RELOADER, parse_duration, reloader_reads_true},
    snapshot::{ObjectName, SourceKind},
};

/// The start of the variables that it adds to containers.
const VARIABLE: &str = "STAKATER_";
/// The ends of these variables: the kind of the object that changed.
const KINDS: [&str; 3] = ["_CONFIGMAP", "_SECRET", "_SECRETPROVIDERCLASS"];

/// An annotation: the part of its key before the domain, that behind it, the whole key, and its text.
type Annotation<'v> = (&'v str, &'v str, &'v str, &'v str);

impl Migration {
    /// Adds what is Reloader's.
    pub(super) fn read_reloader(&mut self, value: &Value, template: &Value, sources: &BTreeSet<ObjectName>) {
        let own: Vec<_> = of_reloader(&value["metadata"]["annotations"]).collect();
        let of_template: Vec<_> = of_reloader(&template["metadata"]["annotations"]).collect();
        // Reloader reads these of the template if the workload has none.
        let decides = |annotation: &&Annotation<'_>| {
            let (prefix, name, ..) = annotation;
            matches!(*name, "auto" | "search") || *name == "reload" && !prefix.ends_with("exclude")
        };
        let inside: Vec<_> = of_template.iter().filter(decides).collect();
        for (_, _, key, text) in &of_template {
            self.leave_annotation(Tool::Reloader, key, text);
        }
        if !inside.is_empty() {
            if own.iter().any(|annotation| decides(&annotation)) {
                self.block(
                    "Reloader's annotations are on it and in its pod template: remove those of one place",
                );
            }
            self.need_restart(
                "Reloader's annotations are in its pod template: give --opt-in to accept a restart",
            );
        }
        let (mut follows, mut said_by) = (Followed::default(), Vec::new());
        for annotation @ (prefix, name, key, text) in own.iter().chain(inside) {
            let in_template = !own.contains(annotation);
            if follows.read(prefix, name, text) {
                let position = self.find(Tool::Reloader, format!("{key}: {text}"), "");
                said_by.push(position);
            } else if !self.read_other_setting(value, annotation) {
                continue;
            }
            if !in_template {
                self.take(key, text);
            }
        }
        self.find_variables(template);
        for name in follows.names.iter().filter(|name| !sources.contains(*name)) {
            let mount = if name.kind == SourceKind::ConfigMap {
                format!(" ({} mounts it)", annotations::MOUNT)
            } else {
                String::new()
            };
            self.block(format!(
                "Reloader follows {name}, which its template does not use: use it{mount}, or remove the name"
            ));
        }
        if !said_by.is_empty() {
            self.follow(follows, said_by);
        }
    }

    /// Adds an annotation of Reloader that does not say which sources it follows. Whether the annotation goes.
    fn read_other_setting(&mut self, value: &Value, (prefix, name, key, text): &Annotation<'_>) -> bool {
        let what = format!("{key}: {text}");
        match (*prefix, *name) {
            ("" | "configmap" | "secret", "auto") => {
                let position = self.find(Tool::Reloader, what, "");
                self.keep_away(position);
                return false;
            }
            ("deployment", "paused-at") => {
                self.block(format!("Reloader has paused it ({key}): wait until it continues"));
                self.find(Tool::Reloader, what, "nothing before Reloader continues it");
            }
            ("deployment", "pause-period")
                if value["kind"] == "Deployment" && parse_duration(text).is_some() =>
            {
                self.set(value, annotations::MIN_INTERVAL, text);
                self.find(Tool::Reloader, what, format!("{}: {text}", annotations::MIN_INTERVAL));
            }
            ("deployment", "pause-period") => {
                self.find(Tool::Reloader, what, "nothing: Reloader does not use it");
            }
            ("", "rollout-strategy") => {
                self.find(Tool::Reloader, what, "nothing: confrev changes the template");
            }
            _ => {
                self.block(format!("confrev has nothing for {key}: remove it first"));
                self.find(Tool::Reloader, what, "nothing");
            }
        }
        true
    }

    fn find_variables(&mut self, template: &Value) {
        for list in ["containers", "initContainers"] {
            let containers = template["spec"][list].as_array().into_iter().flatten().enumerate();
            for (i, container) in containers {
                let variables = container["env"].as_array().into_iter().flatten().enumerate();
                for (j, variable) in variables.filter(|(_, variable)| variable["value"].is_string()) {
                    let name = variable["name"].as_str().unwrap_or_default();
                    if name.starts_with(VARIABLE) && KINDS.iter().any(|kind| name.ends_with(kind)) {
                        let of = container["name"].as_str().unwrap_or_default();
                        self.leave_variable(Tool::Reloader, format!("/spec/{list}/{i}/env/{j}"), name, of);
                    }
                }
            }
        }
    }
}

/// Whether Reloader reads an annotation of a source as true.
pub(super) fn is_marked(source: &Value, name: &str) -> bool {
    let text = source["metadata"]["annotations"][format!("{RELOADER}/{name}")].as_str();
    text.is_some_and(|text| reloader_reads_true(name, text))
}

/// Reloader's annotations of a map.
pub(super) fn of_reloader(map: &Value) -> impl Iterator<Item = Annotation<'_>> {
    texts(map).filter_map(|(key, text)| {
        let (prefix, name) = key.split_once(RELOADER)?;
        Some((prefix.trim_end_matches('.'), name.strip_prefix('/')?, key, text))
    })
}
