//! The events of the model, on a real cluster.

use std::{thread, time::Duration};

use confrev::annotations;
use confrev_controlplane::{Program, wait_for};
use serde_json::{Value, json};

use super::{
    appliers::Before,
    mirror::{LIMIT, Real},
    shared::{Exclusive, exclusive, running},
};
use crate::{
    cluster::revision,
    event::Event,
    manifest::{NAMESPACES, SOURCES, bool_text, content, references, source_key, workload_key},
    model::Intent,
    store::{Key, Kind, annotation, is_snapshot},
};

/// The longest time that a sequence only waits.
const LONGEST_PASS: u32 = 3000;

impl Real {
    /// Performs one event. `away` is present while confrev is down.
    pub(crate) fn perform(&self, event: &Event, away: &mut Option<Exclusive>) {
        match *event {
            Event::Pass { millis } => {
                thread::sleep(Duration::from_millis(millis.min(LONGEST_PASS).into()));
            }
            Event::Settle => self.wait_unchanged(Duration::from_secs(2)),
            Event::Restart { .. } | Event::Webhook { works: true } if away.is_some() => come_back(away),
            Event::Restart { replica } => {
                let mut confrev = exclusive();
                let end = if replica == 0 { Program::stop } else { Program::kill };
                end(&mut confrev);
                confrev.start();
            }
            Event::Webhook { works: false } if away.is_none() => {
                let mut confrev = exclusive();
                confrev.stop();
                *away = Some(confrev);
            }
            Event::Meanwhile { ref event, .. } => self.perform(event, away),
            _ => {
                let confrev = away.is_none().then(running);
                self.look();
                self.perform_outside(event, away.is_some());
                drop(confrev);
            }
        }
    }

    fn perform_outside(&self, event: &Event, away: bool) {
        match *event {
            Event::Content { source, content: number } => {
                self.write_source(source, &json!({"data": content(number)}), true);
            }
            Event::Mode { source, mode } => {
                let labels = json!({annotations::ENABLED: mode});
                self.write_source(source, &json!({"metadata": {"labels": labels}}), false);
            }
            Event::Keep { source, keep } => {
                let annotations = json!({annotations::KEEP: keep.map(|keep| keep.to_string())});
                self.write_source(source, &json!({"metadata": {"annotations": annotations}}), false);
            }
            Event::DeleteSource { source } => self.delete(&source_key(source)),
            Event::Apply { workload, how, edit } => {
                let mut manifest = self.model.ghost().manifests[workload].clone();
                edit.edit(&mut manifest);
                self.apply(workload, how, manifest, away);
            }
            Event::Undo { workload, nth } => self.undo(workload, nth, away),
            Event::SetImage { workload, image } => {
                let image = format!("c=i:{image}");
                self.change(workload, Intent::default(), away, |key, name| match key.kind {
                    Kind::Rollout => self.argo(key, &["set", "image", &key.name, &image]),
                    _ => self.kubectl(key, &["set", "image", name, &image], None),
                });
            }
            Event::Pin { workload, source, nth } => self.pin(workload, source, nth, away),
            Event::Roll { workload, value } => {
                let intent = Intent { roll: true, ..Intent::default() };
                self.mark(
                    workload,
                    intent,
                    away,
                    "annotate",
                    annotations::ROLL,
                    Some(&format!("please-{value}")),
                );
            }
            Event::Hold { workload, source, nth } => {
                let (namespace, name) = SOURCES[source];
                let snapshots = self.model.snapshots(namespace, name);
                let is_near = workload_key(workload).namespace == namespace;
                if is_near && (nth.is_none() || !snapshots.is_empty()) {
                    let hold = nth.map(|nth| snapshots[nth % snapshots.len()].name.as_str());
                    self.mark(workload, Intent::default(), away, "annotate", annotations::HOLD, hold);
                }
            }
            Event::Enable { workload, enabled } => {
                self.mark(
                    workload,
                    Intent::default(),
                    away,
                    "label",
                    annotations::ENABLED,
                    enabled.map(bool_text),
                );
            }
            Event::Track { workload, track } => {
                self.mark(
                    workload,
                    Intent::default(),
                    away,
                    "annotate",
                    annotations::TRACK,
                    track.map(bool_text),
                );
            }
            Event::Scale { workload, replicas } => {
                let change = json!({"spec": {"replicas": replicas}}).to_string();
                self.change(workload, Intent::default(), away, |key, name| {
                    self.kubectl(key, &["patch", name, "--type=merge", "--patch", &change], None)
                });
            }
            Event::DeleteWorkload { workload } => self.delete(&workload_key(workload)),
            Event::Namespace { namespace, opt_in } => self.label_namespace(NAMESPACES[namespace], opt_in),
            Event::RecreateNamespace { namespace } => self.recreate_namespace(NAMESPACES[namespace]),
            Event::Squat { source, content: number } => self.squat(source, number),
            Event::DeleteSnapshot { nth } => self.delete_snapshot(nth),
            // The other events happen by themselves.
            _ => {}
        }
    }

