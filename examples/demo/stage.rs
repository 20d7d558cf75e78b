//! The namespace of the story: runs commands in it, and reads its objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use confrev_controlplane::{ControlPlane, Kubectl, Namespace, Output};
use serde_json::{Value, json};

use crate::node;
use crate::screen::Screen;

/// The annotations in which Deployments and Rollouts count their templates. An undo counts too.
const REVISIONS: [&str; 2] = ["deployment.kubernetes.io/revision", "rollout.argoproj.io/revision"];
/// The prefix of confrev's labels and annotations.
const PREFIX: &str = "confrev.dev/";
/// The kinds whose writes the demo notices.
const KINDS: [&str; 5] = ["configmaps", "rollouts", "deployments", "replicasets", "pods"];
/// The time without writes after which the namespace is at rest. Real containers become ready one after another.
fn rest() -> Duration {
    Duration::from_secs(if node::is_real() { 5 } else { 1 })
}

/// The files of this folder, under the names that a person would type.
const FILES: [(&str, &str); 4] = [
    ("examples/demo/blue.yaml", include_str!("blue.yaml")),
    ("examples/demo/green.yaml", include_str!("green.yaml")),
    ("examples/demo/red.yaml", include_str!("red.yaml")),
    ("examples/demo/workloads.yaml", include_str!("workloads.yaml")),
];

/// The resourceVersion or the content of every object, by kind and name.
pub(crate) type Versions = BTreeMap<String, String>;

/// An opted-in namespace.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) cluster: &'static ControlPlane,
    namespace: Namespace<'static>,
    /// The content that the first pod of each ReplicaSet read.
    born: BTreeMap<String, String>,
    /// The content in the environment of opted-out pods when they started.
    started: BTreeMap<String, String>,
    /// Pods that read another content than the first pod of their ReplicaSet.
    pub(crate) strayed: BTreeSet<String>,
    /// All pods so far.
    pub(crate) pods: BTreeSet<String>,
}

/// The ready pods of one ReplicaSet, and the content that they read.
#[derive(Debug, Default, Clone)]
pub(crate) struct Group {
    pub(crate) replica_set: String,
    pub(crate) color: String,
    pub(crate) object: String,
    pub(crate) pods: Vec<String>,
}

