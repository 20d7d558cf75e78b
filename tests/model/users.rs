//! The events of users and their tools, and those of confrev's processes.

use std::sync::Arc;

use confrev::annotations;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::{
    cluster::{is_skipped, revision},
    event::{Edit, Event, How},
    manifest::{
        LAST_APPLIED, Manifest, NAMESPACES, SOURCES, bool_text, content, merge, references, snapshot_of,
        source_key, workload_key,
    },
    model::{Effect, Intent, Model, Refusal},
    store::{Key, Kind, annotation, is_of_spec, is_snapshot, label, managed_fields, owners, set_meta},
};

/// The intent of a user's write.
const REHEARSED: Intent = Intent { roll: false, poke: false, effect: Effect::Rehearsed };

impl Model {
    /// Performs one event.
    pub(crate) fn perform(self: &Arc<Self>, event: &Event) {
        match *event {
            Event::Content { source, content } => self.set_content(source, content),
            Event::Mode { source, mode } => {
                self.edit_source(source, |object| set_meta(object, "labels", annotations::ENABLED, mode));
            }
            Event::Keep { source, keep } => {
                let keep = keep.map(|keep| keep.to_string());
                self.edit_source(source, |object| {
                    set_meta(object, "annotations", annotations::KEEP, keep.as_deref());
                });
            }
            Event::DeleteSource { source } => self.delete(&source_key(source)),
            Event::Apply { workload, how, edit } => self.apply(workload, how, edit),
            Event::Undo { workload, nth } => self.undo(workload, nth),
            Event::SetImage { workload, image } => self.edit_workload(workload, false, |object| {
                object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(format!("i:{image}"));
            }),
            Event::Pin { workload, source, nth } => self.pin(workload, source, nth),
            Event::Hold { workload, source, nth } => self.hold(workload, source, nth),
            Event::Roll { workload, value } => self.edit_workload(workload, true, |object| {
                set_meta(object, "annotations", annotations::ROLL, Some(&format!("please-{value}")));
            }),
            Event::Enable { workload, enabled } => self.edit_workload(workload, false, |object| {
                set_meta(object, "labels", annotations::ENABLED, enabled.map(bool_text));
            }),
            Event::Track { workload, track } => self.edit_workload(workload, false, |object| {
                set_meta(object, "annotations", annotations::TRACK, track.map(bool_text));
            }),
            Event::Scale { workload, replicas } => {
                self.edit_workload(workload, false, |object| object["spec"]["replicas"] = json!(replicas));
            }
            Event::DeleteWorkload { workload } => self.delete(&workload_key(workload)),
            Event::Namespace { namespace, opt_in } => self.label_namespace(NAMESPACES[namespace], opt_in),
            Event::RecreateNamespace { namespace } => self.recreate_namespace(NAMESPACES[namespace]),
            Event::Squat { source, content } => self.squat(source, content),
            Event::DeleteSnapshot { nth } => self.delete_snapshot_by_hand(nth),
            Event::Controllers => drop(self.controllers()),
            Event::Collect => drop(self.collect()),
            _ => self.perform_on_confrev(event),
        }
    }

    fn perform_on_confrev(self: &Arc<Self>, event: &Event) {
        match *event {
            Event::Deliver { replica, watch, limit } => {
                let now = self.now(replica);
                self.replicas()[replica].deliver(watch, limit, &self.store(), now);
            }
            Event::Relist { replica, watch } => self.replicas()[replica].relist(watch, &self.store()),
            Event::Work { limit } => drop(self.work(limit)),
            Event::Pass { millis } => self.conditions().elapsed += SignedDuration::from_millis(millis.into()),
            Event::Settle => self.settle(SignedDuration::from_secs(30)),
            Event::Step { seconds } => {
                self.conditions().skew += SignedDuration::from_secs(seconds.into());
            }
            Event::SideBySide { actions } => self.conditions().side_by_side = actions,
            Event::Restart { replica } => self.restart(replica),
            Event::Leader { replica } => self.lead(replica),
            Event::Webhook { works } => self.conditions().webhook = works,
            Event::Fail { after, fault } => self.conditions().fault = Some((after, fault)),
            Event::Meanwhile { after, ref event } => {
                self.conditions().meanwhile = Some((after, event.clone()));
            }
            _ => panic!("{event:?} is not an event of confrev"),
        }
    }

