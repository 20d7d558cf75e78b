//! A write as the API server performs it: if the webhooks' selectors match, the real admission runs, then the object is
//! stored.

use std::sync::Arc;

use axum::body::Body;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use confrev::{
    admission::{Context, MARKED_WORKLOADS, ReviewLimits, router},
    annotations,
    schema::Schemas,
};
use confrev_core_test_support::carry::{carry, needs_confrev, unresolved};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::{
    ghost::Pins,
    manifest::stated,
    model::{Effect, Intent, Model, Refusal},
    store::{Key, Kind, annotation, drop_empty_maps, is_of_spec, is_snapshot, label, managed_fields},
};

/// How a writer derives the wanted object from the stored one.
pub(crate) type Edit<'e> = &'e dyn Fn(Option<&Value>) -> Result<Value, Refusal>;

/// How often the API server repeats a patch if the object has changed meanwhile.
const TRIES: usize = 5;

impl Model {
    /// A write by any user.
    pub(crate) fn write(
        self: &Arc<Self>,
        key: &Key,
        intent: Intent,
        edit: Edit<'_>,
    ) -> Result<Arc<Value>, Refusal> {
        for _ in 0..TRIES {
            let old = self.get(key);
            let wanted = edit(old.as_deref())?;
            if let Some(old) = &old
                && **old == wanted
            {
                return Ok(Arc::clone(old));
            }
            let mut pins = None;
            let mut admitted = match key.kind {
                kind if kind.is_workload() => {
                    let (admitted, admission) = self.admit_workload(key, &wanted, old.as_deref(), intent)?;
                    pins = admission;
                    admitted
                }
                Kind::ConfigMap | Kind::Secret if !is_snapshot(&wanted) => {
                    self.admit_source(key, &wanted, old.as_deref(), intent);
                    wanted.clone()
                }
                _ => wanted.clone(),
            };
            drop_empty_maps(&mut admitted);
            if intent.effect == Effect::Dry {
                return Ok(Arc::new(admitted));
            }
            if self.is_still(key, old.clone()) {
                if self.is_enumerated() && key.kind.is_workload() {
                    self.record_write_of_spec(&mut admitted, &wanted, old.as_deref());
                }
                let stored = self.commit(key, admitted);
                if let Some(pins) = pins {
                    self.admission_was_stored(key, &stored, old.as_deref(), intent, pins);
                }
                return Ok(stored);
            }
        }
        Err(Refusal::Conflict)
    }

    /// Records in `managedFields` when a client last wrote the spec, in whole seconds, as the API server does: what admission changes
    /// is no write of a client.
    fn record_write_of_spec(&self, object: &mut Value, wanted: &Value, old: Option<&Value>) {
        let is_same = |old: &&Value| old["spec"] == object["spec"] || old["spec"] == wanted["spec"];
        let before = old.filter(is_same).map(managed_fields).unwrap_or_default();
        let entry = before.into_iter().find(is_of_spec).unwrap_or_else(|| {
            let time = self.cluster_time().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            json!({"manager": "any", "operation": "Update", "time": time, "fieldsV1": {"f:spec": {}}})
        });
        let mut all = managed_fields(object);
        all.retain(|entry| !is_of_spec(entry));
        all.push(entry);
        object["metadata"]["managedFields"] = Value::Array(all);
    }

    /// Whether the object still has that version.
    fn is_still(&self, key: &Key, version: Option<Arc<Value>>) -> bool {
        match (self.get(key), version) {
            (Some(live), Some(version)) => Arc::ptr_eq(&live, &version),
            (live, version) => live.is_none() && version.is_none(),
        }
    }

