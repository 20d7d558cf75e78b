//! The calls of confrev, answered from the store: at once, but for faults and for what happens in between.

use std::sync::Arc;

use confrev::{
    cluster::{
        Api, ApiError, Candidate, Created, Event, Live, Owner, Precondition, Usage, Version, WorkloadKey,
    },
    kinds::REVISION_KINDS,
    names,
    resolve::{
        Health, NamespaceFacts, Observed, Past, Record, RevisionsOf, TargetRef, Workload, auto_roll_value,
    },
    snapshot::{Identity, ObjectName, Rotated, snapshot_json},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    model::{Intent, Model, Refusal},
    store::{Key, Kind, label, set_meta},
};

/// Calls on the model's store.
#[derive(Clone)]
pub(crate) struct Memory(pub Arc<Model>);

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Conflict,
    Refused,
    /// The call never arrived.
    Lost,
    /// The call took effect, and its answer never arrived.
    Unanswered,
}

fn late(what: &str) -> ApiError {
    ApiError::Late { what: what.to_owned(), seconds: 10 }
}

fn observe(object: &Value) -> Observed {
    Observed::read(confrev::snapshot::SourceKind::ConfigMap, serde_json::to_vec(object).unwrap()).unwrap()
}

impl Memory {
    /// Does one call: whatever is to happen before it happens first, and it may go wrong.
    fn call<T>(
        &self,
        what: &str,
        writes: bool,
        act: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let fault = self.0.before_call(what, writes);
        match fault {
            // A read knows no conflicts.
            Some(Fault::Conflict) if writes => return Err(ApiError::Conflict { what: what.to_owned() }),
            Some(Fault::Conflict | Fault::Refused) => {
                let message = "etcd leader changed".to_owned();
                return Err(ApiError::Refused { what: what.to_owned(), code: 500, message });
            }
            Some(Fault::Lost) => return Err(late(what)),
            Some(Fault::Unanswered) | None => {}
        }
        let done = act();
        if fault.is_some() { Err(late(what)) } else { done }
    }

    /// The snapshot, where it is still of that version.
    fn of_version(&self, what: &str, key: &Key, version: &Version) -> Result<Arc<Value>, ApiError> {
        let live = self.0.get(key).ok_or_else(|| ApiError::NotFound { what: what.to_owned() })?;
        let metadata = &live["metadata"];
        if metadata["uid"] != *version.uid || metadata["resourceVersion"] != *version.resource_version {
            return Err(ApiError::Conflict { what: what.to_owned() });
        }
        Ok(live)
    }

    fn workload(&self, workload: &WorkloadKey) -> Key {
        let kind = match self.0.kinds.iter().nth(workload.kind).unwrap().kind.as_str() {
            "Rollout" => Kind::Rollout,
            "Deployment" => Kind::Deployment,
            other => panic!("there are no objects of the kind {other}"),
        };
        Key::new(kind, &workload.namespace, &workload.name)
    }
}

impl Api for Memory {
    async fn read(&self, namespace: &str, object: &ObjectName) -> Result<Option<Observed>, ApiError> {
        let key = Key::configmap(namespace, &object.name);
        self.call(&format!("read {key}"), false, || Ok(self.0.get(&key).map(|object| observe(&object))))
    }

    async fn namespace(&self, namespace: &str) -> Result<NamespaceFacts, ApiError> {
        self.call("read namespace", false, || {
            let enabled = self.0.store().namespace_enabled(namespace);
            Ok(NamespaceFacts { enabled, secrets: false, ..NamespaceFacts::default() })
        })
    }

    async fn is_enabled(&self, _: &str, _: &TargetRef) -> Result<Option<bool>, ApiError> {
        panic!("no Rollout here has a workloadRef")
    }

    async fn revisions(&self, namespace: &str, of: &RevisionsOf) -> Result<Vec<Past>, ApiError> {
        self.call("list revisions", false, || {
            let kind = &REVISION_KINDS[of.kind];
            let store = self.0.store();
            let found = store.iter().filter(|(key, object)| {
                key.kind.as_str() == kind.kind
                    && key.namespace == namespace
                    && of.labels.iter().all(|(name, value)| label(object, name) == Some(value))
            });
            Ok(found.filter_map(|(_, object)| Past::read(kind, &object.to_string())).collect())
        })
    }

    async fn create_snapshot(
        &self,
        namespace: &str,
        name: &ObjectName,
        identity: &Identity,
        of: &[u8],
        owners: &[Owner],
    ) -> Result<Created, ApiError> {
        let key = Key::configmap(namespace, &name.name);
        let owners: Vec<_> = owners.iter().map(Owner::to_json).collect();
        let json = snapshot_json(name.kind, namespace, &name.name, identity, of, &owners, &[]).unwrap();
        self.call(&format!("create {key}"), true, || {
            if self.0.get(&key).is_some() {
                return Ok(Created::Exists);
            }
            self.0.commit(&key, serde_json::from_slice(&json).unwrap());
            Ok(Created::Now)
        })
    }