    pub(crate) fn restart(&self, replica: usize) {
        let fresh = self.new_replica();
        self.replicas()[replica] = fresh;
        let store = self.store();
        let mut ghost = self.ghost();
        ghost.clock_was_set();
        ghost.forgotten(replica, |key| store.get(key).is_none());
    }

    pub(crate) fn lead(&self, replica: usize) {
        let before = self.conditions().leader.replace(replica);
        if before != Some(replica) {
            let now = self.now(replica);
            self.replicas()[replica].shared.lock().reconcile_all(now);
        }
        self.ghost().clock_was_set();
    }

    fn set_content(self: &Arc<Self>, source: usize, number: u8) {
        let key = source_key(source);
        let done = self.write(&key, Intent::default(), &|live| {
            let mut object = live.cloned().unwrap_or_else(|| json!({"metadata": {"name": key.name}}));
            object["data"] = content(number);
            Ok(object)
        });
        self.expect_let_through(&key, done);
    }

    fn edit_source(self: &Arc<Self>, source: usize, edit: impl Fn(&mut Value)) {
        let key = source_key(source);
        let done = self.write(&key, Intent::default(), &|live| {
            let mut object = live.ok_or(Refusal::NotFound)?.clone();
            edit(&mut object);
            Ok(object)
        });
        self.expect_let_through(&key, done);
    }

    fn expect_let_through(&self, key: &Key, done: Result<Arc<Value>, Refusal>) {
        if let Err(Refusal::Denied(_, message)) = done {
            self.broken("contained", format!("a write of {key} was refused: {message}"));
        }
    }

    /// A write of a workload by a user or a tool. It is preceded by a dry run, unless an event is planned between the two.
    fn submit(self: &Arc<Self>, key: &Key, intent: Intent, edit: crate::admission::Edit<'_>) {
        let edit = &|live: Option<&Value>| Ok(own_label(edit(live)?, live));
        let calm = {
            let conditions = self.conditions();
            intent.effect == Effect::Rehearsed && conditions.fault.is_none() && conditions.meanwhile.is_none()
        };
        let (writes, changes) = (self.writes(), self.store().log.len());
        let dry = calm.then(|| self.write(key, Intent { effect: Effect::Dry, ..intent }, edit));
        if self.writes() != writes || self.store().log.len() != changes {
            self.broken("dry", format!("a dry run on {key} wrote an object"));
        }
        let done = self.write(key, intent, edit);
        let Some(dry) = dry else { return };
        let same = match (&dry, &done) {
            (Ok(dry), Ok(done)) => {
                let parts = |object: &Value| {
                    (
                        object["spec"].clone(),
                        object["metadata"]["labels"].clone(),
                        object["metadata"]["annotations"].clone(),
                    )
                };
                parts(dry) == parts(done)
            }
            _ => dry == done,
        };
        if !same {
            self.broken("dry", format!("a dry run on {key} returned {dry:?}, but {done:?} was stored"));
        }
    }

    fn edit_workload(self: &Arc<Self>, workload: usize, roll: bool, edit: impl Fn(&mut Value)) {
        self.submit(&workload_key(workload), Intent { roll, ..REHEARSED }, &|live| {
            let mut object = live.ok_or(Refusal::NotFound)?.clone();
            edit(&mut object);
            Ok(object)
        });
    }

    fn apply(self: &Arc<Self>, workload: usize, how: How, edit: Edit) {
        let mut manifest = self.ghost().manifests[workload].clone();
        edit.edit(&mut manifest);
        self.apply_manifest(workload, how, manifest, REHEARSED);
    }

