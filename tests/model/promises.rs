//! The promises that hold at rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev::{annotations, resolve::NamespaceOptIn};
use serde_json::Value;

use crate::{
    event::How,
    exhaustive::spread::verdict,
    manifest::{SOURCES, WORKLOADS, digest, keys_read, live_digests, references, same, stated, workload_key},
    model::{Intent, Model},
    store::{Key, Kind, annotation, is_snapshot, label, owners, owns_enabled},
};

impl Model {
    /// Checks every promise at rest.
    pub(crate) fn check_at_rest(self: &Arc<Self>) {
        self.check_always();
        for index in 0..WORKLOADS.len() {
            let key = workload_key(index);
            if let Some(live) = self.get(&key) {
                self.check_workload(&key, &live);
            }
        }
        self.check_owners();
    }

    /// `frozen` and `kept`: every snapshot that a workload or a revision refers to exists, and has its original content.
    pub(crate) fn check_always(&self) {
        let users: Vec<_> = self.users();
        for (user, template) in users {
            let named = stated(&template);
            for reference in references(&template) {
                let key = Key::configmap(&user.namespace, &reference.name);
                if SOURCES.contains(&(&user.namespace, &reference.name)) {
                    continue;
                }
                let entered = named.iter().any(|(_, snapshot)| *snapshot == reference.name);
                // Snapshots that were missing at admission, or that no admission saw, are not confrev's responsibility.
                if !entered && !self.ghost().is_pinned(&user, &reference.name) {
                    continue;
                }
                match self.get(&key) {
                    None if self.ghost().lost.contains(&key) => {}
                    None => self.broken(
                        "kept",
                        format!("{user} refers to {key}, which is missing (in sources: {entered})"),
                    ),
                    Some(object) => {
                        let frozen =
                            self.ghost().frozen(&user.namespace, &template, &reference.name).cloned();
                        if frozen.is_some_and(|frozen| frozen != object["data"]) {
                            self.broken(
                                "frozen",
                                format!("{user} reads {key} with another content than at its admission"),
                            );
                        }
                    }
                }
            }
        }
    }

    /// Opted-in workloads and all revisions, with their templates.
    fn users(&self) -> Vec<(Key, Value)> {
        let store = self.store();
        let users = store.iter().filter(|(key, object)| match key.kind {
            Kind::Deployment | Kind::Rollout => label(object, annotations::ENABLED) == Some("true"),
            Kind::ReplicaSet => label(object, annotations::REVISION).is_some(),
            _ => false,
        });
        users.map(|(key, object)| (key.clone(), object["spec"]["template"].clone())).collect()
    }

    fn check_workload(&self, key: &Key, live: &Value) {
        let by_namespace = match self.store().opt_in_of(&key.namespace) {
            NamespaceOptIn::Now => true,
            // Whether it was deployed since then is not known here.
            NamespaceOptIn::Next => label(live, annotations::ENABLED) == Some("true"),
            NamespaceOptIn::Out => false,
        };
        let given = annotation(live, annotations::ENABLED_BY).is_some() && !owns_enabled(live);
        let wanted = match label(live, annotations::ENABLED) {
            Some("true") if !given => true,
            Some("true") | None => by_namespace,
            _ => false,
        };
        // A hold of a snapshot that is missing is refused when the workload opts in.
        if wanted && self.holds_nothing(key, live) {
            return;
        }
        if wanted != (label(live, annotations::ENABLED) == Some("true")) {
            return self.broken(
                "contained",
                format!("{key} is {} opted in at rest", if wanted { "not" } else { "still" }),
            );
        }
        let template = &live["spec"]["template"];
        if wanted {
            return self.check_rolled(key, live, template);
        }
        let marked = annotation(live, annotations::STATE).is_some()
            || annotation(live, annotations::ENABLED_BY).is_some()
            || !stated(template).is_empty()
            || template["metadata"]["labels"].get(annotations::REVISION).is_some();
        if marked && !self.ghost().unseen.contains(key) {
            self.broken("contained", format!("{key} is not opted in, but still has confrev's metadata"));
        }
    }

    /// `rolls` and `sticks`: every reference reads its source's present content, or is pinned.
    fn check_rolled(&self, key: &Key, live: &Value, template: &Value) {
        let exclude = annotation(live, annotations::EXCLUDE).unwrap_or_default();
        let tracks = annotation(live, annotations::TRACK) != Some("false");
        let all = references(template);
        let entered = stated(template);
        let on_hold = self.on_hold(key, live, &entered);
        for reference in &all {
            let own = entered.iter().find(|(_, snapshot)| *snapshot == reference.name);
            let told = self.get(&Key::configmap(&key.namespace, &reference.name));
            let told =
                told.and_then(|object| annotation(&object, annotations::SOURCE_NAME).map(str::to_owned));
            let by_name = SOURCES.contains(&(&key.namespace, &reference.name));
            let Some(source) = by_name
                .then(|| reference.name.clone())
                .or(told)
                .or_else(|| own.map(|(source, _)| source.clone()))
            else {
                continue;
            };
            if let Some(held) = on_hold.get(&source) {
                if *held != reference.name {
                    self.broken("sticks", format!("{key} uses {}, but {held} is on hold", reference.name));
                }
                continue;
            }
            let source_key = Key::configmap(&key.namespace, &source);
            let Some(state) = self.ghost().state(&source_key) else { continue };
            let Some(content) =
                state.content.filter(|_| tracks && !exclude.split(',').any(|name| name == source))
            else {
                continue;
            };
            let held = self.ghost().held(key, &reference.name, &source_key).is_some();
            if state.exempt {
                if own.is_some() && !self.ghost().is_pinned(key, &reference.name) {
                    self.broken(
                        "rolls",
                        format!("{key} still uses {}, but {source} is exempt", reference.name),
                    );
                }
                let keys = keys_read(&all, &[&source]);
                let started = live_digests(template).remove(&source);
                if state.live && by_name && started.as_ref() != Some(&digest(&content, keys.as_ref())) {
                    let reason =
                        format!("{key} started with {started:?}, but {source} is live and holds {content}");
                    self.broken("rolls", reason);
                }
                continue;
            }
            let keys = keys_read(&all, &[&source, &reference.name]);
            let snapshot = self.get(&Key::configmap(&key.namespace, &reference.name));
            let fresh =
                !by_name && snapshot.is_some_and(|object| same(&object["data"], &content, keys.as_ref()));
            let lost = self.ghost().lost.contains(&Key::configmap(&key.namespace, &reference.name));
            if !held && !fresh && !lost {
                let reason = format!("{key} uses {}, but {source} holds {content}", reference.name);
                self.broken("rolls", reason);
            }
        }
    }

