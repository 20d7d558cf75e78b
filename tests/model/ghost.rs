//! The record of an observer who misses nothing.

use std::collections::{BTreeMap, BTreeSet};

use confrev::{annotations, cluster::Event, telemetry::metrics::Reason};
use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    manifest::{Manifest, SOURCES, WORKLOADS, source_key},
    store::{Key, Kind, annotation, label},
};

/// A known limit: a new reference is bound to its snapshot a moment after admission. Until then, only the replica that
/// admitted it remembers the content. If that replica ends before the last owner is deleted, the content may be lost.
const FORGETS_AT_A_RESTART: bool = true;

/// The state of a source at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceState {
    /// The content; `None`: the source does not exist.
    pub content: Option<Value>,
    /// References to the source stay as written: its label is `"false"` or `"live"`.
    pub exempt: bool,
    /// A change of the source rolls its workloads all the same.
    pub live: bool,
}

/// A reference that a user has pinned to a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Pin {
    /// Whether it is certain which content of the source the admission recorded as seen.
    pub sure: bool,
    /// The source was missing at that time, so it is unknown which of its contents was seen last.
    pub missing: bool,
    /// How often the source had changed by that time.
    changes: usize,
    /// The possible contents of the source at that time.
    pub contents: Vec<Value>,
}

/// The pins of a workload, by workload and snapshot.
pub(crate) type Pins = BTreeMap<(Key, String), Pin>;
/// The length of each source's history at one time.
pub(crate) type Mark = BTreeMap<Key, usize>;

pub(crate) struct Ghost {
    /// The first broken promise.
    pub broken: Option<String>,
    pub manifests: Vec<Manifest>,
    /// The manifest of the last server-side apply.
    pub server_side: Vec<Value>,
    /// Snapshots that a user deleted.
    pub lost: BTreeSet<Key>,
    /// The replica that last resolved to the content of a snapshot; `None`: that replica has ended since.
    remembered: BTreeMap<Key, Option<usize>>,
    /// Workloads that got a template with snapshots in a write that no webhook saw.
    pub unseen: BTreeSet<Key>,
    history: BTreeMap<Key, Vec<SourceState>>,
    pins: Pins,
    /// The content of each snapshot of a template at its admission.
    frozen: BTreeMap<(String, String), BTreeMap<String, Value>>,
    /// Changes for each of which a workload may roll once.
    causes: BTreeMap<Key, usize>,
    rolled: BTreeMap<Key, SignedDuration>,
    /// The number of confrev's rolls that took effect.
    pub pokes: usize,
    /// The rolls of workloads that Events report.
    told_rolls: BTreeSet<String>,
}

impl Default for Ghost {
    fn default() -> Self {
        Self {
            broken: None,
            manifests: (0..WORKLOADS.len()).map(Manifest::first).collect(),
            server_side: vec![Value::Null; WORKLOADS.len()],
            lost: BTreeSet::new(),
            remembered: BTreeMap::new(),
            unseen: BTreeSet::new(),
            history: (0..SOURCES.len())
                .map(|index| (source_key(index), vec![SourceState::default()]))
                .collect(),
            pins: BTreeMap::new(),
            frozen: BTreeMap::new(),
            causes: BTreeMap::new(),
            rolled: BTreeMap::new(),
            pokes: 0,
            told_rolls: BTreeSet::new(),
        }
    }
}

impl Ghost {
    /// Records a stored object.
    pub(crate) fn stored(&mut self, key: &Key, object: &Value) {
        if key.kind == Kind::Namespace {
            return self.cause(&key.name);
        }
        if key.kind == Kind::ConfigMap {
            self.lost.remove(key);
            let mode = label(object, annotations::ENABLED);
            let (exempt, live) = (matches!(mode, Some("false" | "live")), mode == Some("live"));
            self.push(key, SourceState { content: Some(object["data"].clone()), exempt, live });
        }
    }