    fn path(&self, key: &Key) -> String {
        let namespace = self.namespace(&key.namespace);
        match key.kind {
            Kind::ConfigMap => format!("/api/v1/namespaces/{namespace}/configmaps/{}", key.name),
            Kind::Rollout => {
                format!("/apis/argoproj.io/v1alpha1/namespaces/{namespace}/rollouts/{}", key.name)
            }
            _ => format!("/apis/apps/v1/namespaces/{namespace}/deployments/{}", key.name),
        }
    }

    fn delete(&self, key: &Key) {
        let (code, answer) = self.cluster.api().delete(&(self.path(key) + "?propagationPolicy=Background"));
        if code >= 300 && code != 404 {
            self.model.broken("contained", format!("the deletion of {key} was refused: {answer}"));
        }
        self.look();
    }

    /// A write that keeps the references.
    fn change(
        &self,
        workload: usize,
        intent: Intent,
        away: bool,
        write: impl Fn(&Key, &str) -> confrev_controlplane::Output,
    ) {
        let key = workload_key(workload);
        let Some(live) = self.model.get(&key) else { return };
        let name = format!("{}/{}", key.kind.as_str().to_lowercase(), key.name);
        let before = Before { template: &live["spec"]["template"], stated: None, roll: None, away };
        self.submit(&key, intent, &before, || write(&key, &name));
    }

    /// `kubectl label` or `kubectl annotate`.
    fn mark(&self, workload: usize, intent: Intent, away: bool, verb: &str, mark: &str, value: Option<&str>) {
        let mark = value.map_or_else(|| format!("{mark}-"), |value| format!("{mark}={value}"));
        self.change(workload, intent, away, |key, name| {
            self.kubectl(key, &[verb, name, "--overwrite", &mark], None)
        });
    }

    fn undo(&self, workload: usize, nth: usize, away: bool) {
        let key = workload_key(workload);
        let Some(live) = self.model.get(&key) else { return };
        let mut older = self.model.replicasets(&live);
        older.retain(|(_, object)| annotation(object, crate::cluster::REVISION).is_some());
        older.sort_by_key(|(_, object)| std::cmp::Reverse(revision(object)));
        if older.len() < 2 {
            return;
        }
        let (_, target) = &older[1 + nth % (older.len() - 1)];
        let to = format!("--to-revision={}", revision(target));
        let template = &target["spec"]["template"];
        let before = Before { template, stated: None, roll: annotation(target, annotations::ROLL), away };
        self.submit(&key, Intent::default(), &before, || match key.kind {
            Kind::Rollout => self.argo(&key, &["undo", &key.name, &to]),
            _ => self.kubectl(&key, &["rollout", "undo", &format!("deployment/{}", key.name), &to], None),
        });
    }

