//! What other tools write on workloads, and what replaces it. The keys and their meaning are those that the tools' own documentation
//! states: Wave 0.7, the names of Helm's guide for charts, kustomize 5.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    followed::{Followed, Marks},
    migration::{Migration, Tool, texts},
};
use crate::{
    annotations,
    resolve::{Policy, WAVE, Workload},
    snapshot::{ObjectName, SourceKind},
    template::Template,
};

/// The start of all annotations of Wave.
const WAVES: &str = "wave.pusher.com/";

impl Migration {
    /// What becomes of a workload, given as `workload` and as `value`.
    pub(super) fn of(workload: &Workload<'_>, value: &Value, tools: &BTreeSet<Tool>, marks: &Marks) -> Self {
        let template = value.pointer(&workload.kind.template_pointer()).unwrap_or(&Value::Null);
        let mut migration = Self::default();
        let (policy, _) = Policy::read(workload);
        let sources = referenced(workload, &policy);
        for tool in tools {
            match tool {
                Tool::Reloader => migration.read_reloader(value, template, &sources),
                Tool::Wave => migration.read_wave(value, template),
                Tool::Checksum => migration.read_checksums(template),
                Tool::Kustomize => migration.read_hashes(&sources),
            }
        }
        migration.settle(value, &sources, &policy.exclude, marks);
        migration
    }

    fn read_wave(&mut self, value: &Value, template: &Value) {
        for (key, text) in texts(&value["metadata"]["annotations"]).filter(|(key, _)| key.starts_with(WAVES))
        {
            let what = format!("{key}: {text}");
            if key == WAVE {
                let position = self.find(Tool::Wave, what, "nothing");
                if text == "true" {
                    self.follow(Followed::everything(), [position]);
                }
                self.take(key, text);
            } else {
                // Wave acts on more than the template, or keeps pods from being scheduled.
                self.block(format!("confrev has nothing for {key}: remove it while Wave runs"));
                self.find(Tool::Wave, what, "nothing");
            }
        }
        let of_template = texts(&template["metadata"]["annotations"]);
        for (key, text) in of_template.filter(|(key, _)| key.starts_with(WAVES)) {
            self.leave_annotation(Tool::Wave, key, text);
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
            self.find(Tool::Checksum, format!("{key} in the pod template"), becomes);
        }
    }

    fn read_hashes(&mut self, sources: &BTreeSet<ObjectName>) {
        for source in sources.iter().filter(|source| has_hash(&source.name)) {
            let becomes = format!("label {}: bind on it, by generatorOptions", annotations::ENABLED);
            self.find(Tool::Kustomize, format!("name of {source}"), becomes);
        }
    }
}

/// The sources of a template and of the annotation `mount`, by the names that people gave them.
fn referenced(workload: &Workload<'_>, policy: &Policy) -> BTreeSet<ObjectName> {
    let entered = workload.sources();
    let references = workload.template.as_ref().map(Template::references).unwrap_or_default();
    let named = references.iter().map(|reference| {
        let source = entered.source_of(reference.kind, reference.name).cloned();
        source.unwrap_or_else(|| ObjectName::new(reference.kind, reference.name))
    });
    let mounted = policy.mount.iter().flat_map(|mount| &mount.names);
    named.chain(mounted.map(|name| ObjectName::new(SourceKind::ConfigMap, name.as_str()))).collect()
}

