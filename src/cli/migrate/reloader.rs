//! What Reloader's annotations say, and what it leaves in templates: as its documentation of version 1.4 states.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    followed::{Followed, Matching},
    migration::{LEFT, Migration, Tool, texts, what_of_template},
};
use crate::{annotations, resolve::parse_duration, snapshot::ObjectName};

/// The end of all annotations of Reloader.
pub(super) const RELOADER: &str = "reloader.stakater.com";
/// The start of the variables that it adds to containers.
const VARIABLE: &str = "STAKATER_";

impl Migration {
    /// Adds what is Reloader's.
    pub(super) fn read_reloader(
        &mut self,
        value: &Value,
        template: &Value,
        sources: &BTreeSet<ObjectName>,
        matching: &Matching,
    ) {
        let own = texts(&value["metadata"]["annotations"]).map(|of| (true, of));
        // Reloader reads the annotations of the template if the workload has none.
        let of_template = texts(&template["metadata"]["annotations"]).map(|of| (false, of));
        let (mut follows, mut following) = (Followed::default(), Vec::new());
        for (is_own, (key, text)) in own.chain(of_template) {
            let Some((prefix, name)) = key.split_once(RELOADER) else { continue };
            let Some(name) = name.strip_prefix('/') else { continue };
            let prefix = prefix.trim_end_matches('.');
            if follows.read(prefix, name, text) {
                self.take(key, is_own);
                following.push(format!("{key}: {text}"));
            } else {
                self.read_other_setting((prefix, name), (key, text), is_own);
            }
        }
        self.find_variables(template);
        if !following.is_empty() {
            let becomes = self.follow(&follows, sources, matching);
            for what in following {
                self.find(Tool::Reloader, what, becomes.clone());
            }
        }
        for missing in follows.names.iter().filter(|name| !sources.contains(*name)) {
            let becomes =
                format!("nothing: the template does not use it; {} mounts a ConfigMap", annotations::MOUNT);
            self.find(Tool::Reloader, format!("{missing} in an annotation"), becomes);
        }
    }

    /// Adds an annotation of Reloader that does not say which sources it follows.
    fn read_other_setting(&mut self, name: (&str, &str), (key, text): (&str, &str), is_own: bool) {
        let mut what = format!("{key}: {text}");
        let becomes = match name {
            ("", "last-reloaded-from") => {
                what = what_of_template(key);
                LEFT.to_owned()
            }
            ("", "auto") => {
                self.stays_out = true;
                format!("label {}: \"false\"", annotations::ENABLED)
            }
            ("deployment", "paused-at") => {
                self.blocked = Some(format!("Reloader has paused it ({key}): wait until it continues"));
                "nothing before Reloader continues it".to_owned()
            }
            ("deployment", "pause-period") if parse_duration(text).is_some() => {
                self.settings.insert(annotations::MIN_INTERVAL, text.to_owned());
                format!("{}: {text}", annotations::MIN_INTERVAL)
            }
            ("deployment", "pause-period") => "nothing: it is not a duration".to_owned(),
            // It says how Reloader restarts pods.
            _ => "nothing: confrev changes the template".to_owned(),
        };
        // Reloader needs this one: with --auto-reload-all, it restarts every other workload.
        if name != ("", "auto") {
            self.take(key, is_own);
        }
        self.find(Tool::Reloader, what, becomes);
    }

    fn find_variables(&mut self, template: &Value) {
        for list in ["containers", "initContainers"] {
            let containers = template["spec"][list].as_array().into_iter().flatten().enumerate();
            for (i, container) in containers {
                let variables = container["env"].as_array().into_iter().flatten().enumerate();
                for (j, variable) in variables {
                    let name = variable["name"].as_str().unwrap_or_default();
                    if name.starts_with(VARIABLE) && variable["value"].is_string() {
                        self.left.push(format!("/spec/{list}/{i}/env/{j}"));
                        let of = container["name"].as_str().unwrap_or_default();
                        self.find(Tool::Reloader, format!("variable {name} of container {of}"), LEFT);
                    }
                }
            }
        }
    }
}
