//! A workload of any kind, and what is done with it.

use std::collections::BTreeSet;

use confrev_controlplane::{Output, wait_for};
use serde_json::{Value, json};

use crate::world::{LIMIT, World, expect, name_of, snapshot_of, text};

/// An opted-in workload that mounts each of its ConfigMaps as a volume of the ConfigMap's name.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// As the API's paths have it; kinds that are not the control plane's own with group and version.
    resource: &'static str,
    pub(crate) name: String,
    /// From the object to its pod template.
    pub(crate) template: &'static str,
    pub(crate) manifest: Value,
}

impl Load {
    pub(crate) fn new(resource: &'static str, name: &str, sources: &[&str]) -> Self {
        let volumes: Vec<_> =
            sources.iter().map(|source| json!({"name": source, "configMap": {"name": source}})).collect();
        let mounts: Vec<_> =
            sources.iter().map(|source| json!({"name": source, "mountPath": format!("/{source}")})).collect();
        let mut pods = json!({
            "metadata": {"labels": {"app": name}},
            "spec": {
                "containers": [{"name": "app", "image": "app:1", "volumeMounts": mounts}],
                "volumes": volumes,
            },
        });
        let (version, kind) = match resource {
            "deployments" => ("apps/v1", "Deployment"),
            "statefulsets" => ("apps/v1", "StatefulSet"),
            "daemonsets" => ("apps/v1", "DaemonSet"),
            "rollouts" => ("argoproj.io/v1alpha1", "Rollout"),
            "cronjobs" => ("batch/v1", "CronJob"),
            "jobs" => ("batch/v1", "Job"),
            _ => ("apps.kruise.io/v1alpha1", "CloneSet"),
        };
        if kind.ends_with("Job") {
            pods["spec"]["restartPolicy"] = json!("Never");
        }
        let mut template = "/spec/template";
        let spec = match resource {
            "jobs" => json!({"template": pods}),
            "cronjobs" => {
                template = "/spec/jobTemplate/spec/template";
                let job = json!({"spec": {"template": pods}});
                json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": job})
            }
            _ => json!({"selector": {"matchLabels": {"app": name}}, "template": pods}),
        };
        let manifest = json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": name,
                "labels": {"confrev.dev/enabled": "true"},
                // It rolls as often as its sources change.
                "annotations": {"confrev.dev/min-interval": "0"},
            },
            "spec": spec,
        });
        Self { resource, name: name.to_owned(), template, manifest }
    }

    /// Adds to the spec.
    pub(crate) fn spec(mut self, more: Value) -> Self {
        let Value::Object(more) = more else { panic!("a spec is an object") };
        self.manifest["spec"].as_object_mut().expect("it has a spec").extend(more);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.manifest["metadata"]["annotations"][format!("confrev.dev/{key}")] = json!(value);
        self
    }

    /// Without the label of its own.
    pub(crate) fn unlabelled(mut self) -> Self {
        self.manifest["metadata"]["labels"] = json!({});
        self
    }

    /// As kubectl names one object.
    pub(crate) fn reference(&self) -> String {
        let resource = self.resource.rsplit('/').next().expect("there is a last part");
        format!("{resource}/{}", self.name)
    }

    pub(crate) fn apply(&self, world: &World) -> Output {
        world.apply(&self.manifest)
    }

    #[track_caller]
    pub(crate) fn live(&self, world: &World) -> Value {
        let object = world.cluster.get(self.resource, world.name(), &self.name);
        object.unwrap_or_else(|| panic!("there is no {}", self.reference()))
    }

    #[track_caller]
    pub(crate) fn pods(&self, world: &World) -> Vec<Value> {
        world.cluster.ready_pods(world.name(), &format!("app={}", self.name))
    }

    /// What its ready pods read, sorted.
    #[track_caller]
    pub(crate) fn reads(&self, world: &World, source: &str) -> Vec<String> {
        let mut texts: Vec<_> = self.pods(world).iter().map(|pod| world.pod_reads(pod, source)).collect();
        texts.sort();
        texts
    }

    #[track_caller]
    pub(crate) fn wait_reads(&self, world: &World, source: &str, texts: &[&str]) {
        let what = format!("pods of {} to read {texts:?} of {source}", self.reference());
        wait_for(&what, LIMIT, || expect(&self.reads(world, source), texts));
    }

    /// Whether its template names a snapshot with this text.
    pub(crate) fn resolves_to(&self, world: &World, source: &str, wanted: &str) -> Result<(), String> {
        let live = self.live(world);
        let template = live.pointer(self.template).expect("it has a template");
        let snapshot = snapshot_of(template, source).ok_or("it is not resolved")?;
        let volumes = template["spec"]["volumes"].as_array().expect("it has volumes");
        let reference = volumes.iter().find(|volume| volume["name"] == source).expect("it has a volume");
        expect(&text(&reference["configMap"]["name"]), &snapshot)?;
        let object = world.cluster.get("configmap", world.name(), &snapshot);
        let object = object.ok_or_else(|| format!("there is no {snapshot}"))?;
        expect(&text(&object["data"]["text"]), wanted)
    }

    #[track_caller]
    pub(crate) fn wait_resolved(&self, world: &World, source: &str, wanted: &str) {
        let what = format!("{} to take up {wanted:?} of {source}", self.reference());
        wait_for(&what, LIMIT, || self.resolves_to(world, source, wanted));
    }

    #[track_caller]
    pub(crate) fn revisions(&self, world: &World) -> Vec<Value> {
        world.cluster.list("controllerrevisions", world.name(), &format!("app={}", self.name))
    }
}

/// The owners of an object, as `Kind/name`.
pub(crate) fn owners(object: &Value) -> BTreeSet<String> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(|owner| format!("{}/{}", text(&owner["kind"]), text(&owner["name"]))).collect()
}

/// Waits until the snapshot of this text has an owner of this kind; its name.
#[track_caller]
pub(crate) fn wait_owner(world: &World, source: &str, wanted: &str, kind: &str) -> String {
    let what = format!("a {kind} to own the snapshot of {wanted:?} of {source}");
    wait_for(&what, LIMIT, || {
        let snapshots = world.snapshots();
        let is_it = |snapshot: &&Value| {
            snapshot["metadata"]["labels"]["confrev.dev/source"] == source
                && snapshot["data"]["text"] == wanted
        };
        let snapshot = snapshots.iter().find(is_it).ok_or("there is no such snapshot")?;
        let owners = owners(snapshot);
        let prefix = format!("{kind}/");
        let owner = owners.iter().find_map(|owner| owner.strip_prefix(&prefix));
        owner.map(str::to_owned).ok_or_else(|| format!("{} is owned by {owners:?}", name_of(snapshot)))
    })
}
