//! Namespaces of tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread;

use serde_json::{Value, json};

use crate::cluster::ControlPlane;
use crate::resources;
use crate::suffix::suffix;

/// The prefix of confrev's labels and annotations.
const PREFIX: &str = "confrev.dev/";

/// The kinds that a failed test prints of its namespace.
const SHOWN: &[&str] = &[
    "configmaps",
    "secrets",
    "deployments",
    "rollouts",
    "replicasets",
    "statefulsets",
    "daemonsets",
    "controllerrevisions",
    "jobs",
    "cronjobs",
    "pods",
];

/// A namespace for one test. It is deleted on drop, without waiting. If the test has failed, the namespace's objects
/// are first printed to stderr.
#[derive(Debug)]
pub struct Namespace<'a> {
    cluster: &'a ControlPlane,
    name: String,
}

impl ControlPlane {
    /// A new namespace; its name gets a random suffix.
    #[track_caller]
    pub fn namespace(&self, prefix: &str) -> Namespace<'_> {
        self.namespace_labelled(prefix, &[])
    }

    /// The same with labels.
    #[track_caller]
    pub fn namespace_labelled(&self, prefix: &str, labels: &[(&str, &str)]) -> Namespace<'_> {
        Namespace::create(self, prefix, labels)
    }
}

impl<'a> Namespace<'a> {
    #[track_caller]
    fn create(cluster: &'a ControlPlane, prefix: &str, labels: &[(&str, &str)]) -> Self {
        let name = format!("{prefix}-{}", suffix());
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        cluster.create("namespace", "", &json!({"metadata": {"name": name, "labels": labels}}));
        Self { cluster, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace's objects, one per line, and its events: the output of a failed test.
    pub fn describe(&self) -> String {
        let mut text = format!("namespace {}:\n", self.name);
        for kind in SHOWN {
            for object in self.items(kind) {
                let _ = writeln!(text, "  {kind} {}", describe(&object));
            }
        }
        let mut events = self.items("events");
        events.sort_by_key(|event| event["metadata"]["creationTimestamp"].to_string());
        for event in events {
            let (object, reason) = (&event["involvedObject"], word(&event["reason"]));
            let (kind, name) = (word(&object["kind"]), word(&object["name"]));
            let _ = writeln!(text, "  event {kind}/{name} {reason}: {}", word(&event["message"]));
        }
        text
    }

    /// The objects of a kind, or none if they cannot be read: this runs while a test fails.
    fn items(&self, kind: &str) -> Vec<Value> {
        let path = resources::path(kind, &self.name);
        match self.cluster.api().send(&ureq::http::Method::GET, &path, None) {
            Ok((200, mut list)) => match list["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.describe());
        }
        let path = resources::path("namespaces", "");
        let path = format!("{path}/{}", self.name);
        let _ = self.cluster.api().send(&ureq::http::Method::DELETE, &path, None);
    }
}

/// One line about an object. It never contains the object's data, which may be a Secret's.
fn describe(object: &Value) -> String {
    let metadata = &object["metadata"];
    let mut parts = vec![word(&metadata["name"])];
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        parts.push(format!("owner={}/{}", word(&owner["kind"]), word(&owner["name"])));
    }
    for section in ["labels", "annotations"] {
        let ours =
            metadata[section].as_object().into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX));
        parts.extend(ours.map(|(key, value)| format!("{key}={}", word(value))));
    }
    for field in ["immutable", "revision"] {
        if !object[field].is_null() {
            parts.push(format!("{field}={}", object[field]));
        }
    }
    for (name, value) in [
        ("replicas", &object["spec"]["replicas"]),
        ("ready", &object["status"]["readyReplicas"]),
        ("phase", &object["status"]["phase"]),
        ("deleted", &metadata["deletionTimestamp"]),
    ] {
        if !value.is_null() {
            parts.push(format!("{name}={}", word(value)));
        }
    }
    parts.join(" ")
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_has_owner_and_confrev_metadata() {
        let object = json!({
            "metadata": {
                "name": "app-1",
                "labels": {"confrev.dev/revision": "1", "app": "web"},
                "annotations": {"confrev.dev/source": "app"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1"}],
            },
            "immutable": true,
            "data": {"password": "hunter2"},
        });
        let expected =
            "app-1 owner=ReplicaSet/web-1 confrev.dev/revision=1 confrev.dev/source=app immutable=true";
        assert_eq!(describe(&object), expected);
    }
}
