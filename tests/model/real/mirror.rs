//! The observed state of a real cluster: a model's store contains the objects of the last observation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use confrev_controlplane::{ControlPlane, Namespace, wait_for};
use serde_json::{Value, json};

use crate::{
    cluster::REVISION,
    manifest::NAMESPACES,
    model::Model,
    store::{Key, Kind, owners, set_meta},
};

/// Time limit of steps that should take a few seconds. The machine may be busy, and other sequences restart confrev.
pub(crate) const LIMIT: Duration = Duration::from_mins(3);
/// Kinds in the order of their lists: referring objects come before the objects that they refer to.
const KINDS: [Kind; 4] = [Kind::Deployment, Kind::Rollout, Kind::ReplicaSet, Kind::ConfigMap];
/// Labels that the workloads' controllers add to the templates of ReplicaSets.
const HASHES: [&str; 2] = ["pod-template-hash", "rollouts-pod-template-hash"];
const ROLLOUT_REVISION: &str = "rollout.argoproj.io/revision";

/// The namespaces of one sequence.
pub(crate) struct Real {
    pub model: Arc<Model>,
    pub cluster: &'static ControlPlane,
    pub namespaces: Vec<Namespace<'static>>,
}

impl Real {
    /// Creates new, empty namespaces.
    pub(crate) fn new() -> Self {
        let cluster = ControlPlane::shared();
        let namespaces = NAMESPACES.iter().map(|name| cluster.namespace(&format!("model-{name}"))).collect();
        let real = Self { model: Model::empty(), cluster, namespaces };
        real.look();
        real
    }

    /// The real name of a namespace of the model.
    pub(crate) fn namespace(&self, namespace: &str) -> &str {
        let index = NAMESPACES.iter().position(|name| *name == namespace).unwrap();
        self.namespaces[index].name()
    }

    /// Observes all objects. Returns whether anything has changed.
    pub(crate) fn look(&self) -> bool {
        let mut found = BTreeSet::new();
        let mut changed = false;
        for name in NAMESPACES {
            let real = self.namespace(name);
            let namespace = self.cluster.get("namespace", "", real).unwrap();
            changed |= self.found(Key::new(Kind::Namespace, "", name), namespace, &mut found);
            for kind in KINDS {
                for object in self.cluster.list(kind.as_str(), real, "") {
                    let key = Key::new(kind, name, object["metadata"]["name"].as_str().unwrap());
                    if key.name != "kube-root-ca.crt" && object["metadata"]["deletionTimestamp"].is_null() {
                        changed |= self.found(key, object, &mut found);
                    }
                }
            }
        }
        let known: Vec<_> = self.model.store().iter().map(|(key, _)| key.clone()).collect();
        for key in known.iter().filter(|key| !found.contains(key)) {
            changed = true;
            self.model.delete(key);
            // Other sequences may have restarted confrev, and a restarted confrev remembers nothing.
            self.model.ghost().collected(key);
        }
        changed
    }

    fn found(&self, key: Key, object: Value, found: &mut BTreeSet<Key>) -> bool {
        let known = self.model.get(&key);
        found.insert(key.clone());
        let metadata = &object["metadata"];
        if known.as_ref().is_some_and(|known| {
            known["metadata"]["uid"] == metadata["uid"]
                && known["metadata"]["resourceVersion"] == metadata["resourceVersion"]
        }) {
            return false;
        }
        let is_other = known.as_ref().is_some_and(|known| known["metadata"]["uid"] != metadata["uid"]);
        let mut ghost = self.model.ghost();
        if is_other {
            ghost.deleted(&key);
        }
        let stored = self.model.store().put_as_is(&key, plain(object));
        ghost.stored(&key, &stored);
        true
    }

    /// Waits until nothing has changed for this time.
    pub(crate) fn wait_unchanged(&self, time: Duration) {
        let mut since = Instant::now();
        wait_for("the namespaces to be at rest", LIMIT, || {
            if self.look() {
                since = Instant::now();
            }
            (since.elapsed() >= time).then_some(())
        });
    }

    /// Waits until every promise holds and nothing is left to do. Returns the promise that is still broken in the end.
    pub(crate) fn rest(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            self.wait_unchanged(Duration::from_secs(7));
            self.model.check_at_rest();
            let broken = self.model.ghost().broken.take();
            match broken {
                None => return Ok(()),
                // confrev may have been down meanwhile.
                Some(_) if start.elapsed() < LIMIT => {}
                Some(reason) => return Err(reason),
            }
        }
    }

    /// Every object as last observed.
    pub(crate) fn objects(&self) -> BTreeMap<Key, Arc<Value>> {
        self.model.store().iter().map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// The changes since then.
    pub(crate) fn changes_since(&self, before: &BTreeMap<Key, Arc<Value>>) -> Option<String> {
        let now = self.objects();
        let keys: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        let mut changes = Vec::new();
        for key in keys {
            let [old, new] = [before, &now].map(|all| all.get(key).map_or(&Value::Null, |object| object));
            if old != new {
                changes.push(format!("{key}: {}", json_patch::diff(old, new)));
            }
        }
        (!changes.is_empty()).then(|| changes.join("\n"))
    }

    /// A line for each object.
    pub(crate) fn describe(&self) -> String {
        self.namespaces.iter().map(Namespace::describe).collect()
    }

    /// Whether anything owns an object.
    pub(crate) fn is_bound(&self, key: &Key) -> bool {
        self.model.get(key).is_some_and(|object| !owners(&object).is_empty())
    }
}

/// A ReplicaSet's template is its workload's, except for one label. Both kinds of workloads number their revisions.
fn plain(mut object: Value) -> Value {
    if let Some(labels) = object.pointer_mut("/spec/template/metadata/labels").and_then(Value::as_object_mut)
    {
        labels.retain(|label, _| !HASHES.contains(&label.as_str()));
    }
    if let Some(revision) = object["metadata"]["annotations"][ROLLOUT_REVISION].as_str().map(str::to_owned) {
        set_meta(&mut object, "annotations", REVISION, Some(&revision));
    }
    // Indexing leaves nulls for missing fields.
    if object["metadata"]["annotations"].is_null() {
        object["metadata"]["annotations"] = json!({});
    }
    object
}
