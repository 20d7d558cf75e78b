//! The model's store as the API server of the commands: reads, and writes as dry runs.

use std::{convert::Infallible, sync::Arc};

use axum::body::Body;
use confrev::annotations;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body as KubeBody;
use serde_json::{Value, json};

use crate::{
    manifest::merge,
    model::{Effect, Intent, Model, Refusal},
    store::{Key, Kind},
};

/// What the commands answer about a namespace.
pub(super) fn answers(model: &Arc<Model>, namespace: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, now, kinds) = (Arc::clone(model), model.cluster_time(), Arc::clone(&model.kinds));
    let answers = async move {
        let service = tower::service_fn(move |request: Request<KubeBody>| {
            let model = Arc::clone(&server);
            async move { Ok::<_, Infallible>(answer(&model, request).await) }
        });
        confrev::cli::answers(kube::Client::new(service, "default"), kinds, namespace, now).await
    };
    runtime.block_on(answers).unwrap_or_else(|error| panic!("the commands fail: {error}"))
}

async fn answer(model: &Arc<Model>, request: Request<KubeBody>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    let Some(place) = Place::of(path) else { return status(StatusCode::NOT_FOUND, "no such path") };
    match parts.method {
        Method::GET => read(model, &place, query),
        Method::PATCH if query.contains("dryRun=All") => {
            let body = body.collect().await.unwrap().to_bytes();
            patch(model, &place, &serde_json::from_slice(&body).unwrap())
        }
        Method::POST if query.contains("dryRun=All") => {
            let body = body.collect().await.unwrap().to_bytes();
            json_of(StatusCode::CREATED, &serde_json::from_slice(&body).unwrap())
        }
        other => panic!("a command writes: {other} {path}"),
    }
}

/// What a path names.
struct Place {
    kind: Option<Kind>,
    namespace: Option<String>,
    name: Option<String>,
}

impl Place {
    /// Reads `/api/v1/…` or `/apis/GROUP/VERSION/…`.
    fn of(path: &str) -> Option<Self> {
        let mut words = path.trim_start_matches('/').split('/');
        let group_version = match words.next()? {
            "api" => words.next()?.to_owned(),
            _ => format!("{}/{}", words.next()?, words.next()?),
        };
        let mut words: Vec<_> = words.map(str::to_owned).collect();
        let namespace = (words.len() > 2 && words[0] == "namespaces").then(|| words.remove(1));
        if namespace.is_some() {
            words.remove(0);
        }
        let plural = words.first()?;
        let is_it = |kind: &Kind| {
            kind.api_version() == group_version && format!("{}s", kind.as_str().to_lowercase()) == *plural
        };
        let kind = ALL.into_iter().find(is_it);
        Some(Self { kind, namespace, name: words.get(1).cloned() })
    }

    fn key(&self) -> Option<Key> {
        Some(Key::new(self.kind?, self.namespace.as_deref().unwrap_or_default(), self.name.as_deref()?))
    }
}

/// Every kind that the commands read.
const ALL: [Kind; 15] = [
    Kind::Namespace,
    Kind::ConfigMap,
    Kind::Secret,
    Kind::Rollout,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::CronJob,
    Kind::CloneSet,
    Kind::Job,
    Kind::ReplicaSet,
    Kind::ControllerRevision,
    Kind::AnalysisTemplate,
    Kind::ClusterAnalysisTemplate,
    Kind::AnalysisRun,
];

fn read(model: &Model, place: &Place, query: &str) -> Response<Body> {
    if place.name.is_some() {
        return match place.key().and_then(|key| model.get(&key)) {
            Some(object) => json_of(StatusCode::OK, &object),
            None => status(StatusCode::NOT_FOUND, "not found"),
        };
    }
    let selector = query.split('&').find_map(|term| term.strip_prefix("labelSelector=")).unwrap_or_default();
    let selector = selector.replace("%2C", ",").replace("%3D", "=").replace("%2F", "/").replace("%21", "!");
    let store = model.store();
    let items: Vec<&Value> = store
        .iter()
        .filter(|(key, _)| Some(key.kind) == place.kind)
        .filter(|(key, _)| place.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace))
        .map(|(_, object)| &**object)
        .filter(|object| selects(&selector, object))
        .collect();
    json_of(StatusCode::OK, &json!({"metadata": {"resourceVersion": "1"}, "items": items}))
}

/// Whether a label selector selects an object.
fn selects(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        if let Some((key, value)) = term.split_once("!=") {
            label(key) != Some(value)
        } else if let Some((key, value)) = term.split_once('=') {
            label(key) == Some(value)
        } else {
            label(term).is_some()
        }
    })
}

/// A merge patch of a workload, as a dry run.
fn patch(model: &Arc<Model>, place: &Place, patch: &Value) -> Response<Body> {
    let key = place.key().unwrap();
    let intent = Intent { poke: true, effect: Effect::Dry, ..Intent::default() };
    assert!(patch["metadata"]["annotations"][annotations::ROLL].is_string(), "a command writes {patch}");
    let patched = model.write(&key, intent, &|live| {
        let live = live.ok_or(Refusal::NotFound)?;
        Ok(merge(&Value::Null, patch, live))
    });
    match patched {
        Ok(object) => json_of(StatusCode::OK, &object),
        Err(Refusal::NotFound) => status(StatusCode::NOT_FOUND, "not found"),
        Err(Refusal::Conflict) => status(StatusCode::CONFLICT, "conflict"),
        Err(Refusal::Denied(code, message)) => status(StatusCode::from_u16(code).unwrap(), &message),
    }
}

fn status(code: StatusCode, message: &str) -> Response<Body> {
    json_of(code, &json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": message}))
}

fn json_of(code: StatusCode, value: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(value.to_string())).unwrap()
}