    async fn set_owners(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
        owners: &[Owner],
    ) -> Result<Observed, ApiError> {
        let key = Key::configmap(namespace, &snapshot.name);
        let what = format!("set owners of {key}");
        self.call(&what, true, || {
            let mut object = (*self.of_version(&what, &key, version)?).clone();
            object["metadata"]["ownerReferences"] = owners.iter().map(Owner::to_json).collect();
            Ok(observe(&self.0.commit(&key, object)))
        })
    }

    async fn add_owner(&self, namespace: &str, snapshot: &ObjectName, owner: &Owner) -> Result<(), ApiError> {
        let key = Key::configmap(namespace, &snapshot.name);
        let what = format!("add an owner of {key}");
        self.call(&what, true, || {
            let live = self.0.get(&key).ok_or_else(|| ApiError::NotFound { what: what.clone() })?;
            let mut object = (*live).clone();
            let owners = &mut object["metadata"]["ownerReferences"];
            if owners.is_null() {
                *owners = json!([]);
            }
            let owners = owners.as_array_mut().unwrap();
            if !owners.iter().any(|present| present["uid"] == owner.uid.to_string()) {
                owners.push(owner.to_json());
            }
            self.0.commit(&key, object);
            Ok(())
        })
    }

    async fn delete_snapshot(
        &self,
        namespace: &str,
        snapshot: &ObjectName,
        version: &Version,
    ) -> Result<(), ApiError> {
        let key = Key::configmap(namespace, &snapshot.name);
        let what = format!("delete {key}");
        self.call(&what, true, || {
            let object = self.of_version(&what, &key, version)?;
            self.0.confrev_deletes(&key, &object);
            Ok(())
        })
    }

    async fn poke(
        &self,
        workload: &WorkloadKey,
        condition: &Precondition,
        now: Timestamp,
    ) -> Result<Record, ApiError> {
        let key = self.workload(workload);
        let what = format!("poke {key}");
        self.call(&what, true, || {
            let poked = self.0.write(&key, Intent { poke: true, ..Intent::default() }, &|live| {
                let mut object = live.ok_or(Refusal::NotFound)?.clone();
                let holds = match condition {
                    Precondition::Version(version) => object["metadata"]["resourceVersion"] == *version,
                    Precondition::Unlabelled { .. } => label(&object, names::ENABLED).is_none(),
                };
                if !holds {
                    return Err(Refusal::Conflict);
                }
                set_meta(&mut object, "annotations", names::ROLL, Some(&auto_roll_value(now)));
                Ok(object)
            });
            let what = what.clone();
            let object = poked.map_err(|refusal| match refusal {
                Refusal::NotFound => ApiError::NotFound { what },
                Refusal::Conflict => ApiError::Conflict { what },
                Refusal::Denied(code, message) => ApiError::Refused { what, code, message },
            })?;
            self.0.ghost().pokes += 1;
            let kind = self.0.kinds.iter().nth(workload.kind).unwrap();
            Ok(Record::of(
                &Workload::parse(kind, &object.to_string()).unwrap(),
                Health::of(&kind.kind, &object),
                &Rotated::default(),
            ))
        })
    }

    async fn usages(
        &self,
        namespace: &str,
        owners: &[Owner],
        object: &ObjectName,
    ) -> Result<Vec<Usage>, ApiError> {
        self.call(&format!("look at owners of {object}"), false, || {
            let users = self.0.users_of(namespace, &object.name);
            let store = self.0.store();
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
    }

    async fn users_of(&self, namespace: &str, object: &ObjectName) -> Result<Vec<Owner>, ApiError> {
        self.call("list users", false, || Ok(self.0.users_of(namespace, &object.name)))
    }

    async fn tell(&self, event: &Event) -> Result<(), ApiError> {
        self.0.ghost().told(event);
        // An Event is a write, but none that anything here depends on.
        self.call(&format!("tell {} of {}", event.reason.text(), event.regarding.name), true, || Ok(()))
    }

    async fn look(&self, workload: &WorkloadKey) -> Result<Live, ApiError> {
        let key = self.workload(workload);
        self.call(&format!("look at {key}"), false, || {
            let Some(object) = self.0.get(&key) else { return Ok(Live::Apart) };
            let kind = self.0.kinds.iter().nth(workload.kind).unwrap();
            Ok(Live::read(kind, &object.to_string(), &Rotated::default()).unwrap())
        })
    }

    async fn unlabelled(&self, namespace: &str) -> Result<Vec<(WorkloadKey, Candidate)>, ApiError> {
        self.call("list unlabelled", false, || {
            let store = self.0.store();
            let mut found = Vec::new();
            for (index, kind) in self.0.kinds.iter().enumerate() {
                for (key, object) in store.iter().filter(|(key, _)| key.kind.as_str() == kind.kind) {
                    let live = Live::read(kind, &object.to_string(), &Rotated::default()).unwrap();
                    if key.namespace == namespace
                        && let Live::Unlabelled(candidate) = live
                    {
                        let name = Arc::from(key.name.as_str());
                        let workload = WorkloadKey { kind: index, namespace: Arc::from(namespace), name };
                        found.push((workload, *candidate));
                    }
                }
            }
            Ok(found)
        })
    }
}