    pub(crate) fn deleted(&mut self, key: &Key) {
        self.push(key, SourceState::default());
        self.pins.retain(|(workload, _), _| workload != key);
        self.unseen.remove(key);
    }

    /// Records an attempted write of an Event. There must never be more Events of rolls than rolls.
    pub(crate) fn told(&mut self, event: &Event) {
        if event.reason == Reason::Rolled && !["ConfigMap", "Secret"].contains(&event.regarding.kind.as_str())
        {
            self.told_rolls.insert(format!("{} {} {}", event.regarding.uid, event.at, event.note));
        }
        if self.told_rolls.len() > self.pokes {
            let what = format!("{} Events report {} rolls", self.told_rolls.len(), self.pokes);
            self.broken.get_or_insert_with(|| format!("quiet: {what}"));
        }
    }

    /// Records that a replica admitted a new reference to a snapshot.
    pub(crate) fn taken_up(&mut self, snapshot: Key, replica: usize) {
        self.remembered.insert(snapshot, Some(replica));
    }

    /// Records that the garbage collector deleted an object.
    pub(crate) fn collected(&mut self, key: &Key) {
        if FORGETS_AT_A_RESTART && self.remembered.get(key).is_some_and(Option::is_none) {
            self.lost.insert(key.clone());
        }
    }

    /// Records the end of a replica: snapshots that are missing by now, and that only it remembered, may be lost.
    pub(crate) fn forgotten(&mut self, ended: usize, gone: impl Fn(&Key) -> bool) {
        for (key, by) in self.remembered.iter_mut().filter(|(_, by)| **by == Some(ended)) {
            *by = None;
            if FORGETS_AT_A_RESTART && gone(key) {
                self.lost.insert(key.clone());
            }
        }
    }

    fn push(&mut self, key: &Key, state: SourceState) {
        let is_source = SOURCES.contains(&(&key.namespace, &key.name));
        if key.kind != Kind::ConfigMap || !is_source || self.state(key).as_ref() == Some(&state) {
            return;
        }
        self.history.entry(key.clone()).or_default().push(state);
        self.cause(&key.namespace.clone());
    }

    /// Records a change after which the workloads of a namespace may roll.
    fn cause(&mut self, namespace: &str) {
        for (own, kind, name) in WORKLOADS {
            if own == namespace {
                *self.causes.entry(Key::new(kind, own, name)).or_default() += 1;
            }
        }
    }

    /// Records that another clock may now determine when a workload rolled last.
    pub(crate) fn clock_was_set(&mut self) {
        self.rolled.clear();
    }

    /// The present state of a source.
    pub(crate) fn state(&self, source: &Key) -> Option<SourceState> {
        self.history.get(source)?.last().cloned()
    }

    pub(crate) fn mark(&self) -> Mark {
        self.history.iter().map(|(key, states)| (key.clone(), states.len())).collect()
    }

    /// The states of a source since the mark, including its state at the mark.
    pub(crate) fn since(&self, mark: &Mark, source: &Key) -> Vec<SourceState> {
        let from = mark.get(source).map_or(0, |length| length - 1);
        self.history.get(source).map_or_else(Vec::new, |states| states[from..].to_vec())
    }

