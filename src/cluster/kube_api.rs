//! [`Api`] on a client of the real API server.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::{
    api::{Api, CALL_LIMIT},
    error::ApiError,
    event::Event,
    joined_owners::JoinedOwners,
    meter::{LARGE, Meter, MeteredBytes, ResponseBody},
    objects::{Candidate, Created, LiveWorkload, Usage},
    patch::{PatchFormat, poke_body},
    path,
    shared_calls::SharedCalls,
};
use crate::{
    annotations,
    kinds::{Kinds, WorkloadKind},
    resolve::{
        Analysis, Health, NamespaceFacts, NamespaceOptIn, Observed, Past, Record, RevisionsOf, TargetRef,
        Workload, may_lend_template,
    },
    snapshot::{self, CopiedLabel, Identity, Keying, Made, ObjectName, Rotated, SourceKind, snapshot_json},
    telemetry::{
        Metrics,
        metrics::{EventOutcome, Limit},
        traces,
    },
    world::{
        DigestKeys, Inherited, MAX_NAMES, NamespaceChoice, Owner, Precondition, RefusedList, Version,
        WorkloadKey,
    },
};

/// The name of confrev in `managedFields`. kube's request builder would set it too, but needs the object's name apart from its
/// path; here both are checked and joined by [`path`].
const FIELD_MANAGER: &str = "fieldManager=confrev";

/// How long a read waits for an earlier one of the same object.
const READ_PATIENCE: Duration = Duration::from_millis(250);

/// The API of Argo Rollouts.
const ROLLOUTS_API: &str = "argoproj.io/v1alpha1";

/// The requested form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accept {
    /// The whole object or list.
    Json,
    /// An object's metadata.
    Metadata,
    /// A list of objects' metadata.
    MetadataList,
}

impl Accept {
    /// The value of the header.
    pub(super) const fn value(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Self::MetadataList => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        }
    }
}

/// What is kept of an answer's body.
#[derive(Clone, Copy, Debug)]
enum Keep {
    /// A body of at most that many bytes; a longer body is [`ApiError::TooLarge`].
    UpTo(usize),
    /// The body of one object. A large one waits for its turn.
    Content,
    /// Nothing, unless the answer is an error. The answer to a write repeats the whole object.
    Errors,
}

/// Why a body was not read to its end.
enum Excess {
    /// It is longer than the limit of the call.
    Length,
    /// Its memory exceeds the limit of the meter.
    Memory,
}

/// Calls to the real API server.
#[derive(Clone)]
pub struct KubeApi {
    client: kube::Client,
    kinds: Arc<Kinds>,
    metrics: Metrics,
    /// Admits calls, and counts the memory of answers.
    meter: Option<Arc<dyn Meter>>,
    /// The reads of ConfigMaps and Secrets in progress.
    reads: Arc<SharedCalls<(String, ObjectName), Option<Observed>>>,
    /// The owners that are being added to snapshots.
    joined: Arc<JoinedOwners>,
    /// The keys of the digests of Secrets.
    keys: DigestKeys,
    /// The labels of sources that snapshots carry.
    copied: Arc<[CopiedLabel]>,
    /// The ConfigMaps that are never snapshotted.
    pub(super) rotated: Rotated,
    /// What sources and workloads inherit.
    pub(super) inherited: Inherited,
    /// The contents that the installation refuses.
    refused: RefusedList,
    /// The most names that a workload to opt in may refer to.
    pub(super) max_names: usize,
    /// Gets each warning of the API server about a write.
    warn: Option<fn(&str)>,
}

impl KubeApi {
    /// Makes calls through this client; every call is counted in `metrics`.
    pub fn new(client: kube::Client, kinds: Arc<Kinds>, metrics: Metrics) -> Self {
        Self {
            client,
            kinds,
            metrics,
            meter: None,
            reads: Arc::new(SharedCalls::new(READ_PATIENCE)),
            joined: Arc::default(),
            keys: DigestKeys::default(),
            copied: Arc::default(),
            rotated: Rotated::default(),
            inherited: Inherited::default(),
            refused: RefusedList::default(),
            max_names: MAX_NAMES,
            warn: None,
        }
    }