    fn admit_workload(
        self: &Arc<Self>,
        key: &Key,
        wanted: &Value,
        old: Option<&Value>,
        intent: Intent,
    ) -> Result<(Value, Option<Pins>), Refusal> {
        if !selects(self.store().opt_in_of(&key.namespace).is_in(), key.kind, wanted, old) {
            if self.is_enumerated() {
                return Ok((wanted.clone(), None));
            }
            if old.is_none_or(|old| stated(&old["spec"]["template"]) != stated(&wanted["spec"]["template"])) {
                self.ghost().unseen.insert(key.clone());
            }
            return Ok((wanted.clone(), None));
        }
        if !self.conditions().webhook {
            return Err(Refusal::Denied(500, "failed calling webhook".to_owned()));
        }
        let old_version = self.get(key);
        let mark = self.ghost().mark();
        let carried = (self.is_enumerated() && self.trial().carries).then(|| self.carried(key, wanted, old));
        let (path, sent) = match &carried {
            Some(carried) => (MARKED_WORKLOADS, carried),
            None => ("/mutate/workloads", wanted),
        };
        let answer = self.review(path, key, sent, old, intent.effect == Effect::Dry);
        if answer.is_null() {
            // confrev-self lets confrev itself write no mark.
            let stored = carried.filter(|_| !intent.poke);
            let kind = self.kind_of(key);
            let is_refused = |carried: &Value| {
                !unresolved(kind, carried, old).is_empty() || needs_confrev(kind, carried, old)
            };
            let stored = stored.filter(|carried| !is_refused(carried));
            return stored
                .map(|carried| (carried, None))
                .ok_or_else(|| Refusal::Denied(500, "failed calling webhook".to_owned()));
        }
        if answer["allowed"] != true {
            let code = u16::try_from(answer["status"]["code"].as_u64().unwrap()).unwrap();
            let message = answer["status"]["message"].as_str().unwrap().to_owned();
            let is_bad_hold = message.contains(annotations::HOLD) && self.holds_nothing(key, wanted);
            if !self.conditions().disturbed && !self.is_enumerated() && !is_bad_hold {
                self.broken("contained", format!("{key} was refused: {message}"));
            }
            return Err(Refusal::Denied(code, message));
        }
        let mut admitted = sent.clone();
        if let Some(patch) = answer["patch"].as_str() {
            let patch = BASE64_STANDARD.decode(patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
            json_patch::patch(&mut admitted, &patch).unwrap();
        }
        if self.is_enumerated() {
            return Ok((admitted, None));
        }
        // If the object changed during its admission, the API server repeats the admission before it stores the object.
        let judged = intent.effect != Effect::Dry && self.is_still(key, old_version);
        let pins = judged.then(|| self.check_admitted(key, wanted, &admitted, old, (intent, &mark)));
        Ok((admitted, pins))
    }

    fn kind_of(&self, key: &Key) -> &confrev::kinds::WorkloadKind {
        self.kinds.by_kind(key.kind.api_version(), key.kind.as_str()).unwrap()
    }

    /// A write as `confrev-carry` changes it.
    fn carried(&self, key: &Key, wanted: &Value, old: Option<&Value>) -> Value {
        carry(self.kind_of(key), wanted, old, self.store().opt_in_of(&key.namespace).is_in())
    }

    /// Whether the `hold` annotation of a workload names this snapshot.
    pub(crate) fn is_held(&self, snapshot: &Key) -> bool {
        let store = self.store();
        let mut workloads =
            store.iter().filter(|(key, _)| key.kind.is_workload() && key.namespace == snapshot.namespace);
        workloads.any(|(_, object)| {
            let text = annotation(object, annotations::HOLD).unwrap_or_default();
            text.split(',').any(|name| name.trim() == snapshot.name)
        })
    }

    /// Whether the `hold` annotation names an object that is not a snapshot.
    pub(crate) fn holds_nothing(&self, key: &Key, object: &Value) -> bool {
        let text = annotation(object, annotations::HOLD).unwrap_or_default();
        let mut names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.any(|name| {
            let live = self.get(&Key::configmap(&key.namespace, name));
            live.is_none_or(|object| !is_snapshot(&object))
        })
    }

    fn admit_source(self: &Arc<Self>, key: &Key, wanted: &Value, old: Option<&Value>, intent: Intent) {
        let changed = old.is_none_or(|old| {
            wanted["data"] != old["data"]
                || label(wanted, annotations::ENABLED) != label(old, annotations::ENABLED)
                || annotation(wanted, annotations::KEEP) != annotation(old, annotations::KEEP)
        });
        if changed && self.conditions().webhook {
            // Admission of sources never denies, whatever the answer.
            let answer = self.review("/mutate/configmaps", key, wanted, old, intent.effect == Effect::Dry);
            if !answer.is_null() && (answer["allowed"] != true || !answer["patch"].is_null()) {
                self.broken("contained", format!("{key} was refused or changed: {answer}"));
            }
        }
    }

    /// Sends a review to confrev's HTTP routes. Null: no answer.
    pub(crate) fn review(
        self: &Arc<Self>,
        path: &str,
        key: &Key,
        wanted: &Value,
        old: Option<&Value>,
        dry: bool,
    ) -> Value {
        let (group, version) = key.kind.api_version().rsplit_once('/').unwrap_or(("", "v1"));
        let plural = key.kind.as_str().to_lowercase() + "s";
        let resource = json!({"group": group, "version": version, "resource": plural});
        let review = Review {
            api_version: "admission.k8s.io/v1",
            kind: "AdmissionReview",
            request: ReviewRequest {
                uid: "u",
                resource,
                name: &key.name,
                namespace: &key.namespace,
                operation: match (old, wanted) {
                    (Some(_), Value::Null) => "DELETE",
                    (Some(_), _) => "UPDATE",
                    (None, _) => "CREATE",
                },
                object: wanted,
                old_object: old,
                dry_run: dry,
            },
        };
        let (replica, shared) = self.serving();
        if self.is_down(replica) {
            return Value::Null;
        }
        let api = self.calls_of(replica, true);
        let context = Context {
            api: api.clone(),
            kinds: Arc::clone(&self.kinds),
            secrets: self.is_enumerated(),
            limits: ReviewLimits::default(),
            shared,
            metrics: self.metrics.clone(),
            schemas: Schemas::default(),
            users: None,
        };
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(&review).unwrap()))
            .unwrap();
        let mut answer = Box::pin(async {
            let response = router(context).oneshot(request).await.unwrap();
            let status = response.status();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        });
        let mut answered = answer.as_mut().now_or_never();
        // Only a delayed call takes time.
        while answered.is_none() && self.is_enumerated() && !api.has_ended() {
            self.pass();
            answered = answer.as_mut().now_or_never();
        }
        if api.has_ended() {
            return Value::Null;
        }
        let (status, body) = answered.expect("a review is answered without waiting");
        if !status.is_success() {
            return Value::Null;
        }
        let answer = serde_json::from_slice::<Value>(&body).unwrap()["response"].take();
        if self.is_enumerated() && !dry {
            self.record_answer(key, &answer);
        }
        answer
    }

    /// Records what a writer reads: warnings, or why the write is denied.
    fn record_answer(&self, key: &Key, answer: &Value) {
        let mut trial = self.trial();
        for warning in answer["warnings"].as_array().into_iter().flatten() {
            trial.record(&format!("warning for {key}: {}", warning.as_str().unwrap()));
        }
        if answer["allowed"] != true {
            trial.record(&format!("denied {key}: {}", answer["status"]["message"].as_str().unwrap()));
        }
    }
}