/// Whether a name ends as those that kustomize generates: ten hex digits, some of which it replaces by consonants
/// (`sigs.k8s.io/kustomize/api/hasher`).
fn has_hash(name: &str) -> bool {
    let hash = name.rsplit_once('-').map(|(_, hash)| hash);
    hash.is_some_and(|hash| hash.len() == 10 && hash.chars().all(|digit| "2456789bcdfghkmt".contains(digit)))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use serde_json::json;

    use super::*;
    use crate::{
        kinds::Kinds,
        resolve::NamespaceOptIn::{self, Next, Now, Out},
    };

    const TEMPLATE: &str = "/spec/template";
    const AUTO: &str = "reloader.stakater.com/auto";
    const NAMES: &str = "configmap.reloader.stakater.com/reload";
    const SEARCH: &str = "reloader.stakater.com/search";
    const ENABLED: &str = annotations::ENABLED;
    const SECRETS: &str = annotations::SECRETS;
    const EXCLUDE: &str = annotations::EXCLUDE;

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

    fn migration(value: &Value, marks: &Marks) -> Migration {
        let kinds = Kinds::default();
        let kind = kinds.by_kind("apps/v1", "Deployment").unwrap();
        let every = Tool::value_variants().iter().copied().collect();
        Migration::of(&Workload::read(kind, value).unwrap(), value, &every, marks)
    }

    /// The object after the write.
    fn then(value: &Value, migration: &Migration, opt_in: bool) -> Value {
        let patch = Value::Array(migration.patch(value, TEMPLATE, opt_in));
        let mut then = value.clone();
        json_patch::patch(&mut then, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
        then
    }

    fn config_map(name: &str) -> ObjectName {
        ObjectName::new(SourceKind::ConfigMap, name)
    }

    #[test]
    fn settings_follow_the_same_sources_as_the_tool() {
        let interval = annotations::MIN_INTERVAL;
        let marks = Marks {
            matching: [config_map("other")].into(),
            ignored: [ObjectName::new(SourceKind::Secret, "keys")].into(),
            ..Marks::default()
        };
        let none = Marks::default();
        for (own, marks, expected) in [
            (json!({AUTO: "true"}), &none, json!({SECRETS: "true"})),
            (json!({AUTO: "True"}), &none, json!({SECRETS: "true"})),
            (json!({AUTO: "true"}), &marks, json!({EXCLUDE: "secret/keys"})),
            (json!({"configmap.reloader.stakater.com/auto": "true"}), &none, json!({EXCLUDE: "secret/keys"})),
            (
                json!({"secret.reloader.stakater.com/auto": "true"}),
                &none,
                json!({SECRETS: "true", EXCLUDE: "demo, other"}),
            ),
            (json!({NAMES: "demo"}), &none, json!({EXCLUDE: "other, secret/keys"})),
            (
                json!({NAMES: "demo , other", "secret.reloader.stakater.com/reload": "keys"}),
                &none,
                json!({SECRETS: "true"}),
            ),
            (json!({SEARCH: "true"}), &marks, json!({EXCLUDE: "demo, secret/keys"})),
            (
                json!({AUTO: "true", "secrets.exclude.reloader.stakater.com/reload": "keys"}),
                &none,
                json!({EXCLUDE: "secret/keys"}),
            ),
            (
                json!({AUTO: "true", "deployment.reloader.stakater.com/pause-period": "5m", SECRETS: "false"}),
                &none,
                json!({interval: "5m", SECRETS: "false"}),
            ),
            (
                json!({NAMES: "demo", EXCLUDE: "third, other"}),
                &none,
                json!({EXCLUDE: "third, other, secret/keys"}),
            ),
            (json!({NAMES: "demo", WAVE: "true"}), &none, json!({SECRETS: "true"})),
            (
                json!({AUTO: "true", "reloader.stakater.com/rollout-strategy": "restart", "mine": "1"}),
                &none,
                json!({SECRETS: "true", "mine": "1"}),
            ),
            (json!({WAVE: "true"}), &marks, json!({SECRETS: "true"})),
            (
                json!({AUTO: "false", NAMES: "demo, other"}),
                &none,
                json!({AUTO: "false", EXCLUDE: "secret/keys"}),
            ),
        ] {
            let value = deployment(&own);
            let migration = migration(&value, marks);
            assert_eq!(migration.blocked(&value, false, Some(Next)), None, "{own}");
            let quiet = then(&value, &migration, false);
            assert_eq!(quiet["metadata"]["annotations"], expected, "{own}");
            assert_eq!(quiet["spec"], value["spec"], "{own}");
            assert_eq!(quiet["metadata"]["labels"], Value::Null, "{own}: its namespace opts it in");
            let opted_in = then(&value, &migration, true);
            assert_eq!(opted_in["metadata"]["labels"], json!({ENABLED: "true"}), "{own}");
        }
    }

    /// Also if annotations of a tool follow nothing.
    #[test]
    fn workload_that_no_tool_rolls_stays_out() {
        let typed = "configmap.reloader.stakater.com/auto";
        for own in
            [json!({AUTO: "false"}), json!({AUTO: "off"}), json!({typed: "false"}), json!({SEARCH: "true"})]
        {
            let value = deployment(&own);
            let migration = migration(&value, &Marks::default());
            let then = then(&value, &migration, true);
            assert_eq!(then["metadata"]["labels"], json!({ENABLED: "false"}), "{own}");
            for key in [AUTO, typed] {
                assert_eq!(then["metadata"]["annotations"][key], own[key], "{own}");
            }
        }
        let mut opted_in = deployment(&json!({AUTO: "false"}));
        opted_in["metadata"]["labels"] = json!({ENABLED: "true"});
        assert!(migration(&opted_in, &Marks::default()).patch(&opted_in, TEMPLATE, true).is_empty());
    }

    #[test]
    fn unclear_annotations_keep_a_workload_as_it_is() {
        let unread = Marks { unread: [SourceKind::Secret].into(), ..Marks::default() };
        let none = Marks::default();
        let elsewhere = Marks { only: Some(BTreeSet::new()), ..Marks::default() };
        let left_alone = Marks { left_alone: [config_map("demo")].into(), ..Marks::default() };
        for (own, marks, why) in [
            (json!({AUTO: "true"}), &left_alone, "a setting of confrev leaves alone"),
            (json!({NAMES: "demo", EXCLUDE: "de*"}), &none, "a setting of confrev leaves alone"),
            (json!({AUTO: "true", EXCLUDE: "team=*"}), &none, "has labels"),
            (
                json!({"configmaps.exclude.reloader.stakater.com/reload": "other"}),
                &none,
                "only with --auto-reload-all",
            ),
            (json!({NAMES: "de.*"}), &none, "de.* is a regular expression"),
            (json!({NAMES: "external"}), &none, "which its template does not use"),
            (json!({SEARCH: "true"}), &elsewhere, "annotations of ConfigMap \"demo\" are not known"),
            (json!({AUTO: "true"}), &unread, "annotations of Secret \"keys\" are not known"),
            (
                json!({AUTO: "true", "deployment.reloader.stakater.com/paused-at": "now"}),
                &none,
                "has paused it",
            ),
            (
                json!({"secretproviderclass.reloader.stakater.com/auto": "true"}),
                &none,
                "confrev has nothing for",
            ),
            (json!({WAVE: "true", "wave.pusher.com/scheduling-disabled": "true"}), &none, "while Wave runs"),
        ] {
            let value = deployment(&own);
            let blocked = migration(&value, marks).blocked(&value, true, Some(Now)).unwrap();
            assert!(blocked.contains(why), "{blocked}");
        }
        let sound = deployment(&json!({"configmap.reloader.stakater.com/auto": "true"}));
        assert_eq!(migration(&sound, &unread).blocked(&sound, true, Some(Now)), None);
    }

    /// Without a restart, a workload must be opted in already, or with its next deployment.
    #[test]
    fn writes_without_restart_leave_no_workload_alone() {
        let cases: [(Option<&str>, NamespaceOptIn, Value, Option<&str>); 7] = [
            (None, Next, json!({AUTO: "true"}), None),
            (None, Out, json!({AUTO: "true"}), Some("no tool would roll it")),
            (None, Now, json!({AUTO: "true"}), Some("its namespace opts it in")),
            (Some("true"), Out, json!({AUTO: "true", SECRETS: "true"}), None),
            (Some("true"), Out, json!({AUTO: "true"}), Some("settings would restart pods")),
            (Some("false"), Next, json!({AUTO: "true"}), Some("keeps it out")),
            (None, Out, json!({AUTO: "false"}), None),
        ];
        for (label, namespace, own, why) in cases {
            let mut value = deployment(&own);
            if let Some(label) = label {
                value["metadata"]["labels"] = json!({ENABLED: label});
            }
            let blocked = migration(&value, &Marks::default()).blocked(&value, false, Some(namespace));
            assert_eq!(blocked.is_some(), why.is_some(), "{label:?} {namespace:?} {own}: {blocked:?}");
            assert!(blocked.unwrap_or_default().contains(why.unwrap_or_default()), "{own}");
        }
        let mut inside = deployment(&json!({}));
        inside["spec"]["template"]["metadata"] = json!({"annotations": {AUTO: "true"}});
        let blocked = migration(&inside, &Marks::default()).blocked(&inside, false, Some(Next));
        assert!(blocked.unwrap().contains("in its pod template"));
        inside["metadata"]["annotations"] = json!({AUTO: "true"});
        let both = migration(&inside, &Marks::default()).blocked(&inside, true, Some(Next)).unwrap();
        assert!(both.contains("remove those of one place"), "{both}");
        inside["metadata"]["annotations"] = json!({});
        let found = migration(&inside, &Marks::default());
        assert_eq!(then(&inside, &found, true)["metadata"]["labels"], json!({ENABLED: "true"}));
    }

    /// A reference that comes later is followed, as the tool would.
    #[test]
    fn workload_without_sources_is_opted_in() {
        for own in [json!({AUTO: "true"}), json!({WAVE: "true"})] {
            let mut value = deployment(&own);
            value["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!([]);
            let found = migration(&value, &Marks::default());
            assert_eq!(then(&value, &found, true)["metadata"]["labels"], json!({ENABLED: "true"}), "{own}");
        }
        let named = deployment(&json!({NAMES: "demo, third", annotations::MOUNT: "third"}));
        assert_eq!(migration(&named, &Marks::default()).blocked(&named, true, None), None, "it is mounted");
    }

    #[test]
    fn names_of_snapshots_become_those_of_sources() {
        let mut value = deployment(&json!({NAMES: "demo"}));
        let entered = json!({"configmaps": {"other": "other-24689bcdf2"}}).to_string();
        value["spec"]["template"]["metadata"] = json!({"annotations": {annotations::SOURCES: entered}});
        value["spec"]["template"]["spec"]["containers"][0]["envFrom"][1]["configMapRef"]["name"] =
            "other-24689bcdf2".into();
        let migration = migration(&value, &Marks::default());
        assert_eq!(then(&value, &migration, false)["metadata"]["annotations"][EXCLUDE], "other, secret/keys");
        assert!(migration.found.iter().all(|found| found.tool == Tool::Reloader), "a snapshot has no hash");
    }

    /// A variable of the user stays, whatever its name begins with.
    #[test]
    fn remains_in_the_template_go_with_a_restart() {
        let mut value = deployment(&json!({AUTO: "true"}));
        let variable = |name: &str| json!({"name": name, "value": "x"});
        let template = &mut value["spec"]["template"];
        template["metadata"] = json!({"annotations": {
            "checksum/config": "1", "reloader.stakater.com/last-reloaded-from": "{}", "wave.pusher.com/config-hash": "2",
        }});
        let container = &mut template["spec"]["containers"][0];
        container["env"] = json!([
            variable("STAKATER_DEMO_CONFIGMAP"),
            variable("STAKATER_LICENSE"),
            variable("STAKATER_KEYS_SECRET"),
        ]);
        let migration = migration(&value, &Marks::default());
        assert_eq!(then(&value, &migration, false)["spec"], value["spec"]);
        let opted_in = then(&value, &migration, true);
        let template = &opted_in["spec"]["template"];
        assert_eq!(template["metadata"], json!({"annotations": {"checksum/config": "1"}}));
        assert_eq!(template["spec"]["containers"][0]["env"], json!([variable("STAKATER_LICENSE")]));

        // Another list than the one that was read is not patched.
        let patch = Value::Array(migration.patch(&value, TEMPLATE, true));
        let mut changed = value.clone();
        changed["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([variable("STAKATER_LICENSE"), variable("A"), variable("B")]);
        let patch = serde_json::from_value::<json_patch::Patch>(patch).unwrap();
        assert!(json_patch::patch(&mut changed, &patch).is_err());
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