    /// Computes the digests of Secrets under these keys.
    #[must_use]
    pub fn keyed_by(self, keys: DigestKeys) -> Self {
        Self { keys, ..self }
    }

    /// Copies these labels of a source to its snapshots.
    #[must_use]
    pub fn copying(self, labels: impl IntoIterator<Item = CopiedLabel>) -> Self {
        Self { copied: labels.into_iter().collect(), ..self }
    }

    /// Opts in no workload that refers to more names than this.
    #[must_use]
    pub fn with_max_names(self, names: usize) -> Self {
        Self { max_names: names, ..self }
    }

    /// Shows each warning of the API server about a write.
    #[must_use]
    pub fn warning(self, warn: fn(&str)) -> Self {
        Self { warn: Some(warn), ..self }
    }

    /// The same calls, of which no warning is shown: they ask, and write nothing.
    #[must_use]
    pub fn quiet(&self) -> Self {
        Self { warn: None, ..self.clone() }
    }

    /// Leaves references to these ConfigMaps as written.
    #[must_use]
    pub fn leaving(self, rotated: Rotated) -> Self {
        Self { rotated, ..self }
    }

    /// Reads what sources and workloads inherit, too.
    #[must_use]
    pub fn under(self, inherited: Inherited) -> Self {
        Self { inherited, ..self }
    }

    /// Reads which contents the installation refuses.
    #[must_use]
    pub fn refusing(self, refused: RefusedList) -> Self {
        Self { refused, ..self }
    }

    fn observed(
        &self,
        namespace: &str,
        object: &ObjectName,
        bytes: Vec<u8>,
        path: &str,
    ) -> Result<Observed, ApiError> {
        let keying =
            if object.kind == SourceKind::Secret { self.keys.keying(namespace) } else { Keying::default() };
        Observed::read_keyed(object.kind, bytes, keying)
            .map(|observed| self.inherited.source(namespace, observed).refused_by(&self.refused.contents()))
            .map_err(|error| ApiError::Answer { what: format!("get {path}"), reason: error.to_string() })
    }

    /// The client, for watches.
    pub(super) fn client(&self) -> &kube::Client {
        &self.client
    }

    /// The configured kinds of workloads.
    pub fn kinds(&self) -> &Arc<Kinds> {
        &self.kinds
    }

    /// Reads an object. If the connection breaks, the read is repeated once: a kept-alive connection may close at any
    /// moment, and a user's write would be refused because of it.
    pub(super) async fn get(&self, path: String) -> Result<ResponseBody, ApiError> {
        self.get_kept(path, Accept::Json, Keep::Content).await
    }

    /// Reads an answer of at most that many bytes; a longer answer is [`ApiError::TooLarge`].
    pub(super) async fn get_up_to(
        &self,
        path: String,
        accept: Accept,
        max: usize,
    ) -> Result<ResponseBody, ApiError> {
        self.get_kept(path, accept, Keep::UpTo(max)).await
    }

    async fn get_kept(&self, path: String, accept: Accept, keep: Keep) -> Result<ResponseBody, ApiError> {
        let get = |path| self.send("get", Method::GET, path, ("", Vec::new()), (accept, keep));
        match get(path.clone()).await {
            Err(ApiError::Unreachable { .. }) => get(path).await,
            answer => answer,
        }
    }