    /// Applies a manifest, and stores it in the user's repository.
    pub(crate) fn apply_manifest(
        self: &Arc<Self>,
        workload: usize,
        how: How,
        manifest: Manifest,
        intent: Intent,
    ) {
        let key = workload_key(workload);
        let wanted = manifest.to_json(&key);
        let base = self.ghost().server_side[workload].clone();
        self.submit(&key, intent, &|live| Ok(applied(how, &base, &wanted, live)));
        let mut ghost = self.ghost();
        ghost.manifests[workload] = manifest;
        if how == How::ServerSide {
            ghost.server_side[workload] = wanted;
        }
    }

    /// `kubectl rollout undo`: for a Deployment, it restores annotations with the template.
    fn undo(self: &Arc<Self>, workload: usize, nth: usize) {
        let key = workload_key(workload);
        let Some(live) = self.get(&key) else { return };
        let mut older: Vec<_> = self.replicasets(&live);
        older.retain(|(_, replicaset)| replicaset["spec"]["template"] != live["spec"]["template"]);
        older.sort_by_key(|(_, replicaset)| std::cmp::Reverse(revision(replicaset)));
        if older.is_empty() {
            return;
        }
        let (_, target) = older[nth % older.len()].clone();
        self.submit(&key, REHEARSED, &|live| {
            let mut object = live.ok_or(Refusal::NotFound)?.clone();
            object["spec"]["template"] = target["spec"]["template"].clone();
            if key.kind == Kind::Deployment {
                let kept = |object: &Value, skipped: bool| -> serde_json::Map<_, _> {
                    let all = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
                    all.into_iter().filter(|(key, _)| is_skipped(key) == skipped).collect()
                };
                let mut annotations = kept(&object, true);
                annotations.extend(kept(&target, false));
                object["metadata"]["annotations"] = Value::Object(annotations);
            }
            Ok(object)
        });
    }

    fn pin(self: &Arc<Self>, workload: usize, source: usize, nth: usize) {
        let (key, (namespace, name)) = (workload_key(workload), SOURCES[source]);
        let snapshots = self.snapshots(namespace, name);
        if key.namespace != namespace || snapshots.is_empty() {
            return;
        }
        // Excluded: a restored template of a workload that is not opted in, then edited to name a snapshot that is not
        // in its `sources`. Nothing shows whether the user wanted that name.
        if self.ghost().unseen.contains(&key) {
            return;
        }
        let to = snapshots[nth % snapshots.len()].name.clone();
        let pinned: Vec<_> = snapshots.iter().map(|key| key.name.clone()).chain([name.to_owned()]).collect();
        self.edit_workload(workload, false, |object| {
            let template = &mut object["spec"]["template"];
            for reference in references(template) {
                if pinned.contains(&reference.name) {
                    *template.pointer_mut(&reference.at).unwrap() = json!(to);
                }
            }
        });
    }

    fn hold(self: &Arc<Self>, workload: usize, source: usize, nth: Option<usize>) {
        let (namespace, name) = SOURCES[source];
        let snapshots = self.snapshots(namespace, name);
        if workload_key(workload).namespace != namespace || (nth.is_some() && snapshots.is_empty()) {
            return;
        }
        let hold = nth.map(|nth| snapshots[nth % snapshots.len()].name.clone());
        self.edit_workload(workload, false, |object| {
            set_meta(object, "annotations", annotations::HOLD, hold.as_deref());
        });
    }

    /// The snapshots of a source.
    pub(crate) fn snapshots(&self, namespace: &str, source: &str) -> Vec<Key> {
        let store = self.store();
        let of = store.of_kind(Kind::ConfigMap).filter(|(key, object)| {
            key.namespace == namespace
                && is_snapshot(object)
                && annotation(object, annotations::SOURCE_NAME) == Some(source)
        });
        of.map(|(key, _)| key.clone()).collect()
    }

    fn label_namespace(&self, namespace: &str, opt_in: Option<&str>) {
        let key = Key::new(Kind::Namespace, "", namespace);
        let mut object = (*self.get(&key).unwrap()).clone();
        set_meta(&mut object, "labels", annotations::ENABLED, opt_in);
        self.commit(&key, object);
    }