    /// How often a source changed, including its label.
    fn changes(&self, source: &Key) -> usize {
        let states = self.history.get(source).map_or(&[][..], Vec::as_slice);
        states.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// A new pin.
    pub(crate) fn pin(&self, source: &Key) -> Pin {
        // For a missing source, its last content stays recorded as seen.
        let states = self.history.get(source).map_or(&[][..], Vec::as_slice);
        let contents = states.iter().rev().find_map(|state| state.content.clone()).into_iter().collect();
        let sure = states.last().is_some_and(|state| state.content.is_some());
        Pin { sure, missing: !sure, changes: self.changes(source), contents }
    }

    /// Whether the reference is pinned: `Some(true)` for certain; `Some(false)` if the source changed and returned to
    /// its content.
    pub(crate) fn held(&self, workload: &Key, snapshot: &str, source: &Key) -> Option<bool> {
        let pin = self.pins.get(&(workload.clone(), snapshot.to_owned()))?;
        if pin.changes == self.changes(source) {
            return Some(pin.sure);
        }
        // The source was missing and has returned. It is unknown whether its content is the one that was seen.
        if pin.missing && self.changes(source) == pin.changes + 1 {
            return Some(false);
        }
        let present = self.state(source).and_then(|state| state.content);
        present.is_none_or(|present| pin.contents.contains(&present)).then_some(false)
    }

    /// The pin of the reference.
    pub(crate) fn pin_of(&self, workload: &Key, snapshot: &str) -> Option<Pin> {
        self.pins.get(&(workload.clone(), snapshot.to_owned())).cloned()
    }

    /// Whether a user pinned the workload to this snapshot.
    pub(crate) fn is_pinned(&self, workload: &Key, snapshot: &str) -> bool {
        self.pins.contains_key(&(workload.clone(), snapshot.to_owned()))
    }

    /// The content of a template's snapshot at the admission of the template.
    pub(crate) fn frozen(&self, namespace: &str, template: &Value, snapshot: &str) -> Option<&Value> {
        self.frozen.get(&frozen_key(namespace, template))?.get(snapshot)
    }

    /// Records the contents of the snapshots of an admitted template.
    pub(crate) fn freeze(&mut self, namespace: &str, template: &Value, contents: BTreeMap<String, Value>) {
        let entry = self.frozen.entry(frozen_key(namespace, template)).or_default();
        for (snapshot, content) in contents {
            entry.entry(snapshot).or_insert(content);
        }
    }

    /// Records an admitted workload and its pins.
    pub(crate) fn admitted(&mut self, key: &Key, pins: Pins) {
        self.unseen.remove(key);
        self.pins.retain(|(workload, _), _| workload != key);
        self.pins.extend(pins);
    }

    /// Records an admitted workload whose request is unknown: any of its references may be pinned.
    pub(crate) fn admitted_in_doubt(&mut self, key: &Key, names: impl Iterator<Item = String>) {
        let mut pins = Pins::new();
        for name in names {
            let source = SOURCES.iter().find(|(namespace, source)| {
                *namespace == key.namespace && name.starts_with(&format!("{source}-"))
            });
            if let Some((namespace, source)) = source {
                let source = Key::configmap(namespace, source);
                let states = self.history.get(&source).into_iter().flatten();
                let contents = states.filter_map(|state| state.content.clone()).collect();
                let pin = Pin { sure: false, missing: true, changes: self.changes(&source), contents };
                pins.insert((key.clone(), name), pin);
            }
        }
        self.admitted(key, pins);
    }

    /// Records a write of the workload by another writer: confrev's next roll may follow immediately.
    pub(crate) fn written(&mut self, key: &Key) {
        self.rolled.remove(key);
    }

    /// Records a roll by confrev that changed a template. It must have a cause, and each cause allows one roll.
    pub(crate) fn rolled(&mut self, key: &Key, elapsed: SignedDuration) -> Result<(), String> {
        let causes = self.causes.entry(key.clone()).or_default();
        if *causes == 0 {
            return Err(format!("{key} was rolled though nothing had changed"));
        }
        *causes -= 1;
        let last = self.rolled.insert(key.clone(), elapsed);
        match last {
            Some(last) if elapsed - last < SignedDuration::from_secs(10) => {
                Err(format!("{key} was rolled twice within {:?}", elapsed - last))
            }
            _ => Ok(()),
        }
    }
}

/// Templates of one namespace with equal `sources` have equal snapshots.
fn frozen_key(namespace: &str, template: &Value) -> (String, String) {
    (namespace.to_owned(), annotation(template, annotations::SOURCES).unwrap_or_default().to_owned())
}