    /// Reads an object or a list of any kind; `None` if the object, or its kind, does not exist.
    async fn get_if_exists(&self, path: String) -> Result<Option<Value>, ApiError> {
        match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
            Ok(bytes) => parse(&bytes, &path).map(Some),
        }
    }

    async fn patch(
        &self,
        path: String,
        format: PatchFormat,
        body: &Value,
        keep: Keep,
    ) -> Result<ResponseBody, ApiError> {
        let body = (format.content_type(), body.to_string().into_bytes());
        self.send("patch", Method::PATCH, path, body, (Accept::Json, keep)).await
    }

    /// A write whose answer is not needed.
    async fn write(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        body: Vec<u8>,
    ) -> Result<(), ApiError> {
        let body = ("application/json", body);
        self.send(verb, method, path, body, (Accept::Json, Keep::Errors)).await.map(drop)
    }

    /// One call: its verb is counted, its time is limited, and an answer other than success becomes an error. The
    /// command line uses it for calls that the trait does not have.
    pub async fn call(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ApiError> {
        let keep = (Accept::Json, Keep::UpTo(usize::MAX));
        let answer = self.send(verb, method, path, (content_type, body), keep).await?;
        Ok(answer.into_parts().0)
    }

    async fn send(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        (content_type, body): (&str, Vec<u8>),
        (accept, keep): (Accept, Keep),
    ) -> Result<ResponseBody, ApiError> {
        let what = format!("{verb} {}", path.split('?').next().unwrap_or_default());
        // The body of a write is a copy of what was read.
        let mut sent = MeteredBytes::new(self.meter.as_ref());
        if !sent.grow(body.len()) {
            self.metrics.limit_reached(Limit::ReadBytes, 1);
            return Err(ApiError::too_many_bytes(what));
        }
        let _call = match &self.meter {
            None => None,
            Some(meter) => {
                let call = meter.begin().await;
                if call.is_none() {
                    self.metrics.limit_reached(Limit::Calls, 1);
                    return Err(ApiError::too_many_calls(what));
                }
                call
            }
        };
        let span = traces::call(verb, &path);
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept.value());
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
            if let Some(warn) = self.warn.filter(|_| !content_type.is_empty()) {
                for text in response.headers().get_all(header::WARNING).iter().filter_map(warning_text) {
                    warn(&text);
                }
            }
            let max = match keep {
                Keep::UpTo(max) => Some(max),
                Keep::Errors if status.is_success() => None,
                Keep::Errors | Keep::Content => Some(usize::MAX),
            };
            let metered = MeteredBytes::new(self.meter.as_ref());
            let body = read_up_to(response.into_body(), max, matches!(keep, Keep::Content), metered).await?;
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
            Ok(Ok((_, Err(Excess::Length)))) => Err(ApiError::TooLarge { what }),
            Ok(Ok((_, Err(Excess::Memory)))) => {
                self.metrics.limit_reached(Limit::ReadBytes, 1);
                Err(ApiError::too_many_bytes(what))
            }
            Ok(Ok((status, Ok(body)))) if status.is_success() => Ok(body),
            Ok(Ok((status, Ok(body)))) => {
                let error = ApiError::of_status(what, status, &body);
                if status == http::StatusCode::FORBIDDEN {
                    self.metrics.api_forbidden(verb, error.forbidden());
                }
                Err(error)
            }
        }
    }

    fn kind(&self, workload: &WorkloadKey) -> Result<&WorkloadKind, ApiError> {
        self.kinds.iter().nth(workload.kind).ok_or_else(|| ApiError::Answer {
            what: format!("workload {}/{}", workload.namespace, workload.name),
            reason: "its kind is not configured".to_owned(),
        })
    }
}

/// The text of a `Warning` header, `299 - "text"`. Source: RFC 7234, section 5.5.
fn warning_text(value: &http::HeaderValue) -> Option<String> {
    let text = str::from_utf8(value.as_bytes()).ok()?;
    let quoted = text.splitn(3, ' ').nth(2)?.strip_prefix('"')?.strip_suffix('"')?;
    let mut plain = String::with_capacity(quoted.len());
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        plain.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    Some(plain)
}

/// Reads a body of at most that many bytes, and counts its memory as it arrives. Without `max`, the body is discarded. A content
/// waits for its turn once it is large.
async fn read_up_to(
    mut body: Body,
    max: Option<usize>,
    is_content: bool,
    mut metered: MeteredBytes,
) -> Result<Result<ResponseBody, Excess>, kube::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let (Ok(data), Some(max)) = (frame?.into_data(), max) else { continue };
        let length = bytes.len() + data.len();
        if length > max {
            return Ok(Err(Excess::Length));
        }
        let room = bytes.capacity();
        if is_content && length > LARGE {
            metered.large_content().await;
        }
        if length > room {
            // Doubles, as the vector does.
            let more = length.max(2 * room) - room;
            if !metered.grow(more) {
                return Ok(Err(Excess::Memory));
            }
            bytes.reserve_exact(room + more - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Ok(ResponseBody::new(bytes, metered)))
}

/// The path of the template of an analysis.
fn analysis_template_path(
    namespace: &str,
    Analysis { cluster, name }: &Analysis,
) -> Result<String, ApiError> {
    if *cluster {
        path::cluster_object(ROLLOUTS_API, "clusteranalysistemplates", name)
    } else {
        path::object(ROLLOUTS_API, namespace, "analysistemplates", name)
    }
}