    fn recreate_namespace(&self, namespace: &str) {
        let inside: Vec<_> = {
            let store = self.store();
            let inside = store.iter().filter(|(key, _)| key.namespace == namespace);
            inside.map(|(key, _)| key.clone()).collect()
        };
        for key in inside {
            self.delete(&key);
            self.ghost().lost.remove(&key);
        }
        let key = Key::new(Kind::Namespace, "", namespace);
        self.delete(&key);
        self.commit(&key, json!({"metadata": {}}));
    }

    fn squat(self: &Arc<Self>, source: usize, number: u8) {
        let key = Key::configmap(SOURCES[source].0, &snapshot_of(source, number));
        let done = self.write(&key, Intent::default(), &|live| match live {
            Some(_) => Err(Refusal::Conflict),
            // No promise covers a user who deletes a snapshot in use and takes its name.
            None if self.ghost().lost.contains(&key) => Err(Refusal::Conflict),
            None => Ok(json!({"metadata": {"name": key.name}, "data": {"k1": "squatter"}})),
        });
        self.expect_let_through(&key, done);
    }

    /// The guard lets administrators delete snapshots without owners.
    fn delete_snapshot_by_hand(&self, nth: usize) {
        let snapshots: Vec<_> = {
            let store = self.store();
            let unbound = store
                .of_kind(Kind::ConfigMap)
                .filter(|(_, object)| is_snapshot(object) && owners(object).is_empty());
            unbound.map(|(key, _)| key.clone()).collect()
        };
        if !snapshots.is_empty() {
            let key = &snapshots[nth % snapshots.len()];
            self.delete(key);
            self.ghost().lost.insert(key.clone());
        }
    }
}

/// The object that a tool applies. `base` is the manifest of its last server-side apply.
pub(crate) fn applied(how: How, base: &Value, wanted: &Value, live: Option<&Value>) -> Value {
    let noted = |mut object: Value| {
        set_meta(&mut object, "annotations", LAST_APPLIED, Some(&wanted.to_string()));
        object
    };
    match (how, live) {
        (How::Replace, Some(live)) => {
            let mut object = wanted.clone();
            object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            object["metadata"]["uid"] = live["metadata"]["uid"].clone();
            object["metadata"]["creationTimestamp"] = live["metadata"]["creationTimestamp"].clone();
            object
        }
        (How::ClientSide, None) => noted(wanted.clone()),
        (_, None) => wanted.clone(),
        (How::ClientSide, Some(live)) => {
            let base = annotation(live, LAST_APPLIED)
                .map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
            noted(merge(&base, wanted, live))
        }
        (How::ServerSide, Some(live)) => {
            let mut object = merge(base, wanted, live);
            if label(wanted, annotations::ENABLED).is_some() {
                object["metadata"]["managedFields"] = owns_label();
            }
            object
        }
    }
}

fn owns_label() -> Value {
    json!([{"manager": "user", "fieldsV1": {"f:metadata": {"f:labels": {"f:confrev.dev/enabled": {}}}}}])
}

/// The API server's record of the field manager of the `enabled` label: the writer who changed its value.
pub(crate) fn own_label(mut object: Value, live: Option<&Value>) -> Value {
    let (new, old) =
        (label(&object, annotations::ENABLED), live.and_then(|live| label(live, annotations::ENABLED)));
    let of_label = if new.is_none() {
        Vec::new()
    } else if new != old {
        vec![owns_label()[0].clone()]
    } else {
        let known = if object["metadata"]["managedFields"].is_null() { live } else { Some(&object) };
        known.map(managed_fields).unwrap_or_default().into_iter().filter(|entry| !is_of_spec(entry)).collect()
    };
    let written = live.map(managed_fields).unwrap_or_default().into_iter().filter(is_of_spec);
    let all: Vec<_> = of_label.into_iter().chain(written).collect();
    let metadata = object["metadata"].as_object_mut().unwrap();
    if all.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(all));
    }
    object
}
