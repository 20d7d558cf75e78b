//! A test's namespace, with the actions of users in it and observations of its objects.

use std::time::Duration;

use confrev_controlplane::{ControlPlane, Namespace, Output, holds_for, is_too_slow, wait_for};
use confrev_core::annotations;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::manifests::{Kind, Workload, config_map};
use crate::threads::in_threads;

/// The limit for anything that normally takes a second or two. The machine may be busy.
pub const LIMIT: Duration = Duration::from_mins(1);
/// How long nothing changes before controllers are at rest: confrev removes an unused owner three seconds after it has added others.
const REST: Duration = Duration::from_secs(4);

/// The label selector of all snapshots.
pub const SNAPSHOTS: &str = "app.kubernetes.io/managed-by=confrev,confrev.dev/source";

/// One namespace.
pub struct World {
    /// The control plane.
    pub cluster: &'static ControlPlane,
    namespace: Namespace<'static>,
}

/// Runs the body for all kinds in parallel. A panic's message begins with the kind.
pub fn each_kind(body: impl Fn(Kind) + Sync) {
    in_threads(Kind::ALL.map(|kind| (kind.name().to_owned(), kind)), body);
}

/// The answer to a write, which succeeds. On a busy machine, confrev may not decide in the time that the API server grants it. It
/// then asks to try again.
#[track_caller]
pub(crate) fn written(what: &str, write: impl Fn() -> (u16, Value)) -> Value {
    let (code, answer) = wait_for(&format!("an answer to the write of {what}"), LIMIT, || {
        let (code, answer) = write();
        let is_late =
            answer["message"].as_str().is_some_and(|text| text.ends_with("try again") || is_too_slow(text));
        if code >= 400 && is_late { Err(answer) } else { Ok((code, answer)) }
    });
    assert!(code < 300, "{what} could not be written: {code} {answer}");
    answer
}

impl World {
    /// A namespace whose name begins with this prefix.
    pub fn new(prefix: &str) -> Self {
        Self::labelled(prefix, &[])
    }

    /// A namespace with labels.
    pub fn labelled(prefix: &str, labels: &[(&str, &str)]) -> Self {
        let cluster = ControlPlane::shared();
        Self { cluster, namespace: cluster.namespace_labelled(prefix, labels) }
    }

    /// A namespace of another cluster.
    pub fn of(cluster: &'static ControlPlane, prefix: &str) -> Self {
        Self { cluster, namespace: cluster.namespace_labelled(prefix, &[]) }
    }

    /// The namespaces of a group. The group has the name of the first one.
    pub fn group(prefix: &str, count: usize) -> Vec<Self> {
        let first = Self::new(prefix);
        let group = first.name().to_owned();
        let label = format!("{}={group}", annotations::GROUP);
        first.cluster.kubectl(&["label", "namespace", &group, &label]).run().ok();
        let others = (1..count).map(|_| Self::labelled(prefix, &[(annotations::GROUP, &group)]));
        std::iter::once(first).chain(others).collect()
    }

    /// The name of the namespace.
    pub fn name(&self) -> &str {
        self.namespace.name()
    }

    // Actions of users.

