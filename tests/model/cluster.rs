//! The controllers of workloads, and the garbage collector.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    manifest::LAST_APPLIED,
    model::Model,
    store::{Key, Kind, annotation, set_meta},
};

/// The number of old ReplicaSets that are kept.
const HISTORY: u64 = 2;
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The finalizer of an object that is deleted in the foreground.
const FOREGROUND: &str = "foregroundDeletion";

impl Model {
    /// The ReplicaSets of a workload.
    pub(crate) fn replicasets(&self, workload: &Value) -> Vec<(Key, Arc<Value>)> {
        self.revisions_of(Kind::ReplicaSet, workload)
    }

    /// The revisions of a workload.
    pub(crate) fn revisions_of(&self, kind: Kind, workload: &Value) -> Vec<(Key, Arc<Value>)> {
        let uid = workload["metadata"]["uid"].as_str().unwrap();
        let store = self.store();
        let own =
            store.of_kind(kind).filter(|(_, object)| object["metadata"]["ownerReferences"][0]["uid"] == uid);
        own.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// The controllers of workloads: one revision for each template. A template that returns gets its earlier revision.
    pub(crate) fn controllers(&self) -> bool {
        self.unless_idle(0, || {
            let workloads: Vec<_> = {
                let store = self.store();
                let all = store.iter().filter(|(key, _)| key.kind.is_workload() && key.kind != Kind::Job);
                all.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
            };
            for (key, live) in workloads {
                if live["metadata"]["deletionTimestamp"].is_null() {
                    self.reconcile(&key, &live);
                }
            }
        })
    }

    fn reconcile(&self, key: &Key, live: &Value) {
        let target = live["spec"]["workloadRef"]["name"].as_str();
        let target = target.map(|name| self.get(&Key::new(Kind::Deployment, &key.namespace, name)));
        let template = match &target {
            None => key.kind.template(live),
            Some(None) => return,
            Some(Some(target)) => &target["spec"]["template"],
        };
        match key.kind {
            Kind::Deployment | Kind::Rollout => self.roll_out(Kind::ReplicaSet, key, live, template),
            Kind::CronJob => return,
            _ => self.roll_out(Kind::ControllerRevision, key, live, template),
        }
        if self.is_enumerated() {
            self.report(key, template);
        }
    }

    fn roll_out(&self, of: Kind, key: &Key, live: &Value, template: &Value) {
        let all = self.revisions_of(of, live);
        let newest = all.iter().map(|(_, object)| revision(object)).max().unwrap_or(0);
        let present = all.iter().find(|(_, object)| of.template(object) == template);
        let number = present.map_or(
            newest + 1,
            |(_, object)| {
                if revision(object) == newest { newest } else { newest + 1 }
            },
        );
        // A Rollout and a Deployment may have the same name.
        let prefix = if key.kind == Kind::Rollout && of == Kind::ReplicaSet && self.is_enumerated() {
            format!("{}-rollout", key.name)
        } else {
            key.name.clone()
        };
        let own = present.map_or_else(
            || Key::new(of, &key.namespace, &format!("{prefix}-{number}")),
            |(own, _)| own.clone(),
        );
        let number = number.to_string();
        let copied = live["metadata"]["annotations"].as_object().into_iter().flatten();
        let copied =
            copied.filter(|(name, _)| !is_skipped(name)).map(|(name, value)| (name.as_str(), value.as_str()));
        let wanted: Vec<_> = copied.chain([(REVISION, Some(number.as_str()))]).collect();
        // Most calls find nothing to do, so only an object that changes is copied.
        let has_all = |object: &Value| wanted.iter().all(|(name, value)| annotation(object, name) == *value);
        if present.is_none_or(|(_, object)| !has_all(object)) {
            let stored = present.map(|(_, object)| (**object).clone());
            let mut object = stored.unwrap_or_else(|| new_revision(of, key, live, template));
            for (name, value) in &wanted {
                set_meta(&mut object, "annotations", name, *value);
            }
            self.commit(&own, object);
        }
        if annotation(live, REVISION) != Some(number.as_str()) {
            let mut workload = live.clone();
            set_meta(&mut workload, "annotations", REVISION, Some(&number));
            self.commit(key, workload);
        }
        let mut older: Vec<_> = all.iter().filter(|(old, _)| *old != own).collect();
        older.sort_by_key(|(_, object)| std::cmp::Reverse(revision(object)));
        let limit = live["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(HISTORY);
        for (old, _) in older.into_iter().skip(usize::try_from(limit).unwrap()) {
            self.delete(old);
        }
    }

    /// The status of a workload. A rollout takes no time, unless the run sets one, and fails with bad content.
    fn report(&self, key: &Key, template: &Value) {
        let Some(live) = self.get(key) else { return };
        let generation = live["metadata"]["generation"].clone();
        let done = self.is_rolled_out(key, template);
        let has_pods = live["spec"]["replicas"] != 0;
        let fails = done && has_pods && self.reads(&key.namespace, template, "bad");
        let is_broken =
            done && has_pods && self.conditions().breaks && self.reads(&key.namespace, template, "breaks");
        let ready = u64::from(done && !fails);
        let status = match key.kind {
            Kind::Deployment => {
                let reason = match (done, fails) {
                    (_, true) => "ProgressDeadlineExceeded",
                    (true, false) => "NewReplicaSetAvailable",
                    (false, false) => "ReplicaSetUpdated",
                };
                json!({
                    "observedGeneration": generation,
                    "replicas": 2 - ready,
                    "updatedReplicas": 1,
                    "availableReplicas": u64::from(!is_broken),
                    "conditions": [{"type": "Progressing", "reason": reason}],
                })
            }
            Kind::Rollout => {
                let phase = if fails {
                    "Degraded"
                } else if done {
                    "Healthy"
                } else {
                    "Progressing"
                };
                let mut status = json!({"observedGeneration": generation.to_string(), "phase": phase});
                // Argo Rollouts reports which template of the other workload it has observed.
                if let Some(name) = live["spec"]["workloadRef"]["name"].as_str()
                    && let Some(target) = self.get(&Key::new(Kind::Deployment, &key.namespace, name))
                {
                    let observed = target["metadata"]["generation"].to_string();
                    status["workloadObservedGeneration"] = json!(observed);
                }
                status
            }
            Kind::StatefulSet => {
                json!({"observedGeneration": generation, "updatedReplicas": 1, "readyReplicas": ready})
            }
            Kind::DaemonSet => json!({
                "observedGeneration": generation,
                "desiredNumberScheduled": 1,
                "updatedNumberScheduled": 1,
                "numberAvailable": ready,
            }),
            _ => return,
        };
        if live["status"] != status {
            let mut object = (*live).clone();
            object["status"] = status;
            self.commit(key, object);
        }
    }

    /// Whether pods of this template read a content with this key.
    fn reads(&self, namespace: &str, template: &Value, name: &str) -> bool {
        crate::manifest::references(template).iter().any(|reference| {
            let live = self.get(&Key::new(reference.kind.into(), namespace, &reference.name));
            live.is_some_and(|live| live["data"].get(name).is_some())
        })
    }

    /// The garbage collector: deletes objects whose owners are all missing, and removes missing owners from others.
    pub(crate) fn collect(&self) -> bool {
        self.unless_idle(1, || {
            let owned: Vec<_> = {
                let store = self.store();
                let owned =
                    store.iter().filter(|(_, object)| !object["metadata"]["ownerReferences"].is_null());
                owned.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
            };
            for (key, object) in owned {
                self.collect_one(&key, &object);
            }
            if self.is_enumerated() {
                self.finish_deletions();
            }
        })
    }

    fn collect_one(&self, key: &Key, object: &Value) {
        let list = object["metadata"]["ownerReferences"].as_array().unwrap();
        let (left, gone): (Vec<_>, Vec<_>) = {
            let store = self.store();
            list.iter().partition(|owner| store.has_uid(owner["uid"].as_str().unwrap()))
        };
        if left.is_empty() {
            self.collect_object(key, object);
        } else if self.is_enumerated() && left.iter().all(|owner| self.waits_for_dependents(owner)) {
            self.collect_with_its_owners(key, object);
        } else if !gone.is_empty() {
            let mut object = object.clone();
            object["metadata"]["ownerReferences"] = left.into_iter().cloned().collect();
            self.commit(key, object);
        }
    }

    /// Whether an owner is being deleted in the foreground.
    fn waits_for_dependents(&self, owner: &Value) -> bool {
        let store = self.store();
        store.iter().any(|(_, object)| {
            object["metadata"]["uid"] == owner["uid"] && !object["metadata"]["deletionTimestamp"].is_null()
        })
    }

    /// A ReplicaSet waits for its pods; an object without dependents is deleted immediately.
    fn collect_with_its_owners(&self, key: &Key, object: &Value) {
        if !key.kind.is_revision() {
            return self.delete(key);
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            self.delete_in_foreground(key);
            self.pods_end_later(key);
        }
    }

    /// Marks an object as deleted, until all its dependents are deleted.
    pub(crate) fn delete_in_foreground(&self, key: &Key) {
        let Some(live) = self.get(key) else { return };
        let mut object = (*live).clone();
        object["metadata"]["deletionTimestamp"] = json!(self.cluster_time().to_string());
        object["metadata"]["finalizers"] = json!([FOREGROUND]);
        self.commit(key, object);
    }

    fn finish_deletions(&self) {
        let ended: Vec<_> = {
            let store = self.store();
            let blocks = |object: &Value, uid: &Value| {
                let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                owners.any(|owner| owner["uid"] == *uid && owner["blockOwnerDeletion"] == true)
            };
            let is_waiting = |object: &Value| object["metadata"]["finalizers"] == json!([FOREGROUND]);
            let waiting = store.iter().filter(|(_, object)| is_waiting(object));
            let ended = waiting.filter(|(key, object)| {
                !store.iter().any(|(_, other)| blocks(other, &object["metadata"]["uid"]))
                    && !self.has_pods_still(key)
            });
            ended.map(|(key, _)| key.clone()).collect()
        };
        for key in ended {
            self.delete(&key);
        }
    }
}

/// Annotations that `kubectl rollout undo` and the Deployment controller do not copy.
pub(crate) fn is_skipped(annotation: &str) -> bool {
    [LAST_APPLIED, REVISION].contains(&annotation)
}

pub(crate) fn revision(replicaset: &Value) -> u64 {
    annotation(replicaset, REVISION).unwrap().parse().unwrap()
}

fn new_revision(of: Kind, key: &Key, live: &Value, template: &Value) -> Value {
    let owner = json!({
        "apiVersion": key.kind.api_version(),
        "kind": key.kind.as_str(),
        "name": key.name,
        "uid": live["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    });
    let mut object =
        json!({"metadata": {"labels": template["metadata"]["labels"], "ownerReferences": [owner]}});
    *of.template_mut(&mut object) = template.clone();
    object
}
