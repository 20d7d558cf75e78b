//! An API server over a map, for the calls of the real client. It keeps preconditions, and fails as planned.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use confrev::{cluster::KubeApi, kinds::Kinds, telemetry::Metrics};
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

/// What happens to a call.
#[derive(Clone)]
pub(crate) enum Race {
    /// Another client creates this object just before it.
    Created(Value),
    /// The garbage collector deletes the object just after it.
    Collected,
    /// The API server refuses it, with this status and message.
    Refused(u16, &'static str),
}

#[derive(Default)]
struct Stored {
    /// By the part of the path after `/namespaces/`.
    objects: BTreeMap<String, Value>,
    /// What happens to the next call, by verb and path.
    races: BTreeMap<String, Race>,
    /// The writes that succeeded, as verb and path.
    writes: Vec<String>,
}

/// An API server. It creates what it is asked to create.
#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<Stored>>);

/// The part of a path that identifies an object or a collection.
fn key_of(path: &str) -> String {
    path.split_once("/namespaces/").map_or_else(|| format!("cluster{path}"), |(_, path)| path.to_owned())
}

fn status(code: u16, reason: &str) -> (StatusCode, Value) {
    (StatusCode::from_u16(code).unwrap(), json!({"kind": "Status", "reason": reason, "message": reason}))
}

impl Stored {
    fn get(&self, key: &str) -> (StatusCode, Value) {
        if let Some(object) = self.objects.get(key) {
            return (StatusCode::OK, object.clone());
        }
        match key.matches('/').count() {
            0 => (StatusCode::OK, json!({"metadata": {"name": key}})),
            1 => {
                let items = self.objects.iter().filter(|(at, _)| at.starts_with(&format!("{key}/")));
                let items: Vec<_> = items.map(|(_, object)| object).collect();
                (StatusCode::OK, json!({"kind": "List", "metadata": {}, "items": items}))
            }
            _ => status(404, "NotFound"),
        }
    }

    fn write(&mut self, method: &Method, key: &str, body: &Value) -> (StatusCode, Value) {
        let conditions = if *method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] };
        let Some(found) = self.objects.get_mut(key) else {
            if *method != Method::POST {
                return status(404, "NotFound");
            }
            let mut object = body.clone();
            object["metadata"]["uid"] = json!("again");
            object["metadata"]["resourceVersion"] = json!("9");
            self.objects.insert(key.to_owned(), object.clone());
            return (StatusCode::CREATED, object);
        };
        if *method == Method::POST {
            return status(409, "AlreadyExists");
        }
        let differs =
            |field: &str| !conditions[field].is_null() && conditions[field] != found["metadata"][field];
        if differs("uid") || differs("resourceVersion") {
            return status(409, "Conflict");
        }
        if *method == Method::DELETE {
            return (StatusCode::OK, self.objects.remove(key).unwrap_or_default());
        }
        json_patch::merge(found, body);
        found["metadata"]["resourceVersion"] = json!("9");
        (StatusCode::OK, found.clone())
    }

    fn respond(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let key = if *method == Method::POST { format!("{}/{name}", key_of(path)) } else { key_of(path) };
        let race = self.races.remove(&format!("{method} {key}"));
        match &race {
            Some(Race::Created(object)) => drop(self.objects.insert(key.clone(), object.clone())),
            Some(Race::Refused(code, message)) => return status(*code, message),
            Some(Race::Collected) | None => {}
        }
        if *method == Method::GET {
            return self.get(&key);
        }
        let answer = self.write(method, &key, &body);
        if answer.0.is_success() {
            self.writes.push(format!("{method} {key}"));
        }
        if matches!(race, Some(Race::Collected)) {
            self.objects.remove(&key);
        }
        answer
    }
}

impl Server {
    /// Stores an object, by its kind, namespace and name.
    pub(crate) fn put(&self, object: Value) {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let [namespace, name] = ["namespace", "name"].map(|key| object["metadata"][key].as_str().unwrap());
        self.put_at(&format!("{namespace}/{plural}/{name}"), object);
    }

    /// Stores an object under a path.
    pub(crate) fn put_at(&self, path: &str, object: Value) {
        self.0.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    /// The object under a path.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// Removes the object under a path.
    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.remove(path)
    }

    /// Plans what happens to the next call with this verb and path.
    pub(crate) fn plan(&self, call: &str, race: Race) {
        self.0.lock().unwrap().races.insert(call.to_owned(), race);
    }

    /// The writes that succeeded, as verb and path.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.0.lock().unwrap().writes.clone()
    }

    /// A client of this server.
    pub(crate) fn api(&self) -> KubeApi {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (status, object) =
                    server.0.lock().unwrap().respond(&parts.method, parts.uri.path(), &body);
                let mut response = Response::new(Body::from(object.to_string().into_bytes()));
                *response.status_mut() = status;
                Ok::<_, Infallible>(response)
            }
        });
        KubeApi::new(kube::Client::new(service, "ns"), Arc::new(Kinds::default()), Metrics::new())
    }
}
