//! The config that a pod reads.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::Result;
use crate::cluster::ControlPlane;

/// The content that a pod's containers would find, had it started at this moment.
///
/// Values are text; bytes that are not text are written as `base64:` and their encoding. The volume of the service
/// account's token, which the API server adds, is left out, and so are values of the downward API.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodConfig {
    /// `<volume>/<path>` to content.
    pub files: BTreeMap<String, String>,
    /// `<container>/<variable>` to value.
    pub env: BTreeMap<String, String>,
    /// The objects that were read: `ConfigMap/<name>` and `Secret/<name>`.
    pub objects: BTreeSet<String>,
}

impl ControlPlane {
    /// The config of a pod. It follows the references in the pod's own spec to the live objects, like the kubelet.
    ///
    /// # Errors
    /// If the kubelet could not start the pod: an object or key is missing and not optional.
    pub fn pod_config(&self, pod: &Value) -> Result<PodConfig> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        read(pod, &|kind, name| self.get(kind, &namespace, name))
    }
}

/// Reads an object of a kind and a name.
type Lookup<'a> = dyn Fn(&str, &str) -> Option<Value> + 'a;

fn read(pod: &Value, lookup: &Lookup<'_>) -> Result<PodConfig> {
    let mut reader = Reader { lookup, config: PodConfig::default() };
    let spec = &pod["spec"];
    for volume in items(&spec["volumes"]) {
        reader.volume(volume)?;
    }
    for container in items(&spec["initContainers"]).chain(items(&spec["containers"])) {
        reader.container(container)?;
    }
    Ok(reader.config)
}

struct Reader<'a> {
    lookup: &'a Lookup<'a>,
    config: PodConfig,
}

impl Reader<'_> {
    fn volume(&mut self, volume: &Value) -> Result<()> {
        let name = text(&volume["name"]);
        if name.starts_with("kube-api-access-") {
            return Ok(());
        }
        self.files(name, "ConfigMap", &volume["configMap"], "name")?;
        self.files(name, "Secret", &volume["secret"], "secretName")?;
        for source in items(&volume["projected"]["sources"]) {
            self.files(name, "ConfigMap", &source["configMap"], "name")?;
            self.files(name, "Secret", &source["secret"], "name")?;
        }
        Ok(())
    }

    fn files(&mut self, volume: &str, kind: &str, source: &Value, field: &str) -> Result<()> {
        if source.is_null() {
            return Ok(());
        }
        let (name, optional) = (text(&source[field]), source["optional"] == true);
        let Some(data) = self.data(kind, name, optional)? else { return Ok(()) };
        if source["items"].is_null() {
            let files = data.into_iter().map(|(key, value)| (format!("{volume}/{key}"), value));
            self.config.files.extend(files);
            return Ok(());
        }
        for item in items(&source["items"]) {
            match data.get(text(&item["key"])) {
                Some(value) => {
                    self.config.files.insert(format!("{volume}/{}", text(&item["path"])), value.clone());
                }
                None if optional => {}
                None => return Err(format!("volume {volume}: {kind} {name} has no key {}", item["key"])),
            }
        }
        Ok(())
    }

    fn container(&mut self, container: &Value) -> Result<()> {
        let owner = text(&container["name"]);
        for source in items(&container["envFrom"]) {
            for (kind, reference) in
                [("ConfigMap", &source["configMapRef"]), ("Secret", &source["secretRef"])]
            {
                if reference.is_null() {
                    continue;
                }
                let data = self.data(kind, text(&reference["name"]), reference["optional"] == true)?;
                let prefix = source["prefix"].as_str().unwrap_or_default();
                let variables = data.into_iter().flatten();
                let variables = variables.map(|(key, value)| (format!("{owner}/{prefix}{key}"), value));
                self.config.env.extend(variables);
            }
        }
        // After envFrom, since these override its variables.
        for variable in items(&container["env"]) {
            let name = format!("{owner}/{}", text(&variable["name"]));
            if let Some(value) = self.value(variable)? {
                self.config.env.insert(name, value);
            }
        }
        Ok(())
    }

    fn value(&mut self, variable: &Value) -> Result<Option<String>> {
        let from = &variable["valueFrom"];
        for (kind, reference) in [("ConfigMap", &from["configMapKeyRef"]), ("Secret", &from["secretKeyRef"])]
        {
            if reference.is_null() {
                continue;
            }
            let (name, key, optional) =
                (text(&reference["name"]), text(&reference["key"]), reference["optional"] == true);
            let value = self.data(kind, name, optional)?.and_then(|mut data| data.remove(key));
            return match value {
                None if !optional => {
                    Err(format!("variable {}: {kind} {name} has no key {key}", variable["name"]))
                }
                value => Ok(value),
            };
        }
        Ok(variable["value"].as_str().map(str::to_owned))
    }

    /// The content of an object; `None` if it is missing and optional.
    fn data(&mut self, kind: &str, name: &str, optional: bool) -> Result<Option<BTreeMap<String, String>>> {
        let Some(object) = (self.lookup)(kind, name) else {
            return if optional { Ok(None) } else { Err(format!("there is no {kind} {name}")) };
        };
        self.config.objects.insert(format!("{kind}/{name}"));
        let mut content = BTreeMap::new();
        let fields = |section: &str| object[section].as_object().cloned().into_iter().flatten();
        for (key, value) in fields("data") {
            let value = text(&value);
            content.insert(key, if kind == "Secret" { decode(value)? } else { value.to_owned() });
        }
        for (key, value) in fields("binaryData") {
            content.insert(key, decode(text(&value))?);
        }
        Ok(Some(content))
    }
}

