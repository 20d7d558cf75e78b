//! The checks at each rest of a scenario, after any faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use confrev::{
    annotations,
    resolve::ChangeState,
    snapshot::{Object, SourceKind},
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    play::{Play, State},
    spread::verdict,
};
use crate::{
    manifest::{LAST_APPLIED, references, stated_of},
    store::{Key, Kind, annotation, is_snapshot, label, owners, setting},
};

/// Fields that differ from run to run.
const NOTHING_SAID: [&str; 4] = ["uid", "resourceVersion", "creationTimestamp", "managedFields"];

/// The users of an object: those with the object in their `sources`, and those whose template refers to the object.
#[derive(Default)]
struct Users {
    entered: BTreeSet<String>,
    referring: BTreeSet<String>,
}

impl Play<'_> {
    /// The snapshots to which workloads may go back. Their source keeps them.
    fn previous_of(&self, source: &Key) -> BTreeSet<String> {
        let reverts = |source: Arc<Value>| setting(&source, annotations::ON_FAILURE) == Some("revert");
        if !self.model.get(source).is_some_and(reverts) {
            return BTreeSet::new();
        }
        let store = self.model.store();
        let of = |object: &Arc<Value>| {
            let state: Value = serde_json::from_str(annotation(object, annotations::STATE)?).ok()?;
            state["configmaps"][&source.name]["previous"].as_str().map(str::to_owned)
        };
        store
            .iter()
            .filter(|(key, _)| key.namespace == source.namespace)
            .filter_map(|(_, object)| of(object))
            .collect()
    }

    /// `frozen`, `kept`, `no-leak`, and no Event about a loss.
    pub(super) fn check(&self) {
        let mut users = self.users();
        let sources: Vec<_> = {
            let store = self.model.store();
            let all = store.iter().filter(|(key, _)| matches!(key.kind, Kind::ConfigMap | Kind::Secret));
            all.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
        };
        let mut kept: BTreeMap<Key, usize> = BTreeMap::new();
        for (key, object) in sources {
            let uses = users.remove(&key).unwrap_or_default();
            if is_snapshot(&object) {
                self.check_content(&key, &object);
                self.check_owners(&key, &object, &uses, &mut kept);
            } else if label(&object, annotations::ENABLED) == Some("bind") {
                self.check_bound(&key, &object, &uses);
            } else if !owners(&object).is_empty() {
                self.model.broken("contained", format!("{key} has owners, but belongs to the user"));
            }
        }
        for (source, count) in kept {
            let keep = self.model.get(&source).and_then(|source| {
                annotation(&source, annotations::KEEP).map(|keep| keep.parse::<usize>().unwrap())
            });
            if count > keep.unwrap_or(1) + self.previous_of(&source).len() + self.failures_of(&source) {
                self.model.broken("no-leak", format!("{source} keeps {count} snapshots"));
            }
        }
        for (key, uses) in users.into_iter().filter(|(_, uses)| !uses.entered.is_empty()) {
            let names: Vec<_> = uses.entered.iter().map(|uid| self.name_of(uid)).collect();
            self.model.broken("kept", format!("{names:?} refer to {key}, which is missing"));
        }
    }

    /// The number of snapshots of a source with whose contents a workload failed.
    fn failures_of(&self, source: &Key) -> usize {
        let names = self.snapshots_of(source).into_iter();
        let snapshots =
            names.filter_map(|name| self.model.get(&Key::new(source.kind, &source.namespace, &name)));
        snapshots.filter(|snapshot| verdict(snapshot).failed.is_some()).count()
    }

    /// The users of every snapshot and bound object, by their uids.
    fn users(&self) -> BTreeMap<Key, Users> {
        let store = self.model.store();
        let mut users: BTreeMap<Key, Users> = BTreeMap::new();
        for (key, object) in store.iter() {
            let is_in = key.kind.is_workload() && label(object, annotations::ENABLED) == Some("true");
            if !is_in && !key.kind.is_revision() {
                continue;
            }
            let template = key.kind.template(object);
            let entered: BTreeMap<_, _> = [SourceKind::ConfigMap, SourceKind::Secret]
                .map(|kind| (kind.as_str(), stated_of(kind, template)))
                .into_iter()
                .collect();
            for reference in references(template) {
                let named = Key::new(reference.kind.into(), &key.namespace, &reference.name);
                let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
                let uses = users.entry(named).or_default();
                let stated = &entered[reference.kind.as_str()];
                if stated.iter().any(|(_, snapshot)| *snapshot == reference.name) {
                    uses.entered.insert(uid.clone());
                }
                uses.referring.insert(uid);
            }
        }
        users
    }

    /// A snapshot has the content that its name states, and that it had when it was created.
    fn check_content(&self, key: &Key, object: &Value) {
        let first =
            self.contents.borrow_mut().entry(key.clone()).or_insert_with(|| object["data"].clone()).clone();
        if first != object["data"] || object["immutable"] != true {
            self.model.broken("frozen", format!("{key} holds another content than at its creation"));
        }
        if key.kind == Kind::ConfigMap {
            let text = object.to_string();
            let digest = Object::parse(text.as_bytes()).unwrap().digest(SourceKind::ConfigMap).unwrap();
            let stated = annotation(object, annotations::DIGEST).unwrap_or_default();
            if stated != format!("sha256:{}", digest.hex(64)) {
                self.model.broken("frozen", format!("{key} states {stated}, but holds {digest:?}"));
            }
        }
    }

    /// A snapshot is owned by all its users, by its source while the source keeps it, and by nothing else.
    fn check_owners(&self, key: &Key, object: &Value, uses: &Users, kept: &mut BTreeMap<Key, usize>) {
        let source =
            Key::new(key.kind, &key.namespace, annotation(object, annotations::SOURCE_NAME).unwrap());
        let source_uid = self.model.get(&source).map(|source| source["metadata"]["uid"].clone());
        let mut present: BTreeSet<_> = owners(object).into_iter().collect();
        let namespace = self.model.get(&Key::new(Kind::Namespace, "", &key.namespace)).unwrap();
        let has_keeper = present.remove(namespace["metadata"]["uid"].as_str().unwrap());
        let is_partly_known = self.model.is_partly_known(&key.namespace);
        if has_keeper && !is_partly_known {
            self.model.broken("no-leak", format!("{key} is owned by its namespace, which is fully known"));
        }
        let is_kept = source_uid.is_some_and(|uid| present.remove(uid.as_str().unwrap()));
        if is_kept {
            *kept.entry(source).or_default() += usize::from(!self.model.is_held(key));
        } else if uses.referring.is_empty() {
            self.model.broken("no-leak", format!("nothing uses {key}, but it still exists"));
        }
        let named = |uids: &BTreeSet<String>| uids.iter().map(|uid| self.name_of(uid)).collect::<Vec<_>>();
        if !uses.entered.is_subset(&present) && !has_keeper {
            let what =
                format!("{key} is owned by {:?}, but used by {:?}", named(&present), named(&uses.entered));
            self.model.broken("kept", what);
        } else if !present.is_subset(&uses.referring) {
            let what =
                format!("{key} is owned by {:?}, but used by {:?}", named(&present), named(&uses.referring));
            self.model.broken("no-leak", what);
        }
    }

    /// An object that is bound itself is owned by all its users.
    fn check_bound(&self, key: &Key, object: &Value, uses: &Users) {
        let present: BTreeSet<_> = owners(object).into_iter().collect();
        // Users that are left out own nothing. If the object is deleted while they need it, it is created again.
        if !uses.entered.is_subset(&present) && !self.model.is_partly_known(&key.namespace) {
            let named =
                |uids: &BTreeSet<String>| uids.iter().map(|uid| self.name_of(uid)).collect::<Vec<_>>();
            let what =
                format!("{key} is owned by {:?}, but used by {:?}", named(&present), named(&uses.entered));
            self.model.broken("kept", what);
        }
    }

    fn name_of(&self, uid: &str) -> String {
        let store = self.model.store();
        let found = store.iter().find(|(_, object)| object["metadata"]["uid"] == uid);
        found.map_or_else(|| format!("{uid} (gone)"), |(key, _)| key.to_string())
    }

    /// All objects, without fields that differ from run to run.
    pub(super) fn state(&self) -> State {
        let store = self.model.store();
        let by_uid: BTreeMap<_, _> = store
            .iter()
            .map(|(key, object)| (object["metadata"]["uid"].to_string(), key.to_string()))
            .collect();
        let mut state = State::new();
        for (key, object) in store.iter() {
            let is_derived = key.kind.is_revision() && key.kind != Kind::Job || is_snapshot(object);
            // The name of an AnalysisRun depends on the time of the last move.
            if self.loose && (is_derived || key.kind == Kind::AnalysisRun) {
                continue;
            }
            let mut object = (**object).clone();
            plain(&mut object, key.kind, &by_uid);
            if self.loose {
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.remove("generation");
                metadata.remove("ownerReferences");
                if let Some(notes) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                    notes.remove(crate::cluster::REVISION);
                    notes.remove(annotations::ROLL);
                    // Which workload of a limited source rolls first, and so takes the content that fails, is not promised.
                    change_state(notes, |record| {
                        record.retain(|field, _| field != "unhealthy" && field != "previous");
                    });
                }
                object.as_object_mut().unwrap().remove("status");
            }
            state.insert(key.to_string(), object);
        }
        state
    }

    /// `rolls`, `sticks` and `no-leak`: the final state, and the number of revisions, are the same as without faults.
    pub(super) fn compare(&self, number: usize, expected: &State, state: &State) {
        let without_pokes = |state: &State| {
            let mut state = state.clone();
            for object in state.values_mut() {
                if object["metadata"]["annotations"][annotations::ROLL] == "auto" {
                    object["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::ROLL);
                }
            }
            state
        };
        let (expected, state) = if self.may_poke_in_vain {
            (&without_pokes(expected), &without_pokes(state))
        } else {
            (expected, state)
        };
        let keys: BTreeSet<_> = expected.keys().chain(state.keys()).collect();
        let Some(key) = keys.into_iter().find(|key| expected.get(*key) != state.get(*key)) else { return };
        let text = |state: &State| state.get(key).map_or("nothing".to_owned(), Value::to_string);
        let (expected, found) = (text(expected), text(state));
        let at = expected.bytes().zip(found.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(60);
        let part = |text: &str| text.chars().skip(at).take(200).collect::<String>();
        let what =
            format!("at rest {number} {key} is …{}…, without faults …{}…", part(&found), part(&expected));
        self.model.broken("rolls", what);
    }

    /// `quiet`: new lists, restarts and another leader cause no write.
    pub(crate) fn check_quiet(&self) {
        let model = &self.model;
        let (writes, changes) = (model.writes(), model.store().log.len());
        for replica in 0..2 {
            let mut replicas = model.replicas();
            for watch in 0..replicas[replica].watches() {
                replicas[replica].relist(watch, &model.store());
            }
        }
        model.rest();
        model.restart(0);
        model.rest();
        let next = model.conditions().leader.map_or(0, |leader| 1 - leader);
        model.lead(next);
        model.rest();
        model.restart(1);
        model.rest();
        let store = model.store();
        if let Some(change) = store.log.get(changes) {
            let what = format!("{} was changed without a reason", change.key);
            drop(store);
            model.broken("quiet", what);
        } else if model.writes() != writes {
            drop(store);
            let made = model.trial().made.iter().rev().find(|made| made.writes).map(|made| made.what.clone());
            model.broken("quiet", format!("a write without a reason: {made:?}"));
        }
    }
}

/// Removes fields that differ from run to run.
fn plain(object: &mut Value, kind: Kind, by_uid: &BTreeMap<String, String>) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in NOTHING_SAID {
        metadata.remove(field);
    }
    if metadata.contains_key("deletionTimestamp") {
        metadata.insert("deletionTimestamp".to_owned(), json!(true));
    }
    if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
        for owner in owners.iter_mut() {
            *owner = json!(by_uid.get(&owner["uid"].to_string()));
        }
        owners.sort_by_key(Value::to_string);
    }
    let Some(notes) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    notes.remove(LAST_APPLIED);
    if kind.is_revision() {
        // A copy of the workload's annotations at the last observation by its controller.
        notes.retain(|note, _| !note.starts_with(annotations::PREFIX));
    } else if notes
        .get(annotations::ROLL)
        .and_then(Value::as_str)
        .is_some_and(|roll| roll.starts_with("auto-"))
    {
        notes.insert(annotations::ROLL.to_owned(), json!("auto"));
    }
    if let Some(state) = notes.get(annotations::CHANGE).and_then(Value::as_str).and_then(ChangeState::read) {
        let state = ChangeState { since: Timestamp::UNIX_EPOCH, ..state };
        notes.insert(annotations::CHANGE.to_owned(), json!(state.text()));
    }
    // Whether the controller moved a workload, or a user's write took the content first, depends on where the fault is. So does whether a
    // workload that is undone has had the content.
    change_state(notes, |record| {
        record.remove("moved");
        record.remove("unused");
    });
}

/// Changes each record in the annotation `state`.
fn change_state(notes: &mut Map<String, Value>, change: impl Fn(&mut Map<String, Value>)) {
    let Some(text) = notes.get_mut(annotations::STATE) else { return };
    let mut state: Value = text.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let kinds = state.as_object_mut().into_iter().flat_map(Map::values_mut);
    let sources = kinds.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    sources.filter_map(Value::as_object_mut).for_each(change);
    *text = json!(state.to_string());
}
