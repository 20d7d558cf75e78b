//! The calls, made with a client of the real API server.

use std::sync::Arc;

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::{
    Api, ApiError, CALL_LIMIT, Created, Event, Owner, Precondition, Version, WorkloadKey, object_path,
    patch::{PatchFormat, poke_body},
    reads::SharedReads,
};
use crate::{
    kinds::{Kinds, REVISION_KINDS, WorkloadKind},
    names,
    resolve::{Health, NamespaceFacts, Observed, Record, TargetRef, Workload, auto_roll_value},
    snapshot::{self, Identity, ObjectName, snapshot_json},
    telemetry::{Metrics, metrics::Told, traces},
};

/// How writes are recorded in `managedFields`.
const FIELD_MANAGER: &str = "fieldManager=confrev";
/// The kinds whose templates a Rollout can take (`workloadRef`), and that confrev may therefore read. All but the first are
/// known where they are configured.
const TARGETS: [&str; 3] = ["Deployment", "ReplicaSet", "PodTemplate"];

/// Calls to the real API server.
#[derive(Clone)]
pub struct KubeApi {
    client: kube::Client,
    kinds: Arc<Kinds>,
    metrics: Metrics,
    /// Those of ConfigMaps and Secrets.
    reads: Arc<SharedReads<(String, ObjectName), Option<Observed>>>,
}

impl KubeApi {
    /// Calls through that client; every one is counted in `metrics`.
    pub fn new(client: kube::Client, kinds: Arc<Kinds>, metrics: Metrics) -> Self {
        Self { client, kinds, metrics, reads: Arc::default() }
    }

    /// A read whose connection broke is asked once more: a connection that was kept may end at any moment, and a write of
    /// a user's would be refused for it.
    pub(super) async fn get(&self, path: String) -> Result<Vec<u8>, ApiError> {
        match self.call("get", Method::GET, path.clone(), "", Vec::new()).await {
            Err(ApiError::Unreachable { .. }) => self.call("get", Method::GET, path, "", Vec::new()).await,
            answer => answer,
        }
    }

    async fn patch(&self, path: String, format: PatchFormat, body: &Value) -> Result<Vec<u8>, ApiError> {
        self.call("patch", Method::PATCH, path, format.content_type(), body.to_string().into_bytes()).await
    }

    /// One call: its verb is counted, its time is limited, and an answer that is no success becomes an error.
    /// For the commands that people run, beside those of the trait.
    pub async fn call(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ApiError> {
        let what = format!("{verb} {}", path.split('?').next().unwrap_or_default());
        let span = traces::call(verb, &path);
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, "application/json");
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let mut request = request
            .body(Body::from(body))
            .map_err(|error| ApiError::Answer { what: what.clone(), reason: error.to_string() })?;
        traces::inject(&span, request.headers_mut());
        let start = std::time::Instant::now();
        let answer = tokio::time::timeout(CALL_LIMIT, async {
            let response = self.client.send(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, kube::Error>((status, body))
        });
        let answer = answer.instrument(span.clone()).await;
        let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
        let code = code.map_or(0, |(status, _)| status.as_u16());
        self.metrics.api_request(verb, code, start.elapsed());
        span.record("http.response.status_code", code);
        if code == 0 || code >= 500 {
            span.record("otel.status_code", "ERROR");
        }
        match answer {
            Err(_) => Err(ApiError::Late { what, seconds: CALL_LIMIT.as_secs() }),
            Ok(Err(source)) => Err(ApiError::Unreachable { what, source: Box::new(source) }),
            Ok(Ok((status, body))) if status.is_success() => Ok(body.into()),
            Ok(Ok((status, body))) => Err(ApiError::of_status(what, status, &body)),
        }
    }

    fn kind(&self, workload: &WorkloadKey) -> Result<&WorkloadKind, ApiError> {
        self.kinds.iter().nth(workload.kind).ok_or_else(|| ApiError::Answer {
            what: format!("workload {}/{}", workload.namespace, workload.name),
            reason: "its kind is not configured".to_owned(),
        })
    }
}

/// The path of a workload; without a name, of the collection.
pub(super) fn workload_path(kind: &WorkloadKind, namespace: &str, name: &str) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let collection = format!("{root}/{}/namespaces/{namespace}/{}", kind.version, kind.plural);
    if name.is_empty() { collection } else { format!("{collection}/{name}") }
}

pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::Answer { what: what.to_owned(), reason: error.to_string() })
}

impl Api for KubeApi {
    async fn read(&self, namespace: &str, object: &ObjectName) -> Result<Option<Observed>, ApiError> {
        // No object is called so, and such a text has no place in a path.
        if !snapshot::is_object_name(&object.name) {
            return Ok(None);
        }
        let path = object_path(object.kind, namespace, &object.name);
        let read = async {
            match self.get(path.clone()).await {
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
                Ok(bytes) => observed(object, bytes, &path).map(Some),
            }
        };
        self.reads.read((namespace.to_owned(), object.clone()), read).await
    }

    async fn namespace(&self, namespace: &str) -> Result<NamespaceFacts, ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}");
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => {
                return Ok(NamespaceFacts { terminating: true, ..NamespaceFacts::default() });
            }
            other => other?,
        };
        let value: Value = parse(&bytes, &path)?;
        Ok(NamespaceFacts {
            enabled: value["metadata"]["labels"][names::ENABLED] == "true",
            secrets: value["metadata"]["annotations"][names::SECRETS] == "true",
            terminating: value["metadata"].get("deletionTimestamp").is_some(),
        })
    }

    async fn is_enabled(&self, namespace: &str, target: &TargetRef) -> Result<Option<bool>, ApiError> {
        let known = self.kinds.by_kind(&target.api_version, &target.kind);
        let readable = |kind: &&WorkloadKind| {
            TARGETS.contains(&kind.kind.as_str()) && snapshot::is_object_name(&target.name)
        };
        let Some(kind) = known.filter(readable) else { return Ok(None) };
        let path = workload_path(kind, namespace, &target.name);
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let value: Value = parse(&bytes, &path)?;
        Ok(Some(value["metadata"]["labels"][names::ENABLED] == "true"))
    }

    async fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> Result<Created, ApiError> {
        let path = object_path(name.kind, namespace, "") + "?" + FIELD_MANAGER;
        let owners: Vec<_> = owners.iter().map(Owner::to_json).collect();
        let body =
            snapshot_json(name.kind, namespace, &name.name, identity, of, &owners).map_err(|error| {
                ApiError::Answer { what: format!("create {name}"), reason: error.to_string() }
            })?;
        match self.call("create", Method::POST, path, "application/json", body).await {
            Ok(_) => {
                self.metrics.snapshot_created();
                Ok(Created::Now)
            }
            Err(error) if error.is_conflict() => Ok(Created::Exists),
            Err(error) => Err(error),
        }
    }

    async fn set_owners(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        owners: &[Owner],
    ) -> Result<Observed, ApiError> {
        let path = object_path(snapshot.kind, namespace, &snapshot.name) + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {
            "uid": version.uid,
            "resourceVersion": version.resource_version,
            "ownerReferences": owners,
        }});
        let bytes = self.patch(path.clone(), PatchFormat::Merge, &body).await?;
        self.metrics.snapshot_bound();
        observed(snapshot, bytes, &path)
    }

    async fn add_owner(&self, namespace: &str, snapshot: &ObjectName, owner: &Owner) -> Result<(), ApiError> {
        let path = object_path(snapshot.kind, namespace, &snapshot.name) + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {"ownerReferences": [owner]}});
        self.patch(path, PatchFormat::StrategicMerge, &body).await?;
        self.metrics.snapshot_bound();
        Ok(())
    }

    async fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> Result<(), ApiError> {
        let path = object_path(snapshot.kind, namespace, &snapshot.name);
        let preconditions = json!({"uid": version.uid, "resourceVersion": version.resource_version});
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        self.call("delete", Method::DELETE, path, "application/json", body.to_string().into_bytes()).await?;
        self.metrics.snapshot_swept();
        Ok(())
    }

    async fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        now: Timestamp,
    ) -> Result<Record, ApiError> {
        let kind = self.kind(workload)?;
        let path = workload_path(kind, &workload.namespace, &workload.name) + "?" + FIELD_MANAGER;
        let (format, body) = poke_body(condition, &auto_roll_value(now));
        let bytes = match self.patch(path.clone(), format, &body).await {
            // All that the API server says of a JSON patch whose test failed.
            Err(ApiError::Refused { what, code: 422, .. }) if format == PatchFormat::Json => {
                return Err(ApiError::Conflict { what });
            }
            other => other?,
        };
        let value: Value = parse(&bytes, &path)?;
        let workload = Workload::read(kind, &value)
            .map_err(|error| ApiError::Answer { what: path, reason: error.to_string() })?;
        Ok(Record::of(&workload, Health::of(&kind.kind, &value)))
    }

    async fn is_named_by_a_revision(&self, namespace: &str, object: &ObjectName) -> Result<bool, ApiError> {
        for kind in &REVISION_KINDS {
            let collection = format!("/apis/{}/namespaces/{namespace}/{}", kind.api_version(), kind.plural);
            if self.is_named_in(&collection, names::REVISION, kind.template, object).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn is_named_by_a_workload(&self, namespace: &str, object: &ObjectName) -> Result<bool, ApiError> {
        let selector = format!("{}%3Dtrue", names::ENABLED);
        for kind in self.kinds.iter() {
            let collection = workload_path(kind, namespace, "");
            match self.is_named_in(&collection, &selector, &kind.template, object).await {
                // It is not installed.
                Err(error) if error.is_not_found() => {}
                Ok(false) => {}
                other => return other,
            }
        }
        Ok(false)
    }

    async fn tell(&self, event: &Event) -> Result<(), ApiError> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events?{FIELD_MANAGER}", event.namespace);
        let body = event.to_json().to_string().into_bytes();
        match self.call("create", Method::POST, path, "application/json", body).await {
            Ok(_) => {
                self.metrics.event(event.reason, Told::Written);
                Ok(())
            }
            // By this replica in an attempt that was not answered, or by the one that led before.
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => {
                self.metrics.event(event.reason, Told::Failed);
                Err(error)
            }
        }
    }

    async fn unlabelled(&self, namespace: &str) -> Result<Vec<(WorkloadKey, Precondition)>, ApiError> {
        let mut found = Vec::new();
        for (index, kind) in self.kinds.iter().enumerate().filter(|(_, kind)| kind.rolls) {
            found.append(&mut self.unlabelled_of_kind(index, kind, namespace).await?);
        }
        Ok(found)
    }
}

fn observed(object: &ObjectName, bytes: Vec<u8>, path: &str) -> Result<Observed, ApiError> {
    Observed::read(object.kind, bytes)
        .map_err(|error| ApiError::Answer { what: format!("get {path}"), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::snapshot::SourceKind;

    /// A client whose first connections break, as many as that; afterwards every object is an empty ConfigMap.
    fn breaking(times: usize) -> (KubeApi, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let object = br#"{"metadata": {"name": "demo", "uid": "u", "resourceVersion": "1"}}"#;
            std::future::ready(if number < times {
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
            } else {
                Ok(http::Response::new(Body::from(object.to_vec())))
            })
        });
        let client = kube::Client::new(service, "default");
        (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), asked)
    }

    #[tokio::test]
    async fn a_read_whose_connection_breaks_is_asked_once_more_and_no_oftener() {
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        for (times, calls, is_read) in [(0, 1, true), (1, 2, true), (2, 2, false)] {
            let (api, asked) = breaking(times);
            let read = api.read("ns", &demo).await;
            assert_eq!(read.is_ok_and(|read| read.is_some()), is_read, "{times}");
            assert_eq!(asked.load(Ordering::SeqCst), calls, "{times}");
        }
    }
}
