//! What other tools write on workloads, and what replaces it. The keys and their meaning are those that the tools' own documentation
//! states: Wave 0.7, the names of Helm's guide for charts, kustomize 5.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    followed::{Followed, Matching},
    migration::{LEFT, Migration, Tool, annotation_below_template, texts, what_of_template},
};
use crate::{annotations, resolve::Workload, snapshot::ObjectName, template::Template};

/// The annotation by which Wave finds its workloads.
const WAVE: &str = "wave.pusher.com/update-on-config-change";
/// The start of all annotations of Wave.
const WAVES: &str = "wave.pusher.com/";

impl Migration {
    /// What becomes of a workload, given as `workload` and as `value`.
    pub(super) fn of(workload: &Workload<'_>, value: &Value, tools: &[Tool], matching: &Matching) -> Self {
        let template = value.pointer(&workload.kind.template_pointer()).unwrap_or(&Value::Null);
        let mut migration = Self::default();
        let sources = referenced(workload);
        for tool in tools {
            match tool {
                Tool::Reloader => migration.read_reloader(value, template, &sources, matching),
                Tool::Wave => migration.read_wave(value, template, &sources),
                Tool::Checksum => migration.read_checksums(template),
                Tool::Kustomize => migration.read_hashes(&sources),
            }
        }
        migration.keep_own_settings(workload);
        migration
    }

    fn read_wave(&mut self, value: &Value, template: &Value, sources: &BTreeSet<ObjectName>) {
        for (key, text) in texts(&value["metadata"]["annotations"]).filter(|(key, _)| key.starts_with(WAVES))
        {
            let what = format!("{key}: {text}");
            if key != WAVE {
                self.find(Tool::Wave, what, "nothing: confrev follows the sources of the template");
            } else if text == "true" {
                let becomes = self.follow(&Followed::everything(), sources, &None);
                self.find(Tool::Wave, what, becomes);
            } else {
                self.find(Tool::Wave, what, "nothing");
            }
            self.take(key, true);
        }
        let of_template = texts(&template["metadata"]["annotations"]);
        for (key, _) in of_template.filter(|(key, _)| key.starts_with(WAVES)) {
            self.left.push(annotation_below_template(key));
            self.find(Tool::Wave, what_of_template(key), LEFT);
        }
        let finalizers = value["metadata"]["finalizers"].as_array().into_iter().flatten();
        for finalizer in finalizers.filter_map(Value::as_str).filter(|name| name.starts_with(WAVES)) {
            let becomes = "Wave removes it while it runs: uninstall Wave afterwards";
            self.find(Tool::Wave, format!("finalizer {finalizer}"), becomes);
        }
    }

    fn read_checksums(&mut self, template: &Value) {
        let of_template = texts(&template["metadata"]["annotations"]);
        for (key, _) in of_template.filter(|(key, _)| key.starts_with("checksum/")) {
            let becomes = "stays; remove it from the chart before you set waves or other limits";
            self.find(Tool::Checksum, what_of_template(key), becomes);
        }
    }

    fn read_hashes(&mut self, sources: &BTreeSet<ObjectName>) {
        for source in sources.iter().filter(|source| has_hash(&source.name)) {
            let becomes = format!("label {}: bind on it, by generatorOptions", annotations::ENABLED);
            self.find(Tool::Kustomize, format!("name of {source}"), becomes);
        }
    }
}

/// The sources of a template, by the names that people gave them.
fn referenced(workload: &Workload<'_>) -> BTreeSet<ObjectName> {
    let entered = workload.sources();
    let references = workload.template.as_ref().map(Template::references).unwrap_or_default();
    let named = references.iter().map(|reference| {
        let source = entered.source_of(reference.kind, reference.name).cloned();
        source.unwrap_or_else(|| ObjectName::new(reference.kind, reference.name))
    });
    named.collect()
}

