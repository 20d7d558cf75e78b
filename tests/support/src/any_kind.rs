//! A workload of any kind, with actions on it and observations of it.

use std::collections::BTreeSet;

use confrev_controlplane::{Output, wait_for};
use serde_json::{Value, json};

use crate::world::{LIMIT, World, expect, name_of, snapshot_of, text, written};

/// The properties of a kind that the tests need.
#[derive(Debug)]
pub struct Kind {
    /// The resource, as in API paths; with group and version unless the control plane has the kind built in.
    pub resource: &'static str,
    version: &'static str,
    /// The kind, as in ownerReferences.
    pub name: &'static str,
    /// Whether a stored template can change.
    pub rolls: bool,
    /// The resource of the revisions, if any.
    revisions: Option<&'static str>,
}

/// Every kind of workload: the built-in kinds, and the configured kinds whose CRD exists from the start.
pub const KINDS: [Kind; 9] = [
    Kind::new("rollouts", "argoproj.io/v1alpha1", "Rollout", Some("replicasets")),
    Kind::new("deployments", "apps/v1", "Deployment", Some("replicasets")),
    Kind::new("statefulsets", "apps/v1", "StatefulSet", Some("controllerrevisions")),
    Kind::new("daemonsets", "apps/v1", "DaemonSet", Some("controllerrevisions")),
    Kind::new("cronjobs", "batch/v1", "CronJob", None),
    Kind { rolls: false, ..Kind::new("jobs", "batch/v1", "Job", None) },
    Kind::new("replicasets", "apps/v1", "ReplicaSet", None),
    Kind::new("podtemplates", "v1", "PodTemplate", None),
    Kind::new("test.confrev.dev/v1/webs", "test.confrev.dev/v1", "Web", None),
];
/// The kind whose CRD is installed later.
const LATE: Kind =
    Kind::new("apps.kruise.io/v1alpha1/clonesets", "apps.kruise.io/v1alpha1", "CloneSet", None);

impl Kind {
    const fn new(
        resource: &'static str,
        version: &'static str,
        name: &'static str,
        revisions: Option<&'static str>,
    ) -> Self {
        Self { resource, version, name, rolls: true, revisions }
    }

    /// Whether its controller keeps a revision of each template.
    pub fn has_revisions(&self) -> bool {
        self.revisions.is_some()
    }

    /// The kind of this resource.
    pub fn of(resource: &str) -> &'static Self {
        KINDS.iter().chain([&LATE]).find(|kind| kind.resource == resource).expect("a kind of the table")
    }
}