impl Stage {
    pub(crate) fn new(cluster: &'static ControlPlane) -> Self {
        let namespace = cluster.namespace_labelled("shop", &[("confrev.dev/enabled", "true")]);
        let (born, started, strayed, pods) = Default::default();
        Self { cluster, namespace, born, started, strayed, pods }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// Runs `kubectl ...` in the namespace, and prints the command and its output.
    pub(crate) fn kubectl(&self, screen: &Screen, line: &str) -> Output {
        screen.command(&format!("kubectl {line}"));
        let words: Vec<_> = line.split(' ').map(|word| word.trim_matches('\'')).collect();
        let output = self.command(&words).run();
        screen.answer(&output.stdout);
        // The caller prints a refusal.
        if output.status.success() {
            screen.answer(&output.stderr);
        }
        output
    }

    fn command(&self, words: &[&str]) -> Kubectl {
        let files: Vec<_> = FILES.iter().filter(|(path, _)| words.contains(path)).collect();
        let kubectl = match words {
            ["argo", "rollouts", rest @ ..] => self.cluster.argo(rest),
            // The files are part of the program, so it runs in any folder.
            ["apply", rest @ ..] if !files.is_empty() => {
                let flags: Vec<_> = rest.iter().copied().filter(|word| word.starts_with("--")).collect();
                let text: Vec<_> = files.iter().map(|(_, text)| *text).collect();
                let kubectl = self.cluster.kubectl(&[["apply", "-f", "-"].as_slice(), &flags].concat());
                kubectl.stdin(text.join("---\n"))
            }
            _ => self.cluster.kubectl(words),
        };
        kubectl.arg("--namespace").arg(self.namespace())
    }

    /// Reads the content of all ready pods, and records those whose content changed. Returns the pods of one workload.
    pub(crate) fn look(&mut self, workload: &str) -> Result<Vec<Group>, String> {
        let mut groups = BTreeMap::<String, Group>::new();
        for pod in self.cluster.ready_pods(self.namespace(), "app") {
            let app = text(&pod["metadata"]["labels"]["app"]);
            let name = text(&pod["metadata"]["name"]);
            let replica_set = text(&pod["metadata"]["ownerReferences"][0]["name"]);
            let config = self.cluster.pod_config(&pod).map_err(|problem| format!("pod {name}: {problem}"))?;
            let mut found = config.files.iter().chain(&config.env);
            let found = found.find_map(|(path, value)| path.ends_with("/color").then_some(value));
            let mut color = found.cloned().unwrap_or_default();
            if node::is_real() {
                color = node::printed(self.cluster, self.namespace(), &name)?;
            }
            // For an opted-in pod, this is the content that it would read after a restart, or after the kubelet updates its
            // files. The environment of an opted-out pod keeps the content of its start.
            if app == "legacy" {
                color.clone_from(self.started.entry(name.clone()).or_insert_with(|| color.clone()));
            } else {
                self.pods.insert(name.clone());
                if *self.born.entry(replica_set.clone()).or_insert_with(|| color.clone()) != color {
                    self.strayed.insert(format!("{name} read {color}"));
                }
            }
            if app == workload {
                let group = groups.entry(replica_set.clone()).or_default();
                let object =
                    config.objects.into_iter().find_map(|o| Some(o.strip_prefix("ConfigMap/")?.to_owned()));
                *group = Group {
                    replica_set,
                    color,
                    object: object.unwrap_or_default(),
                    pods: std::mem::take(&mut group.pods),
                };
                group.pods.push(name);
            }
        }
        Ok(groups.into_values().collect())
    }

    /// A Rollout or Deployment.
    pub(crate) fn live(&self, workload: &str) -> Value {
        let kind = if workload == "web" { "rollout" } else { "deployment" };
        self.cluster.get(kind, self.namespace(), workload).unwrap_or_default()
    }

    /// The number of a workload's present template.
    fn revision(&self, workload: &str) -> u32 {
        let live = self.live(workload);
        let annotations = &live["metadata"]["annotations"];
        REVISIONS.iter().find_map(|key| annotations[*key].as_str()?.parse().ok()).unwrap_or_default()
    }

    /// The same for both opted-in workloads.
    pub(crate) fn revisions(&self) -> [u32; 2] {
        ["web", "api"].map(|workload| self.revision(workload))
    }

    /// How many ReplicaSets a workload has.
    pub(crate) fn replica_sets(&self, workload: &str) -> usize {
        self.cluster.list("replicasets", self.namespace(), &format!("app={workload}")).len()
    }

    /// The label of a ReplicaSet that identifies its config.
    pub(crate) fn revision_label(&self, replica_set: &str) -> String {
        let object = self.cluster.get("replicaset", self.namespace(), replica_set).unwrap_or_default();
        text(&object["metadata"]["labels"]["confrev.dev/revision"])
    }

    /// The kinds of a snapshot's owners.
    pub(crate) fn holders(&self, snapshot: &str) -> Vec<String> {
        let object = self.cluster.get("configmap", self.namespace(), snapshot).unwrap_or_default();
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.map(|owner| text(&owner["kind"])).collect()
    }

    /// The fields of a snapshot that no user may change. (Its owners change with its users.)
    pub(crate) fn frozen(&self, snapshot: &str) -> Value {
        let object = self.cluster.get("configmap", self.namespace(), snapshot).unwrap_or_default();
        json!([object["data"], object["immutable"], object["metadata"]["labels"], object["metadata"]["uid"]])
    }

    /// The names of all ConfigMaps, except the one that Kubernetes creates in every namespace.
    pub(crate) fn config_maps(&self) -> BTreeSet<String> {
        let all = self.cluster.list("configmaps", self.namespace(), "");
        all.iter()
            .map(|object| text(&object["metadata"]["name"]))
            .filter(|n| n != "kube-root-ca.crt")
            .collect()
    }

    /// The version of each object.
    pub(crate) fn versions(&self) -> Versions {
        self.each(|object| text(&object["metadata"]["resourceVersion"]))
    }

    /// The content of each object, without the fields that the API server updates for requests that change nothing.
    pub(crate) fn contents(&self) -> Versions {
        self.each(|object| {
            let mut object = object.clone();
            for noted in ["resourceVersion", "managedFields"] {
                object["metadata"][noted].take();
            }
            object.to_string()
        })
    }

    /// Kubelets update the status of pods at any time. On real nodes, only the identity of a pod counts.
    fn each(&self, value: impl Fn(&Value) -> String) -> Versions {
        let value = |kind: &str, object: &Value| {
            let is_of_kubelet = kind == "pods" && node::is_real();
            if is_of_kubelet { text(&object["metadata"]["uid"]) } else { value(object) }
        };
        let list = |kind| (kind, self.cluster.list(kind, self.namespace(), ""));
        let key = |kind, object: &Value| format!("{kind}/{}", text(&object["metadata"]["name"]));
        let lists = KINDS.map(list);
        let objects = lists.iter().flat_map(|(kind, list)| list.iter().map(move |object| (kind, object)));
        objects.map(|(kind, object)| (key(kind, object), value(kind, object))).collect()
    }

    /// The leader, as the Lease names it.
    pub(crate) fn leader(&self) -> String {
        let lease = self.cluster.get("lease", "confrev", "confrev").unwrap_or_default();
        text(&lease["spec"]["holderIdentity"])
    }

    /// Whether confrev has written nothing on a workload.
    pub(crate) fn is_untouched(&self, workload: &str) -> bool {
        let live = self.live(workload);
        let annotations = live["metadata"]["annotations"].as_object().into_iter().flatten();
        annotations.into_iter().all(|(key, _)| !key.starts_with(PREFIX))
            && !live["spec"]["template"].to_string().contains(PREFIX)
    }
}

/// Whether the namespace is at rest.
#[derive(Debug)]
pub(crate) struct Rest {
    last: Versions,
    since: Instant,
}

impl Rest {
    pub(crate) fn new() -> Self {
        Self { last: Versions::new(), since: Instant::now() }
    }

    /// The versions of all objects, once there was no write for a while.
    pub(crate) fn look(&mut self, stage: &Stage) -> Result<Versions, String> {
        let now = stage.versions();
        match difference(&self.last, &now) {
            None if self.since.elapsed() >= rest() => Ok(now),
            None => Err("at rest for too short a time".to_owned()),
            Some(change) => {
                *self = Self { last: now, since: Instant::now() };
                Err(change)
            }
        }
    }
}

/// The objects that were written between two observations.
pub(crate) fn difference(before: &Versions, after: &Versions) -> Option<String> {
    let changed = |key: &&String| before.get(*key) != after.get(*key);
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).filter(changed).cloned().collect();
    (!keys.is_empty()).then(|| format!("written: {}", Vec::from_iter(keys).join(", ")))
}

/// The text of a string; empty for any other value.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