    /// Runs kubectl in the namespace.
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.cluster.kubectl(arguments).arg("--namespace").arg(self.name()).run()
    }

    /// Runs the plugin of Argo Rollouts in the namespace.
    pub fn argo(&self, arguments: &[&str]) -> Output {
        self.cluster.argo(arguments).arg("--namespace").arg(self.name()).run()
    }

    /// A kubectl command that reads this object from a file.
    pub fn with_file(&self, arguments: &[&str], object: &Value) -> Output {
        let kubectl = self.cluster.kubectl(arguments).arg("--namespace").arg(self.name());
        kubectl.arg("--filename").arg("-").stdin(object).run()
    }

    /// `kubectl annotate --overwrite` of the namespace.
    #[track_caller]
    pub fn annotate_namespace(&self, setting: &str) {
        self.cluster.kubectl(&["annotate", "--overwrite", "namespace", self.name(), setting]).run().ok();
    }

    /// `kubectl annotate` of the ConfigMap `demo`, with settings without their prefix.
    #[track_caller]
    pub fn set_on_demo(&self, settings: &[&str]) {
        let settings: Vec<_> =
            settings.iter().map(|setting| format!("{}{setting}", annotations::PREFIX)).collect();
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        self.kubectl(&[&["annotate", "configmap/demo"], &*settings].concat()).ok();
    }

    /// `kubectl apply` of an object.
    pub fn apply(&self, object: &Value) -> Output {
        self.with_file(&["apply"], object)
    }

    /// Lets the namespace opt in each workload with its next deployment. The API server learns of the label from a watch: waits until it
    /// sends creations to confrev. `probe`: a workload without a label, of which only a dry run is made.
    #[track_caller]
    pub fn opt_in_next(&self, probe: &Value) {
        let label = format!("{}=next", annotations::ENABLED);
        self.cluster.kubectl(&["label", "namespace", self.name(), &label]).run().ok();
        wait_for("a creation to be opted in", LIMIT, || {
            let created = self.with_file(&["create", "--dry-run=server", "--output=json"], probe).ok();
            created.contains(r#""confrev.dev/enabled": "true""#).then_some(())
        });
    }

    /// Lets the namespace have no more than `count` ConfigMaps: a ResourceQuota `full`, which counts already.
    #[track_caller]
    pub fn limit_config_maps(&self, count: usize) {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"},
            "spec": {"hard": {"count/configmaps": count.to_string()}}});
        self.with_file(&["create"], &quota).ok();
        wait_for("the quota to count", LIMIT, || {
            let stored =
                self.cluster.get("v1/resourcequotas", self.name(), "full").ok_or("it does not exist")?;
            let used = stored["status"]["used"]["count/configmaps"].as_str().map(str::parse::<usize>);
            let Some(Ok(used)) = used else { return Err(format!("its status is {}", stored["status"])) };
            // The quota controller counts from a cache, which may lag, and counts again only minutes later.
            if used + 1 == count {
                self.delete("resourcequota", "full");
                self.with_file(&["create"], &quota).ok();
                return Err(format!("it counts {used}"));
            }
            Ok(())
        });
    }

    /// Writes a ConfigMap's only key.
    #[track_caller]
    pub fn set_config(&self, name: &str, text: &str) {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.name());
        let api = self.cluster.api();
        let is_new = self.cluster.get("configmap", self.name(), name).is_none();
        written(name, || {
            if is_new {
                return api.post(&path, &config_map(name, text));
            }
            let change = json!({"data": {"text": text}});
            api.patch(&format!("{path}/{name}"), "application/merge-patch+json", &change)
        });
    }

    /// Changes a workload by a merge patch.
    #[track_caller]
    pub fn patch(&self, workload: &Workload, change: &Value) -> Value {
        let path = format!("{}/{}", workload.kind.path(self.name()), workload.name);
        let api = self.cluster.api();
        written(&workload.reference(), || api.patch(&path, "application/merge-patch+json", change))
    }

    /// Changes the template with kubectl, whose output has warnings and refusals.
    pub fn set_image(&self, workload: &Workload, image: &str) -> Output {
        let patch =
            json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]);
        self.kubectl(&["patch", &workload.reference(), "--type=json", "--patch", &patch.to_string()])
    }

    /// Undoes to the previous revision, with the tool of the kind.
    #[track_caller]
    pub fn undo(&self, workload: &Workload) {
        match workload.kind {
            Kind::Rollout => self.argo(&["undo", &workload.name]).ok(),
            Kind::Deployment => self.kubectl(&["rollout", "undo", &workload.reference()]).ok(),
        };
    }

    /// Lets a paused roll finish.
    #[track_caller]
    pub fn promote(&self, workload: &Workload) {
        match workload.kind {
            Kind::Rollout => self.argo(&["promote", &workload.name]).ok(),
            Kind::Deployment => self.patch(workload, &json!({"spec": {"minReadySeconds": 0}})).to_string(),
        };
    }

    /// Deletes an object, and does not wait for its end.
    #[track_caller]
    pub fn delete(&self, kind: &str, name: &str) {
        self.kubectl(&["delete", kind, name, "--wait=false"]).ok();
    }

    /// Deletes a ready pod that reads this text, as if its node failed. Waits for the replacement.
    #[track_caller]
    pub fn lose_pod(&self, workload: &Workload, source: &str, text: &str) {
        let pods = || self.cluster.ready_pods(self.name(), &format!("app={}", workload.name));
        let before = pods();
        let lost =
            before.iter().find(|pod| self.pod_reads(pod, source) == text).expect("a pod reads the text");
        self.delete("pod", &name_of(lost));
        wait_for("a ready replacement of the lost pod", LIMIT, || {
            let names: Vec<_> = pods().iter().map(name_of).collect();
            let replaced = names.len() == before.len() && !names.contains(&name_of(lost));
            if replaced { Ok(()) } else { Err(format!("{names:?}")) }
        });
    }

    // Observations.

    /// A workload as it is stored.
    #[track_caller]
    pub fn live(&self, workload: &Workload) -> Value {
        let object = self.cluster.get(workload.kind.name(), self.name(), &workload.name);
        object.unwrap_or_else(|| panic!("there is no {}", workload.reference()))
    }

    /// The snapshot of a source that the workload's template names, if any.
    pub fn resolved(&self, workload: &Workload, source: &str) -> Option<String> {
        snapshot_of(&self.live(workload)["spec"]["template"], source)
    }

    /// The ReplicaSets of a workload.
    pub fn replica_sets(&self, workload: &Workload) -> Vec<Value> {
        self.cluster.list("replicaset", self.name(), &format!("app={}", workload.name))
    }

    /// All snapshots of the namespace.
    pub fn snapshots(&self) -> Vec<Value> {
        self.cluster.list("configmap", self.name(), SNAPSHOTS)
    }

    /// The name of the snapshot of this text, which the controller creates soon after the write.
    #[track_caller]
    pub fn snapshot_name(&self, source: &str, wanted: &str) -> String {
        let is_it = |snapshot: &&Value| {
            snapshot["metadata"]["labels"]["confrev.dev/source"] == source
                && snapshot["data"]["text"] == wanted
        };
        wait_for(&format!("a snapshot of {wanted:?} of {source}"), LIMIT, || {
            self.snapshots().iter().find(is_it).map(name_of)
        })
    }

    /// The texts of all snapshots of a source, sorted.
    pub fn snapshot_texts(&self, source: &str) -> Vec<String> {
        let of_source = |snapshot: &Value| snapshot["metadata"]["labels"]["confrev.dev/source"] == source;
        let snapshots = self.snapshots().into_iter().filter(of_source);
        let mut texts: Vec<_> = snapshots.map(|s| text(&s["data"]["text"])).collect();
        texts.sort();
        texts
    }

    /// The texts of a source that the ready pods of a workload read, sorted. For a pod that could not start: what it lacks.
    pub fn reads(&self, workload: &Workload, source: &str) -> Vec<String> {
        let pods = self.cluster.ready_pods(self.name(), &format!("app={}", workload.name));
        let mut texts: Vec<_> = pods.iter().map(|pod| self.pod_reads(pod, source)).collect();
        texts.sort();
        texts
    }

    /// The text of a source that a pod reads. For a pod that could not start: what it lacks.
    pub fn pod_reads(&self, pod: &Value, source: &str) -> String {
        match self.cluster.pod_config(pod) {
            Err(problem) => problem,
            Ok(config) => {
                let file = config.files.get(&format!("{source}/text")).cloned().unwrap_or_default();
                if let Some(variable) = config.env.get("app/text").filter(|_| config.files.len() == 1) {
                    assert_eq!(*variable, file, "the pod's variable and its file differ");
                }
                file
            }
        }
    }

    /// Waits until the ready pods read exactly these texts.
    #[track_caller]
    pub fn wait_reads(&self, workload: &Workload, source: &str, texts: &[&str]) {
        let what = format!("pods of {} to read {texts:?} of {source}", workload.reference());
        wait_for(&what, LIMIT, || expect(&self.reads(workload, source), texts));
    }

    /// Checks for some seconds that the ready pods read exactly these texts.
    #[track_caller]
    pub fn reads_for(&self, seconds: u64, workload: &Workload, source: &str, texts: &[&str]) {
        let what = format!("that pods of {} read {texts:?} of {source}", workload.reference());
        holds_for(&what, Duration::from_secs(seconds), || expect(&self.reads(workload, source), texts));
    }

    /// Waits until the workload's template names a snapshot with this text.
    #[track_caller]
    pub fn wait_resolved(&self, workload: &Workload, source: &str, wanted: &str) {
        let what = format!("{} to roll to {wanted:?} of {source}", workload.reference());
        wait_for(&what, LIMIT, || self.resolves_to(workload, source, wanted));
    }

    /// Whether the workload's template names a snapshot with this text.
    pub fn resolves_to(&self, workload: &Workload, source: &str, wanted: &str) -> Result<(), String> {
        let snapshot = self.resolved(workload, source).ok_or("it is not resolved")?;
        let object = self.cluster.get("configmap", self.name(), &snapshot);
        let object = object.ok_or_else(|| format!("there is no {snapshot}"))?;
        let found = text(&object["data"]["text"]);
        if found == wanted { Ok(()) } else { Err(format!("it names {snapshot}, with content {found:?}")) }
    }

    /// Waits until the snapshots of a source have exactly these texts.
    #[track_caller]
    pub fn wait_snapshot_texts(&self, source: &str, texts: &[&str]) {
        let what = format!("the snapshots of {source} to be {texts:?}");
        wait_for(&what, LIMIT, || expect(&self.snapshot_texts(source), texts));
    }

    /// Waits until the workload has this many ReplicaSets.
    #[track_caller]
    pub fn wait_replica_sets(&self, workload: &Workload, count: usize) {
        let what = format!("{count} ReplicaSets of {}", workload.reference());
        wait_for(&what, LIMIT, || expect(&self.replica_sets(workload).len(), &count));
    }

    /// Waits until controllers have nothing left to do: nothing in the namespace has changed for longer than
    /// confrev keeps an owner that is not used any more.
    pub fn wait_at_rest(&self) {
        let (mut before, mut since) = (self.versions(), std::time::Instant::now());
        wait_for("the namespace to be at rest", LIMIT, || {
            let now = self.versions();
            if now != before {
                (before, since) = (now, std::time::Instant::now());
            }
            (since.elapsed() > REST).then_some(())
        });
    }

    /// The resourceVersion of every object in the namespace, one line each.
    pub fn versions(&self) -> Vec<String> {
        let kinds = ["configmap", "secret", "deployment", "rollout", "replicaset", "pod", "serviceaccount"];
        let mut lines = Vec::new();
        for kind in kinds {
            for object in self.cluster.list(kind, self.name(), "") {
                let metadata = &object["metadata"];
                lines.push(format!(
                    "{kind} {} {}",
                    text(&metadata["name"]),
                    text(&metadata["resourceVersion"])
                ));
            }
        }
        lines
    }
}

