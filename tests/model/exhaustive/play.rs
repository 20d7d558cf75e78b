//! The actions of users and the cluster in a scenario. A user whose request fails because confrev or the API server
//! failed tries again.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
};

use confrev::annotations;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    goldens::Record,
    objects::{File, NAMESPACE, source_key},
    spread::Spread,
};
use crate::{
    cluster::{is_skipped, revision},
    event::How,
    manifest::{LAST_APPLIED, references, stated_of},
    model::{Effect, Intent, Model, Refusal},
    store::{Key, Kind, annotation, label, set_meta},
    users::{applied, own_label},
};

/// How often a user tries before the refusal counts as final.
const TRIES: usize = 60;

/// All objects at rest, without fields that differ from run to run.
pub(crate) type State = BTreeMap<String, Value>;

/// One run of a scenario.
pub(crate) struct Play<'p> {
    pub model: Arc<Model>,
    /// Whether the course depends on timing: then only the final state is compared.
    pub loose: bool,
    /// Whether a stale watch may lead to a write of `roll` that changes nothing else.
    pub may_poke_in_vain: bool,
    /// The states at each rest without faults.
    expected: Cell<Option<&'p [State]>>,
    /// The states at each rest of this run.
    pub rests: RefCell<Vec<State>>,
    /// The first content of each snapshot.
    pub contents: RefCell<BTreeMap<Key, Value>>,
    /// How far changes have spread.
    pub(super) spread: RefCell<Spread>,
    /// What was written and answered, and what the commands say, if that is recorded.
    pub(super) record: Option<RefCell<Record>>,
}

impl<'p> Play<'p> {
    pub(crate) fn new(model: Arc<Model>, loose: bool, expected: Option<&'p [State]>) -> Self {
        let play = Self {
            model,
            loose,
            may_poke_in_vain: false,
            expected: Cell::new(expected),
            rests: RefCell::default(),
            contents: RefCell::default(),
            spread: RefCell::default(),
            record: None,
        };
        play.namespace(NAMESPACE, &[]);
        play
    }

    /// Runs all components until nothing is left to do, then checks every promise.
    pub(crate) fn rest(&self) {
        self.model.rest();
        self.check();
        let state = self.state();
        let number = self.rests.borrow().len();
        if let Some(expected) = self.expected.get().and_then(|expected| expected.get(number)) {
            self.compare(number, expected, &state);
        }
        self.rests.borrow_mut().push(state);
        self.ask("at rest");
    }

    /// Runs all components for this number of seconds.
    pub(crate) fn settle(&self, time: SignedDuration) {
        let until = self.model.conditions().elapsed + time;
        self.model.settle(time);
        self.model.conditions().elapsed = until;
    }

    pub(crate) fn seconds(&self, seconds: i64) {
        self.settle(SignedDuration::from_secs(seconds));
        self.ask(&format!("after {seconds} s"));
    }

    /// Argo's controller ends the AnalysisRuns without a result, with this phase.
    pub(crate) fn judge(&self, phase: &str) {
        let running: Vec<_> = {
            let store = self.model.store();
            let all = store.of_kind(Kind::AnalysisRun).filter(|(_, run)| run["status"].is_null());
            all.map(|(key, run)| (key.clone(), Arc::clone(run))).collect()
        };
        for (key, run) in running {
            let mut run = (*run).clone();
            run["status"] = json!({"phase": phase});
            self.model.commit(&key, run);
        }
    }

    /// Creates a namespace, or changes its labels and annotations.
    pub(crate) fn namespace(&self, name: &str, notes: &[(&str, &str)]) {
        let key = Key::new(Kind::Namespace, "", name);
        let live = self.model.get(&key);
        let mut object = live.map_or_else(|| json!({"metadata": {}}), |live| (*live).clone());
        object["metadata"]["labels"] = json!({});
        object["metadata"]["annotations"] = json!({});
        for (note, value) in notes {
            let is_label =
                [annotations::ENABLED, annotations::GROUP, annotations::GROUP_REVERT].contains(note);
            let field = if is_label { "labels" } else { "annotations" };
            set_meta(&mut object, field, note, Some(value));
        }
        self.model.commit(&key, object);
    }

