//! The environment of the load: a namespace, a client that retries, and the list of losses.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use confrev::snapshot::SourceKind;
use confrev_controlplane::{Api, ControlPlane};
use http::Method;
use serde_json::Value;

use crate::kind::{REVISIONS, SOURCES, Workload, name_of};

/// How long users retry before a failed write counts as a loss: longer than any fault.
const PATIENCE: Duration = Duration::from_mins(4);
/// How long a user waits for one response.
const ANSWER: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(250);

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// Selects snapshots of any source.
const SNAPSHOTS: &str = "labelSelector=app.kubernetes.io/managed-by=confrev,confrev.dev/source";

pub(crate) struct Site {
    pub(crate) cluster: &'static ControlPlane,
    pub(crate) namespace: String,
    api: Api,
    losses: Mutex<Vec<String>>,
    writes: AtomicUsize,
    pub(crate) retries: AtomicUsize,
    /// Snapshots that were missing for a while although they were in use.
    pub(crate) gaps: AtomicUsize,
}

impl Site {
    pub(crate) fn new(cluster: &'static ControlPlane, namespace: &str) -> Self {
        Self {
            cluster,
            namespace: namespace.to_owned(),
            api: cluster.api().within(ANSWER),
            losses: Mutex::default(),
            writes: AtomicUsize::new(0),
            retries: AtomicUsize::new(0),
            gaps: AtomicUsize::new(0),
        }
    }

    /// Records a broken promise.
    pub(crate) fn lost(&self, promise: &str, what: impl Display) {
        let loss = format!("{promise}: {what}");
        eprintln!("LOSS {loss}");
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).push(loss);
    }

    /// The number of writes that users have begun.
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn losses(&self) -> usize {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Reads an object; an error gives the reason.
    pub(crate) fn get(&self, path: &str) -> Result<Value, String> {
        match self.api.send(&Method::GET, path, None)? {
            (200, object) => Ok(object),
            (code, answer) => Err(format!("GET {path}: {code} {answer}")),
        }
    }

    /// The objects of a collection.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Value>, String> {
        match self.get(path)?["items"].take() {
            Value::Array(items) => Ok(items),
            other => Err(format!("GET {path}: {other}")),
        }
    }

    /// The path of the sources and snapshots of a kind.
    pub(crate) fn sources(&self, kind: SourceKind) -> String {
        format!("/api/v1/namespaces/{}/{}", self.namespace, kind.plural())
    }

    /// The path of a collection of revisions.
    pub(crate) fn revisions(&self, collection: &str) -> String {
        format!("/apis/apps/v1/namespaces/{}/{collection}", self.namespace)
    }

    pub(crate) fn path(&self, workload: &Workload) -> String {
        format!("{}/{}", workload.kind.path(&self.namespace), workload.name)
    }

    /// The revisions of all workloads.
    pub(crate) fn all_revisions(&self) -> Result<Vec<Value>, String> {
        let of_kinds = REVISIONS.iter().map(|collection| self.list(&self.revisions(collection)));
        of_kinds.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
    }

    /// The revisions of one workload.
    pub(crate) fn revisions_of(&self, workload: &Workload) -> Result<Vec<Value>, String> {
        let collection = self.revisions(workload.kind.revisions());
        self.list(&format!("{collection}?labelSelector=app%3D{}", workload.name))
    }

    /// Snapshots of both kinds, by name. Sources of different kinds have different names here.
    pub(crate) fn snapshots(&self) -> Result<BTreeMap<String, Value>, String> {
        self.all_of_sources(&format!("?{SNAPSHOTS}"))
    }

    /// Sources and snapshots of both kinds, by name.
    pub(crate) fn all_of_sources(&self, query: &str) -> Result<BTreeMap<String, Value>, String> {
        let of_kinds = SOURCES.iter().map(|kind| self.list(&format!("{}{query}", self.sources(*kind))));
        of_kinds.collect::<Result<Vec<_>, _>>().map(|all| by_name(all.concat()))
    }

    /// One attempt of a write. `free`: confrev must not refuse this write.
    pub(crate) fn try_write(
        &self,
        method: &Method,
        path: &str,
        (content_type, body): (&str, &Value),
        free: bool,
    ) -> Result<Value, String> {
        match self.api.send(method, path, Some((content_type, body)))? {
            (200..=299, object) => Ok(object),
            (code, answer) => {
                let refusal = format!("{method} {path}: {code} {}", answer["message"]);
                // No certificate in use may have expired.
                if (free && refusal.contains("confrev")) || refusal.contains("certificate has expired") {
                    self.lost("contained", &refusal);
                }
                Err(refusal)
            }
        }
    }

    /// A write by a user who retries until it succeeds. A repeated write must have no further effect.
    pub(crate) fn write(
        &self,
        method: &Method,
        path: &str,
        body: (&str, &Value),
        free: bool,
    ) -> Option<Value> {
        self.until_done(path, || self.try_write(method, path, body, free))
    }

    /// Retries until `act` succeeds. `None` is a loss.
    pub(crate) fn until_done<T>(&self, what: &str, mut act: impl FnMut() -> Result<T, String>) -> Option<T> {
        let start = Instant::now();
        self.writes.fetch_add(1, Ordering::Relaxed);
        loop {
            match act() {
                Ok(done) => return Some(done),
                Err(reason) if start.elapsed() > PATIENCE => {
                    self.lost("contained", format!("{what} could not be written in {PATIENCE:?}: {reason}"));
                    return None;
                }
                Err(_) => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// Objects by name.
pub(crate) fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|object| (name_of(&object), object)).collect()
}