fn decode(encoded: &str) -> Result<String> {
    let bytes = STANDARD.decode(encoded).map_err(|e| format!("not base64: {e}"))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|_| format!("base64:{encoded}")))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects(kind: &str, name: &str) -> Option<Value> {
        match (kind, name) {
            ("ConfigMap", "app") => {
                Some(json!({"data": {"level": "info", "mode": "fast"}, "binaryData": {"b": "/w=="}}))
            }
            ("Secret", "keys") => Some(json!({"data": {"token": "c2VjcmV0"}})),
            _ => None,
        }
    }

    fn config(spec: &Value) -> Result<PodConfig> {
        read(&json!({"metadata": {"namespace": "shop"}, "spec": spec}), &objects)
    }

    #[test]
    fn pod_files_come_from_all_volume_types() {
        let spec = json!({"volumes": [
            {"name": "all", "configMap": {"name": "app"}},
            {"name": "one", "secret": {"secretName": "keys", "items": [{"key": "token", "path": "a/token"}]}},
            {"name": "both", "projected": {"sources": [
                {"configMap": {"name": "app", "items": [{"key": "mode", "path": "mode"}]}},
                {"secret": {"name": "keys"}},
            ]}},
            {"name": "kube-api-access-x", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
        ]});
        let config = config(&spec).unwrap();
        let files: Vec<_> = config.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let expected = [
            ("all/b", "base64:/w=="),
            ("all/level", "info"),
            ("all/mode", "fast"),
            ("both/mode", "fast"),
            ("both/token", "secret"),
            ("one/a/token", "secret"),
        ];
        assert_eq!(files, expected);
        assert_eq!(config.objects, BTreeSet::from(["ConfigMap/app".to_owned(), "Secret/keys".to_owned()]));
    }

    #[test]
    fn env_overrides_env_from_in_all_containers() {
        let spec = json!({
            "initContainers": [{"name": "init", "env": [
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ]}],
            "containers": [{
                "name": "app",
                "env": [{"name": "APP_mode", "value": "slow"}],
                "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "app"}}],
            }],
        });
        let env = config(&spec).unwrap().env;
        assert_eq!(env["init/TOKEN"], "secret");
        assert_eq!(env["app/APP_level"], "info");
        assert_eq!(env["app/APP_mode"], "slow");
        assert!(!env.contains_key("init/NODE"));
    }

    #[test]
    fn missing_object_or_key_fails_unless_optional() {
        let volume = |source: Value| json!({"volumes": [{"name": "v", "configMap": source}]});
        let missing = config(&volume(json!({"name": "gone"}))).unwrap_err();
        assert_eq!(missing, "there is no ConfigMap gone");
        assert!(config(&volume(json!({"name": "app", "items": [{"key": "no", "path": "no"}]}))).is_err());
        assert_eq!(config(&volume(json!({"name": "gone", "optional": true}))), Ok(PodConfig::default()));

        let variable = |reference: Value| json!({"containers": [{"name": "app", "env": [{"name": "X", "valueFrom": {"secretKeyRef": reference}}]}]});
        assert!(config(&variable(json!({"name": "keys", "key": "no"}))).is_err());
        assert!(
            config(&variable(json!({"name": "keys", "key": "no", "optional": true}))).unwrap().env.is_empty()
        );
        assert!(config(&variable(json!({"name": "gone", "key": "no"}))).is_err());
    }
}
