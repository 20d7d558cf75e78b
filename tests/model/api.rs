//! confrev's calls, answered from the store without delay, except for faults and concurrent events.

use std::sync::Arc;

use confrev::{
    annotations,
    cluster::{Api, ApiError, Candidate, Created, Event, LiveWorkload, Usage},
    kinds::REVISION_KINDS,
    resolve::{
        Analysis, Health, NamespaceFacts, NamespaceOptIn, Observed, Past, Record, RevisionsOf, TargetRef,
        Workload,
    },
    snapshot::{Identity, Made, ObjectName, Rotated, SourceKind, snapshot_json},
    world::{Inherited, Owner, Precondition, Version, WorkloadKey},
};
use serde_json::{Value, json};

use crate::{
    model::{Intent, Model, Refusal},
    store::{Key, Kind, annotation, installed, is_snapshot, label, set_meta},
    trial::TELL,
};

/// The calls of one replica on the model's store.
#[derive(Clone)]
pub(crate) struct Memory {
    pub model: Arc<Model>,
    /// The index of the replica.
    pub replica: usize,
    /// The number of its process.
    pub life: usize,
    /// Whether a review waits for the response.
    pub for_review: bool,
}

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Conflict,
    Refused,
    /// The call never arrives.
    Lost,
    /// The call takes effect, and its response never arrives.
    Unanswered,
}

pub(crate) fn late(what: &str) -> ApiError {
    ApiError::Late { what: what.to_owned(), seconds: 10 }
}

pub(crate) fn refused(what: &str) -> ApiError {
    let message = "etcd leader changed".to_owned();
    ApiError::Refused { what: what.to_owned(), code: 500, message }
}

/// The key of a ConfigMap or Secret.
fn key_of(namespace: &str, object: &ObjectName) -> Key {
    Key::new(object.kind.into(), namespace, &object.name)
}

impl Model {
    fn observe(&self, kind: SourceKind, namespace: &str, object: &Value) -> Observed {
        let keying = match kind {
            SourceKind::ConfigMap => confrev::snapshot::Keying::default(),
            SourceKind::Secret => self.keys.keying(namespace),
        };
        let observed = Observed::read_keyed(kind, serde_json::to_vec(object).unwrap(), keying).unwrap();
        // Only sources choose a strategy here.
        installed().source(namespace, observed)
    }

    /// The object, if it still has that version.
    fn of_version(&self, what: &str, key: &Key, version: &Version) -> Result<Arc<Value>, ApiError> {
        let live = self.get(key).ok_or_else(|| ApiError::NotFound { what: what.to_owned() })?;
        let metadata = &live["metadata"];
        if metadata["uid"] != *version.uid || metadata["resourceVersion"] != *version.resource_version {
            return Err(ApiError::Conflict { what: what.to_owned() });
        }
        Ok(live)
    }

    /// The object, if it still has that uid.
    fn of_uid(&self, key: &Key, uid: &str) -> Result<Arc<Value>, ApiError> {
        let live = self.get(key).ok_or_else(|| ApiError::NotFound { what: key.to_string() })?;
        if live["metadata"]["uid"] != *uid {
            return Err(ApiError::Conflict { what: key.to_string() });
        }
        Ok(live)
    }

    /// The facts of a namespace for its workloads.
    fn namespace_facts(&self, namespace: &str) -> NamespaceFacts {
        let namespace = self.get(&Key::new(Kind::Namespace, "", namespace));
        let Some(namespace) = namespace else {
            return NamespaceFacts { terminating: true, ..NamespaceFacts::default() };
        };
        NamespaceFacts {
            opt_in: NamespaceOptIn::read(label(&namespace, annotations::ENABLED)),
            secrets: annotation(&namespace, annotations::SECRETS) == Some("true"),
            live_secrets: annotation(&namespace, annotations::SECRETS_MODE) == Some("live"),
            terminating: !namespace["metadata"]["deletionTimestamp"].is_null(),
        }
    }

    fn workload_key(&self, workload: &WorkloadKey) -> Key {
        let kind = &self.kinds.iter().nth(workload.kind).unwrap().kind;
        Key::new(Kind::named(kind).unwrap(), &workload.namespace, &workload.name)
    }
}

impl Memory {
    /// Performs one call: the planned event happens before it, and it may fail.
    async fn call<T: Send + 'static>(
        &self,
        what: &str,
        writes: bool,
        act: impl FnOnce(&Arc<Model>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if self.model.is_enumerated() {
            return self.enumerated_call(what, writes, act).await;
        }
        let fault = self.model.before_call(what, writes);
        match fault {
            // Reads have no conflicts.
            Some(Fault::Conflict) if writes => return Err(ApiError::Conflict { what: what.to_owned() }),
            Some(Fault::Conflict | Fault::Refused) => return Err(refused(what)),
            Some(Fault::Lost) => return Err(late(what)),
            Some(Fault::Unanswered) | None => {}
        }
        let done = act(&self.model);
        if fault.is_some() { Err(late(what)) } else { done }
    }
}