    /// A write that is repeated while it fails for reasons outside of it.
    fn send(
        &self,
        key: &Key,
        intent: Intent,
        edit: &dyn Fn(Option<&Value>) -> Result<Value, Refusal>,
    ) -> Result<Arc<Value>, Refusal> {
        let mut done = self.send_once(key, intent, edit);
        for _ in 1..TRIES {
            if !done.as_ref().is_err_and(may_pass) {
                break;
            }
            self.seconds(1);
            done = self.send_once(key, intent, edit);
        }
        done
    }

    /// A write that is not repeated.
    fn send_once(
        &self,
        key: &Key,
        intent: Intent,
        edit: &dyn Fn(Option<&Value>) -> Result<Value, Refusal>,
    ) -> Result<Arc<Value>, Refusal> {
        let edit = |live: Option<&Value>| {
            let wanted = edit(live)?;
            Ok(if key.kind.is_workload() { own_label(wanted, live) } else { wanted })
        };
        self.model.write(key, intent, &edit)
    }

    /// `kubectl apply`, which must succeed.
    pub(crate) fn apply(&self, file: &File) {
        if let Err(refusal) = self.try_apply(file) {
            self.model.broken("contained", format!("{} was refused: {refusal:?}", file.key));
        }
    }

    /// `kubectl apply`.
    pub(crate) fn try_apply(&self, file: &File) -> Result<Arc<Value>, Refusal> {
        self.send(&file.key, Intent::default(), &|live| {
            Ok(applied(How::ClientSide, &Value::Null, &file.json, live))
        })
    }

    /// `kubectl apply` after a dry run: the responses are equal, and the dry run writes nothing.
    pub(crate) fn rehearse(&self, file: &File) {
        let applied = |live: Option<&Value>| Ok(applied(How::ClientSide, &Value::Null, &file.json, live));
        let changes = self.model.store().log.len();
        let dry = self.send(&file.key, Intent { effect: Effect::Dry, ..Intent::default() }, &applied);
        let wrote = self.model.store().log[changes..].iter().any(|change| change.key == file.key);
        let done = self.send(&file.key, Intent::default(), &applied);
        let parts = |done: Result<Arc<Value>, Refusal>| {
            done.map(|object| {
                let metadata = &object["metadata"];
                [&object["spec"], &metadata["labels"], &metadata["annotations"]].map(Clone::clone)
            })
        };
        if wrote || parts(dry) != parts(done) {
            self.model.broken("dry", format!("the dry run of {} differs from the stored object", file.key));
        }
    }

    /// A write that confrev admits and that is refused afterwards, as by a quota.
    pub(crate) fn apply_in_vain(&self, file: &File) {
        let dry = self.model.review("/mutate/workloads", &file.key, &file.json, None, false);
        drop(dry);
    }

    /// `kubectl edit`.
    pub(crate) fn edit(&self, key: &Key, edit: impl Fn(&mut Value)) {
        let done = self.send(key, Intent::default(), &|live| {
            let mut object = live.ok_or(Refusal::NotFound)?.clone();
            edit(&mut object);
            Ok(object)
        });
        if let Err(refusal) = done {
            self.model.broken("contained", format!("{key} was refused: {refusal:?}"));
        }
    }

    /// `kubectl edit` by a user who does not try again. If a fault refuses it, the following rests are not compared with those
    /// without faults. Returns whether it was stored.
    pub(crate) fn edit_once(&self, key: &Key, edit: impl Fn(&mut Value)) -> bool {
        let done = self.send_once(key, Intent::default(), &|live| {
            let mut object = live.ok_or(Refusal::NotFound)?.clone();
            edit(&mut object);
            Ok(object)
        });
        if let Err(refusal) = &done {
            self.expected.set(None);
            if !may_pass(refusal) {
                self.model.broken("contained", format!("{key} was refused: {refusal:?}"));
            }
        }
        done.is_ok()
    }

    /// `kubectl annotate`; without a value, it removes the annotation.
    pub(crate) fn annotate(&self, key: &Key, name: &str, value: Option<&str>) {
        self.edit(key, |object| set_meta(object, "annotations", name, value));
    }