    /// `kept` and `no-leak`: every user of a snapshot owns it, and no other object but its source does.
    fn check_owners(&self) {
        // The users that must own a snapshot, and those that may: a snapshot that was missing at admission is not in
        // `sources`.
        let mut users: BTreeMap<Key, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
        for (user, template) in self.users() {
            let uid = self.get(&user).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
            let entered = stated(&template);
            for reference in references(&template) {
                let snapshot = Key::configmap(&user.namespace, &reference.name);
                let uses = users.entry(snapshot).or_default();
                uses.1.insert(uid.clone());
                if entered.iter().any(|(_, snapshot)| *snapshot == reference.name) {
                    uses.0.insert(uid.clone());
                }
            }
        }
        // Workloads that are not opted in, and revisions without their label, stay owners while they refer to a
        // snapshot.
        for (snapshot, (_, allowed)) in &mut users {
            allowed.extend(
                self.users_of(&snapshot.namespace, &snapshot.name).iter().map(|user| user.uid.to_string()),
            );
        }
        let snapshots: Vec<_> = {
            let store = self.store();
            let all = store.of_kind(Kind::ConfigMap).filter(|(_, object)| is_snapshot(object));
            all.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
        };
        let mut idle: BTreeMap<Key, usize> = BTreeMap::new();
        for (key, object) in snapshots {
            let source =
                Key::configmap(&key.namespace, annotation(&object, annotations::SOURCE_NAME).unwrap());
            let source_uid =
                self.get(&source).map(|source| source["metadata"]["uid"].as_str().unwrap().to_owned());
            let (wanted, allowed) = users.remove(&key).unwrap_or_else(|| {
                let others = self.users_of(&key.namespace, &key.name);
                (BTreeSet::new(), others.iter().map(|user| user.uid.to_string()).collect())
            });
            let mut present: BTreeSet<_> = owners(&object).into_iter().collect();
            if let Some(uid) = source_uid
                && present.remove(&uid)
            {
                // A content with which a workload failed may come back, and so may a workload on hold.
                let is_needed = verdict(&object).failed.is_some() || self.is_held(&key);
                *idle.entry(source.clone()).or_default() += usize::from(!is_needed);
            } else if allowed.is_empty() {
                self.broken("no-leak", format!("nothing uses {key}, but it still exists"));
            }
            if !(wanted.is_subset(&present) && present.is_subset(&allowed)) {
                let promise = if wanted.is_subset(&present) { "no-leak" } else { "kept" };
                self.broken(promise, format!("{key} is owned by {present:?}, but used by {wanted:?}"));
            }
        }
        for (source, count) in idle {
            let object = self.get(&source).unwrap();
            let keep = annotation(&object, annotations::KEEP).map_or(1, |keep| keep.parse().unwrap());
            if count > keep {
                self.broken("no-leak", format!("{source} keeps {count} snapshots, not {keep}"));
            }
        }
    }

    /// `quiet`: a repetition of all applies, lists and starts changes nothing, and confrev sends no write.
    pub(crate) fn check_quiet(self: &Arc<Self>) {
        self.apply_all();
        self.rest();
        self.check_at_rest();
        // A snapshot that a user deleted is restored when possible, at the latest after the next start.
        if !self.ghost().lost.is_empty() {
            return;
        }
        let (writes, changes) = (self.writes(), self.store().log.len());
        self.apply_all();
        for replica in 0..2 {
            let mut replicas = self.replicas();
            for watch in 0..replicas[replica].watches() {
                replicas[replica].relist(watch, &self.store());
            }
        }
        self.rest();
        self.restart(0);
        self.rest();
        {
            let mut conditions = self.conditions();
            conditions.leader = conditions.leader.map(|leader| 1 - leader);
        }
        self.rest();
        self.restart(1);
        self.rest();
        if self.store().log.len() != changes {
            let store = self.store();
            let change = &store.log[changes];
            let what = format!("{} was changed by a repetition", change.key);
            crate::trace!("from {:?}\nto {:?}", change.old, change.new);
            drop(store);
            self.broken("quiet", what);
        } else if self.writes() != writes {
            self.broken("quiet", format!("{} writes without a reason", self.writes() - writes));
        }
    }

    fn apply_all(self: &Arc<Self>) {
        for index in 0..WORKLOADS.len() {
            if self.get(&workload_key(index)).is_some() {
                let manifest = self.ghost().manifests[index].clone();
                let how = if index % 2 == 0 { How::ClientSide } else { How::ServerSide };
                self.apply_manifest(index, how, manifest, Intent::default());
            }
        }
    }
}
