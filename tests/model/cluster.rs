//! The controllers of workloads, and the garbage collector.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    manifest::{LAST_APPLIED, WORKLOADS, workload_key},
    model::Model,
    store::{Key, Kind, annotation, set_meta},
};

/// ReplicaSets that are left beside the present one.
const HISTORY: usize = 2;
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";

impl Model {
    /// The ReplicaSets of a workload.
    pub(crate) fn replicasets(&self, workload: &Value) -> Vec<(Key, Arc<Value>)> {
        let uid = workload["metadata"]["uid"].as_str().unwrap();
        let store = self.store();
        let own = store
            .of_kind(Kind::ReplicaSet)
            .filter(|(_, object)| object["metadata"]["ownerReferences"][0]["uid"] == uid);
        own.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// The controllers of workloads: one ReplicaSet for each template, a template that returns finds its own again.
    pub(crate) fn controllers(&self) -> bool {
        self.unless_idle(0, || {
            for index in 0..WORKLOADS.len() {
                let key = workload_key(index);
                if let Some(live) = self.get(&key) {
                    self.roll_out(&key, &live);
                }
            }
        })
    }

    fn roll_out(&self, key: &Key, live: &Value) {
        let all = self.replicasets(live);
        let newest = all.iter().map(|(_, object)| revision(object)).max().unwrap_or(0);
        let template = &live["spec"]["template"];
        let present = all.iter().find(|(_, object)| object["spec"]["template"] == *template);
        let number = present.map_or(
            newest + 1,
            |(_, object)| {
                if revision(object) == newest { newest } else { newest + 1 }
            },
        );
        let own = present.map_or_else(
            || Key::new(Kind::ReplicaSet, &key.namespace, &format!("{}-{number}", key.name)),
            |(own, _)| own.clone(),
        );
        let mut object = present.map_or_else(|| replicaset(key, live), |(_, object)| (**object).clone());
        for (name, value) in live["metadata"]["annotations"].as_object().into_iter().flatten() {
            if !is_skipped(name) {
                set_meta(&mut object, "annotations", name, value.as_str());
            }
        }
        set_meta(&mut object, "annotations", REVISION, Some(&number.to_string()));
        self.commit(&own, object);
        let mut workload = live.clone();
        set_meta(&mut workload, "annotations", REVISION, Some(&number.to_string()));
        self.commit(key, workload);
        let mut older: Vec<_> = all.iter().filter(|(old, _)| *old != own).collect();
        older.sort_by_key(|(_, object)| std::cmp::Reverse(revision(object)));
        for (old, _) in older.into_iter().skip(HISTORY) {
            self.delete(old);
        }
    }

    /// The garbage collector: what has owners and all of them are gone goes; owners that are gone are struck.
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
        })
    }

    fn collect_one(&self, key: &Key, object: &Value) {
        let list = object["metadata"]["ownerReferences"].as_array().unwrap();
        let (left, gone): (Vec<_>, Vec<_>) = {
            let store = self.store();
            list.iter().partition(|owner| store.has_uid(owner["uid"].as_str().unwrap()))
        };
        if left.is_empty() {
            self.delete(key);
            self.ghost().collected(key);
        } else if !gone.is_empty() {
            let mut object = object.clone();
            object["metadata"]["ownerReferences"] = left.into_iter().cloned().collect();
            self.commit(key, object);
        }
    }
}

/// What `kubectl rollout undo` and the Deployment controller do not copy.
pub(crate) fn is_skipped(annotation: &str) -> bool {
    [LAST_APPLIED, REVISION].contains(&annotation)
}

pub(crate) fn revision(replicaset: &Value) -> u64 {
    annotation(replicaset, REVISION).unwrap().parse().unwrap()
}

fn replicaset(key: &Key, live: &Value) -> Value {
    let owner = json!({
        "apiVersion": key.kind.api_version(),
        "kind": key.kind.as_str(),
        "name": key.name,
        "uid": live["metadata"]["uid"],
        "controller": true,
    });
    json!({
        "metadata": {"labels": live["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner]},
        "spec": {"template": live["spec"]["template"]},
    })
}
