//! Users and their real tools: kubectl and its plugin. Every write must keep the same promises as in the model.

use confrev::annotations;
use confrev_controlplane::Output;
use serde_json::{Value, json};

use super::mirror::Real;
use crate::{
    admission::selects,
    event::How,
    manifest::{Manifest, references, source_key, stated},
    model::Intent,
    store::{Key, Kind, annotation, set_meta},
};

/// What a writer knows about a workload when it writes.
pub(crate) struct Before<'b> {
    /// The template with the references, if the manifest does not state them.
    pub template: &'b Value,
    /// The template in the writer's manifest.
    pub stated: Option<&'b Value>,
    /// The `roll` that an undo restores.
    pub roll: Option<&'b str>,
    /// confrev is down.
    pub away: bool,
}

impl Real {
    /// kubectl in the namespace of an object.
    pub(crate) fn kubectl(&self, key: &Key, arguments: &[&str], file: Option<&Value>) -> Output {
        let kubectl = self.cluster.kubectl(arguments).arg("--namespace").arg(self.namespace(&key.namespace));
        match file {
            Some(file) => kubectl.arg("--filename").arg("-").stdin(file).run(),
            None => kubectl.run(),
        }
    }

    /// The plugin of Argo Rollouts, in the namespace of an object.
    pub(crate) fn argo(&self, key: &Key, arguments: &[&str]) -> Output {
        self.cluster.argo(arguments).arg("--namespace").arg(self.namespace(&key.namespace)).run()
    }

    /// Applies a manifest, and stores it in the user's repository.
    pub(crate) fn apply(&self, workload: usize, how: How, manifest: Manifest, away: bool) {
        let key = crate::manifest::workload_key(workload);
        let file = real_manifest(&manifest, &key);
        let live = self.model.get(&key);
        let template = match (&live, how) {
            (Some(live), How::ClientSide | How::ServerSide) => live["spec"]["template"].clone(),
            _ => Value::Null,
        };
        let verb: &[&str] = match how {
            How::ClientSide => &["apply"],
            How::ServerSide => &["apply", "--server-side", "--force-conflicts"],
            How::Replace if live.is_some() => &["replace"],
            How::Replace => &["create"],
        };
        let stated = file["spec"]["template"].clone();
        let before = Before { template: &template, stated: Some(&stated), roll: None, away };
        self.submit(&key, Intent::default(), &before, || self.kubectl(&key, verb, Some(&file)));
        self.model.ghost().manifests[workload] = manifest;
    }

    /// One write of a workload, based on its last observed state. The result is checked as in the model.
    pub(crate) fn submit(&self, key: &Key, intent: Intent, before: &Before<'_>, write: impl Fn() -> Output) {
        let old = self.model.get(key);
        let mark = self.model.ghost().mark();
        let mut output = write();
        // Writers that do not handle conflicts themselves try again.
        for _ in 0..3 {
            if output.status.success() || !output.stderr.contains("the object has been modified") {
                break;
            }
            output = write();
        }
        self.look();
        if !output.status.success() {
            // A roll changes the revision number of an undo.
            let moved = ["not found", "unable to find specified revision"];
            let unanswered = ["failed calling webhook", "confrev does not answer"];
            let expected = (before.away && unanswered.iter().any(|reason| output.stderr.contains(reason)))
                || moved.iter().any(|reason| output.stderr.contains(reason));
            if !expected {
                self.model.broken("contained", format!("{key} was refused: {output}"));
            }
            return;
        }
        let Some(stored) = self.model.get(key) else { return };
        if old
            .as_ref()
            .is_some_and(|old| old["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"])
        {
            return;
        }
        let between = came_between(old.as_deref(), &stored, before.roll);
        let wanted = if between { (*stored).clone() } else { asked_for(&stored, before) };
        let by_namespace = self.model.store().opt_in_of(&key.namespace).is_in();
        if !selects(by_namespace, key.kind, &wanted, old.as_deref()) {
            // No webhook was called, whatever tool wrote.
            let named = |object: &Value| stated(&object["spec"]["template"]);
            if old.is_none_or(|old| named(&old) != named(&wanted)) {
                self.model.ghost().unseen.insert(key.clone());
            }
        } else if between {
            let names = references(&stored["spec"]["template"]).into_iter().map(|reference| reference.name);
            self.model.ghost().admitted_in_doubt(key, names);
        } else {
            let pins = self.model.check_admitted(key, &wanted, &stored, old.as_deref(), (intent, &mark));
            self.model.admission_was_stored(key, &stored, old.as_deref(), intent, pins);
        }
    }

    /// Writes a source with a merge patch. With `create`, creates the source if it is missing.
    pub(crate) fn write_source(&self, source: usize, patch: &Value, create: bool) {
        let key = source_key(source);
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace(&key.namespace));
        let api = self.cluster.api();
        let (mut code, mut answer) =
            api.patch(&format!("{path}/{}", key.name), "application/merge-patch+json", patch);
        if code == 404 && create {
            (code, answer) = api.post(&path, &json!({"metadata": {"name": key.name}, "data": patch["data"]}));
        }
        if code >= 300 && code != 404 {
            self.model.broken("contained", format!("a write of {key} was refused: {answer}"));
        }
        self.look();
    }
}

/// The request, derived from the stored object: each reference has the name that the writer stated, or its previous
/// name.
fn asked_for(stored: &Value, before: &Before<'_>) -> Value {
    let mut wanted = stored.clone();
    let template = &mut wanted["spec"]["template"];
    let (stated, left) = (before.stated.map(references).unwrap_or_default(), references(before.template));
    for reference in references(template) {
        let mut named = stated.iter().chain(&left);
        if let Some(named) = named.find(|named| named.place == reference.place) {
            *template.pointer_mut(&reference.at).unwrap() = json!(named.name);
        }
    }
    let sources = annotation(before.template, annotations::SOURCES);
    set_meta(template, "annotations", annotations::SOURCES, sources);
    wanted
}

/// Whether a roll by confrev came first, so that the state that the writer found is unknown.
fn came_between(old: Option<&Value>, stored: &Value, restored: Option<&str>) -> bool {
    let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap_or_default();
    let roll = |object: &Value| annotation(object, annotations::ROLL).map(str::to_owned);
    let (Some(old), new) = (old, roll(stored)) else { return generation(stored) > 1 };
    let by_confrev = new.as_deref().is_some_and(|roll| roll.starts_with("auto-"));
    generation(stored) > generation(old) + 1 || (by_confrev && new != roll(old) && new.as_deref() != restored)
}

/// A manifest that real controllers accept.
fn real_manifest(manifest: &Manifest, key: &Key) -> Value {
    let mut object = manifest.to_json(key);
    object["metadata"].as_object_mut().unwrap().remove("namespace");
    set_meta(&mut object, "annotations", annotations::MIN_INTERVAL, Some("1s"));
    let spec = &mut object["spec"];
    let labels = json!({"app": key.name});
    spec["template"]["metadata"]["labels"] = labels.clone();
    spec["selector"] = json!({"matchLabels": labels});
    spec["revisionHistoryLimit"] = json!(2);
    if key.kind == Kind::Rollout {
        spec["strategy"] = json!({"canary": {}});
    }
    object
}