    /// `kubectl label`; without a value, it removes the label.
    pub(crate) fn label(&self, key: &Key, name: &str, value: Option<&str>) {
        self.edit(key, |object| set_meta(object, "labels", name, value));
    }

    /// `kubectl rollout undo --to-revision`; for a Deployment, it restores annotations with the template.
    pub(crate) fn undo(&self, key: &Key, to: u64) {
        let live = self.model.get(key).unwrap();
        let of = if matches!(key.kind, Kind::Deployment | Kind::Rollout) {
            Kind::ReplicaSet
        } else {
            Kind::ControllerRevision
        };
        let all = self.model.revisions_of(of, &live);
        let Some((_, target)) = all.iter().find(|(_, object)| revision(object) == to) else {
            return self.model.broken("kept", format!("{key} has no revision {to} to return to"));
        };
        self.edit(key, |object| {
            *key.kind.template_mut(object) = of.template(target).clone();
            if key.kind == Kind::Deployment {
                let kept = |object: &Value, skipped: bool| -> serde_json::Map<_, _> {
                    let all = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
                    all.into_iter().filter(|(key, _)| is_skipped(key) == skipped).collect()
                };
                let mut annotations = kept(object, true);
                annotations.extend(kept(target, false));
                object["metadata"]["annotations"] = Value::Object(annotations);
            }
        });
    }

    /// Edits all references to a source, by any name, to name this object.
    pub(crate) fn pin(&self, key: &Key, source: &str, to: &str) {
        let source = source_key(source);
        let names = self.snapshots_of(&source);
        self.edit(key, |object| {
            let template = key.kind.template_mut(object);
            for reference in references(template) {
                if names.contains(&reference.name) || reference.name == source.name {
                    *template.pointer_mut(&reference.at).unwrap() = json!(to);
                }
            }
        });
    }

    /// The names of the snapshots of a source.
    pub(crate) fn snapshots_of(&self, source: &Key) -> Vec<String> {
        let store = self.model.store();
        let all = store.of_kind(source.kind).filter(|(key, object)| {
            key.namespace == source.namespace
                && crate::store::is_snapshot(object)
                && annotation(object, annotations::SOURCE_NAME) == Some(&source.name)
        });
        all.map(|(key, _)| key.name.clone()).collect()
    }

    /// The name of the source's snapshot that has this content under `v`.
    pub(crate) fn snapshot(&self, source: &str, content: &str) -> String {
        let key = source_key(source);
        let mut names = self.snapshots_of(&key);
        names.retain(|name| {
            let live = self.model.get(&Key::new(key.kind, &key.namespace, name)).unwrap();
            holds(&live, content)
        });
        names.pop().unwrap_or_else(|| panic!("{source} has no snapshot of {content:?}"))
    }

    /// Deletes an object in the background. The webhook sees the deletion of an object that is bound itself.
    pub(crate) fn delete(&self, key: &Key) {
        let live = self.model.get(key);
        if let Some(live) = live.filter(|live| label(live, annotations::ENABLED) == Some("bind")) {
            let path = if key.kind == Kind::Secret { "/mutate/secrets" } else { "/mutate/configmaps" };
            self.model.review(path, key, &Value::Null, Some(&live), false);
        }
        self.model.delete(key);
    }

    /// Deletes an object in the foreground.
    pub(crate) fn delete_in_foreground(&self, key: &Key) {
        self.model.delete_in_foreground(key);
    }

    /// Deletes a namespace: it accepts no new objects, and its objects are deleted one after the other.
    pub(crate) fn delete_namespace(&self, name: &str) {
        let key = Key::new(Kind::Namespace, "", name);
        let mut object = (*self.model.get(&key).unwrap()).clone();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.model.commit(&key, object);
        loop {
            let next = {
                let store = self.model.store();
                store.iter().map(|(key, _)| key).find(|key| key.namespace == name).cloned()
            };
            let Some(next) = next else { break };
            self.model.delete(&next);
            self.settle(SignedDuration::from_millis(700));
        }
        self.model.delete(&key);
    }