/// The path of a workload.
fn workload_path(kind: &WorkloadKind, namespace: &str, name: &str) -> Result<String, ApiError> {
    path::object(&kind.api_version(), namespace, &kind.plural, name)
}

/// The path of a ConfigMap or Secret.
fn source_path(object: &ObjectName, namespace: &str) -> Result<String, ApiError> {
    path::object("v1", namespace, object.kind.plural(), &object.name)
}

pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::Answer { what: what.to_owned(), reason: error.to_string() })
}

impl Api for KubeApi {
    fn metered(&self, meter: Arc<dyn Meter>) -> Self {
        Self { meter: Some(meter), ..self.clone() }
    }

    async fn read(&self, namespace: &str, object: &ObjectName) -> Result<Option<Observed>, ApiError> {
        // No object can have such a name, and it must not become part of a path.
        if !snapshot::is_object_name(&object.name) {
            return Ok(None);
        }
        let path = source_path(object, namespace)?;
        let read = async {
            match self.get_kept(path.clone(), Accept::Json, Keep::Content).await {
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
                Ok(answer) => {
                    let (bytes, mut metered) = answer.into_parts();
                    // The text is copied while it is parsed.
                    if !metered.grow(bytes.len()) {
                        self.metrics.limit_reached(Limit::ReadBytes, 1);
                        return Err(ApiError::too_many_bytes(format!("get {path}")));
                    }
                    self.observed(namespace, object, bytes, &path).map(Some)
                }
            }
        };
        self.reads.call((namespace.to_owned(), object.clone()), read).await
    }