/// A CRD whose schema allows any fields.
pub fn crd(group: &str, version: &str, plural: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": [{
                "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// An opted-in workload that mounts each of its ConfigMaps as a volume of the ConfigMap's name.
#[derive(Debug, Clone)]
pub struct Load {
    resource: &'static str,
    /// The name of the object.
    pub name: String,
    /// The JSON pointer of the pod template in the object.
    pub template: &'static str,
    /// The object as users apply it.
    pub manifest: Value,
}

impl Load {
    /// An opted-in workload of the kind of this resource.
    pub fn new(resource: &'static str, name: &str, sources: &[&str]) -> Self {
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
        let Kind { version, name: kind, .. } = Kind::of(resource);
        if kind.ends_with("Job") {
            pods["spec"]["restartPolicy"] = json!("Never");
        }
        let mut template = "/spec/template";
        let mut spec = match *kind {
            "Job" => json!({"template": pods}),
            "CronJob" => {
                template = "/spec/jobTemplate/spec/template";
                let job = json!({"spec": {"template": pods}});
                json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": job})
            }
            "Web" => {
                template = "/spec/pods/template";
                json!({"pods": {"template": pods}})
            }
            "PodTemplate" => {
                template = "/template";
                pods.clone()
            }
            _ => json!({"selector": {"matchLabels": {"app": name}}, "template": pods}),
        };
        if *kind == "Rollout" {
            spec["strategy"] = json!({"canary": {}});
        }
        if *kind == "ReplicaSet" {
            // The ReplicaSet only holds a template: the content of its own pods would never change.
            spec["replicas"] = json!(0);
        }
        let field = if *kind == "PodTemplate" { "template" } else { "spec" };
        let manifest = json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {
                "name": name,
                "labels": {"confrev.dev/enabled": "true"},
                // The workload rolls at every change of its sources.
                "annotations": {"confrev.dev/min-interval": "0"},
            },
            field: spec,
        });
        Self { resource, name: name.to_owned(), template, manifest }
    }

    /// Adds to the spec.
    #[must_use]
    pub fn spec(mut self, more: Value) -> Self {
        let Value::Object(more) = more else { panic!("a spec is an object") };
        self.manifest["spec"].as_object_mut().expect("the manifest has a spec").extend(more);
        self
    }

    /// Adds an annotation of confrev's.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.manifest["metadata"]["annotations"][format!("confrev.dev/{key}")] = json!(value);
        self
    }

    /// Removes the workload's own label.
    #[must_use]
    pub fn unlabelled(mut self) -> Self {
        self.manifest["metadata"]["labels"] = json!({});
        self
    }

    /// The properties of its kind.
    pub fn kind(&self) -> &'static Kind {
        Kind::of(self.resource)
    }

    /// The object, as kubectl names it.
    pub fn reference(&self) -> String {
        let resource = self.resource.rsplit('/').next().expect("the resource has a last part");
        format!("{resource}/{}", self.name)
    }

    /// The path of the object in the API.
    fn path(&self, world: &World) -> String {
        let version = self.kind().version;
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{}/{}", world.name(), self.reference())
    }

    /// Changes the stored object by a merge patch.
    #[track_caller]
    pub fn patch(&self, world: &World, change: &Value) -> Value {
        let (api, path) = (world.cluster.api(), self.path(world));
        written(&self.reference(), || api.patch(&path, "application/merge-patch+json", change))
    }

    /// Replaces the stored object, or asks only what would be stored. Returns the status and the body of the answer.
    pub fn replace(&self, world: &World, object: &Value, is_dry: bool) -> (u16, Value) {
        let query = if is_dry { "?dryRun=All" } else { "" };
        world.cluster.api().put(&format!("{}{query}", self.path(world)), object)
    }

    /// Sets an annotation of confrev's on the stored object; `None` removes it.
    #[track_caller]
    pub fn annotate(&self, world: &World, key: &str, value: Option<&str>) {
        self.patch(world, &json!({"metadata": {"annotations": {format!("confrev.dev/{key}"): value}}}));
    }

    /// The template as it is stored.
    #[track_caller]
    pub fn stored(&self, world: &World) -> Value {
        self.live(world).pointer(self.template).cloned().expect("the object has a template")
    }

    /// The parts of the stored template that confrev decides. A Rollout's own controller rewrites the rest in its notation.
    #[track_caller]
    pub fn decided(&self, world: &World) -> Value {
        let template = self.stored(world);
        json!([template["metadata"], template["spec"]["volumes"]])
    }

    /// Restores the previous template with the tool of the kind. For a kind without such a tool, writes the stored template.
    #[track_caller]
    pub fn undo(&self, world: &World, before: &Value) {
        if self.kind().name == "Rollout" {
            world.argo(&["undo", &self.name]).ok();
        } else if self.kind().revisions.is_some() {
            world.kubectl(&["rollout", "undo", &self.reference()]).ok();
        } else {
            let change = json!([{"op": "replace", "path": self.template, "value": before}]);
            let (api, path) = (world.cluster.api(), self.path(world));
            written(&self.reference(), || api.patch(&path, "application/json-patch+json", &change));
        }
    }

    /// The number of templates so far: revisions, or generations of the object if the kind has no revisions.
    #[track_caller]
    pub fn changes(&self, world: &World) -> usize {
        let generation =
            || self.live(world)["metadata"]["generation"].as_u64().expect("the object has a generation");
        self.kind().revisions.map_or_else(
            || usize::try_from(generation()).expect("the generation is small"),
            |kind| world.cluster.list(kind, world.name(), &format!("app={}", self.name)).len(),
        )
    }

    /// Applies the manifest with kubectl.
    pub fn apply(&self, world: &World) -> Output {
        world.apply(&self.manifest)
    }

    /// The object as it is stored.
    #[track_caller]
    pub fn live(&self, world: &World) -> Value {
        let object = world.cluster.get(self.resource, world.name(), &self.name);
        object.unwrap_or_else(|| panic!("there is no {}", self.reference()))
    }

    /// Its ready pods.
    #[track_caller]
    pub fn pods(&self, world: &World) -> Vec<Value> {
        world.cluster.ready_pods(world.name(), &format!("app={}", self.name))
    }

    /// The texts that the ready pods read, sorted.
    #[track_caller]
    pub fn reads(&self, world: &World, source: &str) -> Vec<String> {
        let mut texts: Vec<_> = self.pods(world).iter().map(|pod| world.pod_reads(pod, source)).collect();
        texts.sort();
        texts
    }

    /// Waits until the ready pods read exactly these texts.
    #[track_caller]
    pub fn wait_reads(&self, world: &World, source: &str, texts: &[&str]) {
        let what = format!("pods of {} to read {texts:?} of {source}", self.reference());
        wait_for(&what, LIMIT, || expect(&self.reads(world, source), texts));
    }

    /// Whether the template names a snapshot with this text.
    pub fn resolves_to(&self, world: &World, source: &str, wanted: &str) -> Result<(), String> {
        let live = self.live(world);
        let template = live.pointer(self.template).expect("the object has a template");
        let snapshot = snapshot_of(template, source).ok_or("it is not resolved")?;
        let volumes = template["spec"]["volumes"].as_array().expect("the template has volumes");
        let reference =
            volumes.iter().find(|volume| volume["name"] == source).expect("the source has a volume");
        expect(&text(&reference["configMap"]["name"]), &snapshot)?;
        let object = world.cluster.get("configmap", world.name(), &snapshot);
        let object = object.ok_or_else(|| format!("there is no {snapshot}"))?;
        expect(&text(&object["data"]["text"]), wanted)
    }

    /// Waits until the template names a snapshot with this text.
    #[track_caller]
    pub fn wait_resolved(&self, world: &World, source: &str, wanted: &str) {
        let what = format!("{} to roll to {wanted:?} of {source}", self.reference());
        wait_for(&what, LIMIT, || self.resolves_to(world, source, wanted));
    }

    /// Its ControllerRevisions.
    #[track_caller]
    pub fn revisions(&self, world: &World) -> Vec<Value> {
        world.cluster.list("controllerrevisions", world.name(), &format!("app={}", self.name))
    }
}

/// The owners of an object, as `Kind/name`.
pub fn owners(object: &Value) -> BTreeSet<String> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(|owner| format!("{}/{}", text(&owner["kind"]), text(&owner["name"]))).collect()
}

/// Waits until the snapshot of this text has an owner of this kind. Returns the owner's name.
#[track_caller]
pub fn wait_owner(world: &World, source: &str, wanted: &str, kind: &str) -> String {
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