    /// A CronJob's controller creates a Job.
    pub(crate) fn tick(&self, cron_job: &str, number: u8) {
        let live = self.model.get(&Key::new(Kind::CronJob, NAMESPACE, cron_job)).unwrap();
        let own = &live["spec"]["jobTemplate"];
        let labels = match &own["metadata"]["labels"] {
            Value::Null => &own["spec"]["template"]["metadata"]["labels"],
            labels => labels,
        };
        let owner = json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "name": cron_job, "uid": live["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        });
        let job = json!({
            "metadata": {"labels": labels, "ownerReferences": [owner]},
            "spec": own["spec"],
        });
        let key = Key::new(Kind::Job, NAMESPACE, &format!("{cron_job}-{number}"));
        self.model.commit(&key, job);
    }

    /// Checks that a workload's template reads this content of a source, under `v`.
    pub(crate) fn reads(&self, key: &Key, source: &str, content: &str) {
        let source = Key { namespace: key.namespace.clone(), ..source_key(source) };
        let Some(live) = self.model.get(key) else {
            return self.model.broken("rolls", format!("{key} does not exist"));
        };
        let template = key.kind.template(&live);
        let kind = confrev::snapshot::SourceKind::from_kind(source.kind);
        let stated = stated_of(kind, template);
        let of_source = |name: &str| {
            name == source.name || stated.iter().any(|(of, snapshot)| *of == source.name && snapshot == name)
        };
        let mut names = references(template).into_iter().filter(|reference| reference.kind == kind);
        let Some(reference) = names.find(|reference| of_source(&reference.name)) else {
            return self.model.broken("rolls", format!("{key} does not refer to {source}"));
        };
        let object = self.model.get(&Key::new(source.kind, &key.namespace, &reference.name));
        if !object.is_some_and(|object| holds(&object, content)) {
            let what = format!("{key} refers to {}, which does not hold {content:?}", reference.name);
            self.model.broken("rolls", what);
        }
    }

    /// Checks the number of revisions that a workload has had, including the present one.
    pub(crate) fn revisions(&self, key: &Key, count: u64) {
        let live = self.model.get(key).unwrap();
        let present = annotation(&live, crate::cluster::REVISION).unwrap_or("0");
        if present != count.to_string() {
            self.model.broken("rolls", format!("{key} is at its revision {present}, not {count}"));
        }
    }

    /// Repeats the last apply of each object: nothing may change.
    pub(crate) fn apply_all_again(&self) {
        let all: Vec<_> = {
            let store = self.model.store();
            let applied = store.iter().filter_map(|(key, object)| {
                let json = serde_json::from_str(annotation(object, LAST_APPLIED)?).unwrap();
                Some(File { key: key.clone(), json })
            });
            applied.collect()
        };
        let changes = self.model.store().log.len();
        for file in all.iter().filter(|file| file.key.kind != Kind::ReplicaSet) {
            self.apply(file);
        }
        self.rest();
        if self.model.trial().carries {
            // The mark of an unanswered apply is written, and removed.
            let (before, after) = (self.rests.borrow().iter().rev().nth(1).cloned(), self.state());
            if before.is_some_and(|before| before != after) {
                self.model.broken("quiet", "a repeated apply made a difference".to_owned());
            }
            return;
        }
        let store = self.model.store();
        if let Some(change) = store.log.get(changes) {
            let what = format!("{} was changed by a repeated apply", change.key);
            drop(store);
            self.model.broken("quiet", what);
        }
    }
}

/// Whether a repeated write may succeed.
fn may_pass(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Conflict => true,
        Refusal::Denied(code, _) => *code >= 429,
        Refusal::NotFound => false,
    }
}

/// Whether an object has this content under `v`.
pub(crate) fn holds(object: &Value, content: &str) -> bool {
    let value = &object["data"]["v"];
    *value == content || *value == super::objects::base64_of(content)
}

/// The kind of a source's key.
trait FromKind {
    fn from_kind(kind: Kind) -> Self;
}

impl FromKind for confrev::snapshot::SourceKind {
    fn from_kind(kind: Kind) -> Self {
        if kind == Kind::Secret { Self::Secret } else { Self::ConfigMap }
    }
}