/// An AdmissionReview that borrows its objects, since most of the run time is spent on JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'r> {
    api_version: &'r str,
    kind: &'r str,
    request: ReviewRequest<'r>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'r> {
    uid: &'r str,
    resource: Value,
    name: &'r str,
    namespace: &'r str,
    operation: &'r str,
    object: &'r Value,
    old_object: Option<&'r Value>,
    dry_run: bool,
}

/// Whether the manifests' selectors and match conditions select the write.
pub(crate) fn selects(by_namespace: bool, kind: Kind, wanted: &Value, old: Option<&Value>) -> bool {
    let controlled = |by: &str| {
        let mut owners = wanted["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.any(|owner| owner["kind"] == by && owner["controller"] == true)
    };
    if kind == Kind::Job && controlled("CronJob") || !wanted["metadata"]["deletionTimestamp"].is_null() {
        return false;
    }
    let either = |matches: &dyn Fn(&Value) -> bool| matches(wanted) || old.is_some_and(matches);
    let selected = either(&|object| match label(object, annotations::ENABLED) {
        None => by_namespace,
        Some(value) => value != "false",
    });
    let changed = old.is_none_or(|old| {
        kind.template(wanted) != kind.template(old)
            || wanted["spec"]["workloadRef"] != old["spec"]["workloadRef"]
            || label(wanted, annotations::ENABLED) != label(old, annotations::ENABLED)
            || annotations::decided().any(|key| annotation(wanted, key) != annotation(old, key))
    });
    selected && changed
}