impl Api for Memory {
    async fn read(&self, namespace: &str, object: &ObjectName) -> Result<Option<Observed>, ApiError> {
        let (kind, key) = (object.kind, key_of(namespace, object));
        self.call(&format!("read {key}"), false, move |model| {
            Ok(model.get(&key).map(|object| model.observe(kind, &key.namespace, &object)))
        })
        .await
    }

    async fn namespace(&self, namespace: &str) -> Result<NamespaceFacts, ApiError> {
        let namespace = namespace.to_owned();
        self.call("read namespace", false, move |model| Ok(model.namespace_facts(&namespace))).await
    }

    async fn is_enabled(&self, namespace: &str, target: &TargetRef) -> Result<Option<bool>, ApiError> {
        let key = Kind::named(&target.kind).map(|kind| Key::new(kind, namespace, &target.name));
        self.call("read target", false, move |model| {
            let live = key.and_then(|key| model.get(&key));
            Ok(live.map(|live| label(&live, annotations::ENABLED) == Some("true")))
        })
        .await
    }

    async fn revisions(&self, namespace: &str, of: &RevisionsOf) -> Result<Vec<Past>, ApiError> {
        let (namespace, of) = (namespace.to_owned(), of.clone());
        self.call("list revisions", false, move |model| {
            let kind = &REVISION_KINDS[of.kind];
            let store = model.store();
            let found = store.iter().filter(|(key, object)| {
                key.kind.as_str() == kind.kind
                    && key.namespace == namespace
                    && of.labels.iter().all(|(name, value)| label(object, name) == Some(value))
            });
            Ok(found.filter_map(|(_, object)| Past::read(kind, &object.to_string())).collect())
        })
        .await
    }

    async fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> Result<Created, ApiError> {
        let key = key_of(namespace, name);
        let owners = owners.to_vec();
        let owners_json: Vec<_> = owners.iter().map(Owner::to_json).collect();
        let json = snapshot_json(
            name.kind,
            namespace,
            &name.name,
            identity,
            of,
            &owners_json,
            Made::at(jiff::Timestamp::MAX),
        )
        .unwrap();
        let what = format!("create {key}");
        self.call(&what.clone(), true, move |model| {
            if model.is_enumerated() && model.namespace_facts(&key.namespace).terminating {
                return Err(ApiError::Terminating { what });
            }
            if model.get(&key).is_some() {
                return Ok(Created::Exists);
            }
            let mut object: Value = serde_json::from_slice(&json).unwrap();
            if !is_snapshot(&object) {
                note_entered(&mut object, &[], &owners);
            }
            model.commit(&key, object);
            Ok(Created::Now)
        })
        .await
    }

    async fn set_owners(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        owners: &[Owner],
    ) -> Result<Observed, ApiError> {
        let (kind, key) = (snapshot.kind, key_of(namespace, snapshot));
        let what = format!("set owners of {key}");
        let (version, owners) = (version.clone(), owners.to_vec());
        self.call(&what.clone(), true, move |model| {
            let mut object = (*model.of_version(&what, &key, &version)?).clone();
            if !is_snapshot(&object) {
                let known = crate::store::owners(&object);
                note_entered(&mut object, &known, &owners);
            }
            object["metadata"]["ownerReferences"] = owners.iter().map(Owner::to_json).collect();
            Ok(model.observe(kind, &key.namespace, &model.commit(&key, object)))
        })
        .await
    }

    async fn set_changed_by(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        by: &str,
    ) -> Result<(), ApiError> {
        let key = key_of(namespace, snapshot);
        let what = format!("record the user of {key}");
        let (version, by) = (version.clone(), by.to_owned());
        self.call(&what.clone(), true, move |model| {
            let mut object = (*model.of_version(&what, &key, &version)?).clone();
            set_meta(&mut object, "annotations", annotations::CHANGED_BY, Some(&by));
            model.commit(&key, object);
            Ok(())
        })
        .await
    }