    fn pin(&self, workload: usize, source: usize, nth: usize, away: bool) {
        let (key, (namespace, name)) = (workload_key(workload), SOURCES[source]);
        let snapshots = self.model.snapshots(namespace, name);
        let Some(live) = self.model.get(&key).filter(|_| namespace == key.namespace) else { return };
        if snapshots.is_empty() || self.model.ghost().unseen.contains(&key) {
            return;
        }
        let to = &snapshots[nth % snapshots.len()].name;
        let mut template = live["spec"]["template"].clone();
        let mut patch = Vec::new();
        for reference in references(&template) {
            if reference.name == name || snapshots.iter().any(|key| key.name == reference.name) {
                let path = format!("/spec/template{}", reference.at);
                patch.push(json!({"op": "replace", "path": path, "value": to}));
                *template.pointer_mut(&reference.at).unwrap() = json!(to);
            }
        }
        let patch = Value::Array(patch).to_string();
        let before = Before { template: &template, stated: None, roll: None, away };
        let name = format!("{}/{}", key.kind.as_str().to_lowercase(), key.name);
        self.submit(&key, Intent::default(), &before, || {
            self.kubectl(&key, &["patch", &name, "--type=json", "--patch", &patch], None)
        });
    }

    fn label_namespace(&self, namespace: &str, opt_in: Option<&str>) {
        let real = self.namespace(namespace);
        let label = opt_in.map_or_else(
            || format!("{}-", annotations::ENABLED),
            |value| format!("{}={value}", annotations::ENABLED),
        );
        self.cluster.kubectl(&["label", "namespace", real, "--overwrite", &label]).run().ok();
        self.wait_selected(namespace, opt_in.is_some());
        self.look();
    }

    /// The API server learns of a namespace's labels from its own watch, a moment later.
    fn wait_selected(&self, namespace: &str, enabled: bool) {
        let key = Key::new(Kind::Deployment, namespace, "");
        let path = self.path(&key).trim_end_matches('/').to_owned() + "?dryRun=All";
        let labels = json!({"app": "probe"});
        let probe = json!({
            "metadata": {"name": "probe", "annotations": {annotations::STATE: "{}"}},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        });
        wait_for("the API server to know the namespace's labels", LIMIT, || {
            let (code, answer) = self.cluster.api().post(&path, &probe);
            // confrev removes its own annotation from workloads without references. While confrev is down, the write is
            // refused.
            let asked = code >= 500 || answer["metadata"]["annotations"][annotations::STATE].is_null();
            if asked == enabled { Ok(()) } else { Err(format!("{code} {answer}")) }
        });
    }

    fn recreate_namespace(&self, namespace: &str) {
        let real = self.namespace(namespace);
        self.cluster.kubectl(&["delete", "namespace", real, "--timeout=3m"]).run().ok();
        self.cluster.create("namespace", "", &json!({"metadata": {"name": real}}));
        self.wait_selected(namespace, false);
        self.look();
    }

    fn squat(&self, source: usize, number: u8) {
        let (namespace, _) = SOURCES[source];
        let key = Key::configmap(namespace, &crate::manifest::snapshot_of(source, number));
        if self.model.get(&key).is_some() || self.model.ghost().lost.contains(&key) {
            return;
        }
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace(namespace));
        let object = json!({"metadata": {"name": key.name}, "data": {"k1": "squatter"}});
        // Another writer may have been faster.
        let (code, answer) = self.cluster.api().post(&path, &object);
        if code >= 300 && code != 409 {
            self.model.broken("contained", format!("a write of {key} was refused: {answer}"));
        }
        self.look();
    }

    fn delete_snapshot(&self, nth: usize) {
        let mut snapshots: Vec<_> = {
            let store = self.model.store();
            let all = store.of_kind(Kind::ConfigMap).filter(|(_, object)| is_snapshot(object));
            all.map(|(key, _)| key.clone()).collect()
        };
        snapshots.retain(|key| !self.is_bound(key));
        if !snapshots.is_empty() {
            let key = &snapshots[nth % snapshots.len()];
            // The guard refuses the deletion if the snapshot has been bound meanwhile.
            let (code, _) = self.cluster.api().delete(&self.path(key));
            self.look();
            if code < 300 && self.model.get(key).is_none() {
                self.model.ghost().lost.insert(key.clone());
            }
        }
    }
}

/// Starts confrev again.
pub(crate) fn come_back(away: &mut Option<Exclusive>) {
    if let Some(mut confrev) = away.take() {
        confrev.start();
    }
}