/// The snapshot of a source that a template names.
pub fn snapshot_of(template: &Value, source: &str) -> Option<String> {
    let sources = template["metadata"]["annotations"]["confrev.dev/sources"].as_str()?;
    let sources: Value = serde_json::from_str(sources).expect("`sources` is JSON");
    sources["configmaps"][source].as_str().map(str::to_owned)
}

/// Compares two values, for the waiting functions.
pub fn expect<T: std::fmt::Debug + PartialEq<U>, U: std::fmt::Debug + ?Sized>(
    seen: &T,
    wanted: &U,
) -> Result<(), String> {
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?}, not {wanted:?}")) }
}

/// A JSON string; empty for any other value.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The verdict on a snapshot; null without one.
pub fn verdict(snapshot: &Value) -> Value {
    let verdict = &snapshot["metadata"]["annotations"]["confrev.dev/verdict"];
    serde_json::from_str(verdict.as_str().unwrap_or("null")).expect("a verdict is JSON")
}

/// The second in which kubectl wrote an object last.
pub fn applied_at(object: &Value) -> Option<Timestamp> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let by_kubectl = entries.filter(|entry| text(&entry["manager"]).starts_with("kubectl"));
    by_kubectl.filter_map(|entry| text(&entry["time"]).parse().ok()).max()
}

/// The name of an object.
pub fn name_of(object: &Value) -> String {
    text(&object["metadata"]["name"])
}