    async fn set_annotation(
        &self,
        namespace: &str,
        object: &ObjectName,
        version: &Version,
        (annotation, text): (&'static str, Option<String>),
    ) -> Result<String, ApiError> {
        let key = key_of(namespace, object);
        let what = match annotation {
            annotations::VERDICT => format!("judge {key}"),
            _ => format!("annotate {key}"),
        };
        let version = version.clone();
        self.call(&what.clone(), true, move |model| {
            let mut object = (*model.of_version(&what, &key, &version)?).clone();
            set_meta(&mut object, "annotations", annotation, text.as_deref());
            let marked = model.commit(&key, object);
            Ok(marked["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }

    async fn add_owner(&self, namespace: &str, snapshot: &ObjectName, owner: &Owner) -> Result<(), ApiError> {
        let key = key_of(namespace, snapshot);
        let what = format!("add an owner of {key}");
        let owner = owner.clone();
        self.call(&what.clone(), true, move |model| {
            let live = model.get(&key).ok_or_else(|| ApiError::NotFound { what: what.clone() })?;
            let mut object = (*live).clone();
            let owners = &mut object["metadata"]["ownerReferences"];
            if owners.is_null() {
                *owners = json!([]);
            }
            let owners = owners.as_array_mut().unwrap();
            if !owners.iter().any(|present| present["uid"] == owner.uid.to_string()) {
                owners.push(owner.to_json());
            }
            model.commit(&key, object);
            Ok(())
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> Result<(), ApiError> {
        let key = key_of(namespace, snapshot);
        let what = format!("delete {key}");
        let version = version.clone();
        self.call(&what.clone(), true, move |model| {
            let object = model.of_version(&what, &key, &version)?;
            model.confrev_deletes(&key, &object);
            Ok(())
        })
        .await
    }

    async fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        roll: &str,
    ) -> Result<Record, ApiError> {
        let key = self.model.workload_key(workload);
        let what = format!("poke {key}");
        let (index, condition, roll) = (workload.kind, condition.clone(), roll.to_owned());
        self.call(&what.clone(), true, move |model| {
            let poked = model.write(&key, Intent { poke: true, ..Intent::default() }, &|live| {
                let mut object = live.ok_or(Refusal::NotFound)?.clone();
                let holds = match &condition {
                    Precondition::Version(version) => object["metadata"]["resourceVersion"] == *version,
                    Precondition::Unlabelled { .. } => label(&object, annotations::ENABLED).is_none(),
                };
                if !holds {
                    return Err(Refusal::Conflict);
                }
                set_meta(&mut object, "annotations", annotations::ROLL, Some(&roll));
                Ok(object)
            });
            let what = what.clone();
            let object = poked.map_err(|refusal| match refusal {
                Refusal::NotFound => ApiError::NotFound { what },
                Refusal::Conflict => ApiError::Conflict { what },
                Refusal::Denied(code, message) => ApiError::Refused { what, code, message },
            })?;
            model.ghost().pokes += 1;
            let kind = model.kinds.iter().nth(index).unwrap();
            Ok(Record::of(
                &Workload::parse(kind, &object.to_string()).unwrap(),
                Health::of(&kind.kind, &object),
                &Rotated::default(),
            ))
        })
        .await
    }

    async fn usages(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> Result<Vec<Usage>, ApiError> {
        let (namespace, owners, object) = (namespace.to_owned(), owners.to_vec(), object.clone());
        self.call(&format!("look at owners of {object}"), false, move |model| {
            let users = model.users_of_kind(object.kind, &namespace, &object.name);
            let store = model.store();
            let usage = |owner: &Owner| {
                let lives =
                    store.iter().any(|(_, object)| object["metadata"]["uid"] == owner.uid.to_string());
                let uses = users.iter().any(|user| user.uid == owner.uid);
                if uses {
                    Usage::Used
                } else if lives {
                    Usage::Unused
                } else {
                    Usage::Gone
                }
            };
            Ok(owners.iter().map(usage).collect())
        })
        .await
    }

    async fn users_of(&self, namespace: &str, object: &ObjectName) -> Result<Vec<Owner>, ApiError> {
        let (namespace, object) = (namespace.to_owned(), object.clone());
        self.call("list users", false, move |model| {
            Ok(model.users_of_kind(object.kind, &namespace, &object.name))
        })
        .await
    }

    async fn create_event(&self, event: &Event) -> Result<(), ApiError> {
        self.model.ghost().told(event);
        let event = event.clone();
        // An Event is a write, but no check depends on it.
        self.call(&format!("{TELL}{} of {}", event.reason.text(), event.regarding.name), true, move |model| {
            model.was_told(&event);
            Ok(())
        })
        .await
    }

    async fn read_workload(&self, workload: &WorkloadKey) -> Result<LiveWorkload, ApiError> {
        let (key, kind) = (self.model.workload_key(workload), workload.kind);
        self.call(&format!("look at {key}"), false, move |model| {
            let Some(object) = model.get(&key) else { return Ok(LiveWorkload::Apart) };
            let kind = model.kinds.iter().nth(kind).unwrap();
            Ok(LiveWorkload::read(kind, &object.to_string(), &Rotated::default(), &Inherited::default())
                .unwrap())
        })
        .await
    }

    async fn analysis_template(
        &self,
        namespace: &str,
        analysis: &Analysis,
    ) -> Result<Option<Value>, ApiError> {
        let key = if analysis.cluster {
            Key::new(Kind::ClusterAnalysisTemplate, "", &analysis.name)
        } else {
            Key::new(Kind::AnalysisTemplate, namespace, &analysis.name)
        };
        self.call(&format!("read {key}"), false, move |model| Ok(model.get(&key).as_deref().cloned())).await
    }

    async fn analysis_run(&self, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
        let key = Key::new(Kind::AnalysisRun, namespace, name);
        self.call("read an AnalysisRun", false, move |model| Ok(model.get(&key).as_deref().cloned())).await
    }

    async fn analysis_runs(&self, namespace: &str, source: &str) -> Result<Vec<Value>, ApiError> {
        let (namespace, source) = (namespace.to_owned(), source.to_owned());
        self.call("list AnalysisRuns", false, move |model| {
            let store = model.store();
            let its = store.of_kind(Kind::AnalysisRun).filter(|(key, run)| {
                key.namespace == namespace && label(run, annotations::SOURCE) == Some(&*source)
            });
            Ok(its.map(|(_, run)| (**run).clone()).collect())
        })
        .await
    }

    async fn create_analysis_run(&self, namespace: &str, run: &Value) -> Result<Created, ApiError> {
        let name = run["metadata"]["name"].as_str().unwrap();
        let (key, run) = (Key::new(Kind::AnalysisRun, namespace, name), run.clone());
        self.call("create an AnalysisRun", true, move |model| {
            if model.get(&key).is_some() {
                return Ok(Created::Exists);
            }
            model.commit(&key, run);
            Ok(Created::Now)
        })
        .await
    }

    async fn terminate_analysis_run(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let (key, uid) = (Key::new(Kind::AnalysisRun, namespace, name), uid.to_owned());
        self.call("terminate an AnalysisRun", true, move |model| {
            let mut run = (*model.of_uid(&key, &uid)?).clone();
            run["spec"]["terminate"] = json!(true);
            model.commit(&key, run);
            Ok(())
        })
        .await
    }

    async fn delete_analysis_run(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let (key, uid) = (Key::new(Kind::AnalysisRun, namespace, name), uid.to_owned());
        self.call("delete an AnalysisRun", true, move |model| {
            model.of_uid(&key, &uid)?;
            model.delete(&key);
            Ok(())
        })
        .await
    }

    async fn unlabelled(
        &self,
        namespace: &str,
        opt_in: NamespaceOptIn,
    ) -> Result<Vec<(WorkloadKey, Candidate)>, ApiError> {
        let namespace = namespace.to_owned();
        self.call("list unlabelled", false, move |model| {
            let store = model.store();
            let mut found = Vec::new();
            for (index, kind) in model.kinds.iter().enumerate().filter(|(_, kind)| kind.rolls) {
                for (key, object) in store.iter().filter(|(key, _)| key.kind.as_str() == kind.kind) {
                    let live = LiveWorkload::read(
                        kind,
                        &object.to_string(),
                        &Rotated::default(),
                        &Inherited::default(),
                    )
                    .unwrap();
                    if key.namespace == namespace
                        && let LiveWorkload::Unlabelled(candidate) = live
                        && (opt_in == NamespaceOptIn::Now || candidate.record.is_marked)
                    {
                        let name = Arc::from(key.name.as_str());
                        let namespace = Arc::from(namespace.as_str());
                        let workload = WorkloadKey { kind: index, namespace, name };
                        found.push((workload, *candidate));
                    }
                }
            }
            Ok(found)
        })
        .await
    }
}

/// Records in `managedFields` which owners confrev has added to a user's object.
fn note_entered(object: &mut Value, known: &[String], owners: &[Owner]) {
    let mut fields = object["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:ownerReferences"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    fields.retain(|field, _| owners.iter().any(|owner| *field == field_of(owner)));
    for owner in owners.iter().filter(|owner| !known.contains(&owner.uid.to_string())) {
        fields.insert(field_of(owner), json!({}));
    }
    object["metadata"]["managedFields"] = json!([
        {"manager": annotations::MANAGER, "fieldsV1": {"f:metadata": {"f:ownerReferences": fields}}}
    ]);
}

fn field_of(owner: &Owner) -> String {
    format!("k:{}", json!({"uid": owner.uid.to_string()}))
}
