//! A load of writes of opted-in workloads, without a pause.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::until;

const WRITERS: usize = 4;

/// The writers of a namespace. Each always has a request in flight. The first one changes a stored workload, the others
/// try to create one. All workloads refer to the ConfigMap `demo`, and admission must resolve the reference.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    failure: Arc<Mutex<Option<String>>>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) async fn start(client: &Client, namespace: &str) -> Self {
        let workloads: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let first = until("the first workload", async || {
            workloads.create(&PostParams::default(), &workload("stored")).await.ok()
        })
        .await;
        taken(&first).unwrap();
        let (over, written, failure) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
        let mut load = Self { over, written, failure, writers: Vec::new() };
        for number in 0..WRITERS {
            let (over, written, failure) = (load.over.clone(), load.written.clone(), load.failure.clone());
            let workloads = workloads.clone();
            load.writers.push(tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    if let Err(problem) = write(&workloads, number).await {
                        failure.lock().unwrap().get_or_insert(problem);
                        break;
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        load
    }

    /// Waits for this number of further writes. Panics if one has failed.
    pub(crate) async fn more(&self, count: usize) {
        let before = self.written.load(Ordering::Relaxed);
        until("more writes", async || {
            self.check();
            (self.written.load(Ordering::Relaxed) >= before + count).then_some(())
        })
        .await;
    }

    /// Panics if a write has failed, or was stored unresolved.
    pub(crate) fn check(&self) {
        let failure = self.failure.lock().unwrap().clone();
        let written = self.written.load(Ordering::Relaxed);
        assert!(failure.is_none(), "after {written} writes: {}", failure.unwrap_or_default());
    }

    /// Stops the load.
    pub(crate) async fn end(mut self) {
        self.more(WRITERS * 10).await;
        self.over.store(true, Ordering::Relaxed);
        for writer in self.writers.drain(..) {
            writer.await.unwrap();
        }
        self.check();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.writers.iter().for_each(JoinHandle::abort);
    }
}

async fn write(workloads: &Api<Deployment>, number: usize) -> Result<(), String> {
    let answer = if number == 0 {
        // With the name of the ConfigMap, as in Git: confrev has to resolve it again.
        let change = json!({ "spec": { "template": template() } });
        workloads.patch("stored", &PatchParams::default(), &Patch::Merge(change)).await
    } else {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        workloads.create(&dry, &workload(&format!("writer-{number}"))).await
    };
    taken(&answer.map_err(|error| error.to_string())?)
}

/// Whether the workload refers to a snapshot.
fn taken(workload: &Deployment) -> Result<(), String> {
    let workload = serde_json::to_value(workload).unwrap();
    let name = &workload["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"];
    let resolved = name.as_str().is_some_and(|name| name.starts_with("demo-"));
    resolved.then_some(()).ok_or_else(|| format!("not resolved: {workload}"))
}

/// Paused: its controller creates no ReplicaSets.
pub(crate) fn workload(name: &str) -> Deployment {
    let workload = json!({
        "metadata": { "name": name, "labels": { "confrev.dev/enabled": "true" } },
        "spec": { "paused": true, "replicas": 0, "selector": { "matchLabels": { "app": "load" } }, "template": template() },
    });
    serde_json::from_value(workload).unwrap()
}

fn template() -> Value {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    // A new value each time: kubectl would not send an equal template.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    json!({
        "metadata": { "labels": { "app": "load" }, "annotations": { "number": number } },
        "spec": { "containers": [{ "name": "app", "image": "app", "envFrom": [{ "configMapRef": { "name": "demo" } }] }] },
    })
}