/// Whether a name ends as those that kustomize generates: ten hex digits, some of which it replaces by consonants
/// (`sigs.k8s.io/kustomize/api/hasher`).
fn has_hash(name: &str) -> bool {
    let hash = name.rsplit_once('-').map(|(_, hash)| hash);
    hash.is_some_and(|hash| hash.len() == 10 && hash.chars().all(|digit| "2456789bcdfghkmt".contains(digit)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{kinds::Kinds, snapshot::SourceKind};

    const EVERY: [Tool; 4] = [Tool::Reloader, Tool::Wave, Tool::Checksum, Tool::Kustomize];
    const TEMPLATE: &str = "/spec/template";

    /// A Deployment that uses ConfigMaps demo and other, and Secret keys.
    fn deployment(annotations: &Value) -> Value {
        let reference = |field: &str, name: &str| json!({field: {"name": name}});
        json!({
            "kind": "Deployment",
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {"template": {"metadata": {}, "spec": {"containers": [{"name": "app", "envFrom": [
                reference("configMapRef", "demo"),
                reference("configMapRef", "other"),
                reference("secretRef", "keys"),
            ]}]}}},
        })
    }

    fn migration(value: &Value, matching: &Matching) -> Migration {
        let kinds = Kinds::default();
        let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
        Migration::of(&Workload::read(kind, value).unwrap(), value, &EVERY, matching)
    }

    /// The object after the write.
    fn then(value: &Value, migration: &Migration, opt_in: bool) -> Value {
        let patch = Value::Array(migration.patch(value, TEMPLATE, opt_in));
        let mut then = value.clone();
        json_patch::patch(&mut then, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        then
    }

    #[test]
    fn settings_follow_the_same_sources_as_the_tool() {
        let (secrets, exclude, interval) =
            (annotations::SECRETS, annotations::EXCLUDE, annotations::MIN_INTERVAL);
        let other = || Some(BTreeSet::from([ObjectName::new(SourceKind::ConfigMap, "other")]));
        for (own, matching, expected) in [
            (json!({"reloader.stakater.com/auto": "true"}), None, json!({secrets: "true"})),
            (json!({"configmap.reloader.stakater.com/auto": "true"}), None, json!({})),
            (
                json!({"secret.reloader.stakater.com/auto": "true"}),
                None,
                json!({secrets: "true", exclude: "demo, other"}),
            ),
            (json!({"configmap.reloader.stakater.com/reload": "demo"}), None, json!({exclude: "other"})),
            (
                json!({"configmap.reloader.stakater.com/reload": "demo , other", "secret.reloader.stakater.com/reload": "keys"}),
                None,
                json!({secrets: "true"}),
            ),
            (json!({"reloader.stakater.com/search": "true"}), other(), json!({exclude: "demo"})),
            (
                json!({"reloader.stakater.com/auto": "true", "secrets.exclude.reloader.stakater.com/reload": "keys"}),
                None,
                json!({}),
            ),
            (
                json!({"reloader.stakater.com/auto": "true", "deployment.reloader.stakater.com/pause-period": "5m", secrets: "false"}),
                None,
                json!({interval: "5m", secrets: "false"}),
            ),
            (
                json!({"configmap.reloader.stakater.com/reload": "demo", exclude: "third"}),
                None,
                json!({exclude: "third, other"}),
            ),
            (
                json!({"reloader.stakater.com/auto": "true", "reloader.stakater.com/rollout-strategy": "restart", "mine": "1"}),
                None,
                json!({secrets: "true", "mine": "1"}),
            ),
            (json!({"wave.pusher.com/update-on-config-change": "true"}), None, json!({secrets: "true"})),
        ] {
            let value = deployment(&own);
            let migration = migration(&value, &matching);
            assert_eq!(migration.blocked, None, "{own}");
            let quiet = then(&value, &migration, false);
            assert_eq!(quiet["metadata"]["annotations"], expected, "{own}");
            assert_eq!(quiet["spec"], value["spec"], "{own}");
            assert_eq!(quiet["metadata"]["labels"], Value::Null, "{own}: its namespace opts it in");
            let opted_in = then(&value, &migration, true);
            assert_eq!(opted_in["metadata"]["labels"], json!({annotations::ENABLED: "true"}), "{own}");
        }
    }

    #[test]
    fn workload_that_a_tool_leaves_alone_stays_out() {
        let value = deployment(&json!({"reloader.stakater.com/auto": "false"}));
        let then = then(&value, &migration(&value, &None), true);
        assert_eq!(then["metadata"]["labels"], json!({annotations::ENABLED: "false"}));
        assert_eq!(then["metadata"]["annotations"], value["metadata"]["annotations"]);
    }

    #[test]
    fn unclear_annotations_keep_a_workload_as_it_is() {
        for (own, why) in [
            (json!({"configmap.reloader.stakater.com/reload": "de.*"}), "de.* is a regular expression"),
            (json!({"reloader.stakater.com/search": "true"}), "you may not list configmaps"),
            (json!({"deployment.reloader.stakater.com/paused-at": "now"}), "Reloader has paused it"),
        ] {
            let blocked = migration(&deployment(&own), &None).blocked.unwrap();
            assert!(blocked.contains(why), "{blocked}");
        }
    }

    #[test]
    fn names_of_snapshots_become_those_of_sources() {
        let mut value = deployment(&json!({"configmap.reloader.stakater.com/reload": "demo"}));
        let entered = json!({"configmaps": {"other": "other-24689bcdf2"}}).to_string();
        value["spec"]["template"]["metadata"] = json!({"annotations": {annotations::SOURCES: entered}});
        value["spec"]["template"]["spec"]["containers"][0]["envFrom"][1]["configMapRef"]["name"] =
            "other-24689bcdf2".into();
        let migration = migration(&value, &None);
        assert_eq!(then(&value, &migration, false)["metadata"]["annotations"][annotations::EXCLUDE], "other");
        assert!(migration.found.iter().all(|found| found.tool == Tool::Reloader), "a snapshot has no hash");
    }

    #[test]
    fn remains_in_the_template_go_with_a_restart() {
        let mut value = deployment(&json!({"reloader.stakater.com/auto": "true"}));
        let variable = |name: &str| json!({"name": name, "value": "x"});
        let template = &mut value["spec"]["template"];
        template["metadata"] = json!({"annotations": {
            "checksum/config": "1", "reloader.stakater.com/last-reloaded-from": "{}", "wave.pusher.com/config-hash": "2",
        }});
        let container = &mut template["spec"]["containers"][0];
        container["env"] =
            json!(
                [variable("STAKATER_DEMO_CONFIGMAP"), variable("A"), variable("STAKATER_OTHER_CONFIGMAP"),]
            );
        let migration = migration(&value, &None);
        assert_eq!(then(&value, &migration, false)["spec"], value["spec"]);
        let opted_in = then(&value, &migration, true);
        let template = &opted_in["spec"]["template"];
        assert_eq!(template["metadata"], json!({"annotations": {"checksum/config": "1"}}));
        assert_eq!(template["spec"]["containers"][0]["env"], json!([variable("A")]));
    }

    #[test]
    fn finds_names_with_hashes_of_kustomize() {
        for (name, expected) in [
            ("demo-5bt4k2h8fc", true),
            ("demo-3a18d34e26", false),
            ("demo", false),
            ("5bt4k2h8fc", false),
            ("demo-5bt4k2h8fcc", false),
        ] {
            assert_eq!(has_hash(name), expected, "{name}");
        }
    }
}