    async fn namespace(&self, namespace: &str) -> Result<NamespaceFacts, ApiError> {
        let path = path::namespace(namespace)?;
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => {
                return Ok(NamespaceFacts { terminating: true, ..NamespaceFacts::default() });
            }
            other => other?,
        };
        let value: Value = parse(&bytes, &path)?;
        let choice = NamespaceChoice::read(|key| value["metadata"]["annotations"][key].as_str());
        self.inherited.choose(&namespace.into(), choice);
        Ok(NamespaceFacts {
            opt_in: NamespaceOptIn::read(value["metadata"]["labels"][annotations::ENABLED].as_str()),
            secrets: value["metadata"]["annotations"][annotations::SECRETS] == "true",
            live_secrets: value["metadata"]["annotations"][annotations::SECRETS_MODE] == "live",
            terminating: value["metadata"].get("deletionTimestamp").is_some(),
        })
    }

    async fn is_enabled(&self, namespace: &str, target: &TargetRef) -> Result<Option<bool>, ApiError> {
        let known = self.kinds.by_kind(&target.api_version, &target.kind);
        // confrev has no right to read other kinds. Of these kinds, only Deployment is known without configuration.
        let readable =
            |kind: &&WorkloadKind| may_lend_template(&kind.kind) && snapshot::is_object_name(&target.name);
        let Some(kind) = known.filter(readable) else { return Ok(None) };
        let path = workload_path(kind, namespace, &target.name)?;
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let value: Value = parse(&bytes, &path)?;
        Ok(Some(value["metadata"]["labels"][annotations::ENABLED] == "true"))
    }

    async fn revisions(&self, namespace: &str, of: &RevisionsOf) -> Result<Vec<Past>, ApiError> {
        self.revisions_of(namespace, of).await
    }

    async fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> Result<Created, ApiError> {
        let path = path::collection("v1", namespace, name.kind.plural())? + "?" + FIELD_MANAGER;
        let owners: Vec<_> = owners.iter().map(Owner::to_json).collect();
        let made = Made { copied: &self.copied, at: Timestamp::now() };
        let body = snapshot_json(name.kind, namespace, &name.name, identity, of, &owners, made).map_err(
            |error| ApiError::Answer { what: format!("create {name}"), reason: error.to_string() },
        )?;
        match self.write("create", Method::POST, path, body).await {
            Ok(()) => {
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
        let path = source_path(snapshot, namespace)? + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {
            "uid": version.uid,
            "resourceVersion": version.resource_version,
            "ownerReferences": owners,
        }});
        let answer = self.patch(path.clone(), PatchFormat::Merge, &body, Keep::Content).await?;
        let (bytes, _metered) = answer.into_parts();
        self.metrics.snapshot_bound();
        self.observed(namespace, snapshot, bytes, &path)
    }

    async fn set_changed_by(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        by: &str,
    ) -> Result<(), ApiError> {
        let path = source_path(snapshot, namespace)? + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {
            "uid": version.uid,
            "resourceVersion": version.resource_version,
            "annotations": {annotations::CHANGED_BY: by},
        }});
        self.patch(path, PatchFormat::Merge, &body, Keep::Errors).await.map(drop)
    }

    async fn set_annotation(
        &self,
        namespace: &str,
        object: &ObjectName,
        version: &Version,
        (key, value): (&'static str, Option<String>),
    ) -> Result<String, ApiError> {
        let path = source_path(object, namespace)? + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {
            "uid": version.uid,
            "resourceVersion": version.resource_version,
            "annotations": {key: value},
        }});
        let body = (PatchFormat::Merge.content_type(), body.to_string().into_bytes());
        let keep = (Accept::Metadata, Keep::UpTo(usize::MAX));
        let answer = self.send("patch", Method::PATCH, path.clone(), body, keep).await?;
        let (bytes, _metered) = answer.into_parts();
        let answer: Value = parse(&bytes, &path)?;
        let after = answer["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        after.ok_or_else(|| ApiError::Answer { what: path, reason: "no resourceVersion".to_owned() })
    }

    async fn add_owner(&self, namespace: &str, snapshot: &ObjectName, owner: &Owner) -> Result<(), ApiError> {
        let path = source_path(snapshot, namespace)? + "?" + FIELD_MANAGER;
        let send = |owners: Vec<Owner>| async move {
            let body = json!({"metadata": {"ownerReferences": owners}});
            self.patch(path, PatchFormat::StrategicMerge, &body, Keep::Errors).await?;
            self.metrics.snapshot_bound();
            Ok(())
        };
        self.joined.add(namespace, snapshot, owner, send).await
    }

    async fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> Result<(), ApiError> {
        let path = source_path(snapshot, namespace)?;
        let preconditions = json!({"uid": version.uid, "resourceVersion": version.resource_version});
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        self.write("delete", Method::DELETE, path, body.to_string().into_bytes()).await?;
        self.metrics.snapshot_swept();
        Ok(())
    }

    async fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        roll: &str,
    ) -> Result<Record, ApiError> {
        let kind = self.kind(workload)?;
        let path = workload_path(kind, &workload.namespace, &workload.name)? + "?" + FIELD_MANAGER;
        let (format, body) = poke_body(condition, roll);
        let bytes = match self.patch(path.clone(), format, &body, Keep::Content).await {
            // The API server answers 422 without details if the test of a JSON patch fails.
            Err(ApiError::Refused { what, code: 422, .. }) if format == PatchFormat::Json => {
                return Err(ApiError::Conflict { what });
            }
            other => other?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let workload = Workload::parse(kind, &text)
            .map(|parsed| self.inherited.workload(&workload.namespace, parsed))
            .map_err(|error| ApiError::Answer { what: path, reason: error.to_string() })?;
        Ok(Record::of(&workload, Health::read(&kind.kind, &text), &self.rotated))
    }

    async fn usages(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> Result<Vec<Usage>, ApiError> {
        self.usages_by(namespace, owners, object).await
    }

    async fn users_of(&self, namespace: &str, object: &ObjectName) -> Result<Vec<Owner>, ApiError> {
        self.users_in(namespace, object).await
    }

    async fn create_event(&self, event: &Event) -> Result<(), ApiError> {
        let path = path::collection("events.k8s.io/v1", &event.namespace, "events")? + "?" + FIELD_MANAGER;
        let body = event.to_json().to_string().into_bytes();
        match self.call("create", Method::POST, path, "application/json", body).await {
            Ok(_) => {
                self.metrics.event(event.reason, EventOutcome::Written);
                Ok(())
            }
            // This replica created it in an attempt that got no answer, or the previous leader did.
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => {
                self.metrics.event(event.reason, EventOutcome::Failed);
                Err(error)
            }
        }
    }

    async fn analysis_template(
        &self,
        namespace: &str,
        analysis: &Analysis,
    ) -> Result<Option<Value>, ApiError> {
        self.get_if_exists(analysis_template_path(namespace, analysis)?).await
    }

    async fn analysis_run(&self, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
        self.get_if_exists(path::object(ROLLOUTS_API, namespace, "analysisruns", name)?).await
    }

    async fn analysis_runs(&self, namespace: &str, source: &str) -> Result<Vec<Value>, ApiError> {
        let collection = path::collection(ROLLOUTS_API, namespace, "analysisruns")?;
        let selector = format!(
            "{}%3D{}%2C{}%3D{source}",
            annotations::MANAGED_BY,
            annotations::MANAGER,
            annotations::SOURCE
        );
        let path = format!("{collection}?labelSelector={}", selector.replace('/', "%2F"));
        let list: Value = parse(&self.get(path.clone()).await?, &path)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    async fn create_analysis_run(&self, namespace: &str, run: &Value) -> Result<Created, ApiError> {
        let path = path::collection(ROLLOUTS_API, namespace, "analysisruns")? + "?" + FIELD_MANAGER;
        match self.write("create", Method::POST, path, run.to_string().into_bytes()).await {
            Ok(()) => Ok(Created::Now),
            Err(error) if error.is_conflict() => Ok(Created::Exists),
            Err(error) => Err(error),
        }
    }

    async fn terminate_analysis_run(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let path = path::object(ROLLOUTS_API, namespace, "analysisruns", name)? + "?" + FIELD_MANAGER;
        let body = json!({"metadata": {"uid": uid}, "spec": {"terminate": true}});
        self.patch(path, PatchFormat::Merge, &body, Keep::Errors).await.map(drop)
    }

    async fn delete_analysis_run(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let path = path::object(ROLLOUTS_API, namespace, "analysisruns", name)?;
        let preconditions = json!({"uid": uid});
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
        self.write("delete", Method::DELETE, path, body.to_string().into_bytes()).await
    }

    async fn read_workload(&self, workload: &WorkloadKey) -> Result<LiveWorkload, ApiError> {
        let kind = self.kind(workload)?;
        let path = workload_path(kind, &workload.namespace, &workload.name)?;
        let bytes = match self.get(path.clone()).await {
            Err(error) if error.is_not_found() => return Ok(LiveWorkload::Apart),
            other => other?,
        };
        LiveWorkload::read(kind, &String::from_utf8_lossy(&bytes), &self.rotated, &self.inherited)
            .map_err(|error| ApiError::Answer { what: path, reason: error.to_string() })
    }

    async fn unlabelled(
        &self,
        namespace: &str,
        opt_in: NamespaceOptIn,
    ) -> Result<Vec<(WorkloadKey, Candidate)>, ApiError> {
        let mut found = Vec::new();
        for (index, kind) in self.kinds.iter().enumerate().filter(|(_, kind)| kind.rolls) {
            found.append(&mut self.unlabelled_of_kind(index, kind, (namespace, opt_in)).await?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;

    /// A client whose first `times` connections break; afterwards every object is an empty ConfigMap.
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

    #[test]
    fn warnings_are_read_as_they_were_given() {
        for (header, expected) in [
            (r#"299 - "it stays""#, Some("it stays")),
            (r#"299 - "annotation \"a\" has no effect""#, Some(r#"annotation "a" has no effect"#)),
            ("299 -", None),
            ("it stays", None),
        ] {
            let value = http::HeaderValue::from_str(header).unwrap();
            assert_eq!(warning_text(&value).as_deref(), expected, "{header}");
        }
    }

    #[tokio::test]
    async fn retries_read_once_after_a_broken_connection() {
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        for (times, calls, is_read) in [(0, 1, true), (1, 2, true), (2, 2, false)] {
            let (api, asked) = breaking(times);
            let read = api.read("ns", &demo).await;
            assert_eq!(read.is_ok_and(|read| read.is_some()), is_read, "{times}");
            assert_eq!(asked.load(Ordering::SeqCst), calls, "{times}");
        }
    }

    /// Admits one call at a time, up to a number of calls.
    #[derive(Debug)]
    struct OneAtATime {
        left: AtomicUsize,
        places: Arc<tokio::sync::Semaphore>,
    }

    impl OneAtATime {
        fn new(calls: usize) -> Arc<Self> {
            Arc::new(Self { left: AtomicUsize::new(calls), places: Arc::new(tokio::sync::Semaphore::new(1)) })
        }
    }

    impl Meter for OneAtATime {
        fn begin(&self) -> futures::future::BoxFuture<'_, Option<crate::cluster::Call>> {
            Box::pin(async {
                self.left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .ok()?;
                let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
                Some(Box::new(place) as crate::cluster::Call)
            })
        }

        fn take(&self, _bytes: usize) -> bool {
            true
        }

        fn give_back(&self, _bytes: usize) {}
    }

    /// Fifty readers of one object would otherwise hold fifty places, and keep others from calling.
    #[tokio::test]
    async fn readers_that_wait_hold_no_place() {
        let demo = ObjectName::new(SourceKind::ConfigMap, "demo");
        let (api, asked) = breaking(0);
        let api = api.metered(OneAtATime::new(2));
        let read = futures::future::join_all((0..50).map(|_| api.read("ns", &demo))).await;
        let answered = read.iter().filter(|read| matches!(read, Ok(Some(_)))).count();
        let calls = asked.load(Ordering::SeqCst);
        assert_eq!((answered, calls), (50, 2), "the first read, and one read for all that asked meanwhile");
        let refused = api.read("ns", &demo).await.unwrap_err().to_string();
        assert!(refused.contains("--max-calls"), "{refused}");
        assert!(api.metrics.encode().contains("{limit=\"max-calls\"} 1\n"));
    }

    /// The bodies of patches.
    type Bodies = Arc<Mutex<Vec<Value>>>;

    /// A client whose requests are answered one after the other.
    fn slow() -> (KubeApi, Bodies) {
        let (bodies, turns) = (Bodies::default(), Arc::new(tokio::sync::Semaphore::new(1)));
        let sent = Arc::clone(&bodies);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (sent, turns) = (Arc::clone(&sent), Arc::clone(&turns));
            async move {
                let _turn = turns.acquire_owned().await.map_err(std::io::Error::other)?;
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
                let body: Value = serde_json::from_slice(&body)?;
                sent.lock().unwrap().push(json!([path, body["metadata"]["ownerReferences"]]));
                tokio::task::yield_now().await;
                Ok::<_, std::io::Error>(http::Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let client = kube::Client::new(service, "default");
        (KubeApi::new(client, Arc::new(Kinds::default()), Metrics::new()), bodies)
    }

    /// The calls of reviews share a request, each with its own meter; those for another namespace do not.
    #[tokio::test]
    async fn owners_are_added_together_for_each_snapshot() {
        let (api, bodies) = slow();
        let snapshot = ObjectName::new(SourceKind::ConfigMap, "demo-0123456789");
        let uids = (0..50).map(|number| format!("{}-{number}", if number % 5 == 0 { "b" } else { "a" }));
        let uids: BTreeSet<String> = uids.collect();
        let adds = uids.iter().map(|uid| {
            let owner = Owner::new("apps/v1", "Deployment", "web", uid.as_str());
            let (namespace, _) = uid.split_once('-').unwrap();
            let (api, snapshot) = (api.metered(OneAtATime::new(50)), &snapshot);
            async move { api.add_owner(namespace, snapshot, &owner).await }
        });
        let added = futures::future::join_all(adds).await;
        assert!(added.iter().all(Result::is_ok), "{added:?}");
        let bodies = bodies.lock().unwrap();
        assert_eq!(bodies.len(), 4, "the first addition to each, and one for all that waited: {bodies:?}");
        let mut sent = BTreeSet::new();
        for body in bodies.iter() {
            for owner in body[1].as_array().unwrap() {
                let uid = owner["uid"].as_str().unwrap();
                let (namespace, _) = uid.split_once('-').unwrap();
                assert_eq!(body[0], format!("/api/v1/namespaces/{namespace}/configmaps/demo-0123456789"));
                sent.insert(uid.to_owned());
            }
        }
        assert_eq!(sent, uids);
        assert!(api.metrics.encode().contains("confrev_snapshots_bound_total 4\n"), "writes are counted");
    }
}
